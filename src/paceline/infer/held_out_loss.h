#pragma once

#include "paceline/infer/loaded_model.h"
#include "paceline/train/sample_source.h"

#include <cstdint>
#include <functional>

namespace paceline {

struct HeldOutLoss {
  double loss_sum = 0;        ///< nats, over all counted targets
  std::int64_t targets = 0;
  double mean() const { return loss_sum / static_cast<double>(targets); }  ///< nats a token
};

/// The loss of samples [0, samples), `micro_batch_size` at a time: what the trainer's own evaluation computes. `progress`
/// is told the finished samples and the loss so far.
HeldOutLoss held_out_loss(LoadedModel& model, const SampleSource& source, std::int64_t samples, std::int64_t micro_batch_size,
                          const std::function<void(std::int64_t done, const HeldOutLoss& so_far)>& progress);

}  // namespace paceline
