#pragma once

#include "paceline/infer/loaded_model.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace paceline {

/// What the model makes of one sequence: to hold against another implementation.
struct SequenceGradients {
  at::Tensor logits;  ///< [T, vocabulary]
  double loss = 0;    ///< mean cross-entropy of the T - 1 next tokens, nats
  /// Of that loss by each parameter, in Hugging Face's name and shape; empty when the model has no gradients.
  std::vector<std::pair<std::string, at::Tensor>> gradients;
};

/// Needs at least two tokens, all in the vocabulary, no more than the model has positions.
SequenceGradients sequence_gradients(LoadedModel& model, const std::vector<std::int64_t>& tokens);

/// One safetensors file: "logits", "loss" (a scalar), and each gradient under its parameter's name.
void write_sequence_gradients(const std::filesystem::path& path, const SequenceGradients& result);

}  // namespace paceline
