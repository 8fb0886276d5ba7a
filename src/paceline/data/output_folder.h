#pragma once

#include <filesystem>

namespace paceline {

/// A folder that appears complete or not at all: it is filled as `<target>.building` and takes the target's place in
/// one rename; until then what stood there stays. What a killed build left is cleared away by the next one. A second
/// build of the same target at the same time is refused, as is a target that holds other things than built data.
class OutputFolder {
 public:
  explicit OutputFolder(std::filesystem::path target);
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder();

  const std::filesystem::path& building() const { return building_; }
  void publish();

 private:
  std::filesystem::path target_;
  std::filesystem::path building_;
  int lock_ = -1;
  bool published_ = false;
};

}  // namespace paceline
