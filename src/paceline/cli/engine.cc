#include "paceline/cli/engine.h"

#include "paceline/base/error.h"

#include <dlfcn.h>

#include <filesystem>

namespace paceline {

const EngineInterface& load_engine() {
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libpaceline_engine.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fail("the engine cannot be opened: {}; './run build' builds it, with torch in the project's venv", dlerror());
  }
  using Entry = const EngineInterface* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "paceline_engine"));
  if (entry == nullptr) fail("{} is not the engine of this program; './run build' builds both", path.string());
  return *entry();
}

}  // namespace paceline
