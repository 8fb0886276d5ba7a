#pragma once

#include "paceline/arch/operation_cost.h"
#include "paceline/config/run_settings.h"
#include "paceline/parallel/rank_program.h"
#include "paceline/plan/batch.h"
#include "paceline/schedule/schedule.h"

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

/// Everything that decides what a training step does on each rank.
struct StepSettings {
  ModelConfig model;
  ParallelOptions parallel;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  BatchPlan batch;
  std::int64_t sequence_length = 1;
  std::string precision = "fp32";  ///< fp32 or fp64
  std::int64_t bucket_bytes = 25 << 20;

  std::int64_t element_bytes() const { return precision == "fp64" ? 8 : 4; }
  MicroBatch micro_batch() const {
    return {.sequences = batch.micro, .sequence_length = sequence_length, .element_bytes = element_bytes()};
  }
  std::int64_t tokens() const { return batch.global * sequence_length; }  ///< of a step, all ranks
};

/// The step that a run's settings describe, for a model whose shape is resolved. Refuses a batch that does not close.
StepSettings resolve_step(const RunSettings& settings, const ModelConfig& model);

/// A step as data: the operation list of each pipeline stage (that of tensor rank 0: the others' have the same sizes),
/// its gradient buckets, and the schedule that all ranks play.
struct TrainingStep {
  StepSettings settings;
  std::vector<Program> stages;
  std::vector<GradientBuckets> buckets;  ///< of each stage
  Schedule schedule;
};

/// Refuses layouts that the model does not allow, and a schedule that cannot run.
TrainingStep build_training_step(const StepSettings& settings);

}  // namespace paceline
