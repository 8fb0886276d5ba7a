#pragma once

#include "paceline/infer/loaded_model.h"
#include "paceline/infer/sampler.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace paceline {

enum class StopReason { end_of_text, max_new_tokens };

struct GenerationOptions {
  SamplingOptions sampling;
  std::int64_t max_new_tokens = 100;
  std::vector<std::int64_t> end_ids;  ///< tokens that end the text; not part of it
  std::vector<bool> allowed;          ///< by id: tokens that may be drawn
};

struct Generation {
  std::vector<std::int64_t> tokens;  ///< new ones
  StopReason stop = StopReason::max_new_tokens;
  std::int64_t window_slides = 0;    ///< how often the context window was full
  double prefill_s = 0;
  double decode_s = 0;               ///< of the tokens after the first
};

/// Continues `prompt` (at least one token). The context is the last max_position_embeddings tokens; when it is full, it goes
/// on with the later half of them. `on_token` is told each new token as it comes.
Generation generate_tokens(LoadedModel& model, const std::vector<std::int64_t>& prompt, const GenerationOptions& options,
                           const std::function<void(std::int64_t)>& on_token);

}  // namespace paceline
