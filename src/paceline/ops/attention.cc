#include "paceline/ops/attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/ops/attention_kernel.h"
#include "paceline/ops/floating.h"
#include "paceline/ops/simd.h"

namespace paceline {
namespace {

/// Heads [B, count, T, head_dim] as a view of columns of a [B, T, width] tensor.
at::Tensor heads_of(const at::Tensor& x, int64_t first, int64_t count, int64_t head_dim) {
  return x.narrow(2, first * head_dim, count * head_dim).view({x.size(0), x.size(1), count, head_dim}).transpose(1, 2);
}

int64_t head_dim_of(const at::Tensor& qkv, int64_t heads, int64_t kv_heads) {
  PACELINE_CHECK(qkv.dim() == 3 && qkv.is_contiguous() && heads > 0 && kv_heads > 0 && heads % kv_heads == 0);
  PACELINE_CHECK(qkv.size(2) % (heads + 2 * kv_heads) == 0);
  return qkv.size(2) / (heads + 2 * kv_heads);
}

/// The tiled kernel is fp32's on a CPU; else ATen's flash attention, which is also its oracle.
bool has_kernel(const at::Tensor& qkv) { return qkv.scalar_type() == at::kFloat && qkv.is_cpu(); }

/// Runs `body(unit, workspace)` for each key/value head of each sequence, in parallel. A thread has one workspace of
/// `workspace_size` floats, about 5 to 8 rows of head_dim a position.
template <typename Body>
void over_units(const at::Tensor& qkv, const AttentionOutput& output, int64_t heads, int64_t kv_heads,
                int64_t workspace_size, const Body& body) {
  const int64_t length = qkv.size(1);
  const int64_t width = qkv.size(2);
  const int64_t head_dim = width / (heads + 2 * kv_heads);
  const int64_t group = heads / kv_heads;
  const int64_t units = qkv.size(0) * kv_heads;
  const float* qkv_data = qkv.const_data_ptr<float>();
  PACELINE_CHECK(output.y.is_contiguous() && output.logsumexp.is_contiguous());
  float* y = output.y.mutable_data_ptr<float>();
  float* logsumexp = output.logsumexp.mutable_data_ptr<float>();
  // As many tasks as threads, so that there are no more workspaces; they are tensors to be accounted for and reused.
  const int64_t tasks = std::min<int64_t>(units, at::get_num_threads());
  if (tasks == 0) return;
  const int64_t stride = (workspace_size + 15) / 16 * 16;
  const at::Tensor workspace = at::empty({tasks * stride}, qkv.options());
  float* workspaces = workspace.mutable_data_ptr<float>();
  at::parallel_for(0, tasks, 1, [&](int64_t first_task, int64_t last_task) {
    for (int64_t task = first_task; task < last_task; ++task)
      for (int64_t u = units * task / tasks; u < units * (task + 1) / tasks; ++u) {
        const int64_t kv_head = u % kv_heads;
        const float* rows = qkv_data + u / kv_heads * length * width;
        const AttentionUnit unit{
            .length = length,
            .group = group,
            .head_dim = head_dim,
            .qkv_stride = width,
            .y_stride = heads * head_dim,
            .q = rows + kv_head * group * head_dim,
            .k = rows + (heads + kv_head) * head_dim,
            .v = rows + (heads + kv_heads + kv_head) * head_dim,
            .y = y + u / kv_heads * length * heads * head_dim + kv_head * group * head_dim,
            .logsumexp = logsumexp + u * group * length,
        };
        body(unit, workspaces + task * stride);
      }
  });
}

/// One query against `length` rows of the cache; `scores` has room for them.
template <typename T>
PACELINE_INLINE void attend_body(const T* q, const T* keys, int64_t key_stride, const T* values, int64_t value_stride,
                                 int64_t length, int64_t head_dim, T scale, T* scores, T* y) {
  T maximum = -std::numeric_limits<T>::infinity();
  for (int64_t j = 0; j < length; ++j) {
    const T* key = keys + j * key_stride;
    T dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < head_dim; ++i) dot += q[i] * key[i];
    scores[j] = dot * scale;
    maximum = std::max(maximum, scores[j]);
  }
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < length; ++j) {
    scores[j] = vector_exp(scores[j] - maximum);
    sum += scores[j];
  }
  for (int64_t i = 0; i < head_dim; ++i) y[i] = 0;
  for (int64_t j = 0; j < length; ++j) {
    const T* value = values + j * value_stride;
    const T weight = scores[j] / sum;
#pragma omp simd
    for (int64_t i = 0; i < head_dim; ++i) y[i] += weight * value[i];
  }
}

PACELINE_SIMD void attend(const float* q, const float* keys, int64_t key_stride, const float* values,
                          int64_t value_stride, int64_t length, int64_t head_dim, float scale, float* scores,
                          float* y) {
  attend_body(q, keys, key_stride, values, value_stride, length, head_dim, scale, scores, y);
}
PACELINE_SIMD void attend(const double* q, const double* keys, int64_t key_stride, const double* values,
                          int64_t value_stride, int64_t length, int64_t head_dim, double scale, double* scores,
                          double* y) {
  attend_body(q, keys, key_stride, values, value_stride, length, head_dim, scale, scores, y);
}

}  // namespace

AttentionOutput attention_forward(const at::Tensor& qkv, int64_t heads, int64_t kv_heads) {
  const int64_t head_dim = head_dim_of(qkv, heads, kv_heads);
  if (has_kernel(qkv)) {
    AttentionOutput output{at::empty({qkv.size(0), qkv.size(1), heads * head_dim}, qkv.options()),
                           at::empty({qkv.size(0), heads, qkv.size(1)}, qkv.options())};
    const AttentionKernel& kernel = attention_kernel(best_instruction_set());
    over_units(qkv, output, heads, kv_heads, kernel.forward_workspace(qkv.size(1), head_dim),
               [&](const AttentionUnit& unit, float* workspace) { kernel.forward(unit, workspace); });
    return output;
  }
  auto [y, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      heads_of(qkv, 0, heads, head_dim), heads_of(qkv, heads, kv_heads, head_dim),
      heads_of(qkv, heads + kv_heads, kv_heads, head_dim), 0.0, true);
  return {y.transpose(1, 2).reshape({qkv.size(0), qkv.size(1), heads * head_dim}), logsumexp.contiguous()};
}

void attention_backward(const at::Tensor& dy, const at::Tensor& qkv, const AttentionOutput& output, int64_t heads,
                        int64_t kv_heads, const at::Tensor& dqkv) {
  const int64_t head_dim = head_dim_of(qkv, heads, kv_heads);
  PACELINE_CHECK(dqkv.is_contiguous() && dqkv.sizes() == qkv.sizes());
  if (has_kernel(qkv)) {
    PACELINE_CHECK(dy.is_contiguous() && dy.sizes() == output.y.sizes());
    const AttentionKernel& kernel = attention_kernel(best_instruction_set());
    const float* dy_data = dy.const_data_ptr<float>();
    float* dqkv_data = dqkv.mutable_data_ptr<float>();
    const float* qkv_data = qkv.const_data_ptr<float>();
    const float* y_data = output.y.const_data_ptr<float>();
    over_units(qkv, output, heads, kv_heads, kernel.backward_workspace(qkv.size(1), head_dim),
               [&](const AttentionUnit& unit, float* workspace) {
                 kernel.backward(unit,
                                 {dy_data + (unit.y - y_data), dqkv_data + (unit.q - qkv_data),
                                  dqkv_data + (unit.k - qkv_data), dqkv_data + (unit.v - qkv_data)},
                                 workspace);
               });
    return;
  }
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      heads_of(dy, 0, heads, head_dim), heads_of(qkv, 0, heads, head_dim), heads_of(qkv, heads, kv_heads, head_dim),
      heads_of(qkv, heads + kv_heads, kv_heads, head_dim), heads_of(output.y, 0, heads, head_dim), output.logsumexp,
      0.0, true);
  heads_of(dqkv, 0, heads, head_dim).copy_(dq);
  heads_of(dqkv, heads, kv_heads, head_dim).copy_(dk);
  heads_of(dqkv, heads + kv_heads, kv_heads, head_dim).copy_(dv);
}

at::Tensor attention_cached_forward(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                    int64_t length, int64_t heads, int64_t kv_heads) {
  PACELINE_CHECK(q.dim() == 3 && q.stride(2) == 1 && heads > 0 && kv_heads > 0 && heads % kv_heads == 0);
  PACELINE_CHECK(keys.dim() == 3 && keys.stride(2) == 1 && values.dim() == 3 && values.stride(2) == 1);
  PACELINE_CHECK(keys.size(0) == q.size(0) && values.size(0) == q.size(0));
  PACELINE_CHECK(length >= q.size(1) && keys.size(1) >= length && values.size(1) >= length);
  const int64_t head_dim = q.size(2) / heads;
  PACELINE_CHECK(q.size(2) == heads * head_dim);
  PACELINE_CHECK(keys.size(2) == kv_heads * head_dim && values.size(2) == kv_heads * head_dim);
  const int64_t new_rows = q.size(1);
  at::Tensor y = at::empty({q.size(0), new_rows, heads * head_dim}, q.options());
  with_floating_type(q, [&](auto zero) {
    using T = decltype(zero);
    const T* q_data = q.const_data_ptr<T>();
    const T* k_data = keys.const_data_ptr<T>();
    const T* v_data = values.const_data_ptr<T>();
    T* y_data = y.mutable_data_ptr<T>();
    const T scale = T(1 / std::sqrt(static_cast<double>(head_dim)));
    at::parallel_for(0, q.size(0) * new_rows * heads, 1, [&](int64_t first, int64_t last) {
      std::vector<T> scores(length);
      for (int64_t task = first; task < last; ++task) {
        const int64_t head = task % heads;
        const int64_t row = task / heads % new_rows;
        const int64_t batch = task / heads / new_rows;
        const int64_t kv_offset = head / (heads / kv_heads) * head_dim;
        attend(q_data + batch * q.stride(0) + row * q.stride(1) + head * head_dim,
               k_data + batch * keys.stride(0) + kv_offset, keys.stride(1),
               v_data + batch * values.stride(0) + kv_offset, values.stride(1), length - new_rows + row + 1, head_dim,
               scale, scores.data(), y_data + task * head_dim);
      }
    });
  });
  return y;
}

}  // namespace paceline
