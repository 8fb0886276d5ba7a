#include "paceline/plan/training_step.h"

#include "paceline/base/error.h"

#include <optional>

namespace paceline {

StepSettings resolve_step(const RunSettings& settings, const ModelConfig& model) {
  const auto given = [](std::int64_t value) { return value == 0 ? std::nullopt : std::optional(value); };
  StepSettings step;
  step.model = model;
  step.parallel = resolve_parallel(settings);
  step.schedule = parse_pipeline_schedule(settings.parallel.schedule);
  step.batch = resolve_batch(given(settings.train.global_batch_size), settings.train.micro_batch_size,
                             given(settings.train.gradient_accumulation_steps), settings.parallel.dp);
  step.sequence_length = settings.train.sequence_length;
  step.precision = settings.train.precision;
  step.bucket_bytes = static_cast<std::int64_t>(settings.parallel.bucket_mb * 1024 * 1024);
  return step;
}

TrainingStep build_training_step(const StepSettings& settings) {
  TrainingStep step{.settings = settings};
  const Layout& layout = settings.parallel.layout;
  ScheduleOptions options{.kind = settings.schedule, .stages = layout.pp,
                          .micro_batches = static_cast<int>(settings.batch.accumulation)};
  for (int stage = 0; stage < layout.pp; ++stage) {
    step.stages.push_back(build_rank_program(settings.model, settings.parallel, {.pp = stage}));
    step.buckets.push_back(gradient_buckets(step.stages.back(), settings.bucket_bytes, settings.element_bytes()));
    options.replicas_to_reduce.push_back(has_partial_gradients(step.stages.back()));
    if (layout.dp > 1) options.buckets.push_back(static_cast<int>(step.buckets.back().buckets.size()));
  }
  step.schedule = build_training_schedule(options);
  const ScheduleCheck checked = check(step.schedule);
  if (!checked.valid) fail("the training schedule cannot run: {}", checked.error);
  return step;
}

}  // namespace paceline
