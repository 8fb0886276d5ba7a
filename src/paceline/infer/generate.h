#pragma once

#include "paceline/engine/requests.h"

namespace paceline {

/// `paceline generate MODEL --prompt "..."`: continues a text.
int run_generate(const GenerateRequest& request);

}  // namespace paceline
