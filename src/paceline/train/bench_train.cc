#include "paceline/train/bench_train.h"

#include "paceline/arch/operation_cost.h"
#include "paceline/base/error.h"
#include "paceline/base/philox.h"
#include "paceline/comm/communicator_set.h"
#include "paceline/plan/plan.h"
#include "paceline/supervision/peer_supervision.h"
#include "paceline/supervision/stop_request.h"
#include "paceline/supervision/usable_cores.h"
#include "paceline/train/executor.h"
#include "paceline/train/product_peak.h"
#include "paceline/train/rendezvous.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>

namespace paceline {
namespace {

/// Uniform tokens as a function of the sample's number.
class RandomTokens : public SampleSource {
 public:
  RandomTokens(std::int64_t sequence_length, std::int64_t vocab_size) : sequence_length_(sequence_length), vocab_size_(vocab_size) {}
  std::int64_t sequence_length() const override { return sequence_length_; }
  void read(std::uint64_t sample, std::span<std::int64_t> tokens, std::span<std::int32_t> document_ids,
            std::span<std::uint8_t> loss_mask) const override {
    const std::uint64_t key = stream_key(sample, "bench tokens");
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int64_t>(random_bits(key, i) % static_cast<std::uint64_t>(vocab_size_));
    }
    std::fill(document_ids.begin(), document_ids.end(), 0);
    std::fill(loss_mask.begin(), loss_mask.end(), std::uint8_t{1});
  }

 private:
  std::int64_t sequence_length_;
  std::int64_t vocab_size_;
};

/// VmHWM of this process in bytes.
double peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stod(line.substr(6)) * 1024;
  }
  return 0;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double largest_over_ranks(Communicator& world, double value) {
  at::Tensor tensor = at::zeros({1}, at::kDouble);
  tensor.mutable_data_ptr<double>()[0] = value;
  if (world.size() > 1) world.all_reduce(tensor, ReduceOp::max);
  return tensor.const_data_ptr<double>()[0];
}

int bench_rank(const BenchTrainRequest& request, const StepSettings& step, const Plan& plan, int local_rank,
               std::shared_ptr<Transport> transport, const StopRequest& stop) {
  const Layout& layout = step.parallel.layout;
  CommunicatorSet communicators(std::move(transport), layout);
  const Coordinate at = layout.coordinate(communicators.rank());
  const Program program = build_rank_program(step.model, step.parallel, at);
  const Precision precision = parse_precision(step.precision);
  MemoryAccount account;
  ModelState state(program, at.pp * layout.tp + at.tp, precision, step.bucket_bytes, true, account);
  state.initialize_weights(1);
  Recorder recorder;
  Executor executor(program, step.parallel, state, communicators,
                    {.micro_batch_size = step.batch.micro, .micro_batches = step.batch.accumulation, .sequence_length = step.sequence_length},
                    step.schedule, recorder, account);
  const RandomTokens source(step.sequence_length, step.model.vocab_size);

  std::int64_t done = 0;
  bool stopped = false;  // any rank's wish stops all of them after the same step
  const auto run_step = [&] {
    const auto start = std::chrono::steady_clock::now();
    StepRequest asked{.step = done + 1, .first_sample = static_cast<std::uint64_t>(done * step.batch.global), .max_gradient_norm = 1.0,
                      .optimizer_count = done + 1, .wants_stop = stop.requested()};
    asked.optimizer.learning_rate = 3e-4;
    stopped = executor.step(asked, source).stop || stopped;
    ++done;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const double steps_resident = [&] {
    for (std::int64_t i = 0; i < request.warmup_steps && !stopped; ++i) run_step();
    return peak_resident_bytes();
  }();
  const auto measure_peak = [&] {
    return measure_product_peak_of_ranks(communicators.world(), local_rank, precision.parameters, 12);
  };
  double peak = measure_peak();
  std::vector<double> times;
  for (std::int64_t i = 0; i < request.steps && !stopped; ++i) times.push_back(run_step());
  if (stopped) return stop_exit_code(stop.requested() ? stop.cause() : StopCause::terminate);
  peak = std::max(peak, measure_peak());

  const double step_time = largest_over_ranks(communicators.world(), median(times));
  const double resident = largest_over_ranks(communicators.world(), std::max(steps_resident, peak_resident_bytes()));
  const MemoryUse use = account.use();
  std::array<double, memory_class_count> by_class{};
  for (std::size_t i = 0; i < memory_class_count; ++i) {
    by_class[i] = largest_over_ranks(communicators.world(), static_cast<double>(use.peak[i]));
  }
  const double tensors = largest_over_ranks(communicators.world(), static_cast<double>(use.peak_total));
  communicators.world().barrier();
  if (communicators.rank() != 0) return 0;

  const double tokens_per_s = static_cast<double>(step.tokens()) / step_time;
  const double flops = tokens_per_s * model_flops_per_token(step.model, step.sequence_length);
  const StageMemory& planned = plan.largest_memory();
  const std::array<double, memory_class_count> planned_by_class = {planned.parameters, planned.gradients, planned.optimizer,
                                                                   planned.activations, planned.communication, planned.workspace};
  if (request.json) {
    nlohmann::ordered_json document = {{"schema_version", 1},
                                       {"layout", layout.text()},
                                       {"threads_per_rank", at::get_num_threads()},
                                       {"parameters", parameter_count(build_program(step.model))},
                                       {"tokens_per_s", tokens_per_s},
                                       {"step_time_s", step_time},
                                       {"model_tflops", flops / 1e12},
                                       {"gemm_peak_tflops", peak / 1e12},
                                       {"mfu", flops / peak},
                                       {"peak_memory_bytes", static_cast<std::int64_t>(resident)},
                                       {"tensor_peak_bytes", static_cast<std::int64_t>(tensors)},
                                       {"predicted_step_time_s", plan.step_time_s()},
                                       {"predicted_tensor_peak_bytes", planned.total()},
                                       {"machine_measured", plan.place.profile.measured}};
    for (std::size_t i = 0; i < memory_class_count; ++i) {
      const char* name = memory_class_name(static_cast<MemoryClass>(i));
      document["memory_by_class"][name] = {{"measured", by_class[i]}, {"predicted", planned_by_class[i]}};
    }
    std::printf("%s\n", document.dump(2).c_str());
    return 0;
  }
  std::printf("%s", fmt::format("{} {} on {} rank{} x {} thread{}: {:.1f} M parameters\n"
                                "  {:.0f} tokens/s (median of {} steps, {:.1f} ms; predicted {:.1f} ms{})\n"
                                "  {:.4f} model TFLOP/s; product peak {:.4f} TFLOP/s in the same process; MFU {:.1f} %\n"
                                "  peak resident memory of the largest rank {:.0f} MB; its tensors {:.0f} MB (predicted {:.0f} MB)\n",
                                layout.text(), step.precision, layout.world_size(), layout.world_size() == 1 ? "" : "s",
                                at::get_num_threads(), at::get_num_threads() == 1 ? "" : "s",
                                static_cast<double>(parameter_count(build_program(step.model))) / 1e6, tokens_per_s, times.size(),
                                step_time * 1e3, plan.step_time_s() * 1e3,
                                plan.place.profile.measured ? "" : ", machine not measured", flops / 1e12, peak / 1e12,
                                100 * flops / peak, resident / 1e6, tensors / 1e6, planned.total() / 1e6)
                        .c_str());
  return 0;
}

}  // namespace

int run_bench_train(const BenchTrainRequest& request) {
  const ModelConfig model = resolve_model(request.settings, request.settings.model.vocab_size);
  const StepSettings step = resolve_step(request.settings, model);
  const LaunchEnvironment launch = detect_launch();
  const int threads = request.settings.train.threads_per_rank > 0 ? static_cast<int>(request.settings.train.threads_per_rank)
                                                                  : threads_per_rank(usable_cores(), launch.local_world_size).threads;
  Place place;
  place.cores = usable_cores();
  place.profile = find_machine_profile(place.cores);
  place.threads_per_rank = threads;
  place.backend = "shared_memory";
  const Plan plan = make_plan(step, place);
  StopRequest stop;
  install_accounting_allocator();
  at::set_num_threads(threads);
  std::optional<RankSupervision> supervision;
  if (environment_variable("PACELINE_CONTROL") || launch.world_size == 1) supervision.emplace(launch, Exchange{}, stop);
  try {
    const int code = bench_rank(request, step, plan, launch.local_rank, join_ranks(launch, request.settings), stop);
    if (supervision) supervision->finish();
    return code;
  } catch (const std::exception& error) {
    if (supervision) supervision->report_failure(error.what());
    throw;
  }
}

}  // namespace paceline
