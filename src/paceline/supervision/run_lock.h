#pragma once

#include <filesystem>

#include "paceline/supervision/descriptor.h"

namespace paceline {

/// Holds a run's folder for one run at a time, by flock on `run.lock` in it; the kernel releases it when the holder
/// ends, however it ends. Refuses a folder in use, naming the holder's process and host.
class RunLock {
 public:
  /// Creates the folder if need be.
  explicit RunLock(const std::filesystem::path& run_folder);

 private:
  Descriptor file_;
};

}  // namespace paceline
