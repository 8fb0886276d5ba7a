#include "paceline/supervision/activity.h"

#include <gtest/gtest.h>

namespace paceline {
namespace {

TEST(Activity, SaysWhatIsDone) {
  Activity activity;
  EXPECT_EQ(activity.text(), "start");
  EXPECT_EQ(activity.progress(), 0U);
  activity.begin("backward", 12, 3);
  EXPECT_EQ(activity.text(), "step 12, backward 3");
  activity.begin("checkpoint", 12);
  EXPECT_EQ(activity.text(), "step 12, checkpoint");
  activity.begin("load shard", -1, 0);
  EXPECT_EQ(activity.text(), "load shard 0");
  activity.progressed();
  EXPECT_EQ(activity.progress(), 4U);
}

TEST(Activity, WaitingNests) {
  Activity activity;
  EXPECT_EQ(activity.waiting_for(), Activity::not_waiting);
  {
    const Activity::Waiting all(activity, Activity::any_rank);
    {
      const Activity::Waiting one(activity, 2);
      EXPECT_EQ(activity.waiting_for(), 2);
    }
    EXPECT_EQ(activity.waiting_for(), Activity::any_rank);
    EXPECT_EQ(activity.progress(), 1U);  // the end of a wait is progress, its beginning is not
  }
  EXPECT_EQ(activity.waiting_for(), Activity::not_waiting);
  EXPECT_EQ(activity.progress(), 2U);
}

}  // namespace
}  // namespace paceline
