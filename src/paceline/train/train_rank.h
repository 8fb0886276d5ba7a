#pragma once

#include "paceline/engine/requests.h"

namespace paceline {

/// `paceline train` in one rank's process: joins the others, resumes from the run's latest checkpoint, trains, evaluates,
/// saves. Returns 0 when the run is finished, 143 or 130 when it was asked to stop and has saved.
int train_rank(const TrainRequest& request);

}  // namespace paceline
