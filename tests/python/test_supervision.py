"""A rank that dies or hangs ends the others, named; other launchers give the same run; runs do not meet."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from runs import (
    PACELINE,
    Started,
    alive,
    assert_same_metrics,
    assert_same_tensors,
    clean_environment,
    layout_settings,
    wait_until,
)

TWO = layout_settings((2, 1, 1))
ENDLESS = {"train.steps": 1000000, "checkpoint.every_steps": 1000000}


def ended(pids, within=10.0):
    """Seconds until none of the processes is left."""
    begin = time.monotonic()
    wait_until(lambda: not any(alive(pid) for pid in pids), "end of all ranks", timeout=within + 30)
    return time.monotonic() - begin


@pytest.mark.parametrize(
    "killer,said",
    [
        (signal.SIGKILL, r"rank 2 was killed by SIGKILL"),
        (signal.SIGSEGV, r"rank 2 was killed by SIGSEGV"),
        (signal.SIGSTOP, r"rank 2 .*(heartbeat|frozen|silent|stopped|answer)"),
    ],
    ids=["SIGKILL", "SIGSEGV", "SIGSTOP"],
)
def test_a_lost_rank_ends_the_others(new_run, killer, said):
    run = new_run({**ENDLESS, **layout_settings((2, 1, 2))})
    started = run.start()
    run.wait_for_step(3, started)
    ranks = started.ranks()
    assert sorted(ranks) == [0, 1, 2, 3]
    os.kill(ranks[2], killer)
    seconds = ended([*ranks.values(), started.pid])
    started.wait()
    assert seconds < 10, started.err
    assert started.code == (1 if killer == signal.SIGSTOP else 128 + killer)
    assert re.search(said, started.last_line()), started.err
    assert started.last_line().startswith("paceline: ")
    assert "its log: " + str(run.folder / "logs" / "rank_2.log") in started.last_line()
    for rank in (0, 1, 3):  # the others' ends are not told as causes
        assert not re.search(rf"rank {rank} (was killed|failed)", started.err)


def test_a_rank_that_does_not_come_is_named(new_run):
    """Frozen before the ranks have met; rank 0 says who is missing, and what the others miss is not the cause."""
    run = new_run({**ENDLESS, **TWO, "supervision.connect_timeout_s": 6})
    started = run.start()
    wait_until(lambda: len(started.ranks()) == 2, "two ranks", process=started)
    ranks = started.ranks()
    os.kill(ranks[1], signal.SIGSTOP)
    started.wait(60)
    assert started.code == 1
    assert re.search(r"paceline: rank 0 .*rank 1 of run \S+ did not come within 6 s", started.last_line()), started.err
    assert not any(alive(pid) for pid in ranks.values())


def torchrun(ranks, port=0):
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        ranks,
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"127.0.0.1:{port}",
        "--no-python",
        PACELINE,
        "train",
    ]


def mpirun(ranks):
    return ["mpirun", "-n", ranks, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", PACELINE, "train"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_with(launcher, run, *arguments):
    if launcher == "torchrun":
        pytest.importorskip("torch")
        return Started([*torchrun(2), run.file, *arguments], run.home / "output")
    # Open MPI tells its ranks no address: the user gives one.
    environment = clean_environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    return Started([*mpirun(2), run.file, *arguments], run.home / "output", environment)


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_other_launchers_give_the_same_run(undisturbed, new_run, launcher):
    whole = undisturbed(TWO)
    run = new_run(TWO)
    started = start_with(launcher, run).wait()
    assert started.code == 0, started.err
    assert_same_metrics(whole, run)
    assert_same_tensors(whole.checkpoint(20), run.checkpoint(20))
    assert re.search(r"on 2 ranks, from " + ("RANK" if launcher == "torchrun" else "OMPI_"), started.err), started.err
    assert started.err.count("paceline 0.") == 1  # one banner


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_rank_is_named_under_other_launchers(new_run, launcher, rank):
    run = new_run({**ENDLESS, **TWO})
    started = start_with(launcher, run)
    run.wait_for_step(3, started)
    ranks = started.ranks()
    assert sorted(ranks) == [0, 1]
    os.kill(ranks[rank], signal.SIGKILL)
    seconds = ended(ranks.values())
    started.wait(60)
    assert seconds < 10
    assert started.code != 0
    assert re.search(rf"paceline: .*rank {rank}\b", started.err), started.err


def test_two_runs_at_once_do_not_meet(undisturbed, new_run):
    """Both choose their own ports, whatever MASTER_PORT says."""
    whole = undisturbed(TWO)
    runs = [new_run(TWO), new_run(TWO)]
    started = [run.start(environment=clean_environment(MASTER_PORT="29500")) for run in runs]
    for run, process in zip(runs, started):
        process.wait()
        assert process.code == 0, process.err
        assert_same_metrics(whole, run)


def test_a_second_run_in_the_same_folder_is_refused(new_run):
    """Also two processes that each think they are the only rank."""
    run = new_run(ENDLESS)
    started = run.start()
    run.wait_for_step(1, started)
    begin = time.monotonic()
    second = run.train(expect=2)
    assert time.monotonic() - begin < 30
    assert re.fullmatch(
        rf"paceline: the run folder {run.folder} is in use by process {started.pid} on \S+: .*\n", second.err
    )
    many = run.again(**TWO).train(expect=2)
    assert f"is in use by process {started.pid}" in many.err
    assert started.running()
    started.kill_all()


def test_a_port_that_a_stranger_holds_is_named(new_run):
    run = new_run(TWO)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        by_hand = clean_environment(
            RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
        taken = subprocess.run([PACELINE, "train", run.file], env=by_hand, capture_output=True, text=True, timeout=60)
    assert taken.returncode in (1, 2)
    (line,) = taken.stderr.splitlines()
    assert line.startswith("paceline: ") and str(port) in line and "MASTER_PORT" in line


@pytest.mark.parametrize(
    "variables,said",
    [
        (
            {"RANK": "0", "WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
            ["RANK=0", "OMPI_COMM_WORLD_RANK=1"],
        ),
        ({"WORLD_SIZE": "4"}, ["RANK is not set", "WORLD_SIZE=4"]),
        ({"RANK": "5", "WORLD_SIZE": "4"}, ["RANK", "5", "4"]),
        ({"RANK": "0", "WORLD_SIZE": "two"}, ["WORLD_SIZE=two"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": "29500"}, ["MASTER_ADDR is not set"]),
    ],
    ids=["contradiction", "half", "beyond", "no-number", "no-master"],
)
def test_launchers_that_contradict_themselves_are_refused(new_run, variables, said):
    run = new_run(TWO)
    refused = subprocess.run(
        [PACELINE, "train", run.file], env=clean_environment(**variables), capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert all(part in line for part in said), line
    assert not run.folder.exists()


def test_a_launcher_of_another_size_than_the_layout_is_refused(new_run):
    run = new_run(layout_settings((2, 1, 2)))
    variables = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    refused = subprocess.run(
        [PACELINE, "train", run.file], env=clean_environment(**variables), capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert "needs 2 x 1 x 2 = 4 ranks, but there are 2" in line


def test_threads_are_the_cores_or_what_the_user_says(new_run):
    run = new_run(TWO)
    free = clean_environment()
    del free["OMP_NUM_THREADS"]
    cores = len(os.sched_getaffinity(0))
    per_rank = max(1, cores // 2)
    said = "1 thread a rank" if per_rank == 1 else f"{per_rank} threads a rank"
    assert said in run.train("--dry-run", environment=free).err
    assert "1 thread a rank" in run.train("--dry-run", environment=free, before=["taskset", "-c", "0"]).err
    assert "3 threads a rank" in run.train("--dry-run", environment={**free, "OMP_NUM_THREADS": "3"}).err
