#include "paceline/checkpoint/blocks.h"

#include "paceline/base/error.h"
#include "paceline/base/philox.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

namespace paceline {

at::Tensor block_view(const Block& block, const at::Tensor& local) {
  if (block.extent.size() == 1) {
    PACELINE_CHECK(local.dim() == 1 && !block.transposed);
    return local.narrow(0, block.row, block.extent[0]);
  }
  PACELINE_CHECK(block.extent.size() == 2 && local.dim() == 2);
  const std::int64_t rows = block.transposed ? block.extent[1] : block.extent[0];
  const std::int64_t columns = block.transposed ? block.extent[0] : block.extent[1];
  const at::Tensor part = local.narrow(0, block.row, rows).narrow(1, block.column, columns);
  return block.transposed ? part.t() : part;
}

at::Tensor global_view(const Block& block, const at::Tensor& global) {
  PACELINE_CHECK(global.sizes() == at::IntArrayRef(block.global_shape));
  at::Tensor part = global;
  for (std::size_t d = 0; d < block.extent.size(); ++d) {
    part = part.narrow(static_cast<std::int64_t>(d), block.begin[d], block.extent[d]);
  }
  return part;
}

void scatter(const Block& block, const at::Tensor& global, const at::Tensor& local) {
  block_view(block, local).copy_(global_view(block, global));
}

at::Tensor gather(const Block& block, const at::Tensor& local) { return block_view(block, local).contiguous(); }

std::int64_t block_elements(const Block& block) {
  std::int64_t elements = 1;
  for (const std::int64_t size : block.extent) elements *= size;
  return elements;
}

bool has_padding(const Parameter& parameter) {
  std::int64_t covered = 0;
  for (const Block& block : parameter.blocks) covered += block_elements(block);
  return covered < parameter.elements();
}

bool owns_block(const Block& block, int model_coordinate) {
  return block.replicas.empty() || block.replicas.front() == model_coordinate;
}

void initialize(const Parameter& parameter, std::uint64_t seed, const at::Tensor& local) {
  PACELINE_CHECK(local.sizes() == at::IntArrayRef(parameter.shape));
  local.zero_();
  if (parameter.initialization == Initialization::zeros) return;
  for (const Block& block : parameter.blocks) {
    const at::Tensor view = block_view(block, local);
    if (parameter.initialization == Initialization::ones) {
      view.fill_(1.0);
      continue;
    }
    const std::uint64_t key = stream_key(seed, block.tensor);
    const bool matrix = block.extent.size() == 2;
    const std::int64_t global_columns = matrix ? block.global_shape[1] : 1;
    const std::int64_t columns = matrix ? block.extent[1] : 1;
    const std::int64_t first_column = matrix ? block.begin[1] : 0;
    const std::int64_t row_stride = view.stride(0);
    const std::int64_t column_stride = matrix ? view.stride(1) : 0;
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, view.scalar_type(), "initialize", [&] {
      scalar_t* values = view.mutable_data_ptr<scalar_t>();
      at::parallel_for(0, view.numel(), 8192, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t row = i / columns;
          const std::int64_t column = i % columns;
          const std::int64_t index = (block.begin[0] + row) * global_columns + first_column + column;
          const double value = parameter.standard_deviation * random_normal(key, static_cast<std::uint64_t>(index));
          values[row * row_stride + column * column_stride] = static_cast<scalar_t>(value);
        }
      });
    });
  }
}

}  // namespace paceline
