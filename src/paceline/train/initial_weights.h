#pragma once

#include "paceline/run/prepared_run.h"
#include "paceline/train/model_state.h"

namespace paceline {

/// The weights that a new run starts from: random, as a function of the seed, or those of model.from's Hugging Face folder.
void load_initial_weights(const PreparedRun& run, const Program& program, ModelState& state);

}  // namespace paceline
