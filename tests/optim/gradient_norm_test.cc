#include "paceline/optim/gradient_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "paceline/base/error.h"
#include "paceline/base/philox.h"

namespace paceline {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
const double nan = std::numeric_limits<double>::quiet_NaN();

TEST(SumOfSquares, IsExactAndIndependentOfThreads) {
  const int threads = at::get_num_threads();
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const int64_t size : {0, 1, 7, 32768, 100003}) {
      const at::Tensor values = at::empty({size}, type);
      double expected = 0;
      for (int64_t i = 0; i < size; ++i) {
        const double value = random_normal(3, i);
        if (type == at::kFloat) values.mutable_data_ptr<float>()[i] = static_cast<float>(value);
        else values.mutable_data_ptr<double>()[i] = value;
        expected += type == at::kFloat ? std::pow(static_cast<double>(static_cast<float>(value)), 2) : value * value;
      }
      EXPECT_NEAR(sum_of_squares(values), expected, 1e-12 * expected);
      at::set_num_threads(1);
      const double one = sum_of_squares(values);
      at::set_num_threads(2);
      EXPECT_EQ(one, sum_of_squares(values));
      at::set_num_threads(threads);
    }
  }
}

TEST(SumOfSquares, FloatsDoNotOverflow) {
  EXPECT_EQ(sum_of_squares(at::ones({4}, at::kFloat) * 0x1p100), 0x1p202);
  EXPECT_EQ(sum_of_squares(at::ones({4}, at::kFloat) * infinity), infinity);
}

TEST(ClipCoefficient, ScalesDownOnly) {
  EXPECT_EQ(clip_coefficient(0.5, 1), 1.0);
  EXPECT_EQ(clip_coefficient(4, 1), 1 / (4 + 1e-6));
  EXPECT_EQ(clip_coefficient(4, 0), 1.0);  // 0 is off
  EXPECT_EQ(clip_coefficient(0, 1), 1.0);
}

TEST(ClipCoefficient, BadNormsAreReportedAndBadLimitsRefused) {
  EXPECT_FALSE(clip_coefficient(infinity, 1).has_value());
  EXPECT_FALSE(clip_coefficient(nan, 1).has_value());
  EXPECT_FALSE(clip_coefficient(nan, 0).has_value());
  EXPECT_THROW(clip_coefficient(1, -1), Error);
  EXPECT_THROW(clip_coefficient(1, nan), Error);
  EXPECT_THROW(clip_coefficient(1, infinity), Error);
}

}  // namespace
}  // namespace paceline
