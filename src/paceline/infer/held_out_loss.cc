#include "paceline/infer/held_out_loss.h"

#include "paceline/train/stage_runner.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

namespace paceline {
namespace {

MicroBatchData read_samples(const SampleSource& source, std::int64_t first, std::int64_t count) {
  const std::int64_t length = source.sequence_length();
  MicroBatchData data{.tokens = at::empty({count, length}, at::kLong), .targets = at::empty({count, length}, at::kLong),
                      .mask = at::empty({count, length}, at::kByte)};
  std::vector<std::int64_t> tokens(length + 1);
  std::vector<std::int32_t> documents(length + 1);
  for (std::int64_t row = 0; row < count; ++row) {
    source.read(static_cast<std::uint64_t>(first + row), tokens, documents,
                {data.mask.mutable_data_ptr<std::uint8_t>() + row * length, static_cast<std::size_t>(length)});
    std::copy_n(tokens.begin(), length, data.tokens.mutable_data_ptr<std::int64_t>() + row * length);
    std::copy_n(tokens.begin() + 1, length, data.targets.mutable_data_ptr<std::int64_t>() + row * length);
  }
  return data;
}

}  // namespace

HeldOutLoss held_out_loss(LoadedModel& model, const SampleSource& source, std::int64_t samples, std::int64_t micro_batch_size,
                          const std::function<void(std::int64_t, const HeldOutLoss&)>& progress) {
  StageRunner runner(model.program(), model.state(), nullptr, source.sequence_length(), model.account());
  HeldOutLoss result;
  for (std::int64_t first = 0; first < samples; first += micro_batch_size) {
    const std::int64_t count = std::min(micro_batch_size, samples - first);
    const MicroBatchData data = read_samples(source, first, count);
    result.loss_sum += runner.evaluate(data, {}, false, {}).loss_sum;
    const std::uint8_t* mask = data.mask.const_data_ptr<std::uint8_t>();
    result.targets += std::count_if(mask, mask + data.mask.numel(), [](std::uint8_t counted) { return counted != 0; });
    if (progress) progress(first + count, result);
  }
  return result;
}

}  // namespace paceline
