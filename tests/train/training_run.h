#pragma once

#include "paceline/comm/communicator_set.h"
#include "paceline/parallel/rank_program.h"
#include "paceline/train/executor.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace paceline {

/// Random tokens as a function of (seed, sample, position), some targets masked.
class RandomSamples : public SampleSource {
 public:
  RandomSamples(std::int64_t sequence_length, std::int64_t vocab_size, double masked_share = 0.2)
      : sequence_length_(sequence_length), vocab_size_(vocab_size), masked_share_(masked_share) {}
  std::int64_t sequence_length() const override { return sequence_length_; }
  void read(std::uint64_t sample, std::span<std::int64_t> tokens, std::span<std::int32_t> document_ids,
            std::span<std::uint8_t> loss_mask) const override;

 private:
  std::int64_t sequence_length_;
  std::int64_t vocab_size_;
  double masked_share_;
};

/// A training run for tests: a few steps of a small model on one layout.
struct TrainingRun {
  ModelConfig model;
  ParallelOptions options;
  BatchShape batch;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  std::string precision = "fp64";
  int steps = 20;
  double learning_rate = 1e-3;
  double weight_decay = 0.1;
  double max_gradient_norm = 1.0;
  std::int64_t bucket_bytes = 4096;
  double masked_share = 0.2;
  std::shared_ptr<SampleSource> source;  ///< RandomSamples by default
  /// Called by every rank after each step, by all at the same time.
  std::function<void(int step, const Coordinate&, const Program&, ModelState&)> after_step;
};

struct TrainingOutcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<std::int64_t> valid_targets;
  std::vector<bool> updated;
  std::map<std::string, at::Tensor> first_gradients;  ///< whole tensors of step 1, by Hugging Face name
  std::map<std::string, at::Tensor> weights;          ///< whole tensors after the last step
  double evaluation_loss = 0;
};

/// One rank of a run, on any transport. What the rank owns of gradients and weights is handed to `collect`.
using Collect = std::function<void(const std::string& what, const Block& block, const at::Tensor& values)>;
TrainingOutcome run_rank(const TrainingRun& run, std::shared_ptr<Transport> transport, const Collect& collect);

/// The whole run with its ranks as threads of this process; losses and norms are rank 0's, and equal on all ranks.
TrainingOutcome run_as_threads(const TrainingRun& run);

ModelConfig tiny_llama();
ModelConfig tiny_gpt2();

/// Losses, norms, first gradients and evaluation agree within rounding.
void expect_equal_runs(const TrainingOutcome& one, const TrainingOutcome& other, double tolerance, const std::string& name);

/// ||a - b|| <= tolerance x max(||a||, 1e-3 x global_norm).
::testing::AssertionResult close(const at::Tensor& a, const at::Tensor& b, double tolerance, double global_norm);

}  // namespace paceline
