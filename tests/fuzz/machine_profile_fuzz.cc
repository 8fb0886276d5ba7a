#include "fuzz_target.h"

#include "paceline/cluster/profile.h"

namespace paceline {

void parse_foreign_bytes(std::string_view bytes) {
  const MachineProfile profile = parse_machine_profile(std::string(bytes), "machine.toml");
  const std::string text = to_toml(profile);
  require(to_toml(parse_machine_profile(text, "written again")) == text, "written and read back, it differs");
  const Occupancy occupancy = {.threads = 2, .ranks = 2};
  for (const char* precision : {"fp32", "fp64"}) {
    profile.product_flops_per_s(precision, occupancy, Pass::forward, 256, 512, 1024);
    profile.attention_flops_per_s(precision, occupancy, true, 256, 64);
    profile.peak_flops_per_s(precision, occupancy);
  }
  profile.operation_bytes_per_s("rms_norm", occupancy, false);
  profile.memory_bytes_per_s(occupancy);
  profile.message_seconds("gloo", "send", 4, 2, 1e6);
}

std::vector<std::string> seeds() {
  MachineProfile profile = built_in_profile(2);
  profile.operations = {{"rms_norm", {}, 1e9, 0}};
  const std::string text = to_toml(profile);
  std::vector<std::string> all = {text};
  for (const char* number : {"9223372036854775807", "4294967296", "4294967297", "inf", "nan", "1e308", "5e-324"}) {
    for (const char* key : {"cores = ", "ranks = ", "threads = ", "groups = ", "bytes = ", "flops_per_s = ", "seconds = "}) {
      const std::size_t at = text.find(key) + std::string(key).size();
      all.push_back(text.substr(0, at) + number + text.substr(text.find_first_of(",}\n", at)));
    }
  }
  std::string dotted = "a";
  for (int i = 0; i < 100'000; ++i) dotted += ".a";
  all.push_back(dotted + " = 1");
  all.push_back("[" + dotted + "]");
  return all;
}

}  // namespace paceline
