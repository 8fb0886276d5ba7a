#pragma once

#include "paceline/engine/interface.h"

namespace paceline {

/// Opens the engine library that lies beside the program, once; fails in one line where it is missing or broken.
const EngineInterface& load_engine();

}  // namespace paceline
