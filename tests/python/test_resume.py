"""A run that ended early goes on as if nothing had happened: to the bit on its layout, within rounding on another."""

import os
import random
import re
import signal
import subprocess
import time

import pytest

from runs import (
    GPT2,
    LLAMA,
    PACELINE,
    TIMEOUT,
    alive,
    assert_close_metrics,
    assert_close_tensors,
    assert_same_metrics,
    assert_same_tensors,
    layout_settings,
    norm_of,
    tensors,
)

MODELS = {"llama": LLAMA, "gpt2": GPT2, "llama_tied": {**LLAMA, "model.tie_word_embeddings": True}}
LONG = {"train.steps": 40, "checkpoint.every_steps": 5}
KEPT = {"checkpoint.every_steps": 1, "checkpoint.keep_last": 0}


def kill_a_rank(started, rank):
    pid = started.ranks()[rank] if started.ranks() else started.pid
    os.kill(pid, signal.SIGKILL)
    started.wait()
    assert started.code not in (0, 143, 130)


@pytest.mark.parametrize(
    "family,layout,killed",
    [("llama", (1, 1, 1), 0), ("llama", (2, 1, 1), 1), ("gpt2", (1, 2, 2), 2)],
    ids=["llama-1", "llama-dp2", "gpt2-tp2_pp2"],
)
def test_killed_twice_it_ends_as_the_undisturbed_run(undisturbed, new_run, family, layout, killed):
    settings = {**LONG, **layout_settings(layout)}
    whole = undisturbed(settings, MODELS[family])
    run = new_run(settings, MODELS[family])
    for step in (8, 22):
        started = run.start()
        run.wait_for_step(step, started)
        kill_a_rank(started, killed)
        assert step <= run.last_step() < 40
    finished = run.train()
    assert "resumed from" in finished.err
    assert_same_metrics(whole, run)
    assert_same_tensors(whole.checkpoint(), run.checkpoint())
    # What was consumed goes on from where it was; a step's speed is that of the step, not of the whole run.
    tokens = 8 * 16
    assert run.values("consumed_tokens") == [tokens * step for step in range(1, 41)]
    for step in run.metrics():
        assert step["tokens_per_s"] == pytest.approx(tokens / step["step_time_s"], rel=1e-12)


@pytest.mark.parametrize("step", [3, 4, 12])
def test_learning_rate_and_all_else_after_a_resume(undisturbed, tmp_path, step):
    """In the warm-up, at its end and in the decay; on the same layout and on another with the same global batch."""
    whole = undisturbed(KEPT)
    same = whole.rewound(tmp_path / "same", step)
    same.train()
    assert_same_metrics(whole, same)
    assert_same_tensors(whole.checkpoint(20), same.checkpoint(20))
    other = whole.rewound(tmp_path / "other", step, **layout_settings((2, 1, 1)))
    other.train()
    assert other.values("learning_rate") == whole.values("learning_rate")
    assert other.values("consumed_samples") == whole.values("consumed_samples")
    assert_close_metrics(whole, other, 1e-4)


@pytest.mark.parametrize(
    "family,before,after",
    [
        ("llama", (2, 1, 1), (1, 2, 1)),
        ("gpt2", (1, 1, 2), (1, 1, 1)),
        ("gpt2", (1, 2, 1), (2, 1, 2)),
        ("llama_tied", (1, 1, 2), (1, 2, 1)),
    ],
    ids=["llama-dp2-to-tp2", "gpt2-pp2-to-1", "gpt2-tp2-to-dp2_pp2", "tied-pp2-to-tp2"],
)
def test_on_another_layout_it_goes_on_within_rounding(undisturbed, tmp_path, family, before, after):
    settings = {**KEPT, "train.precision": "fp64"}
    one = undisturbed(settings, MODELS[family])
    first = undisturbed({**settings, **layout_settings(before)}, MODELS[family])
    second = first.rewound(tmp_path / "other", 7, **layout_settings(after))
    second.train()
    assert_close_metrics(one, second, 1e-9)
    for state in ("weights", "exp_avg", "exp_avg_sq"):
        whole = tensors(one.checkpoint(20), state)
        assert_close_tensors(whole, tensors(second.checkpoint(20), state), 1e-9, norm_of(whole))


def test_kills_around_saves_lose_nothing(undisturbed, new_run):
    """Whatever a kill leaves of a save, the checkpoint before it loads, and the run ends as the undisturbed one."""
    settings = {"train.steps": 60, "checkpoint.every_steps": 1, **layout_settings((2, 1, 1))}
    run = new_run(settings)
    moments = random.Random(7)
    for _ in range(5):
        before = run.last_step()
        started = run.start()
        run.wait_for_step(before + 2, started)
        time.sleep(moments.uniform(0, 0.05))
        os.kill(moments.choice(sorted(started.ranks().values()) or [started.pid]), signal.SIGKILL)
        started.wait()
        # The last step in the metrics may be the one whose save was cut off: then the one before it is the latest.
        latest = int(run.checkpoint().name.removeprefix("step_"))
        assert run.last_step() - latest in (0, 1)
        if run.last_step() == 60:
            break
    left_over = run.folder / "checkpoints" / "step_00000055.tmp-0123456789abcdef"
    left_over.mkdir()
    (left_over / "weights_rank_00000.safetensors").write_bytes(b"half of a file")
    run.train()
    assert not left_over.exists()
    assert not list((run.folder / "checkpoints").glob("*.tmp*"))
    whole = undisturbed({"train.steps": 60, **layout_settings((2, 1, 1))})
    assert_same_metrics(whole, run)
    assert_same_tensors(whole.checkpoint(60), run.checkpoint(60))


def test_looking_does_not_change_the_run(undisturbed):
    """Whatever the interval of evaluation, the training is the same; two looks at one step see the same."""
    never, often, seldom = (undisturbed({"evaluate.every_steps": every}) for every in (0, 2, 5))
    assert_same_metrics(never, often)
    assert_same_metrics(never, seldom)
    assert_same_tensors(never.checkpoint(20), often.checkpoint(20))
    looks = {step["step"]: step["eval_loss"] for step in often.metrics() if "eval_loss" in step}
    assert sorted(looks) == list(range(2, 21, 2))
    for step in seldom.metrics():
        assert ("eval_loss" in step) == (step["step"] % 5 == 0)
        if step["step"] in (10, 20):
            assert step["eval_loss"] == looks[step["step"]]


def test_another_schedule_is_said_and_followed(undisturbed, tmp_path):
    """From the resume on, the rate is wholly the new schedule's."""
    whole = undisturbed(KEPT)
    longer = whole.rewound(tmp_path / "longer", 20, **{"train.steps": 40})
    finished = longer.train()
    assert "schedule changed: train.steps 20 -> 40; from step 21 on the rate is the new schedule's" in finished.err
    of_forty = undisturbed({"train.steps": 40}).values("learning_rate")
    assert longer.values("learning_rate") == whole.values("learning_rate") + of_forty[20:]
    halved = whole.rewound(tmp_path / "halved", 12, **{"optimizer.learning_rate": 5e-3})
    assert "schedule changed: optimizer.learning_rate 0.01 -> 0.005" in halved.train().err
    rates = whole.values("learning_rate")
    assert halved.values("learning_rate") == pytest.approx(rates[:12] + [rate / 2 for rate in rates[12:]], rel=1e-15)


def test_weights_alone_start_the_schedule_anew(undisturbed, new_run):
    """A run that starts from another's exported weights begins at step 1 with fresh moments."""
    whole = undisturbed(KEPT)
    exported = whole.home / "exported"
    if not exported.exists():
        subprocess.run(
            [PACELINE, "convert", whole.checkpoint(20), exported], check=True, timeout=TIMEOUT, capture_output=True
        )
    run = new_run({"model.from": str(exported)}, model={})
    run.train()
    assert run.values("learning_rate") == whole.values("learning_rate")
    assert run.metrics()[0]["loss"] < whole.metrics()[0]["loss"] - 0.5
    assert run.values("consumed_samples")[0] == 8


@pytest.mark.parametrize("whom", ["launcher", "rank"])
@pytest.mark.parametrize("asked,code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"])
def test_asked_to_stop_it_saves_and_leaves(undisturbed, new_run, asked, code, whom):
    settings = {"train.steps": 200, **layout_settings((1, 1, 2))}
    run = new_run(settings)
    started = run.start()
    run.wait_for_step(5, started)
    ranks = started.ranks()
    os.kill(started.pid if whom == "launcher" else ranks[1], asked)
    started.wait(20)
    assert started.code == code, started.err
    assert started.last_line() == f"paceline: all ranks left after {asked.name}" + (
        "" if whom == "launcher" else " at rank 1"
    )
    assert not any(alive(pid) for pid in ranks.values())
    assert run.checkpoint().name == f"step_{run.last_step():08}"
    assert f"stopped after step {run.last_step()} of 200" in started.err
    run.train()
    whole = undisturbed(settings)
    assert_same_metrics(whole, run)
    assert_same_tensors(whole.checkpoint(), run.checkpoint())


def test_one_rank_asked_to_stop(new_run):
    run = new_run({"train.steps": 4000})
    started = run.start()
    run.wait_for_step(5, started)
    os.kill(started.pid, signal.SIGTERM)
    started.wait(20)
    assert started.code == 143, started.err
    assert run.checkpoint().name == f"step_{run.last_step():08}"


def test_time_limit(new_run):
    run = new_run({"train.steps": 1000000, "train.max_minutes": 0.05, **layout_settings((2, 1, 1))})
    stopped = run.train(expect=143)
    step = run.last_step()
    assert step > 0 and run.checkpoint().name == f"step_{step:08}"
    assert "all ranks left after the time limit of 0.05 minutes" in stopped.last_line()
    assert f"stopped after step {step} of 1000000: the time limit of 0.05 minutes" in stopped.err
    again = run.again(**{"train.steps": step + 2, "train.max_minutes": 0}).train()
    assert f"resumed from {run.checkpoint(step)}" in again.err
    assert run.last_step() == step + 2


def test_a_finished_run_says_so(undisturbed):
    run = undisturbed(KEPT)
    metrics = (run.folder / "metrics.jsonl").read_bytes()
    again = run.train()
    assert "the run is finished: 20 steps; raise train.steps to go on" in again.err
    assert not re.search(r"^step ", again.err, re.MULTILINE)
    assert (run.folder / "metrics.jsonl").read_bytes() == metrics


def test_tensor_parallel_ranks_share_their_tokens(undisturbed):
    """Ranks that see the same tokens do not count them twice."""
    one, two = undisturbed(KEPT), undisturbed({**layout_settings((1, 2, 1))})
    for run, ranks in ((one, 1), (two, 2)):
        for step in run.metrics():
            assert step["tokens_per_s"] * step["step_time_s"] == pytest.approx(128, rel=1e-9)
            assert step["tokens_per_s_per_rank"] * ranks == pytest.approx(step["tokens_per_s"], rel=1e-12)
            assert step["mfu"] == pytest.approx(
                step["model_flops_per_token"] * step["tokens_per_s"] / (step["gemm_peak_tflops"] * 1e12), rel=1e-6
            )


def test_frozen_parameters_resume(undisturbed, tmp_path):
    """Frozen parameters have no moments to save; the run goes on on another layout, and they keep every bit."""
    frozen = {
        **KEPT,
        "train.precision": "fp64",
        "train.frozen": [r"model\.layers\.0\..*", r"model\.embed_tokens\.weight"],
    }
    one = undisturbed(frozen)
    first = undisturbed({**frozen, **layout_settings((1, 1, 2))})
    second = first.rewound(tmp_path / "other", 7, **layout_settings((1, 2, 1)))
    second.train()
    assert_close_metrics(one, second, 1e-9)
    moments = tensors(one.checkpoint(20), "exp_avg")
    begin, end = tensors(one.checkpoint(1)), tensors(second.checkpoint(20))
    for name in begin:
        is_frozen = name.startswith("model.layers.0.") or name == "model.embed_tokens.weight"
        assert (begin[name] == end[name]).all() == is_frozen, name
        assert (name in moments) != is_frozen, name


def test_thawing_on_resume_is_decided_not_a_crash(undisturbed, tmp_path):
    """A parameter that was frozen has no moments in the checkpoint: it is named."""
    first = undisturbed({**KEPT, "train.frozen": [r"model\.embed_tokens\.weight"]})
    thawed = first.rewound(tmp_path / "thawed", 7, **{"train.frozen": []})
    done = thawed.train(expect=1)
    assert "model.embed_tokens.weight" in done.last_line() and "exp_avg" in done.last_line()


def test_epochs_end_alike_on_every_layout(undisturbed):
    """The ragged end of the data: 50 samples, batches of 6 on three ranks; the remainder goes into the next epoch."""
    settings = {
        "train.precision": "fp64",
        "train.sequence_length": 512,
        "train.global_batch_size": 6,
        "train.micro_batch_size": 2,
        "evaluate.samples": 2,
    }
    one = undisturbed(settings)
    three = undisturbed({**settings, **layout_settings((3, 1, 1))})
    assert one.values("consumed_samples")[-1] == 120 > 100  # more than two epochs
    assert_close_metrics(one, three, 1e-9)
