#include "paceline/plan/plan_document.h"

#include "paceline/base/replace_file.h"
#include "paceline/plan/explain.h"

#include <nlohmann/json.hpp>

#include <array>

namespace paceline {
namespace {

using json = nlohmann::ordered_json;

json memory_document(const StageMemory& memory) {
  return {{"parameters", memory.parameters}, {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},   {"activations", memory.activations},
          {"communication", memory.communication}, {"workspace", memory.workspace},
          {"total", memory.total()}};
}

json layout_document(const Layout& layout) {
  return {{"dp", layout.dp}, {"tp", layout.tp}, {"pp", layout.pp}, {"ranks", layout.world_size()}};
}

/// What both documents say of a plan.
json summary(const Plan& plan) {
  const StepSettings& settings = plan.step.settings;
  const StageUse& use = plan.simulation.use[plan.slowest_stage];
  json document;
  document["layout"] = layout_document(settings.parallel.layout);
  document["layout"]["layers_per_stage"] = stage_layers(settings.parallel, settings.model.num_hidden_layers);
  document["layout"]["schedule"] = pipeline_schedule_name(settings.schedule);
  document["batch"] = {{"global", settings.batch.global},
                       {"micro", settings.batch.micro},
                       {"accumulation", settings.batch.accumulation},
                       {"sequence_length", settings.sequence_length},
                       {"tokens", settings.tokens()}};
  json& predicted = document["predicted"];
  predicted["step_time_s"] = plan.step_time_s();
  predicted["tokens_per_s"] = plan.tokens_per_s();
  predicted["model_flops_per_token"] = plan.model_flops_per_token;
  predicted["peak_flops_per_s"] = plan.peak_flops_per_s;
  predicted["mfu"] = plan.mfu();
  predicted["bubble"] = plan.bubble;
  predicted["time"] = {{"stage", plan.slowest_stage},
                       {"compute_s", use.compute_s},
                       {"communication_s", use.communication_s},
                       {"update_s", use.update_s},
                       {"waiting_s", use.waiting_s}};
  predicted["memory"] = memory_document(plan.largest_memory());
  predicted["memory_stage"] = plan.largest_stage;
  predicted["memory_of_all_ranks"] = plan.memory_of_all_ranks();
  predicted["threads_per_rank"] = plan.threads_per_rank;
  json& stages = predicted["memory_of_stages"] = json::array();
  for (std::size_t stage = 0; stage < plan.memory.size(); ++stage) {
    const StageMemory& memory = plan.memory[stage];
    json entry = memory_document(memory);
    entry["logits"] = memory.logits;
    entry["peak_action"] = memory.peak_action;
    entry["peak_operation"] = memory.peak_operation;
    entry["peak_in_flight"] = memory.peak_in_flight;
    stages.push_back(std::move(entry));
  }
  return document;
}

json model_document(const StepSettings& settings) {
  const ModelConfig& model = settings.model;
  return {{"family", family_name(model.family)},
          {"parameters", parameter_count(build_program(model))},
          {"vocab_size", model.vocab_size},
          {"hidden_size", model.hidden_size},
          {"num_hidden_layers", model.num_hidden_layers},
          {"num_attention_heads", model.num_attention_heads},
          {"num_key_value_heads", model.num_key_value_heads},
          {"head_dim", model.head_dim},
          {"intermediate_size", model.intermediate_size},
          {"tie_word_embeddings", model.tie_word_embeddings},
          {"precision", settings.precision}};
}

json profile_document(const Place& place) {
  return {{"measured", place.profile.measured},
          {"file", place.profile.measured ? json(place.profile.file) : json(nullptr)},
          {"cpu", place.profile.cpu},
          {"cores", place.cores},
          {"memory_bytes", place.memory_bytes > 0 ? json(place.memory_bytes) : json(nullptr)},
          {"backend", place.backend}};
}

}  // namespace

json plan_document(const Plan& plan) {
  const StepSettings& settings = plan.step.settings;
  const Layout& layout = settings.parallel.layout;
  json document;
  document["schema_version"] = 1;
  document["model"] = model_document(settings);
  document["machine_profile"] = profile_document(plan.place);
  document.update(summary(plan));

  json parts = json::array(), operations = json::array();
  const CostModel costs(plan.step, plan.place);
  constexpr std::array passes{ActionKind::forward, ActionKind::backward};
  std::vector<std::array<double, passes.size()>> slowdowns(static_cast<std::size_t>(layout.pp));
  for (int stage = 0; stage < layout.pp; ++stage) {
    for (std::size_t i = 0; i < passes.size(); ++i) {
      slowdowns[static_cast<std::size_t>(stage)][i] = plan.slowdown(costs, stage, passes[i]);
    }
  }
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    const int stage = layout.coordinate(rank).pp;
    const std::size_t at = static_cast<std::size_t>(stage);
    const std::vector<Action>& actions = plan.step.schedule.ranks[at];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const SimulatedAction& played = plan.simulation.stages[at][i];
      json part{{"rank", rank}, {"action", i}, {"kind", action_kind_name(actions[i].kind)}};
      if (actions[i].micro_batch >= 0) part["micro_batch"] = actions[i].micro_batch;
      if (actions[i].chunk >= 0) part["chunk"] = actions[i].chunk;
      if (actions[i].bucket >= 0) part["bucket"] = actions[i].bucket;
      part["start_s"] = played.start_s;
      part["duration_s"] = played.duration_s;
      parts.push_back(std::move(part));
    }
    for (std::size_t pass = 0; pass < passes.size(); ++pass) {
      const ActionKind kind = passes[pass];
      const double slowdown = slowdowns[at][pass];
      const Program& program = plan.step.stages[at];
      for (std::size_t i = 0; i < program.operations.size(); ++i) {
        operations.push_back({{"rank", rank},
                              {"action_kind", action_kind_name(kind)},
                              {"operation", i},
                              {"name", program.operations[i].name},
                              {"duration_s", slowdown * costs.operation(stage, kind, static_cast<int>(i)).total()}});
      }
    }
  }
  document["predicted"]["parts"] = std::move(parts);
  document["predicted"]["operations"] = std::move(operations);
  return document;
}

json search_document(const LayoutSearch& search) {
  json document;
  document["schema_version"] = 1;
  json plans = json::array(), refused = json::array();
  if (!search.plans.empty()) {
    document["model"] = model_document(search.plans.front().step.settings);
    document["machine_profile"] = profile_document(search.plans.front().place);
    document["explanation"] = explain_best(search);
  }
  for (const Plan& plan : search.plans) plans.push_back(summary(plan));
  for (const RefusedLayout& entry : search.refused) {
    json layout = layout_document(entry.layout);
    layout["reason"] = entry.reason;
    refused.push_back(std::move(layout));
  }
  document["plans"] = std::move(plans);
  document["refused"] = std::move(refused);
  return document;
}

void write_plan(const Plan& plan, const std::string& path) {
  replace_file(path, plan_document(plan).dump(1) + "\n");
}

}  // namespace paceline
