#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

/// How many ranks ran at once, and with how many threads each, while something was measured: two ranks of one thread
/// share memory and clock with each other, one rank of two threads does not.
struct Occupancy {
  int threads = 1;  ///< threads of each rank
  int ranks = 1;    ///< ranks that worked at the same time
  bool operator==(const Occupancy&) const = default;
};

/// A linear operation's three products have three shapes and three rates.
enum class Pass { forward, backward_input, backward_weight };

/// Matrix product of a linear operation [tokens, in] -> [tokens, out].
struct ProductRate {
  std::string precision = "fp32";  ///< fp32 or fp64
  Occupancy occupancy;
  Pass pass = Pass::forward;
  std::int64_t tokens = 1;
  std::int64_t in = 1;
  std::int64_t out = 1;
  double flops_per_s = 0;          ///< of one rank; 2 x tokens x in x out over the time
};

/// Causal attention of one rank, in the FLOPs that its operation declares (half of the score matrix; backward twice
/// forward).
struct AttentionRate {
  std::string precision = "fp32";
  Occupancy occupancy;
  std::int64_t sequence_length = 1;
  std::int64_t head_dim = 1;
  double forward_flops_per_s = 0;
  double backward_flops_per_s = 0;
};

/// An operation bound by memory: declared bytes of operation_cost() over the measured time, of one rank.
struct OperationRate {
  std::string operation;           ///< operation_kind_name(), or "optimizer_step", "gradient_norm"
  Occupancy occupancy;
  double forward_bytes_per_s = 0;
  double backward_bytes_per_s = 0; ///< 0: as forward
};

struct MemoryRate {
  Occupancy occupancy;
  double bytes_per_s = 0;          ///< read and written, of one rank
};

/// Time of one message of `bytes` between ranks of this machine. Several sizes make a curve: latency (alpha) at the small
/// end, bandwidth (beta) as its slope at the large end.
struct MessageTime {
  std::string backend = "gloo";    ///< shared_memory (processes of one machine), gloo (of several) or threads
  std::string operation = "send";  ///< send (handed over until received) or all_reduce
  int ranks = 2;                   ///< of the group
  int groups = 1;                  ///< groups of that size that did this at the same time on the machine
  double bytes = 0;                ///< payload of one rank
  double seconds = 0;
};

/// What was measured on one machine (`paceline bench machine`), or conservative values where nothing was. All constants
/// of the cost model that belong to a machine are here.
struct MachineProfile {
  bool measured = false;           ///< false: built-in values
  std::string file;                ///< where it was read from; empty for the built-in values
  std::string cpu;
  int cores = 1;
  std::int64_t memory_bytes = 0;   ///< of the machine; 0: unknown
  std::vector<ProductRate> products;
  std::vector<AttentionRate> attention;
  std::vector<OperationRate> operations;
  std::vector<MemoryRate> memory;
  std::vector<MessageTime> messages;
  double operation_overhead_s = 0; ///< fixed time of one operation's call (dispatch, allocation, its span)
  double action_overhead_s = 0;    ///< fixed time of one action of the schedule
  double disk_read_bytes_per_s = 0;
  double disk_write_bytes_per_s = 0;

  /// FLOP/s of a product of one rank, interpolated over the logarithms of the three sizes from the entries of the same
  /// precision and pass whose occupancy is nearest (all passes where the pass was not measured; fp64 at half of fp32
  /// where fp64 was not). Another number of threads than the measured one scales the rate in proportion, here and below.
  double product_flops_per_s(const std::string& precision, Occupancy occupancy, Pass pass, std::int64_t tokens,
                             std::int64_t in, std::int64_t out) const;
  /// FLOP/s of attention likewise, over the logarithms of sequence length and head width.
  double attention_flops_per_s(const std::string& precision, Occupancy occupancy, bool forward,
                               std::int64_t sequence_length, std::int64_t head_dim) const;
  /// Bytes/s of an operation; the memory's where the operation was not measured.
  double operation_bytes_per_s(const std::string& operation, Occupancy occupancy, bool forward) const;
  double memory_bytes_per_s(Occupancy occupancy) const;
  /// Seconds of one message, linear between the measured sizes and beyond them at the last slope. A group of another size
  /// than the measured ones takes the nearest, its latency scaled by log2(ranks) and the rest by (ranks - 1) / ranks; more
  /// ranks in all than were measured share the cores.
  double message_seconds(const std::string& backend, const std::string& operation, int ranks, int groups,
                         double bytes) const;
  /// Highest measured product rate of one rank: the base of MFU in plans.
  double peak_flops_per_s(const std::string& precision, Occupancy occupancy) const;
};

/// Conservative values for a machine that nobody measured.
MachineProfile built_in_profile(int cores);

/// $XDG_CONFIG_HOME/paceline/machine.toml, else ~/.config/paceline/machine.toml.
std::string machine_profile_path();

/// Reads a profile; refuses another schema version, missing or impossible values, naming file and key.
MachineProfile read_machine_profile(const std::string& path);

/// The profile at machine_profile_path(), or the built-in values for `cores` where there is none.
MachineProfile find_machine_profile(int cores);

/// Writes the profile beside its place and renames it there.
void write_machine_profile(const MachineProfile& profile, const std::string& path);

/// The profile as TOML, and back; `name` stands for the file in messages.
std::string to_toml(const MachineProfile& profile);
MachineProfile parse_machine_profile(const std::string& text, const std::string& name);

std::string pass_name(Pass pass);

}  // namespace paceline
