#pragma once

#include "paceline/plan/cost_model.h"

namespace paceline {

/// Width 8, 2 heads of 4, 1 key/value head, feed-forward 12, vocabulary 10; micro-batches of 2 sequences of 3 tokens.
inline StepSettings tiny_step(Layout layout, std::int64_t layers, std::int64_t micro_batches) {
  StepSettings settings;
  settings.model = {.family = ModelFamily::llama, .vocab_size = 10, .hidden_size = 8, .num_hidden_layers = layers,
                    .num_attention_heads = 2, .num_key_value_heads = 1, .head_dim = 4, .intermediate_size = 12,
                    .max_position_embeddings = 16};
  settings.parallel.layout = layout;
  settings.batch = resolve_batch(std::nullopt, 2, micro_batches, layout.dp);
  settings.sequence_length = 3;
  return settings;
}

/// Each operation half takes a second, and nothing else takes time.
inline Place second_per_call(int cores) {
  MachineProfile profile = built_in_profile(cores);
  for (ProductRate& rate : profile.products) rate.flops_per_s = 1e30;
  for (AttentionRate& rate : profile.attention) rate.forward_flops_per_s = rate.backward_flops_per_s = 1e30;
  for (MemoryRate& rate : profile.memory) rate.bytes_per_s = 1e30;
  for (MessageTime& message : profile.messages) message.seconds = 0;
  profile.operation_overhead_s = 1;
  profile.action_overhead_s = 0;
  return {.profile = profile, .cores = cores, .threads_per_rank = 1};
}

}  // namespace paceline
