#pragma once

#include "paceline/engine/requests.h"

namespace paceline {

/// `paceline eval MODEL`: loss (nats a token), perplexity and bits per byte of a shard, or the logits and gradients of one
/// given sequence.
int run_evaluate(const EvaluateRequest& request);

}  // namespace paceline
