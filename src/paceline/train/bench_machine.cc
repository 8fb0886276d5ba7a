#include "paceline/train/bench_machine.h"

#include "paceline/arch/operation_cost.h"
#include "paceline/base/error.h"
#include "paceline/base/philox.h"
#include "paceline/base/progress.h"
#include "paceline/cluster/profile.h"
#include "paceline/comm/communicator_set.h"
#include "paceline/comm/gloo_communicator.h"
#include "paceline/comm/shared_memory_transport.h"
#include "paceline/comm/thread_communicator.h"
#include "paceline/optim/adamw.h"
#include "paceline/optim/gradient_norm.h"
#include "paceline/supervision/run_id.h"
#include "paceline/supervision/usable_cores.h"
#include "paceline/train/stage_runner.h"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

namespace paceline {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  PACELINE_CHECK(!values.empty());
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// Median of `repetitions` timings of `body`, after one that is not counted.
double time_of(int repetitions, const std::function<void()>& body) {
  body();
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) {
    const auto start = Clock::now();
    body();
    times.push_back(seconds_since(start));
  }
  return median(times);
}

/// A small model whose operations are timed as the trainer runs them.
struct Probe {
  ModelConfig model;
  std::int64_t sequences;
  std::int64_t sequence_length;
};

std::vector<Probe> probes() {
  ModelConfig narrow{.family = ModelFamily::llama, .vocab_size = 2048, .hidden_size = 128, .num_hidden_layers = 2,
                     .num_attention_heads = 4, .num_key_value_heads = 2, .head_dim = 32, .intermediate_size = 352,
                     .max_position_embeddings = 1024};
  ModelConfig wide{.family = ModelFamily::llama, .vocab_size = 8192, .hidden_size = 384, .num_hidden_layers = 2,
                   .num_attention_heads = 6, .num_key_value_heads = 2, .head_dim = 64, .intermediate_size = 1024,
                   .max_position_embeddings = 1024};
  ModelConfig wider = wide;
  wider.hidden_size = 768;
  wider.num_attention_heads = 12;
  wider.num_key_value_heads = 4;
  wider.intermediate_size = 2048;
  wider.num_hidden_layers = 1;
  ModelConfig gpt2{.family = ModelFamily::gpt2, .vocab_size = 4096, .hidden_size = 256, .num_hidden_layers = 2,
                   .num_attention_heads = 4, .num_key_value_heads = 4, .head_dim = 64, .intermediate_size = 1024,
                   .max_position_embeddings = 1024, .tie_word_embeddings = true, .attention_bias = true, .mlp_bias = true,
                   .activation = "gelu_new"};
  return {{narrow, 8, 256}, {narrow, 2, 256}, {wide, 8, 256}, {wide, 1, 256}, {wide, 2, 1024}, {wider, 4, 256}, {gpt2, 8, 256}};
}

/// Seconds of each operation's passes on one rank, by (pass, operation index).
using PassTimes = std::map<std::pair<Pass, int>, std::vector<double>>;

PassTimes time_probe(const Probe& probe, const Program& program, int repetitions, const std::function<void()>& together) {
  MemoryAccount account;
  ModelState state(program, 0, {}, 25 << 20, true, account);
  state.initialize_weights(1);
  StageRunner runner(program, state, nullptr, probe.sequence_length, account);
  MicroBatchData data{.tokens = at::zeros({probe.sequences, probe.sequence_length}, at::kLong),
                      .targets = at::zeros({probe.sequences, probe.sequence_length}, at::kLong),
                      .mask = at::ones({probe.sequences, probe.sequence_length}, at::kByte)};
  for (std::int64_t i = 0; i < data.tokens.numel(); ++i) {
    const auto draw = [&](const char* name) {
      return static_cast<std::int64_t>(random_bits(stream_key(1, name), i) % static_cast<std::uint64_t>(probe.model.vocab_size));
    };
    data.tokens.mutable_data_ptr<std::int64_t>()[i] = draw("tokens");
    data.targets.mutable_data_ptr<std::int64_t>()[i] = draw("targets");
  }
  PassTimes times;
  for (int repetition = 0; repetition <= repetitions; ++repetition) {
    together();
    Clock::time_point start;
    const auto observer = [&](Pass pass) {
      return PassObserver{.before = [&start](int) { start = Clock::now(); },
                          .after = [&times, &start, pass, repetition](int operation) {
                            if (repetition > 0) times[{pass, operation}].push_back(seconds_since(start));
                          }};
    };
    runner.begin_step();
    auto pass = runner.forward(data, {}, 1e-3, observer(Pass::forward));
    runner.backward_input(*pass, {}, observer(Pass::backward_input));
    runner.backward_weight(std::move(pass), observer(Pass::backward_weight));
  }
  return times;
}

/// Runs `body` on `ranks` threads with `threads` each, all at once; `together` lets them begin a round at the same time.
void on_ranks(const Occupancy& occupancy, const std::function<void(int rank, const std::function<void()>& together)>& body) {
  if (occupancy.ranks == 1) {
    at::set_num_threads(occupancy.threads);
    body(0, [] {});
    return;
  }
  run_ranks(occupancy.ranks, [&](int rank, Hub& hub) {
    at::set_num_threads(occupancy.threads);
    CommunicatorSet communicators(hub.transport(rank), {.dp = occupancy.ranks});
    body(rank, [&] { communicators.world().barrier(); });
  });
}

void measure_operations(MachineProfile& profile, const Occupancy& occupancy, Progress& progress) {
  std::map<std::string, std::vector<double>> forward_rates, backward_rates;
  for (const Probe& probe : probes()) {
    const Program program = build_rank_program(probe.model, {}, {});
    const MicroBatch micro_batch{.sequences = probe.sequences, .sequence_length = probe.sequence_length, .element_bytes = 4};
    PassTimes times;
    std::mutex mutex;
    on_ranks(occupancy, [&](int, const std::function<void()>& together) {
      PassTimes own = time_probe(probe, program, 5, together);
      const std::lock_guard lock(mutex);
      for (auto& [key, values] : own) times[key].insert(times[key].end(), values.begin(), values.end());
    });
    // Layers repeat the same shapes: their timings are one sample.
    std::map<std::tuple<Pass, std::int64_t, std::int64_t>, std::vector<double>> products;
    std::vector<double> attention_forward, attention_backward;
    double attention_forward_flops = 0, attention_backward_flops = 0;
    for (const auto& [key, values] : times) {
      const auto& [pass, index] = key;
      const Operation& operation = program.operations[static_cast<std::size_t>(index)];
      const OperationCost cost = operation_cost(program, operation, micro_batch);
      const double seconds = std::max(1e-9, median(values));
      if (operation.kind == OperationKind::linear) {
        const Shape& shape = program.parameters[static_cast<std::size_t>(operation.parameters[0])].shape;
        products[{pass, shape[1], shape[0]}].push_back(seconds);
      } else if (operation.kind == OperationKind::attention) {
        (pass == Pass::forward ? attention_forward : attention_backward).push_back(seconds);
        attention_forward_flops = cost.forward_flops;
        attention_backward_flops = cost.backward_input_flops;
      } else {
        const double bytes = pass == Pass::forward ? cost.forward_bytes : cost.backward_input_bytes;
        if (bytes > 0) (pass == Pass::forward ? forward_rates : backward_rates)[operation_kind_name(operation.kind)].push_back(bytes / seconds);
      }
    }
    for (const auto& [shape, seconds] : products) {
      const auto& [pass, in, out] = shape;
      const double flops = 2.0 * static_cast<double>(micro_batch.tokens() * in * out);
      profile.products.push_back({.occupancy = occupancy, .pass = pass, .tokens = micro_batch.tokens(), .in = in, .out = out,
                                  .flops_per_s = flops / median(seconds)});
    }
    profile.attention.push_back({.occupancy = occupancy, .sequence_length = probe.sequence_length, .head_dim = probe.model.head_dim,
                                 .forward_flops_per_s = attention_forward_flops / median(attention_forward),
                                 .backward_flops_per_s = attention_backward_flops / median(attention_backward)});
    progress.line(fmt::format("  {} rank{} x {} thread{}: {} hidden {}, {} x {} tokens", occupancy.ranks, occupancy.ranks == 1 ? "" : "s",
                              occupancy.threads, occupancy.threads == 1 ? "" : "s", family_name(probe.model.family),
                              probe.model.hidden_size, probe.sequences, probe.sequence_length));
  }
  for (const auto& [operation, rates] : forward_rates) {
    const auto backward = backward_rates.find(operation);
    profile.operations.push_back({.operation = operation, .occupancy = occupancy, .forward_bytes_per_s = median(rates),
                                  .backward_bytes_per_s = backward == backward_rates.end() ? 0 : median(backward->second)});
  }

  std::vector<double> copy, update, norm;
  std::mutex mutex;
  on_ranks(occupancy, [&](int, const std::function<void()>& together) {
    constexpr std::int64_t elements = 4 << 20;
    at::Tensor a = at::ones({elements}), b = at::ones({elements}), c = at::ones({elements}), d = at::ones({elements});
    together();
    const double copy_s = time_of(5, [&] { at::add_out(c, a, b); });
    together();
    const double update_s = time_of(5, [&] { adamw_step(a, b, c, d, 1, {}, 1.0); });
    together();
    const double norm_s = time_of(5, [&] { sum_of_squares(b); });
    const std::lock_guard lock(mutex);
    copy.push_back(3.0 * 4 * elements / copy_s);
    update.push_back(7.0 * 4 * elements / update_s);
    norm.push_back(1.0 * 4 * elements / norm_s);
  });
  profile.memory.push_back({.occupancy = occupancy, .bytes_per_s = median(copy)});
  profile.operations.push_back({.operation = "optimizer_step", .occupancy = occupancy, .forward_bytes_per_s = median(update)});
  profile.operations.push_back({.operation = "gradient_norm", .occupancy = occupancy, .forward_bytes_per_s = median(norm)});
}

void measure_double_products(MachineProfile& profile, const Occupancy& occupancy) {
  on_ranks(occupancy, [&](int rank, const std::function<void()>&) {
    if (rank != 0) return;
    const at::TensorOptions options = at::TensorOptions().dtype(at::kDouble);
    const at::Tensor a = at::ones({1024, 512}, options), b = at::ones({512, 512}, options);
    const double seconds = time_of(5, [&] { a.mm(b); });
    profile.products.push_back({.precision = "fp64", .occupancy = occupancy, .tokens = 1024, .in = 512, .out = 512,
                                .flops_per_s = 2.0 * 1024 * 512 * 512 / seconds});
  });
}

/// A listening socket on a free loopback port.
std::pair<int, int> free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (descriptor < 0 || bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(descriptor, 64) != 0 ||
      getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail("no free port on the loopback interface to measure messages on");
  }
  return {descriptor, ntohs(address.sin_port)};
}

void measure_messages(MachineProfile& profile, const std::string& backend, int ranks) {
  const auto [descriptor, port] = backend != "threads" ? free_port() : std::pair{-1, 0};
  const std::string run_id = random_run_id();
  std::mutex mutex;
  run_ranks(ranks, [&, descriptor = descriptor, port = port](int rank, Hub& hub) {
    at::set_num_threads(1);
    std::shared_ptr<Transport> transport = hub.transport(rank);
    if (backend != "threads") {
      const GlooOptions options{.rank = rank, .world_size = ranks, .master_port = port,
                                .listening_descriptor = rank == 0 ? descriptor : -1, .run_id = run_id};
      transport = connect_gloo(options);
      if (backend == "shared_memory") transport = share_memory(transport, options.timeout);
    }
    CommunicatorSet communicators(transport, {.dp = ranks});
    Communicator& world = communicators.world();
    for (const std::int64_t bytes : {64, 4 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20}) {
      at::Tensor data = at::zeros({bytes / 4}), received = at::zeros({bytes / 4});
      const int repetitions = bytes > (1 << 20) ? 5 : 20;
      world.barrier();
      const double reduce = time_of(repetitions, [&] { world.all_reduce(data, ReduceOp::sum); });
      // There and back between pairs of ranks: half of it is one message.
      const int peer = rank ^ 1;
      double there_and_back = 0;
      if (peer < ranks) {
        world.barrier();
        there_and_back = time_of(repetitions, [&] {
          auto work = world.send_start(data, peer, 1);
          world.receive(received, peer, 1);
          work->wait();
        });
      } else {
        world.barrier();
      }
      if (rank != 0) continue;
      const std::lock_guard lock(mutex);
      profile.messages.push_back({.backend = backend, .operation = "all_reduce", .ranks = ranks, .groups = 1,
                                  .bytes = static_cast<double>(bytes), .seconds = reduce});
      if (ranks == 2) {
        profile.messages.push_back({.backend = backend, .operation = "send", .ranks = 2, .groups = 1,
                                    .bytes = static_cast<double>(bytes), .seconds = there_and_back});
      }
    }
    world.barrier();
  });
}

void measure_overheads(MachineProfile& profile) {
  const Probe tiny{{.family = ModelFamily::llama, .vocab_size = 16, .hidden_size = 8, .num_hidden_layers = 1, .num_attention_heads = 1,
                    .num_key_value_heads = 1, .head_dim = 8, .intermediate_size = 8, .max_position_embeddings = 8}, 1, 1};
  const Program program = build_rank_program(tiny.model, {}, {});
  at::set_num_threads(1);
  std::vector<double> seconds;
  for (const auto& [key, values] : time_probe(tiny, program, 20, [] {})) seconds.push_back(median(values));
  profile.operation_overhead_s = median(seconds);
  profile.action_overhead_s = profile.operation_overhead_s;
}

void measure_disk(MachineProfile& profile, const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / (".paceline-disk-" + random_run_id());
  const std::string block(8 << 20, 'x');
  constexpr int blocks = 8;
  const int file = open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) fail("{}: cannot be written to measure the disk", path.string());
  std::filesystem::remove(path);  // the open descriptor keeps it
  auto start = Clock::now();
  bool good = true;
  for (int i = 0; i < blocks; ++i) good = good && write(file, block.data(), block.size()) == static_cast<ssize_t>(block.size());
  good = good && fsync(file) == 0;
  profile.disk_write_bytes_per_s = blocks * static_cast<double>(block.size()) / seconds_since(start);
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  std::string buffer(block.size(), '\0');
  start = Clock::now();
  for (int i = 0; i < blocks; ++i) {
    good = good && pread(file, buffer.data(), buffer.size(), static_cast<off_t>(i * block.size())) == static_cast<ssize_t>(buffer.size());
  }
  profile.disk_read_bytes_per_s = blocks * static_cast<double>(block.size()) / seconds_since(start);
  close(file);
  if (!good) fail("{}: the disk cannot take 64 MiB to be measured", folder.string());
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

int run_bench_machine(const BenchMachineRequest& request) {
  const std::string path = request.output.empty() ? machine_profile_path() : request.output;
  install_accounting_allocator();
  MachineProfile profile;
  profile.measured = true;
  profile.cpu = cpu_name();
  profile.cores = usable_cores();
  profile.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  Progress progress("measuring", "parts", 0);
  progress.line(fmt::format("measuring {} ({} cores usable)", profile.cpu, profile.cores));
  std::vector<Occupancy> occupancies = {{.threads = profile.cores, .ranks = 1}};
  if (profile.cores > 1) occupancies.push_back({.threads = 1, .ranks = profile.cores});
  for (const Occupancy& occupancy : occupancies) {
    measure_operations(profile, occupancy, progress);
    measure_double_products(profile, occupancy);
  }
  measure_overheads(profile);
  for (const char* backend : {"threads", "shared_memory", "gloo"}) {
    for (const int ranks : {2, 4}) {
      progress.line(fmt::format("  messages: {}, {} ranks", backend, ranks));
      measure_messages(profile, backend, ranks);
    }
  }
  progress.line("  disk");
  std::filesystem::create_directories(std::filesystem::absolute(path).parent_path());
  measure_disk(profile, std::filesystem::absolute(path).parent_path());
  write_machine_profile(profile, path);
  const double peak = profile.peak_flops_per_s("fp32", occupancies.front());
  if (request.json) {
    std::printf("%s\n", nlohmann::ordered_json{{"schema_version", 1}, {"profile", path}, {"cpu", profile.cpu}, {"cores", profile.cores},
                                               {"peak_flops_per_s", peak},
                                               {"memory_bytes_per_s", profile.memory_bytes_per_s(occupancies.front())},
                                               {"disk_write_bytes_per_s", profile.disk_write_bytes_per_s},
                                               {"disk_read_bytes_per_s", profile.disk_read_bytes_per_s}}
                            .dump(2)
                            .c_str());
  } else {
    std::printf("%s\n  products up to %.1f GFLOP/s, memory %.1f GB/s, disk writes %.0f MB/s\n  all-reduce over shared memory, 2 ranks: %.0f us at 4 KiB, %.1f ms at 4 MiB\n",
                path.c_str(), peak / 1e9, profile.memory_bytes_per_s(occupancies.front()) / 1e9, profile.disk_write_bytes_per_s / 1e6,
                profile.message_seconds("shared_memory", "all_reduce", 2, 1, 4096) * 1e6,
                profile.message_seconds("shared_memory", "all_reduce", 2, 1, 4 << 20) * 1e3);
  }
  return 0;
}

}  // namespace paceline
