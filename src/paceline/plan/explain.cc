#include "paceline/plan/explain.h"

#include "paceline/plan/quantity_text.h"

#include <fmt/format.h>

#include <array>

namespace paceline {
namespace {

struct Part {
  const char* name;
  double seconds;
};

std::array<Part, 4> parts_of(const Plan& plan) {
  const StageUse& use = plan.simulation.use[plan.slowest_stage];
  return {{{"passes", use.compute_s},
           {"messages", use.communication_s},
           {"the update", use.update_s},
           {"waiting for other stages", use.waiting_s}}};
}

std::string counted(int count, const char* noun) { return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s"); }

}  // namespace

std::string explain_best(const LayoutSearch& search) {
  const Plan& best = search.plans.front();
  std::string text = fmt::format("{} is the fastest:", best.step.settings.parallel.layout.text());
  const char* separator = " ";
  for (const Part& part : parts_of(best)) {
    text += fmt::format("{}{:.0f} % {}", separator, 100 * part.seconds / best.step_time_s(), part.name);
    separator = ", ";
  }
  text += " of a step";
  if (search.plans.size() < 2) return text + ".";
  const Plan& next = search.plans[1];
  Part most{"", 0};
  for (std::size_t i = 0; i < 4; ++i) {
    const double more = parts_of(next)[i].seconds - parts_of(best)[i].seconds;
    if (more > most.seconds) most = {parts_of(next)[i].name, more};
  }
  text += fmt::format("; the next, {}, takes {:.1f} % longer", next.step.settings.parallel.layout.text(),
                      100 * (next.step_time_s() / best.step_time_s() - 1));
  if (most.seconds > 0) text += fmt::format(", most of it in {} ({} more)", most.name, seconds_text(most.seconds));
  return text + ".";
}

std::string explain_plan(const Plan& plan) {
  const StepSettings& settings = plan.step.settings;
  const Layout& layout = settings.parallel.layout;
  const BatchPlan& batch = settings.batch;
  std::string text = fmt::format("{}: {}, {} a rank, schedule {}\n", layout.text(), counted(layout.world_size(), "rank"),
                                 counted(plan.threads_per_rank, "thread"), pipeline_schedule_name(settings.schedule));
  text += fmt::format("  batch: {} sequences = {} x {} x {} (micro-batch x accumulation x dp), {} tokens a step\n",
                      batch.global, batch.micro, batch.accumulation, batch.dp, settings.tokens());
  std::string layers;
  for (const std::int64_t count : stage_layers(settings.parallel, settings.model.num_hidden_layers)) {
    layers += (layers.empty() ? "" : " + ") + std::to_string(count);
  }
  text += fmt::format("  layers: {} = {}\n", layers, settings.model.num_hidden_layers);
  text += fmt::format("  step: {}, {:.0f} tokens/s, MFU {:.1f} % of {:.1f} GFLOP/s\n", seconds_text(plan.step_time_s()),
                      plan.tokens_per_s(), 100 * plan.mfu(), plan.peak_flops_per_s / 1e9);
  text += fmt::format("  of it on stage {}, which waits least:", plan.slowest_stage);
  const char* separator = " ";
  for (const Part& part : parts_of(plan)) {
    text += fmt::format("{}{} {} ({:.1f} %)", separator, part.name, seconds_text(part.seconds),
                        100 * part.seconds / plan.step_time_s());
    separator = ", ";
  }
  text += "\n";
  if (layout.pp > 1) {
    const int m = static_cast<int>(batch.accumulation);
    text += fmt::format("  bubble: {} stages and {} micro-batches leave (p-1)/m = {:.1f} % over the work, {:.1f} % of the step\n",
                        layout.pp, m, 100.0 * (layout.pp - 1) / m, 100 * plan.bubble);
  }
  const StageMemory& memory = plan.largest_memory();
  text += fmt::format("  memory of the largest rank (stage {}): {}, all ranks {}\n", plan.largest_stage,
                      bytes_text(memory.total()), bytes_text(plan.memory_of_all_ranks()));
  text += fmt::format("    parameters {}, gradients {}, optimizer {}: {} bytes a parameter\n", bytes_text(memory.parameters),
                      bytes_text(memory.gradients), bytes_text(memory.optimizer), 4 * settings.element_bytes());
  text += fmt::format("    activations {}", bytes_text(memory.activations));
  if (memory.peak_action >= 0) {
    const Action& action = plan.step.schedule.ranks[plan.largest_stage][static_cast<std::size_t>(memory.peak_action)];
    text += fmt::format(", at {}{}{}, with {} micro-batches in flight", action_label(action),
                        memory.peak_operation.empty() ? "" : " in ", memory.peak_operation, memory.peak_in_flight);
  }
  text += fmt::format("\n    communication {}, workspace {}\n", bytes_text(memory.communication), bytes_text(memory.workspace));
  for (std::size_t stage = 0; stage < plan.memory.size(); ++stage) {
    if (plan.memory[stage].logits <= 0) continue;
    text += fmt::format("    logits {} of stage {}'s activations: {} x {} tokens of a micro-batch; a smaller "
                        "train.micro_batch_size makes them smaller\n",
                        bytes_text(plan.memory[stage].logits), stage, batch.micro, settings.sequence_length);
  }
  text += "    the process itself (libtorch, transport buffers) comes on top of every rank\n";
  return text;
}

std::string explain_profile(const Place& place) {
  if (!place.profile.measured) {
    return fmt::format("machine: {} cores, nothing measured: built-in values, so times are rough; run `paceline bench machine`",
                       place.cores);
  }
  return fmt::format("machine: {}, {} cores, measured in {}", place.profile.cpu, place.cores, place.profile.file);
}

}  // namespace paceline
