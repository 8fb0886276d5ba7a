// Times each tensor operation at the shapes of `paceline bench train`: 6 layers of width 384, 6 query and 2 key/value
// heads, ffn 1024, vocabulary 8192, 8 sequences of 256 tokens, fp32. OMP_NUM_THREADS
// sets the threads. Products and attention
// report GFLOP/s, to be held against the square product's; the others the bytes that they must move a second.
#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include <cmath>

#include "paceline/ops/attention.h"
#include "paceline/ops/cross_entropy.h"
#include "paceline/ops/linear.h"
#include "paceline/ops/memory_account.h"
#include "paceline/ops/rms_norm.h"
#include "paceline/ops/rope.h"
#include "paceline/ops/swiglu.h"
#include "paceline/optim/adamw.h"
#include "paceline/optim/gradient_norm.h"

namespace paceline {
namespace {

constexpr int64_t batch = 8;
constexpr int64_t rows = batch * 256;
constexpr int64_t width = 384;
constexpr int64_t ffn = 1024;
constexpr int64_t vocabulary = 8192;
constexpr int64_t heads = 6;
constexpr int64_t kv_heads = 2;
constexpr int64_t head_dim = 64;
constexpr int64_t qkv_width = (heads + 2 * kv_heads) * head_dim;

at::Tensor random(at::IntArrayRef sizes) { return at::randn(sizes, at::kFloat); }

template <typename Body>
void measure(benchmark::State& state, double flops, double bytes, const Body& body) {
  MemoryAccount account;
  const AccountScope scope(account, MemoryClass::activations);
  for (auto _ : state) body();
  using Counter = benchmark::Counter;
  if (flops > 0) state.counters["FLOP/s"] = Counter(flops, Counter::kIsIterationInvariantRate);
  if (bytes > 0) state.counters["bytes/s"] = Counter(bytes, Counter::kIsIterationInvariantRate);
}

void square_product(benchmark::State& state) {
  const at::Tensor a = random({2048, 2048});
  const at::Tensor b = random({2048, 2048});
  at::Tensor c = random({2048, 2048});
  measure(state, 2.0 * 2048 * 2048 * 2048, 0, [&] { at::mm_out(c, a, b); });
}

void linear(benchmark::State& state) {
  const int64_t in = state.range(0);
  const int64_t out = state.range(1);
  const at::Tensor x = random({rows, in});
  const at::Tensor dy = random({rows, out});
  const at::Tensor weight = random({out, in});
  const at::Tensor gradient = random({out, in});
  measure(state, 2.0 * rows * in * out, 0, [&] {
    if (state.range(2) == 0) linear_forward(x, weight);
    if (state.range(2) == 1) linear_backward_input(dy, weight);
    if (state.range(2) == 2) linear_backward_weight(dy, x, gradient, {}, true);
  });
}

void attention(benchmark::State& state) {
  const int64_t length = state.range(0);
  const int64_t sequences = rows / length;
  const at::Tensor qkv = random({sequences, length, qkv_width});
  const at::Tensor dy = random({sequences, length, heads * head_dim});
  const at::Tensor dqkv = random({sequences, length, qkv_width});
  const AttentionOutput output = attention_forward(qkv, heads, kv_heads);
  const bool forward = state.range(1) == 0;
  const double flops = 2.0 * rows * (length + 1) * heads * head_dim * (forward ? 1 : 2.5);
  measure(state, flops, 0, [&] {
    if (forward) attention_forward(qkv, heads, kv_heads);
    else attention_backward(dy, qkv, output, heads, kv_heads, dqkv);
  });
}

void rope(benchmark::State& state) {
  const at::Tensor qkv = random({batch, rows / batch, qkv_width});
  const RopeTables tables = rope_tables(rope_frequencies(head_dim, 10000), rows / batch, at::kFloat);
  measure(state, 0, 8.0 * rows * (heads + kv_heads) * head_dim, [&] { rope_forward(qkv, tables, heads, kv_heads); });
}

void rms_norm(benchmark::State& state) {
  const at::Tensor x = random({rows, width});
  const at::Tensor dy = random({rows, width});
  const at::Tensor dx = random({rows, width});
  const at::Tensor weight = random({width});
  const at::Tensor gradient = random({width});
  const RmsNormOutput output = rms_norm_forward(x, weight, 1e-5);
  const bool forward = state.range(0) == 0;
  measure(state, 0, (forward ? 8.0 : 16.0) * rows * width, [&] {
    if (forward) rms_norm_forward(x, weight, 1e-5);
    else rms_norm_backward(dy, x, output.rstd, weight, dx, true, gradient, true);
  });
}

void swiglu(benchmark::State& state) {
  const at::Tensor gate_up = random({rows, 2 * ffn});
  const at::Tensor dy = random({rows, ffn});
  const at::Tensor gradient = random({rows, 2 * ffn});
  const bool forward = state.range(0) == 0;
  measure(state, 0, (forward ? 12.0 : 20.0) * rows * ffn, [&] {
    if (forward) swiglu_forward(gate_up);
    else swiglu_backward(dy, gate_up, gradient);
  });
}

void cross_entropy(benchmark::State& state) {
  const at::Tensor logits = random({rows, vocabulary});
  const CrossEntropyTargets targets{at::zeros({rows}, at::kLong), {}, 0, vocabulary};
  measure(state, 0, 8.0 * rows * vocabulary,
          [&] { cross_entropy_forward_backward(logits, targets, 1.0 / rows, nullptr); });
}

void optimizer_step(benchmark::State& state) {
  const int64_t parameters = 6 * (width * qkv_width + width * width + 3 * width * ffn) + 2 * width * vocabulary;
  const at::Tensor parameter = random({parameters});
  const at::Tensor gradient = random({parameters});
  const at::Tensor first = at::zeros({parameters}, at::kFloat);
  const at::Tensor second = at::zeros({parameters}, at::kFloat);
  measure(state, 0, 32.0 * parameters, [&] {
    const double norm = std::sqrt(sum_of_squares(gradient));
    adamw_step(parameter, gradient, first, second, 1, {}, clip_coefficient(norm, 1).value_or(0));
  });
}

BENCHMARK(square_product)->UseRealTime();
BENCHMARK(linear)
    ->ArgNames({"in", "out", "pass"})
    ->ArgsProduct({{width}, {width, qkv_width, 2 * ffn, vocabulary}, {0, 1, 2}})
    ->ArgsProduct({{ffn}, {width}, {0, 1, 2}})
    ->UseRealTime();
BENCHMARK(attention)->ArgNames({"length", "pass"})->ArgsProduct({{256, 1024}, {0, 1}})->UseRealTime();
BENCHMARK(rope)->UseRealTime();
BENCHMARK(rms_norm)->ArgName("pass")->DenseRange(0, 1)->UseRealTime();
BENCHMARK(swiglu)->ArgName("pass")->DenseRange(0, 1)->UseRealTime();
BENCHMARK(cross_entropy)->UseRealTime();
BENCHMARK(optimizer_step)->UseRealTime();

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  paceline::install_accounting_allocator();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
