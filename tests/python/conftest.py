"""Fixtures of the end-to-end tests: data of real text, runs in folders of their own, undisturbed runs to compare with.

The text is the reference of CMake, which building Paceline needs: 1,900 pages of reStructuredText."""

import json
import pathlib
import subprocess

import pytest

from runs import LLAMA, PACELINE, STEPS, TIMEOUT, Run


def text_folders(*names):
    found = sorted(pathlib.Path("/usr/share").glob("cmake-*/Help"))
    if not found:
        pytest.fail("no /usr/share/cmake-*/Help: the Debian package cmake-data has the text that these tests train on")
    return [found[-1] / name for name in names]


def build_data(folder, inputs, vocabulary_size, held_out_fraction):
    settings = folder / "data.toml"
    paths = ", ".join(f'"{path}"' for path in inputs)
    settings.write_text(
        f'[input]\npaths = [{paths}]\nextensions = [".rst"]\n[output]\nfolder = "{folder}/shards"\n'
        f"[tokenizer]\nvocabulary_size = {vocabulary_size}\n[split]\nheld_out_fraction = {held_out_fraction}\n"
    )
    built = subprocess.run(
        [PACELINE, "data", "build", settings, "--json"], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert built.returncode == 0, built.stderr
    return folder / "shards", json.loads(built.stdout)


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """50 KB of text in a folder of shards; 387 tokens, so that no tensor-parallel degree divides the vocabulary."""
    folder, _ = build_data(tmp_path_factory.mktemp("small-data"), text_folders("envvar", "prop_dir"), 387, 0.1)
    return folder


@pytest.fixture
def new_run(small_data, tmp_path):
    """A run in a folder of its own: a tiny LLaMA on the small data, with `settings` over it."""
    count = 0

    def make(settings=None, model=LLAMA):
        nonlocal count
        count += 1
        return Run(tmp_path / f"run-{count}", {"data.folder": str(small_data), **STEPS, **model, **(settings or {})})

    return make


@pytest.fixture(scope="session")
def undisturbed(small_data, tmp_path_factory):
    """The finished run of some settings, trained once a session."""
    finished = {}

    def get(settings=None, model=LLAMA):
        asked = {"data.folder": str(small_data), **STEPS, **model, **(settings or {})}
        key = json.dumps(asked, sort_keys=True)
        if key not in finished:
            run = Run(tmp_path_factory.mktemp("undisturbed"), asked)
            run.train()
            finished[key] = run
        return finished[key]

    return get
