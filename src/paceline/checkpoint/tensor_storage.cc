#include "paceline/checkpoint/tensor_storage.h"

#include "paceline/base/error.h"

#include <ATen/ops/contiguous.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <array>
#include <cstring>
#include <utility>

namespace paceline {
namespace {

constexpr std::array types = {
    std::pair(ElementType::boolean, at::kBool),     std::pair(ElementType::u8, at::kByte),
    std::pair(ElementType::i8, at::kChar),          std::pair(ElementType::i16, at::kShort),
    std::pair(ElementType::u16, at::kUInt16),       std::pair(ElementType::f16, at::kHalf),
    std::pair(ElementType::bf16, at::kBFloat16),    std::pair(ElementType::i32, at::kInt),
    std::pair(ElementType::u32, at::kUInt32),       std::pair(ElementType::f32, at::kFloat),
    std::pair(ElementType::c64, at::kComplexFloat), std::pair(ElementType::f64, at::kDouble),
    std::pair(ElementType::i64, at::kLong),         std::pair(ElementType::u64, at::kUInt64),
};

}  // namespace

ElementType element_type_of(const at::Tensor& tensor) {
  for (const auto& [element, scalar] : types) {
    if (scalar == tensor.scalar_type()) return element;
  }
  fail("tensors of type {} cannot be saved", c10::toString(tensor.scalar_type()));
}

at::ScalarType scalar_type_of(ElementType type, const std::string& what) {
  for (const auto& [element, scalar] : types) {
    if (element == type) return scalar;
  }
  fail("{} has dtype {}, which is not read", what, element_type_name(type));
}

at::Tensor mapped_tensor(const SafetensorsFile& file, const SafetensorsTensor& tensor) {
  const at::ScalarType type =
      scalar_type_of(tensor.type, fmt::format("{}: tensor '{}'", file.path().string(), tensor.name));
  const std::span<const std::byte> bytes = file.bytes(tensor);
  if (bytes.empty()) return at::empty(tensor.shape, at::TensorOptions(type));
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % c10::elementSize(type) != 0) {
    at::Tensor copy = at::empty(tensor.shape, at::TensorOptions(type));
    std::memcpy(copy.mutable_data_ptr(), bytes.data(), bytes.size());
    return copy;
  }
  return at::from_blob(const_cast<std::byte*>(bytes.data()), tensor.shape, at::TensorOptions(type));
}

at::Tensor contiguous_values(const at::Tensor& tensor) {
  return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

std::span<const std::byte> tensor_bytes(const at::Tensor& tensor) {
  PACELINE_CHECK(tensor.is_contiguous() && tensor.device().is_cpu());
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace paceline
