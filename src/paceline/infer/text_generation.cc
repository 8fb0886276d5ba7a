#include "paceline/infer/text_generation.h"

#include "paceline/base/error.h"
#include "paceline/infer/decoder.h"

#include <algorithm>
#include <chrono>
#include <span>

namespace paceline {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

Generation generate_tokens(LoadedModel& model, const std::vector<std::int64_t>& prompt, const GenerationOptions& options,
                           const std::function<void(std::int64_t)>& on_token) {
  PACELINE_CHECK(!prompt.empty());
  const auto prompt_tokens = static_cast<std::int64_t>(prompt.size());
  const std::int64_t window = model.config().max_position_embeddings;
  const Sampler sampler(options.sampling, options.allowed);
  Decoder decoder(model.program(), model.state(), std::min(window, prompt_tokens + options.max_new_tokens));
  std::vector<std::int64_t> context = prompt;
  const auto last = [&](std::int64_t count) { return std::span(context).last(static_cast<std::size_t>(count)); };

  Generation result;
  if (options.max_new_tokens == 0) return result;
  if (prompt_tokens > window) ++result.window_slides;
  const Clock::time_point start = Clock::now();
  Clock::time_point first_token = start;
  at::Tensor logits = decoder.append_for_next(last(std::min(prompt_tokens, window)));
  while (true) {
    const auto made = static_cast<std::int64_t>(result.tokens.size());
    const std::int64_t token = sampler.sample(logits, static_cast<std::uint64_t>(made));
    if (made == 0) {
      result.prefill_s = seconds_since(start);
      first_token = Clock::now();
    }
    if (std::find(options.end_ids.begin(), options.end_ids.end(), token) != options.end_ids.end()) {
      result.stop = StopReason::end_of_text;
      break;
    }
    result.tokens.push_back(token);
    context.push_back(token);
    if (on_token) on_token(token);
    if (made + 1 == options.max_new_tokens) break;
    if (decoder.length() < decoder.capacity()) {
      logits = decoder.append_for_next(last(1));
    } else {
      ++result.window_slides;
      decoder.truncate(0);
      logits = decoder.append_for_next(last(std::max<std::int64_t>(1, window / 2)));
    }
  }
  result.decode_s = seconds_since(first_token);
  return result;
}

}  // namespace paceline
