#include "paceline/train/initial_weights.h"

#include "paceline/checkpoint/blocks.h"
#include "paceline/checkpoint/huggingface_model.h"

namespace paceline {

void load_initial_weights(const PreparedRun& run, const Program& program, ModelState& state) {
  if (run.settings.model.from.empty()) {
    state.initialize_weights(static_cast<std::uint64_t>(run.settings.train.seed));
    return;
  }
  HuggingFaceModel model(run.settings.model.from);
  model.match(global_tensors(build_program(run.model).parameters));
  for (std::size_t i = 0; i < program.parameters.size(); ++i) {
    for (const Block& block : program.parameters[i].blocks) {
      scatter(block, model.read_tensor(block.tensor), state.weight(static_cast<int>(i)));
    }
  }
}

}  // namespace paceline
