#pragma once

#include "paceline/checkpoint/element_type.h"
#include "paceline/checkpoint/safetensors.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>

namespace paceline {

/// The format's name for a tensor's type. A type that the format lacks is an error.
ElementType element_type_of(const at::Tensor& tensor);

/// The type that tensors of this element type have; an error names `what` and the dtype where torch has none.
at::ScalarType scalar_type_of(ElementType type, const std::string& what);

/// A tensor of a mapped file: a view without a copy where the bytes are aligned. Valid as long as the file is open.
at::Tensor mapped_tensor(const SafetensorsFile& file, const SafetensorsTensor& tensor);

/// The tensor's values in their logical order, contiguous on the CPU: itself if it is that already.
at::Tensor contiguous_values(const at::Tensor& tensor);

/// The bytes of a contiguous CPU tensor.
std::span<const std::byte> tensor_bytes(const at::Tensor& tensor);

}  // namespace paceline
