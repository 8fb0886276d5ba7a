#include "paceline/plan/search.h"

#include "paceline/base/error.h"
#include "paceline/plan/explain.h"
#include "paceline/plan/plan_document.h"

#include "planned_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <set>
#include <unistd.h>

namespace paceline {
namespace {

using ::testing::HasSubstr;

Place two_cores() { return {.profile = built_in_profile(2), .cores = 2}; }

std::string reason_for(const LayoutSearch& search, const Layout& layout) {
  for (const RefusedLayout& refused : search.refused) {
    if (refused.layout == layout) return refused.reason;
  }
  return "not refused";
}

TEST(LayoutSearch, EveryLayoutIsPlannedOrRefusedOnce) {
  StepSettings settings = tiny_step({}, 3, 8);  // global batch 16, 2 heads, 3 layers
  const LayoutSearch search = search_layouts(settings, 8, two_cores());
  std::set<std::string> seen;
  for (const Plan& plan : search.plans) seen.insert(plan.step.settings.parallel.layout.text());
  for (const RefusedLayout& refused : search.refused) seen.insert(refused.layout.text());
  EXPECT_EQ(seen.size(), 10u);  // ordered factorisations of 8 in three
  EXPECT_EQ(search.plans.size() + search.refused.size(), 10u);
  for (std::size_t i = 1; i < search.plans.size(); ++i) {
    EXPECT_LE(search.plans[i - 1].step_time_s(), search.plans[i].step_time_s());
  }
  for (const Plan& plan : search.plans) {
    EXPECT_EQ(plan.step.settings.batch.global, 16);
    EXPECT_EQ(plan.step.settings.parallel.layout.world_size(), 8);
  }
  EXPECT_THAT(reason_for(search, {.dp = 2, .tp = 4}), HasSubstr("2 attention heads"));
  EXPECT_THAT(reason_for(search, {.dp = 2, .pp = 4}), HasSubstr("3 layers"));
}

TEST(LayoutSearch, ABatchThatDoesNotDivideIsARefusal) {
  StepSettings settings = tiny_step({}, 3, 1);  // global batch 2
  const LayoutSearch search = search_layouts(settings, 3, two_cores());
  EXPECT_THAT(reason_for(search, {.dp = 3}), HasSubstr("train.global_batch_size 2"));
  ASSERT_EQ(search.plans.size(), 1u);
  EXPECT_EQ(search.plans[0].step.settings.parallel.layout, (Layout{.pp = 3}));
}

TEST(LayoutSearch, FewerMicroBatchesThanStagesArePlanned) {  // T14
  for (const PipelineSchedule kind : {PipelineSchedule::gpipe, PipelineSchedule::one_forward_one_backward}) {
    for (const int micro_batches : {1, 2, 3}) {
      StepSettings settings = tiny_step({.pp = 4}, 4, micro_batches);
      settings.schedule = kind;
      const Plan plan = make_plan(settings, two_cores());
      EXPECT_NEAR(plan.bubble, 3.0 / (micro_batches + 3), 1e-12);
      EXPECT_THAT(explain_plan(plan), HasSubstr(fmt::format("(p-1)/m = {:.1f} %", 300.0 / micro_batches)));
    }
  }
}

TEST(LayoutSearch, UnevenStagesKeepAllLayers) {  // T13
  const Plan plan = make_plan(tiny_step({.pp = 4}, 7, 4), two_cores());
  EXPECT_THAT(explain_plan(plan), HasSubstr("layers: 2 + 2 + 2 + 1 = 7"));
}

TEST(LayoutSearch, WhatDoesNotFitIsRefusedWithItsNumbers) {
  Place place = two_cores();
  place.memory_bytes = 40000;
  const LayoutSearch search = search_layouts(tiny_step({}, 4, 8), 2, place);
  EXPECT_THAT(reason_for(search, {.dp = 2}), HasSubstr("the machine has 39.1 KiB"));
  place.memory_bytes = 0;  // unknown
  EXPECT_EQ(search_layouts(tiny_step({}, 4, 8), 2, place).refused.size(), 0u);
}

TEST(Plan, MfuIsModelFlopsOverThePeak) {
  const Plan plan = make_plan(tiny_step({.dp = 2}, 2, 2), two_cores());
  EXPECT_DOUBLE_EQ(plan.mfu(), plan.model_flops_per_token * plan.tokens_per_s() / plan.peak_flops_per_s);
  EXPECT_DOUBLE_EQ(plan.peak_flops_per_s, 2 * 40e9);
  EXPECT_DOUBLE_EQ(plan.tokens_per_s(), 24 / plan.step_time_s());
  EXPECT_EQ(plan.model_flops_per_token, model_flops_per_token(plan.step.settings.model, 3));
}

TEST(Explanation, NamesTheMachineThatWasNotMeasured) {
  EXPECT_THAT(explain_profile(two_cores()), HasSubstr("run `paceline bench machine`"));
  Place measured = two_cores();
  measured.profile.measured = true;
  measured.profile.file = "/x/machine.toml";
  EXPECT_THAT(explain_profile(measured), HasSubstr("/x/machine.toml"));
}

TEST(Explanation, SaysWhyTheBestIsBest) {
  const LayoutSearch search = search_layouts(tiny_step({}, 4, 8), 2, two_cores());
  const std::string text = explain_best(search);
  EXPECT_THAT(text, HasSubstr(search.plans[0].step.settings.parallel.layout.text() + " is the fastest"));
  EXPECT_THAT(text, HasSubstr("the next, " + search.plans[1].step.settings.parallel.layout.text()));
}

TEST(Explanation, ShowsLogitsWithTheTokensAssumed) {  // T07
  const std::string text = explain_plan(make_plan(tiny_step({.pp = 2}, 2, 2), two_cores()));
  EXPECT_THAT(text, HasSubstr("logits 240 B of stage 1's activations: 2 x 3 tokens"));
  EXPECT_THAT(text, HasSubstr("train.micro_batch_size"));
}

TEST(PlanDocument, NumbersEachAction) {
  const Layout layout{.dp = 2, .tp = 2, .pp = 2};
  const Plan plan = make_plan(tiny_step(layout, 3, 2), two_cores());
  const nlohmann::ordered_json document = nlohmann::ordered_json::parse(plan_document(plan).dump());
  EXPECT_EQ(document["schema_version"], 1);
  const auto& predicted = document["predicted"];
  EXPECT_DOUBLE_EQ(predicted["step_time_s"], plan.step_time_s());
  EXPECT_DOUBLE_EQ(predicted["memory"]["total"], plan.largest_memory().total());
  double sum = 0;
  for (const char* name : {"parameters", "gradients", "optimizer", "activations", "communication", "workspace"}) {
    sum += predicted["memory"][name].get<double>();
  }
  EXPECT_DOUBLE_EQ(predicted["memory"]["total"], sum);

  std::size_t actions = 0, operations = 0;
  for (int rank = 0; rank < 8; ++rank) {
    const std::size_t stage = static_cast<std::size_t>(layout.coordinate(rank).pp);
    actions += plan.step.schedule.ranks[stage].size();
    operations += 2 * plan.step.stages[stage].operations.size();
  }
  ASSERT_EQ(predicted["parts"].size(), actions);
  ASSERT_EQ(predicted["operations"].size(), operations);
  for (const auto& part : predicted["parts"]) {
    const std::size_t stage = static_cast<std::size_t>(layout.coordinate(part["rank"]).pp);
    const Action& action = plan.step.schedule.ranks[stage].at(part["action"]);
    EXPECT_EQ(part["kind"], action_kind_name(action.kind));
    EXPECT_EQ(part.value("micro_batch", -1), action.micro_batch);
  }
  // The operations of a pass add up to the pass, but for the action's own overhead.
  double forward = 0;
  for (const auto& operation : predicted["operations"]) {
    if (operation["rank"] == 7 && operation["action_kind"] == "forward") forward += operation["duration_s"].get<double>();
  }
  double played = 0, passes = 0;
  for (const auto& part : predicted["parts"]) {
    if (part["rank"] != 7 || part["kind"] != "forward") continue;
    played += part["duration_s"].get<double>();
    ++passes;
  }
  EXPECT_NEAR(forward, played / passes, 0.1 * forward);
}

TEST(PlanDocument, SearchHoldsPlansAndRefusals) {
  const auto document =
      nlohmann::ordered_json::parse(search_document(search_layouts(tiny_step({}, 3, 8), 8, two_cores())).dump());
  EXPECT_EQ(document["plans"].size() + document["refused"].size(), 10u);
  EXPECT_EQ(document["model"]["parameters"], 2 * 80 + 8 + 3 * (8 + 128 + 64 + 8 + 192 + 96));
  EXPECT_EQ(document["machine_profile"]["measured"], false);
  EXPECT_TRUE(document["machine_profile"]["file"].is_null());
  EXPECT_TRUE(document["refused"][0]["reason"].is_string());
}

TEST(PlanDocument, IsWrittenWhole) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("paceline_plan_test_" + std::to_string(::getpid()) + ".json")).string();
  const Plan plan = make_plan(tiny_step({}, 1, 1), two_cores());
  write_plan(plan, path);
  std::ifstream file(path);
  EXPECT_EQ(nlohmann::ordered_json::parse(file), plan_document(plan));
  std::filesystem::remove(path);
  EXPECT_THROW(write_plan(plan, path + "/no/folder"), Error);
}

}  // namespace
}  // namespace paceline
