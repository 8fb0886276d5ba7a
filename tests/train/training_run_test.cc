#include "training_run.h"

#include "paceline/base/philox.h"
#include "paceline/checkpoint/blocks.h"
#include "paceline/comm/thread_communicator.h"

#include <ATen/ops/zeros.h>

#include <cmath>
#include <mutex>

namespace paceline {

void RandomSamples::read(std::uint64_t sample, std::span<std::int64_t> tokens, std::span<std::int32_t> document_ids,
                         std::span<std::uint8_t> loss_mask) const {
  const std::uint64_t key = stream_key(11, "tokens");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int64_t>(random_bits(key, sample * 4096 + i) % static_cast<std::uint64_t>(vocab_size_));
    document_ids[i] = 0;
  }
  for (std::size_t i = 0; i < loss_mask.size(); ++i) {
    loss_mask[i] = random_uniform(stream_key(12, "mask"), sample * 4096 + i) >= masked_share_;
  }
}

ModelConfig tiny_llama() {
  return {.family = ModelFamily::llama, .vocab_size = 131, .hidden_size = 64, .num_hidden_layers = 4, .num_attention_heads = 4,
          .num_key_value_heads = 2, .head_dim = 16, .intermediate_size = 96, .max_position_embeddings = 128,
          .norm_epsilon = 1e-5, .initializer_range = 0.1};
}

ModelConfig tiny_gpt2() {
  return {.family = ModelFamily::gpt2, .vocab_size = 131, .hidden_size = 64, .num_hidden_layers = 4, .num_attention_heads = 4,
          .num_key_value_heads = 4, .head_dim = 16, .intermediate_size = 96, .max_position_embeddings = 64,
          .norm_epsilon = 1e-5, .tie_word_embeddings = true, .attention_bias = true, .mlp_bias = true,
          .activation = "gelu_new", .initializer_range = 0.1};
}

TrainingOutcome run_rank(const TrainingRun& run, std::shared_ptr<Transport> transport, const Collect& collect) {
  const Layout& layout = run.options.layout;
  CommunicatorSet communicators(transport, layout);
  const Coordinate at = layout.coordinate(communicators.rank());
  const Program program = build_rank_program(run.model, run.options, at);
  MemoryAccount account;
  const int model_coordinate = at.pp * layout.tp + at.tp;
  ModelState state(program, model_coordinate, parse_precision(run.precision), run.bucket_bytes, true, account);
  state.initialize_weights(5);
  Recorder recorder;
  Executor executor(program, run.options, state, communicators, run.batch, run.schedule, recorder, account);
  const auto source = run.source ? run.source : std::make_shared<RandomSamples>(run.batch.sequence_length, run.model.vocab_size, run.masked_share);
  const std::int64_t global_batch = run.batch.micro_batch_size * run.batch.micro_batches * layout.dp;

  const auto collect_all = [&](const std::string& what) {
    for (std::size_t i = 0; i < program.parameters.size(); ++i) {
      const int index = static_cast<int>(i);
      const at::Tensor& values = what == "gradient" ? state.gradient(index) : state.weight(index);
      for (const Block& block : program.parameters[i].blocks) {
        if (values.defined() && at.dp == 0 && owns_block(block, model_coordinate)) collect(what, block, values);
      }
    }
  };

  TrainingOutcome outcome;
  for (int step = 1; step <= run.steps; ++step) {
    StepRequest request{.step = step, .first_sample = static_cast<std::uint64_t>((step - 1) * global_batch),
                        .max_gradient_norm = run.max_gradient_norm, .optimizer_count = step};
    request.optimizer.learning_rate = run.learning_rate;
    request.optimizer.weight_decay = run.weight_decay;
    const StepResult result = executor.step(request, *source);
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.gradient_norm);
    outcome.valid_targets.push_back(result.valid_targets);
    outcome.updated.push_back(result.updated);
    if (step == 1) collect_all("gradient");
    if (run.after_step) run.after_step(step, at, program, state);
  }
  collect_all("weight");
  outcome.evaluation_loss = executor.evaluate(*source, 7, run.steps).loss();
  return outcome;
}

/// Equal, or both not a number.
void expect_same_numbers(const std::vector<double>& a, const std::vector<double>& b, int rank) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) << a[i] << " and " << b[i] << ", rank " << rank;
  }
}

TrainingOutcome run_as_threads(const TrainingRun& run) {
  std::mutex mutex;
  TrainingOutcome outcome;
  std::map<std::string, at::Tensor> gradients, weights;
  run_ranks(run.options.layout.world_size(), [&](int rank, Hub& hub) {
    const TrainingOutcome own = run_rank(run, hub.transport(rank), [&](const std::string& what, const Block& block, const at::Tensor& values) {
      const std::lock_guard lock(mutex);
      at::Tensor& whole = (what == "gradient" ? gradients : weights)[block.tensor];
      if (!whole.defined()) whole = at::zeros(block.global_shape, values.options());
      global_view(block, whole).copy_(block_view(block, values));
    });
    const std::lock_guard lock(mutex);
    if (outcome.losses.empty()) outcome = own;
    expect_same_numbers(outcome.losses, own.losses, rank);
    expect_same_numbers(outcome.norms, own.norms, rank);
    EXPECT_EQ(outcome.updated, own.updated) << "rank " << rank;
  });
  outcome.first_gradients = std::move(gradients);
  outcome.weights = std::move(weights);
  return outcome;
}

void expect_equal_runs(const TrainingOutcome& one, const TrainingOutcome& other, double tolerance, const std::string& name) {
  ASSERT_EQ(one.losses.size(), other.losses.size());
  for (std::size_t step = 0; step < one.losses.size(); ++step) {
    EXPECT_NEAR(one.losses[step], other.losses[step], tolerance * one.losses[step]) << name << " step " << step + 1;
    EXPECT_NEAR(one.norms[step], other.norms[step], tolerance * one.norms[step]) << name << " step " << step + 1;
  }
  ASSERT_EQ(one.first_gradients.size(), other.first_gradients.size()) << name;
  for (const auto& [tensor, gradient] : one.first_gradients) {
    ASSERT_TRUE(other.first_gradients.contains(tensor)) << name << " " << tensor;
    EXPECT_TRUE(close(gradient, other.first_gradients.at(tensor), tolerance, one.norms[0])) << name << " " << tensor;
  }
  EXPECT_NEAR(one.evaluation_loss, other.evaluation_loss, tolerance * one.evaluation_loss) << name;
}

::testing::AssertionResult close(const at::Tensor& a, const at::Tensor& b, double tolerance, double global_norm) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  const double difference = x.sub(y).pow(2).sum().item().toDouble();
  const double norm = x.pow(2).sum().item().toDouble();
  const double allowed = tolerance * std::max(std::sqrt(norm), 1e-3 * global_norm);
  if (std::sqrt(difference) <= allowed) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "||a - b|| = " << std::sqrt(difference) << " > " << allowed;
}

}  // namespace paceline
