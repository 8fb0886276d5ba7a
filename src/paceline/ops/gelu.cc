#include "paceline/ops/gelu.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

namespace paceline {
namespace {

const char* approximation(GeluKind kind) { return kind == GeluKind::tanh ? "tanh" : "none"; }

}  // namespace

at::Tensor gelu_forward(const at::Tensor& x, GeluKind kind) { return at::gelu(x, approximation(kind)); }

void gelu_backward(const at::Tensor& dy, const at::Tensor& x, GeluKind kind, const at::Tensor& dx) {
  at::Tensor out = dx;
  at::gelu_backward_out(out, dy, x, approximation(kind));
}

}  // namespace paceline
