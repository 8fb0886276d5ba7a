#include "paceline/supervision/launch_environment.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>

#include "paceline/base/error.h"

namespace paceline {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

LaunchEnvironment detect(const Variables& variables) {
  return detect_launch([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal(const Variables& variables) {
  try {
    const auto launch = detect(variables);
    return "accepted: " + launch.text();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
}

const Variables torchrun = {{"RANK", "1"},       {"WORLD_SIZE", "4"},        {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE",
    "2"},
                            {"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "29501"}};
const Variables slurm = {{"SLURM_PROCID", "3"},      {"SLURM_NTASKS", "4"},       {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "1"},      {"SLURM_STEP_ID", "0"},      {"SLURM_JOB_ID", "123456"},
                         {"SLURM_STEP_NODELIST", "gpu[07-08]"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};
const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "1314914305"},    {"OMPI_MCA_ess_base_jobid", "1314914305"}};

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}
Variables without(Variables base, const std::string& name) {
  base.erase(name);
  return base;
}

TEST(LaunchEnvironment, NoneIsOneRank) {
  const auto launch = detect({});
  EXPECT_EQ(launch.source, "none");
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.world_size, 1);
  EXPECT_EQ(launch.master_port, 0);
  EXPECT_EQ(launch.text(), "1 rank");
}

TEST(LaunchEnvironment, Torchrun) {
  const auto launch = detect(torchrun);
  EXPECT_EQ(launch.source, "torchrun");
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.world_size, 4);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_world_size, 2);
  EXPECT_EQ(launch.master_addr, "10.0.0.7");
  EXPECT_EQ(launch.master_port, 29501);
  EXPECT_EQ(launch.text(), "4 ranks, from RANK, WORLD_SIZE");
  EXPECT_EQ(detect(with(without(torchrun, "LOCAL_WORLD_SIZE"), {{"MASTER_ADDR", "127.0.0.1"}})).local_world_size, 4);
}

TEST(LaunchEnvironment, Slurm) {
  const auto launch = detect(slurm);
  EXPECT_EQ(launch.source, "slurm");
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.world_size, 4);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_world_size, 2);
  EXPECT_EQ(launch.master_addr, "gpu07");
  EXPECT_EQ(launch.master_port, 15000 + 123456 % 15000);
  EXPECT_EQ(launch.text(), "4 ranks, from SLURM_*");

  EXPECT_EQ(detect(with(slurm, {{"MASTER_ADDR", "gpu07-ib"}, {"MASTER_PORT", "4000"}})).master_addr, "gpu07-ib");
  EXPECT_EQ(detect(with(slurm, {{"MASTER_PORT", "4000"}})).master_port, 4000);
  EXPECT_NE(detect(with(slurm, {{"SLURM_STEP_ID", "1"}})).master_port, launch.master_port);
  // A smaller step of a larger job.
  const auto step = detect(with(slurm, {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_NTASKS", "16"}}));
  EXPECT_EQ(step.world_size, 4);
  // No step variables but a rank above 0: a step nevertheless; the node list of the job.
  const auto plain = detect({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "0"},
      {"SLURM_JOB_NODELIST", "n[1-2]"}});
  EXPECT_EQ(plain.master_addr, "n1");
  EXPECT_EQ(plain.local_world_size, 1);
  EXPECT_EQ(detect(with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "1,3"}, {"SLURM_LOCALID", "2"}})).local_world_size, 3);
}

TEST(LaunchEnvironment, SlurmWithoutAStepStartsNothing) {
  EXPECT_EQ(detect({{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "5"}}).source, "none");
  EXPECT_EQ(detect({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "5"}, {"SLURM_LOCALID", "0"}}).source, "none");
}

TEST(LaunchEnvironment, OpenMpi) {
  const auto launch = detect(open_mpi);
  EXPECT_EQ(launch.source, "open_mpi");
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.world_size, 2);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_world_size, 2);
  EXPECT_EQ(launch.master_addr, "127.0.0.1");
  EXPECT_GE(launch.master_port, 15000);
  EXPECT_LT(launch.master_port, 30000);
  EXPECT_EQ(launch.master_port, detect(with(open_mpi, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK",
      "0"}})).master_port);
  EXPECT_EQ(launch.text(), "2 ranks, from OMPI_*");
  EXPECT_THAT(refusal(with(open_mpi, {{"OMPI_COMM_WORLD_SIZE", "4"}})), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_EQ(detect(with(open_mpi, {{"OMPI_COMM_WORLD_SIZE", "4"}, {"MASTER_ADDR", "h1"}})).master_addr, "h1");
}

TEST(LaunchEnvironment, Pmi) {
  const auto launch = detect({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS",
      "3"}});
  EXPECT_EQ(launch.source, "pmi");
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.world_size, 3);
  EXPECT_EQ(launch.local_rank, 2);
}

TEST(LaunchEnvironment, ContradictionsNameBothValues) {
  const Variables both = {{"RANK", "0"},       {"WORLD_SIZE", "2"},           {"LOCAL_RANK", "0"},
                          {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "4000"}, {"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_THAT(refusal(both), AllOf(HasSubstr("RANK=0"), HasSubstr("OMPI_COMM_WORLD_RANK=1"),
      HasSubstr("PACELINE_LAUNCHER")));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE",
      "2"}}),
              AllOf(HasSubstr("RANK=0"), HasSubstr("OMPI_COMM_WORLD_RANK=1")));
  EXPECT_THAT(refusal(with(open_mpi, slurm)), AllOf(HasSubstr("SLURM_PROCID=3"), HasSubstr("OMPI_COMM_WORLD_RANK=1")));
  EXPECT_THAT(refusal(with(open_mpi, {{"PMI_SIZE", "8"}})), AllOf(HasSubstr("OMPI_COMM_WORLD_SIZE=2"),
      HasSubstr("PMI_SIZE=8")));
  EXPECT_THAT(refusal(with(open_mpi, {{"WORLD_SIZE", "4"}})), AllOf(HasSubstr("WORLD_SIZE=4"),
      HasSubstr("OMPI_COMM_WORLD_SIZE=2")));
  EXPECT_THAT(refusal(with(slurm, {{"RANK", "2"}, {"WORLD_SIZE", "4"}})), AllOf(HasSubstr("RANK=2"),
      HasSubstr("SLURM_PROCID=3")));
}

TEST(LaunchEnvironment, AgreementAndNestingAreNoContradiction) {
  EXPECT_EQ(detect(with(slurm, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}})).source, "slurm");
  // torchrun, once a node, inside srun; the local launcher inside mpirun.
  EXPECT_EQ(detect(with(with(slurm, torchrun), {{"TORCHELASTIC_RUN_ID", "x"}})).source, "torchrun");
  EXPECT_EQ(detect(with(with(open_mpi, torchrun), {{"PACELINE_CONTROL", "127.0.0.1:1"}})).world_size, 4);
  // mpirun inside a batch script.
  EXPECT_EQ(detect(with(open_mpi, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}})).source,
      "open_mpi");
  EXPECT_EQ(detect(with(with(open_mpi, slurm), {{"PACELINE_LAUNCHER", "open_mpi"}})).rank, 1);
  EXPECT_EQ(detect(with(open_mpi, {{"PACELINE_LAUNCHER", "none"}})).world_size, 1);
  EXPECT_THAT(refusal({{"PACELINE_LAUNCHER", "mpi"}}), HasSubstr("PACELINE_LAUNCHER=mpi"));
  EXPECT_THAT(refusal({{"PACELINE_LAUNCHER", "slurm"}}), HasSubstr("SLURM_PROCID is not set"));
}

TEST(LaunchEnvironment, IncompleteSetsAreNamed) {
  EXPECT_THAT(refusal({{"WORLD_SIZE", "4"}}), AllOf(HasSubstr("RANK is not set"), HasSubstr("WORLD_SIZE=4")));
  EXPECT_THAT(refusal({{"RANK", "0"}}), AllOf(HasSubstr("WORLD_SIZE is not set"), HasSubstr("RANK=0")));
  EXPECT_THAT(refusal(without(torchrun, "LOCAL_RANK")), AllOf(HasSubstr("LOCAL_RANK is not set"), HasSubstr("RANK=1")));
  EXPECT_THAT(refusal(without(torchrun, "MASTER_ADDR")), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(refusal(without(torchrun, "MASTER_PORT")), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(refusal({{"PMI_SIZE", "8"}}), AllOf(HasSubstr("PMI_RANK is not set"), HasSubstr("PMI_SIZE=8")));
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_SIZE", "2"}}), HasSubstr("OMPI_COMM_WORLD_RANK is not set"));
  EXPECT_THAT(refusal(without(open_mpi, "OMPI_COMM_WORLD_LOCAL_RANK")),
      HasSubstr("OMPI_COMM_WORLD_LOCAL_RANK is not set"));
  EXPECT_THAT(refusal(without(slurm, "SLURM_LOCALID")), HasSubstr("SLURM_LOCALID is not set"));
  EXPECT_THAT(refusal(without(slurm, "SLURM_STEP_NODELIST")), HasSubstr("SLURM_JOB_NODELIST"));
  EXPECT_THAT(refusal({{"SLURM_PROCID", "2"}}), HasSubstr("is not set, but SLURM_PROCID=2"));
}

TEST(LaunchEnvironment, NonsenseIsRefused) {
  EXPECT_THAT(refusal(with(torchrun, {{"RANK", "5"}})), AllOf(HasSubstr("RANK=5"), HasSubstr("WORLD_SIZE=4")));
  EXPECT_THAT(refusal(with(torchrun, {{"RANK", "4"}})), HasSubstr("less than WORLD_SIZE=4"));
  for (const char* value : {"two", "-1", "1.5", "4x", " 4", "99999999999999999999", "0x4"}) {
    EXPECT_THAT(refusal(with(torchrun, {{"WORLD_SIZE", value}})),
        HasSubstr("WORLD_SIZE=" + std::string(value))) << value;
  }
  EXPECT_THAT(refusal(with(torchrun, {{"RANK", "0"}, {"WORLD_SIZE", "0"}})), HasSubstr("WORLD_SIZE=0"));
  EXPECT_THAT(refusal(with(torchrun, {{"MASTER_PORT", "70000"}})), HasSubstr("MASTER_PORT=70000"));
  EXPECT_THAT(refusal(with(torchrun, {{"LOCAL_RANK", "2"}})), HasSubstr("LOCAL_RANK=2"));
  EXPECT_THAT(refusal(with(torchrun, {{"LOCAL_WORLD_SIZE", "8"}})), HasSubstr("LOCAL_WORLD_SIZE"));
  EXPECT_THAT(refusal(with(slurm, {{"SLURM_STEP_NODELIST", "a[1"}})), AllOf(HasSubstr("'a[1'"),
      HasSubstr("MASTER_ADDR")));
  EXPECT_THAT(refusal(with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x"}})), HasSubstr("SLURM_STEP_TASKS_PER_NODE=2(x"));
}

TEST(LaunchEnvironment, RunsAreTold) {
  EXPECT_EQ(detect(slurm).run_id, "slurm-123456.0");
  EXPECT_EQ(detect(open_mpi).run_id, "open_mpi-1314914305");
  EXPECT_EQ(detect(torchrun).run_id, "");
  const auto elastic = detect(with(torchrun, {{"TORCHELASTIC_RUN_ID", "job"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                              {"TORCHELASTIC_RESTART_COUNT", "2"}}));
  EXPECT_EQ(elastic.run_id, "torchrun-job.2");
  EXPECT_TRUE(elastic.launcher_hosts_store);
  const auto local = detect(with(torchrun, {{"PACELINE_CONTROL", "127.0.0.1:9"}, {"PACELINE_RUN_ID", "abc"},
      {"PACELINE_STORE_SOCKET", "7"}}));
  EXPECT_EQ(local.run_id, "abc");
  EXPECT_EQ(local.store_socket, 7);
}

TEST(LaunchEnvironment, RealMpirun) {
  if (::access("/usr/bin/mpirun", X_OK) != 0) GTEST_SKIP() << "no mpirun";
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = fmt::format(
      "env -u RANK -u WORLD_SIZE OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 /usr/bin/mpirun "
      "--oversubscribe -n 2 {} --gtest_also_run_disabled_tests --gtest_filter=TestRole.DISABLED_detect 2>&1", program);
  FILE* const pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char block[4096];
  for (std::size_t got; (got = ::fread(block, 1, sizeof block, pipe)) > 0;) output.append(block, got);
  EXPECT_EQ(::pclose(pipe), 0) << output;
  EXPECT_THAT(output, HasSubstr("rank 0 local 0/2 of 2 ranks, from OMPI_* at 127.0.0.1:"));
  EXPECT_THAT(output, HasSubstr("rank 1 local 1/2 of 2 ranks, from OMPI_* at 127.0.0.1:"));
  const auto port_of = [&](const std::string& rank) {
    const auto line = output.find("rank " + rank + " local");
    const auto colon = output.find(':', line);
    return output.substr(colon, output.find('\n', colon) - colon);
  };
  EXPECT_EQ(port_of("0"), port_of("1"));
  EXPECT_NE(port_of("0"), ":0");
}

TEST(LaunchEnvironment, EmptyValuesCountAsUnset) { EXPECT_EQ(detect({{"RANK", ""}, {"WORLD_SIZE", ""}}).source,
    "none"); }

}  // namespace
}  // namespace paceline
