#include "paceline/infer/sequence_gradients.h"

#include "paceline/base/error.h"
#include "paceline/base/version.h"
#include "paceline/checkpoint/blocks.h"
#include "paceline/checkpoint/huggingface_model.h"
#include "paceline/checkpoint/safetensors.h"
#include "paceline/checkpoint/tensor_storage.h"
#include "paceline/train/stage_runner.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>

namespace paceline {
namespace {

void check_tokens(const ModelConfig& model, const std::vector<std::int64_t>& tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count < 2) refuse("--tokens: give at least two, a loss needs a next token");
  if (count > model.max_position_embeddings) {
    refuse("--tokens: {} of them are more than the model's {} positions", count, model.max_position_embeddings);
  }
  for (const std::int64_t token : tokens) {
    if (token < 0 || token >= model.vocab_size) {
      refuse("--tokens: {} is outside the model's vocabulary of {}", token, model.vocab_size);
    }
  }
}

/// The sequence as one row; the last position has no target.
MicroBatchData one_row(const std::vector<std::int64_t>& tokens) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  MicroBatchData data{.tokens = at::empty({1, length}, at::kLong), .targets = at::zeros({1, length}, at::kLong),
                      .mask = at::ones({1, length}, at::kByte)};
  std::copy(tokens.begin(), tokens.end(), data.tokens.mutable_data_ptr<std::int64_t>());
  std::copy(tokens.begin() + 1, tokens.end(), data.targets.mutable_data_ptr<std::int64_t>());
  data.mask.mutable_data_ptr<std::uint8_t>()[length - 1] = 0;
  return data;
}

}  // namespace

SequenceGradients sequence_gradients(LoadedModel& model, const std::vector<std::int64_t>& tokens) {
  check_tokens(model.config(), tokens);
  const auto length = static_cast<std::int64_t>(tokens.size());
  const MicroBatchData data = one_row(tokens);
  StageRunner runner(model.program(), model.state(), nullptr, length, model.account());
  StageRunner::Evaluation evaluation = runner.evaluate(data, {}, true, {});
  SequenceGradients result;
  result.logits = evaluation.logits.view({length, -1}).narrow(1, 0, model.config().vocab_size);
  result.loss = evaluation.loss_sum / static_cast<double>(length - 1);
  if (!model.state().flat_gradients.defined()) return result;

  runner.begin_step();
  runner.backward(runner.forward(data, {}, 1.0 / static_cast<double>(length - 1), {}), {}, {});
  runner.finish_gradients();
  std::map<std::string, at::Tensor> whole;
  for (const GlobalTensor& tensor : global_tensors(model.program().parameters)) {
    whole[tensor.name] = at::zeros(tensor.shape, result.logits.options());
    result.gradients.emplace_back(tensor.name, whole[tensor.name]);
  }
  for (std::size_t i = 0; i < model.program().parameters.size(); ++i) {
    for (const Block& block : model.program().parameters[i].blocks) {
      global_view(block, whole[block.tensor]).copy_(gather(block, model.state().gradient(static_cast<int>(i))));
    }
  }
  return result;
}

void write_sequence_gradients(const std::filesystem::path& path, const SequenceGradients& result) {
  const auto entry = [](const std::string& name, const at::Tensor& tensor) {
    return SafetensorsEntry{.name = name, .type = element_type_of(tensor), .shape = tensor.sizes().vec(), .content = [tensor] {
                              return tensor_bytes(tensor);
                            }};
  };
  std::vector<SafetensorsEntry> entries = {
      entry("logits", contiguous_values(result.logits)),
      entry("loss", at::full({}, result.loss, at::TensorOptions().dtype(at::kDouble)))};
  for (const auto& [name, gradient] : result.gradients) entries.push_back(entry(name, gradient));
  write_safetensors(path, {{"content", "logits, mean loss of the next tokens and its gradient by each parameter"},
                           {"program_version", program_version}},
                    std::move(entries));
}

}  // namespace paceline
