#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace paceline {

/// <run_folder>/checkpoints
std::filesystem::path checkpoints_folder(const std::filesystem::path& run_folder);

/// "step_00000120"
std::string checkpoint_name(std::int64_t step);

/// A checkpoint's folder from what a user names: a checkpoint's own folder, or a run's folder (its latest). When
/// `latest` names a checkpoint that is missing or incomplete, the error says so and lists the complete ones.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// The run's latest checkpoint; none when the run has not saved yet (a folder that is being written does not count).
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& run_folder);

/// The run's complete checkpoints by step.
std::map<std::int64_t, std::filesystem::path> complete_checkpoints(const std::filesystem::path& run_folder);

/// Removes what killed saves left behind. For the one process that owns the run, before it trains.
void remove_unfinished_saves(const std::filesystem::path& run_folder);

}  // namespace paceline
