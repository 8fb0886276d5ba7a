#pragma once

#include <string>
#include <string_view>

namespace paceline {

/// Writes a whole small file: beside its place (`<path>.partial`), synced to the disk, then renamed, so that a reader sees
/// the old content or the new one. Fails with the path and the system's reason and leaves nothing beside it.
void replace_file(const std::string& path, std::string_view content);

}  // namespace paceline
