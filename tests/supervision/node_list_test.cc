#include "paceline/supervision/node_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/base/error.h"

namespace paceline {
namespace {

struct Example {
  const char* list;
  const char* first;
  std::int64_t count;
};

TEST(NodeList, FirstHostAndCount) {
  const Example examples[] = {
      {"linux[1,2]", "linux1", 2},
      {"host-[001-002]", "host-001", 2},
      {"alpha,beta,gamma", "alpha", 3},
      {"site-gpu-ia810", "site-gpu-ia810", 1},
      {"nodeA,nodeB[001,003],nodeC", "nodeA", 4},
      {"host[001,003-004,006]", "host001", 4},
      {"n", "n", 1},
      {"c[1-2]", "c1", 2},
      {"d05-[41-42]", "d05-41", 2},
      {"foo-[10-20]-[01-02]", "foo-10-01", 22},
      {"r[1-2]c[08-10],x[7]", "r1c08", 7},
      {"node[1-2]-ib.cluster.example", "node1-ib.cluster.example", 2},
      {"a[009-011]", "a009", 3},
      {"[1-3]", "1", 3},
      {"a[1-1000000],b[1-1000000]", "a1", 2000000},
      {"10.0.0.1,10.0.0.2", "10.0.0.1", 2},
  };
  for (const Example& example : examples) {
    EXPECT_EQ(first_host(example.list), example.first) << example.list;
    EXPECT_EQ(host_count(example.list), example.count) << example.list;
  }
}

TEST(NodeList, RefusesWhatDoesNotParse) {
  for (const char* list : {"a[1", "", ",", "a,", ",a", "a[]", "a[1-]", "a[-2]", "a[2-1]", "a]", "a[1,]", "a[1-2-3]",
      "a b",
                           "a[x]", "a[[1]]", "a[1]]", "a;rm", "a[99999999999999999999]", "a[1-2", "[", "a[1.5]",
                           "a[1-999999999999999]b[1-999999999999999]c[1-999999999999999]"}) {
    try {
      first_host(list);
      ADD_FAILURE() << "taken: " << list << " as " << first_host(list);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_THAT(error.what(), testing::HasSubstr("'" + std::string(list) + "'"));
      EXPECT_THAT(error.what(), testing::HasSubstr("set MASTER_ADDR"));
    }
  }
}

}  // namespace
}  // namespace paceline
