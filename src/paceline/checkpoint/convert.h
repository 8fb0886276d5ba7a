#pragma once

#include "paceline/engine/requests.h"

namespace paceline {

/// `paceline convert`: a run, checkpoint or Hugging Face folder into a Hugging Face folder or a checkpoint.
/// Returns the exit code; errors are thrown.
int run_convert(const ConvertRequest& request);

}  // namespace paceline
