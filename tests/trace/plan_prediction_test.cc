#include "paceline/trace/plan_prediction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/base/error.h"
#include "synthetic_trace.h"

namespace paceline {
namespace {

using ::testing::HasSubstr;

TEST(PlanPrediction, ReadsAndFinds) {
  const TestFolder run;
  EXPECT_FALSE(read_plan_prediction(run / "plan.json"));
  write_bytes(run / "plan.json", R"({"schema_version":1,"predicted":{"step_time_s":0.25,
    "parts":[{"rank":1,"action":4,"kind":"backward","micro_batch":0,"chunk":0,"start_s":0.2,"duration_s":0.05},
             {"rank":0,"action":2,"kind":"forward","micro_batch":0,"chunk":0,"start_s":0.1,"duration_s":0.1}],
    "operations":[{"rank":0,"action_kind":"forward","operation":3,"name":"layers.0.attention","duration_s":0.02}]}})");
  const auto plan = read_plan_prediction(run / "plan.json");
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->step_time_s, 0.25);
  ASSERT_NE(plan->find_part(0, 2), nullptr);
  EXPECT_EQ(plan->find_part(0, 2)->kind, "forward");
  EXPECT_EQ(plan->find_part(1, 4)->duration_s, 0.05);
  EXPECT_EQ(plan->find_part(0, 4), nullptr);
  ASSERT_NE(plan->find_operation(0, "forward", 3), nullptr);
  EXPECT_EQ(plan->find_operation(0, "forward", 3)->name, "layers.0.attention");
  EXPECT_EQ(plan->find_operation(0, "backward", 3), nullptr);
}

TEST(PlanPrediction, ClearErrors) {
  const TestFolder run;
  const auto error_for = [&](const std::string& text) -> std::string {
    write_bytes(run / "plan.json", text);
    try {
      read_plan_prediction(run / "plan.json");
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_for(""), HasSubstr("plan.json: cannot be read or is empty"));
  EXPECT_THAT(error_for("{}"), HasSubstr("plan.json: not a plan that this program reads"));
  EXPECT_THAT(error_for("[]"), HasSubstr("plan.json: not a plan that this program reads"));
  EXPECT_THAT(error_for(R"({"schema_version":2})"), HasSubstr("plan schema version 2"));
  EXPECT_THAT(error_for(R"({"schema_version":1,"predicted":{"step_time_s":-1,"parts":[]}})"),
              HasSubstr("\"step_time_s\" is -1"));
  EXPECT_THAT(error_for(R"({"schema_version":1,"predicted":{"step_time_s":1,"parts":[{"rank":0}]}})"),
              HasSubstr("not a plan that this program reads"));
}

}  // namespace
}  // namespace paceline
