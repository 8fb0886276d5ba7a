#include "paceline/checkpoint/run_folder.h"

#include "paceline/base/error.h"
#include "paceline/checkpoint/durable_file.h"
#include "paceline/checkpoint/manifest.h"

#include <fmt/ranges.h>

#include <charconv>
#include <vector>

namespace paceline {
namespace {

constexpr const char* name_prefix = "step_";

/// The step in a finished checkpoint's folder name; none for any other name.
std::optional<std::int64_t> step_of(const std::string& name) {
  const std::string prefix = name_prefix;
  if (!name.starts_with(prefix) || name.size() == prefix.size()) return std::nullopt;
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

bool is_complete(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder / manifest_file_name, ignored);
}

std::string others_text(const std::filesystem::path& run_folder) {
  std::vector<std::string> names;
  for (const auto& [step, folder] : complete_checkpoints(run_folder)) names.push_back(folder.filename().string());
  if (names.empty()) return "no other complete checkpoint is there";
  return fmt::format("complete ones there: {}; write one of these names into {} to continue from it",
                     fmt::join(names, ", "), (checkpoints_folder(run_folder) / "latest").string());
}

}  // namespace

std::filesystem::path checkpoints_folder(const std::filesystem::path& run_folder) { return run_folder / "checkpoints"; }

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:08}", name_prefix, step); }

std::map<std::int64_t, std::filesystem::path> complete_checkpoints(const std::filesystem::path& run_folder) {
  std::map<std::int64_t, std::filesystem::path> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints_folder(run_folder), error)) {
    const std::optional<std::int64_t> step = step_of(entry.path().filename().string());
    if (step && is_complete(entry.path())) found[*step] = entry.path();
  }
  return found;
}

std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& run_folder) {
  const std::filesystem::path latest = checkpoints_folder(run_folder) / "latest";
  std::error_code ignored;
  if (!std::filesystem::exists(latest, ignored)) {
    // The first save of a run was killed after its folder was complete and before `latest` was written.
    const auto complete = complete_checkpoints(run_folder);
    if (complete.empty()) return std::nullopt;
    return complete.rbegin()->second;
  }
  std::string name = read_text(latest);
  while (!name.empty() && (name.back() == '\n' || name.back() == '\r' || name.back() == ' ')) name.pop_back();
  if (!step_of(name))
    fail("{} holds '{}', which is no checkpoint's name; {}", latest.string(), name, others_text(run_folder));
  const std::filesystem::path folder = checkpoints_folder(run_folder) / name;
  if (!is_complete(folder)) {
    fail("{} names {}, which is {}; {}", latest.string(), name,
         std::filesystem::exists(folder, ignored) ? "incomplete (no manifest.json)" : "missing",
         others_text(run_folder));
  }
  return folder;
}

std::filesystem::path find_checkpoint(const std::filesystem::path& named) {
  std::filesystem::path path = named.lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // "run/" as the shell completes it
  std::error_code ignored;
  if (is_complete(path)) return path;
  if (!std::filesystem::exists(path, ignored)) fail("{} does not exist", path.string());
  const bool inside = path.filename() == "checkpoints" || path.parent_path().filename() == "checkpoints";
  if (const auto latest = latest_checkpoint(path.filename() == "checkpoints" ? path.parent_path() : path))
    return *latest;
  if (inside) fail("{} is no complete checkpoint: it has no {}", path.string(), manifest_file_name);
  fail("{} holds no checkpoint: neither {} nor checkpoints/step_...", path.string(), manifest_file_name);
}

void remove_unfinished_saves(const std::filesystem::path& run_folder) {
  std::error_code error;
  std::vector<std::filesystem::path> unfinished;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints_folder(run_folder), error)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name.starts_with(name_prefix) || name.starts_with(".latest");
    if (ours && name.find(".tmp-") != std::string::npos) unfinished.push_back(entry.path());
  }
  for (const std::filesystem::path& path : unfinished) std::filesystem::remove_all(path, error);
}

}  // namespace paceline
