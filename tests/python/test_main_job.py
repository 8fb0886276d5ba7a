"""The whole job on a small scale and under one trace id: text, data, plan, training, evaluation, generation, trace."""

import json
import math
import subprocess
import tomllib

import pytest
from safetensors.numpy import load_file

from conftest import text_folders
from runs import LLAMA, PACELINE, STEPS, TIMEOUT, Run, clean_environment, layout_settings, tensors

TRACE = "0123456789abcdef0123456789abcdef"
ENVIRONMENT = clean_environment(TRACEPARENT=f"00-{TRACE}-1122334455667788-01")
LAYOUT = (2, 1, 2)


def paceline(*arguments):
    command = [PACELINE, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    home = tmp_path_factory.mktemp("main-job")
    inputs = ", ".join(f'"{path}"' for path in text_folders("envvar", "prop_dir"))
    (home / "data.toml").write_text(
        f'[input]\npaths = [{inputs}]\nextensions = [".rst"]\n[output]\nfolder = "{home}/shards"\n'
        "[tokenizer]\nvocabulary_size = 400\n[split]\nheld_out_fraction = 0.1\n"
    )
    paceline("data", "build", home / "data.toml")
    settings = {**STEPS, **LLAMA, **layout_settings(LAYOUT), "data.folder": f"{home}/shards", "evaluate.samples": 0}
    run = Run(home, {**settings, "checkpoint.every_steps": 10, "train.precision": "fp64"})
    run.train(environment=ENVIRONMENT)
    return run


def test_plan_holds_the_layout_that_runs(job):
    plan = json.loads(paceline("plan", job.file, "--nproc", 4, "--json"))
    layouts = [tuple(each["layout"][degree] for degree in ("dp", "tp", "pp")) for each in plan["plans"]]
    assert sorted(layouts) == [(1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)]
    times = [each["predicted"]["step_time_s"] for each in plan["plans"]]
    assert times == sorted(times) and all(time > 0 for time in times)
    (refused,) = plan["refused"]
    assert refused["pp"] == 4 and "2 layers" in refused["reason"]
    assert json.loads((job.folder / "plan.json").read_text())["traceparent"].split("-")[1] == TRACE


def test_settings_of_the_run_are_kept(job):
    kept = tomllib.loads((job.folder / "settings.toml").read_text())
    for key, value in job.settings.items():
        section, name = key.split(".")
        assert kept[section][name] == value, key
    of_file, of_kept = (
        paceline("plan", file, "--explain", "dp=2,tp=1,pp=2") for file in (job.file, job.folder / "settings.toml")
    )
    assert of_file == of_kept


@pytest.mark.parametrize("samples", [0, 5])
def test_evaluation_equals_the_trainers_own(job, samples):
    arguments = ["--samples", samples] if samples else []
    result = json.loads(paceline("eval", job.folder, "--precision", "fp64", "--json", *arguments))
    if not samples:
        assert result["loss"] == pytest.approx(job.metrics()[-1]["eval_loss"], rel=1e-12)
    assert result["perplexity"] == pytest.approx(math.exp(result["loss"]), rel=1e-12)
    assert 0 < result["bits_per_byte"] < 8


def test_generation_is_the_seeds(job):
    def text(*arguments):
        return json.loads(
            paceline("generate", job.folder, "--prompt", "The variable", "--max-new-tokens", 12, "--json", *arguments)
        )["text"]

    assert text("--seed", 1) == text("--seed", 1) != text("--seed", 2)
    assert text("--temperature", 0, "--seed", 1) == text("--temperature", 0, "--seed", 2)


def test_the_export_holds_the_trained_weights(job, tmp_path):
    paceline("convert", job.folder, tmp_path / "exported")
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    trained = tensors(job.checkpoint())
    assert exported.keys() == trained.keys()
    for name, values in trained.items():
        assert (exported[name] == values.astype(exported[name].dtype)).all(), name


def test_all_ranks_are_in_one_trace(job, tmp_path):
    report = json.loads(paceline("trace", "report", job.folder, "--json"))
    assert TRACE in json.dumps(report)
    paceline("trace", "export", job.folder, "--to", tmp_path / "chrome.json")
    events = json.loads((tmp_path / "chrome.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    spans = [event for event in events if event["ph"] == "X"]
    assert {span["pid"] for span in spans} == {0, 1, 2, 3}
    for rank in range(4):
        names = {span["name"] for span in spans if span["pid"] == rank}
        assert {"forward", "backward"} <= names, names
    assert all(span["dur"] >= 0 for span in spans)
