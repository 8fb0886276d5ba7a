// What a plan says of memory is what the executor's allocator sees, class by class and to the byte.

#include "paceline/plan/memory_model.h"

#include "paceline/comm/thread_communicator.h"
#include "training_run.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <mutex>

namespace paceline {
namespace {

ModelConfig model_of(ModelFamily family) {
  ModelConfig model = family == ModelFamily::llama ? tiny_llama() : tiny_gpt2();
  model.vocab_size = 2048;  // logits and passes large enough that no scratch of a single operation is the peak
  model.hidden_size = 128;
  model.head_dim = 32;
  model.intermediate_size = 352;
  model.max_position_embeddings = 128;
  return model;
}

/// Peaks by class, the largest over each stage's ranks, after two steps.
std::vector<std::array<std::int64_t, memory_class_count>> measured_peaks(const StepSettings& settings) {
  install_accounting_allocator();
  std::vector<std::array<std::int64_t, memory_class_count>> peaks(static_cast<std::size_t>(settings.parallel.layout.pp));
  std::mutex mutex;
  run_ranks(settings.parallel.layout.world_size(), [&](int rank, Hub& hub) {
    at::set_num_threads(1);
    CommunicatorSet communicators(hub.transport(rank), settings.parallel.layout);
    const Coordinate at = settings.parallel.layout.coordinate(rank);
    const Program program = build_rank_program(settings.model, settings.parallel, at);
    MemoryAccount account;
    ModelState state(program, at.pp * settings.parallel.layout.tp + at.tp, parse_precision(settings.precision),
                     settings.bucket_bytes, true, account);
    state.initialize_weights(1);
    Recorder recorder;
    const BatchShape batch{.micro_batch_size = settings.batch.micro, .micro_batches = settings.batch.accumulation,
                           .sequence_length = settings.sequence_length};
    Executor executor(program, settings.parallel, state, communicators, batch, settings.schedule, recorder, account);
    const RandomSamples source(settings.sequence_length, settings.model.vocab_size);
    for (int step = 1; step <= 2; ++step) executor.step({.step = step, .max_gradient_norm = 1, .optimizer_count = step}, source);
    const MemoryUse use = account.use();
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < memory_class_count; ++i) {
      std::int64_t& peak = peaks[static_cast<std::size_t>(at.pp)][i];
      peak = std::max(peak, use.peak[i]);
    }
  });
  return peaks;
}

void expect_as_planned(const StepSettings& settings) {
  SCOPED_TRACE(family_name(settings.model.family) + " " + settings.parallel.layout.text() + " " +
               pipeline_schedule_name(settings.schedule) + " " + settings.precision);
  const TrainingStep step = build_training_step(settings);
  const auto measured = measured_peaks(settings);
  for (int stage = 0; stage < settings.parallel.layout.pp; ++stage) {
    const StageMemory planned = stage_memory(step, stage);
    const std::array<double, memory_class_count> by_class = {planned.parameters,  planned.gradients,     planned.optimizer,
                                                             planned.activations, planned.communication, planned.workspace};
    for (std::size_t i = 0; i < memory_class_count; ++i) {
      EXPECT_EQ(static_cast<double>(measured[static_cast<std::size_t>(stage)][i]), by_class[i])
          << "stage " << stage << " " << memory_class_name(static_cast<MemoryClass>(i));
    }
  }
}

StepSettings settings_of(ModelFamily family, Layout layout, std::int64_t micro_batches) {
  StepSettings settings;
  settings.model = model_of(family);
  settings.parallel.layout = layout;
  settings.batch = resolve_batch(std::nullopt, 4, micro_batches, layout.dp);
  settings.sequence_length = 64;
  return settings;
}

TEST(PlannedMemory, OneRankOfBothFamiliesInBothPrecisions) {
  for (const ModelFamily family : {ModelFamily::llama, ModelFamily::gpt2}) {
    StepSettings settings = settings_of(family, {}, 2);
    expect_as_planned(settings);
    settings.precision = "fp64";
    expect_as_planned(settings);
  }
}

TEST(PlannedMemory, TensorAndDataParallelism) {
  for (const ModelFamily family : {ModelFamily::llama, ModelFamily::gpt2}) {
    expect_as_planned(settings_of(family, {.dp = 2, .tp = 2}, 1));
  }
}

TEST(PlannedMemory, PipelinesOfBothSchedules) {
  for (const PipelineSchedule kind : {PipelineSchedule::gpipe, PipelineSchedule::one_forward_one_backward}) {
    StepSettings settings = settings_of(ModelFamily::llama, {.tp = 2, .pp = 2}, 4);
    settings.schedule = kind;
    settings.model.tie_word_embeddings = true;
    expect_as_planned(settings);
    settings = settings_of(ModelFamily::gpt2, {.pp = 4}, 3);
    settings.schedule = kind;
    expect_as_planned(settings);
  }
}

TEST(PlannedMemory, FrozenParametersAreNeitherKeptNorUpdated) {
  StepSettings settings = settings_of(ModelFamily::llama, {}, 1);
  settings.parallel.frozen = {"model\\.embed_tokens\\.weight", ".*mlp\\..*"};
  expect_as_planned(settings);
}

}  // namespace
}  // namespace paceline
