"""What is wrong is said in one line that names it, before anything starts; damage never costs what was good."""

import json
import os
import re
import shutil
import subprocess

import numpy
import pytest

from runs import GPT2, LLAMA, PACELINE, clean_environment, layout_settings, tensors

TWO = layout_settings((2, 1, 1))


def one_line(stderr):
    """The one line that a user reads."""
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("paceline: ") and len(lines[0]) < 600
    return lines[0]


def refused(run, *arguments, code=2):
    """The line with which the program refuses a run, the same with --dry-run, nothing written by either."""
    before = sorted(run.home.rglob("*"))
    dry = subprocess.run(
        [str(part) for part in run.command("--dry-run", *arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment(),
    )
    wet = subprocess.run(
        [str(part) for part in run.command(*arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment(),
    )
    assert (dry.returncode, wet.returncode) == (code, code), dry.stderr + wet.stderr
    assert one_line(dry.stderr) == one_line(wet.stderr)
    assert dry.stdout == wet.stdout == ""
    assert sorted(run.home.rglob("*")) == before
    return one_line(wet.stderr)


SETTINGS = {
    "unknown key": ({"train.sequense_length": 16}, ["train.toml", "train.sequense_length", "train.sequence_length"]),
    "unknown section": ({"optimiser.beta1": 0.9}, ["optimiser", "optimizer"]),
    "wrong type": ({"train.steps": "many"}, ["train.steps must be an integer"]),
    "float for integer": ({"train.steps": 2.5}, ["train.steps must be an integer"]),
    "no steps": ({"train.steps": 0}, ["train.steps is 0", "at least 1"]),
    "negative clip": ({"optimizer.max_gradient_norm": -1}, ["optimizer.max_gradient_norm is -1", "at least 0"]),
    "precision": ({"train.precision": "fp8"}, ["train.precision is 'fp8'", "fp32", "fp64"]),
    "family": ({"model.family": "mamba"}, ["model.family is 'mamba'", "llama", "gpt2"]),
    "schedule": ({"parallel.schedule": "dualpipe"}, ["parallel.schedule is 'dualpipe'", "1f1b"]),
    "kind": ({"learning_rate.kind": "step"}, ["learning_rate.kind is 'step'", "cosine"]),
    "warm-up longer than the run": (
        {"learning_rate.warmup_steps": 21},
        ["learning_rate.warmup_steps 21", "train.steps 20"],
    ),
    "more tensor ranks than heads": ({"parallel.tp": 8}, ["tp", "8", "4 attention heads", "1, 2, 4"]),
    "tensor ranks that do not divide": ({"parallel.tp": 3}, ["3", "4 attention heads", "1, 2, 4"]),
    "more stages than layers": ({"parallel.pp": 3}, ["3", "2 layers"]),
    "a split that loses layers": ({"parallel.pp": 2, "parallel.layers_per_stage": [1, 2]}, ["3 layers", "has 2"]),
    "a split of other stages": (
        {"parallel.pp": 1, "parallel.layers_per_stage": [1, 1]},
        ["layers_per_stage", "2", "1"],
    ),
    "zero ranks": ({"parallel.dp": 0}, ["parallel.dp is 0"]),
    "heads that do not divide": ({"model.num_attention_heads": 5, "model.num_key_value_heads": 5}, ["32", "5"]),
    "odd key/value heads": ({"model.num_key_value_heads": 3}, ["4", "3"]),
    "batch that does not close": (
        {"train.global_batch_size": 64, "train.micro_batch_size": 4, "train.gradient_accumulation_steps": 8},
        ["4 x 8 x 1 = 32, not 64", "accumulation 16 or dp 2"],
    ),
    "batch too small for the ranks": (
        {"train.global_batch_size": 8, "train.micro_batch_size": 4, "parallel.dp": 4},
        ["needs at least 16, or micro-batch 2"],
    ),
    "micro-batch larger than the batch": (
        {"train.global_batch_size": 2, "train.micro_batch_size": 4},
        ["4", "2", "micro-batch 2"],
    ),
    "negative batch": ({"train.global_batch_size": -1}, ["train.global_batch_size is -1"]),
    "batch that does not divide": (
        {"train.global_batch_size": 6, "train.micro_batch_size": 4},
        ["6", "4 or 8 would work"],
    ),
    "vocabulary smaller than the tokenizer's": ({"model.vocab_size": 386}, ["386", "387"]),
    "frozen that matches nothing": ({"train.frozen": ["no_such"]}, ["no_such"]),
    "frozen that is no pattern": ({"train.frozen": ["(["]}, ["(["]),
    "no data": ({"data.folder": ""}, ["data.folder", "paceline data build"]),
    "data that is not there": (
        {"data.folder": "/no/such/folder"},
        ["data.folder /no/such/folder", "paceline data build"],
    ),
    "shard that is not there": ({"data.train": "training"}, ["data.train is 'training'", "only: train, held_out"]),
    "model that is not there": ({"model.from": "/no/such/model"}, ["/no/such/model"]),
}


@pytest.mark.parametrize("settings,said", SETTINGS.values(), ids=[name.replace(" ", "-") for name in SETTINGS])
def test_settings_that_cannot_run(new_run, settings, said):
    line = refused(new_run(settings))
    assert all(part in line for part in said), line


def test_data_without_one_whole_sample(new_run):
    run = new_run({"train.sequence_length": 30000, "train.micro_batch_size": 1, "train.global_batch_size": 1})
    line = refused(run, code=1)
    assert re.search(r"train.bin: has \d+ tokens, but one sample of sequence length 30000 needs 30001", line)


@pytest.mark.parametrize("family", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_a_dry_run_starts_nothing(new_run, family):
    run = new_run(layout_settings((2, 2, 2)), family)
    done = run.train("--dry-run")
    assert "dp=2,tp=2,pp=2" in done.err and "nothing was started" in done.err
    assert not run.folder.exists()


@pytest.mark.parametrize("value,said", [("nan", "nan"), ("inf", "inf"), ("-1.0", "-1")])
def test_a_clip_that_is_no_limit(new_run, value, said):
    line = refused(new_run(), "--set", f"optimizer.max_gradient_norm={value}")
    assert f"optimizer.max_gradient_norm is {said}" in line


def test_values_on_the_command_line(new_run):
    assert "train.stepz" in refused(new_run(), "--set", "train.stepz=3")
    assert "train.steps" in refused(new_run(), "--set", "train.steps")
    assert "train.steps" in refused(new_run(), "--set", "train.steps=[")


def test_a_global_batch_of_zero_is_the_product(new_run):
    """0 is the documented default: micro-batch x accumulation x dp."""
    done = new_run({"train.global_batch_size": 0, "train.gradient_accumulation_steps": 2}).train("--dry-run")
    assert "4 sequences = micro-batch 2 x 2 accumulated x dp 1" in done.err


def run_file(path, *arguments):
    return subprocess.run(
        [PACELINE, "train", path, *arguments], capture_output=True, text=True, timeout=60, env=clean_environment()
    )


def test_files_that_are_none(new_run, tmp_path):
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "broken.toml").write_text("[train\nsteps = 3\n")
    (tmp_path / "binary.toml").write_bytes(bytes(range(256)))
    (tmp_path / "folder.toml").mkdir()
    for name, said in (
        ("empty.toml", "empty.toml: cannot be read or is empty"),
        ("broken.toml", "broken.toml"),
        ("binary.toml", "binary.toml"),
        ("folder.toml", "folder.toml"),
        ("absent.toml", "absent.toml"),
    ):
        result = run_file(tmp_path / name)
        assert result.returncode == 2, name + result.stderr
        assert said in one_line(result.stderr)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "binary.toml",
        "broken.toml",
        "empty.toml",
        "folder.toml",
    ]


def test_files_that_may_not_be_read(new_run, tmp_path):
    if os.geteuid() == 0:
        as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv to leave root's rights")
    else:
        as_nobody = []
    secret = tmp_path / "secret.toml"
    secret.write_text("[train]\nsteps = 3\n")
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.owner() == "root" and str(folder).startswith("/tmp/pytest") and os.geteuid() == 0:
            folder.chmod(0o755)
    if as_nobody and subprocess.run([*as_nobody, PACELINE, "--version"], capture_output=True).returncode != 0:
        pytest.skip("the program cannot be run by another user here")
    secret.chmod(0)
    result = subprocess.run([*as_nobody, PACELINE, "train", secret], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "secret.toml" in one_line(result.stderr)


def test_numbers_of_ranks_that_differ(new_run):
    run = new_run(TWO)
    for number, said in (
        ("3", "needs 2 x 1 x 1 = 2 ranks, but there are 3 (--nproc)"),
        ("0", "--nproc"),
        ("-2", "--nproc"),
        ("x", "--nproc"),
    ):
        result = run_file(run.file, "--nproc", number)
        assert result.returncode == 2, result.stderr
        assert said in result.stderr and len(result.stderr.splitlines()) <= 2, result.stderr
    without = run_file(run.file)
    assert without.returncode == 2
    assert "needs 2 x 1 x 1 = 2 ranks, but there is 1 (--nproc N starts N)" in one_line(without.stderr)
    assert not run.folder.exists()


# --- data that is damaged


@pytest.fixture
def own_data(small_data, tmp_path):
    return shutil.copytree(small_data, tmp_path / "shards")


def remove(path):
    path.unlink()


def truncate(path):
    os.truncate(path, path.stat().st_size - 6)


def empty(path):
    os.truncate(path, 0)


@pytest.mark.parametrize("name", ["train.bin", "train.idx", "held_out.bin", "manifest.json"])
@pytest.mark.parametrize("damage", [remove, truncate, empty])
def test_damaged_shards_are_named(new_run, own_data, name, damage):
    damage(own_data / name)
    line = refused(
        new_run({"data.folder": str(own_data), **TWO}), code=2 if (name, damage) == ("manifest.json", remove) else 1
    )
    assert str(own_data) in line and name in line


def test_a_token_beyond_the_vocabulary(new_run, own_data):
    """A token that came into the shard after its range was checked: file, position and number are said, once."""
    shard = own_data / "train.bin"
    content = bytearray(shard.read_bytes())
    for token in range(0, len(content) // 2, 7):
        content[2 * token : 2 * token + 2] = (5000).to_bytes(2, "little")
    shard.write_bytes(content)
    run = new_run({"data.folder": str(own_data), **TWO})
    done = run.start().wait(60)
    assert done.code not in (0, 143, 130)
    said = rf"failed: {shard}: token 5000 at position \d+ is outside the vocabulary of 387"
    assert re.search(said, done.last_line()), done.err
    assert not run.checkpoints()


# --- checkpoints


def damaged(undisturbed, tmp_path, changes=None, damage=None):
    run = undisturbed({"checkpoint.every_steps": 10, **TWO}).rewound(tmp_path / "damaged", 10, **(changes or {}))
    if damage:
        damage(run.checkpoint(10))
    return run


def failed(run, *, code):
    """Its last line, after which every file of the checkpoint is as it was."""
    before = {path: path.read_bytes() for path in (run.folder / "checkpoints").rglob("*") if path.is_file()}
    metrics = (run.folder / "metrics.jsonl").read_bytes()
    done = run.train(expect=code)
    assert {path: path.read_bytes() for path in (run.folder / "checkpoints").rglob("*") if path.is_file()} == before
    assert (run.folder / "metrics.jsonl").read_bytes() == metrics
    assert "terminate called" not in done.err
    assert done.err.count("paceline: ") == 1, done.err  # all ranks say the same: the user reads it once
    return done


@pytest.mark.parametrize(
    "changes,code,said",
    [
        ({"model.intermediate_size": 64}, 1, ["of another model", "intermediate_size is 48 there and 64 in this run"]),
        ({"model.num_hidden_layers": 4}, 1, ["of another model", "num_hidden_layers is 2 there and 4 in this run"]),
        (
            {"model.tie_word_embeddings": True},
            1,
            ["of another model", "tie_word_embeddings is false there and true in this run"],
        ),
        ({"model.family": "gpt2", "model.num_key_value_heads": 4}, 1, ["of another model", "gpt2", "llama"]),
        ({"train.seed": 2}, 2, ["train.seed = 1", "the settings say 2"]),
        (
            {"train.sequence_length": 8, "model.max_position_embeddings": 16},
            2,
            ["train.sequence_length = 16", "the settings say 8"],
        ),
    ],
    ids=["width", "layers", "tied", "family", "seed", "sequence"],
)
def test_a_checkpoint_of_another_run_is_refused(undisturbed, tmp_path, changes, code, said):
    run = damaged(undisturbed, tmp_path, changes)
    done = failed(run, code=code)
    assert all(part in done.last_line() for part in [*said, "step_00000010"]), done.err
    dry = run.start("--dry-run").wait()
    assert dry.code == code and all(part in dry.last_line() for part in said)


def test_another_precision_is_refused(undisturbed, tmp_path):
    done = failed(damaged(undisturbed, tmp_path, {"train.precision": "fp64"}), code=1)
    assert "F32" in done.err and "F64" in done.err


def test_a_corrupt_byte_names_file_and_tensor(undisturbed, tmp_path):
    def flip(folder):
        path = folder / "exp_avg_rank_00000.safetensors"
        content = bytearray(path.read_bytes())
        content[-9] ^= 4
        path.write_bytes(content)

    run = damaged(undisturbed, tmp_path, damage=flip)
    done = failed(run, code=1)
    path = run.checkpoint(10) / "exp_avg_rank_00000.safetensors"
    assert str(path) in done.last_line()
    names = json.loads((run.checkpoint(10) / "manifest.json").read_text())["tensors"]
    assert any(name in done.last_line() for name in names), done.last_line()


@pytest.mark.parametrize("name", ["weights_rank_00000.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", [remove, truncate, empty])
def test_damaged_checkpoints_are_named(undisturbed, tmp_path, name, damage):
    run = damaged(undisturbed, tmp_path, damage=lambda folder: damage(folder / name))
    done = failed(run, code=1)
    assert "step_00000010" in done.last_line() and (name in done.last_line() or name == "manifest.json")


def test_latest_that_names_nothing(undisturbed, tmp_path):
    run = damaged(undisturbed, tmp_path)
    (run.folder / "checkpoints" / "latest").write_text("step_00000015\n")
    done = failed(run, code=1)
    assert "step_00000015" in done.last_line() and "step_00000010" in done.last_line()


# --- the disk


def test_a_full_disk_leaves_the_previous_checkpoint(undisturbed, new_run):
    run = new_run(
        {"train.steps": 40, "checkpoint.every_steps": 10, "checkpoint.keep_last": 0, "trace.enabled": False, **TWO}
    )
    place = run.folder / "checkpoints"
    place.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1300k", "tmpfs", place], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"needs the right to mount a small file system: {mounted.stderr.strip()}")
    try:
        done = run.start().wait()
        assert done.code == 1, done.err
        assert "No space left on device" in done.last_line() and str(place) in done.last_line()
        assert "rank" in done.last_line()
        assert (
            len(done.err.split("No space left on device")) <= 4
        )  # said once by each rank at most, and once at the end
        kept = run.checkpoint()
        assert run.checkpoints() == [run.checkpoint(step) for step in range(10, int(kept.name[-8:]) + 1, 10)]
        assert not list(place.glob("*.tmp*"))
        subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
        again = run.train()
        assert f"resumed from {kept}" in again.err
        whole = undisturbed(
            {"train.steps": 40, "checkpoint.every_steps": 10, "checkpoint.keep_last": 0, "trace.enabled": False, **TWO}
        )
        assert [step["loss"] for step in run.metrics()] == [step["loss"] for step in whole.metrics()]
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_run_folder_that_cannot_be(new_run, tmp_path):
    (tmp_path / "file").write_text("")
    run = new_run({"run.folder": str(tmp_path / "file" / "run")})
    done = run.train(expect=1)
    assert str(tmp_path / "file" / "run") in one_line(done.err)


def test_a_gradient_that_is_not_finite_is_skipped_everywhere(new_run):
    """An absurd rate drives the loss beyond all numbers; what is saved stays finite, or the run says why it ends."""
    run = new_run(
        {
            "optimizer.learning_rate": 1e30,
            "optimizer.max_gradient_norm": 0,
            "learning_rate.warmup_steps": 0,
            "learning_rate.kind": "constant",
            "train.steps": 60,
            "checkpoint.every_steps": 1,
            "checkpoint.keep_last": 2,
            **TWO,
        }
    )
    done = run.start().wait(120)
    assert done.code == 1, done.err
    assert "not finite" in done.last_line()
    for checkpoint in run.checkpoints():
        for name, values in tensors(checkpoint).items():
            assert numpy.isfinite(values).all(), name


def test_an_unknown_command_names_the_nearest():
    done = subprocess.run([PACELINE, "traim", "x"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert done.stderr == "paceline: unknown command 'traim'; the nearest is 'train'; see `paceline --help`\n"

