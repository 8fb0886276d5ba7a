"""Runs the real program: writes a run's settings, starts `paceline train`, reads what it left behind."""

import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import numpy
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACELINE = str(pathlib.Path(os.environ.get("PACELINE", ROOT / "build" / "paceline")).resolve())
TIMEOUT = float(os.environ.get("PACELINE_TEST_TIMEOUT", "180"))

# What the clock and the machine decide; everything else of a step's metrics is a function of the settings and the data.
TIMELIKE = {
    "wall_time",
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_rank",
    "model_tflops",
    "gemm_peak_tflops",
    "mfu",
    "memory_bytes",
    "communication_wait_s",
}

LLAMA = {
    "model.family": "llama",
    "model.hidden_size": 32,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 4,
    "model.num_key_value_heads": 2,
    "model.intermediate_size": 48,
    "model.initializer_range": 0.1,
}
GPT2 = {
    "model.family": "gpt2",
    "model.hidden_size": 32,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 4,
    "model.intermediate_size": 48,
    "model.initializer_range": 0.1,
}
STEPS = {
    "train.steps": 20,
    "train.sequence_length": 16,
    "train.micro_batch_size": 2,
    "train.global_batch_size": 8,
    "optimizer.learning_rate": 1e-2,
    "optimizer.max_gradient_norm": 1.0,
    "learning_rate.warmup_steps": 4,
    "evaluate.samples": 8,
}


def layout_settings(layout):
    dp, tp, pp = layout
    return {"parallel.dp": dp, "parallel.tp": tp, "parallel.pp": pp}


def ranks_of(settings):
    return settings.get("parallel.dp", 1) * settings.get("parallel.tp", 1) * settings.get("parallel.pp", 1)


def toml_value(value):
    return json.dumps(value)  # of what settings hold, JSON's text is TOML's


def write_settings(path, settings):
    sections = {}
    for key, value in settings.items():
        section, name = key.split(".")
        sections.setdefault(section, []).append(f"{name} = {toml_value(value)}")
    path.write_text("\n".join(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items()))
    return path


def clean_environment(**variables):
    """The caller's environment without what a launcher or a trace around the tests may have set."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "PACELINE_"))
        and name
        not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TRACEPARENT")
    }
    kept["OMP_NUM_THREADS"] = "1"  # the ranks of a test are many, the cores few
    kept.update(variables)
    return kept


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Started:
    """A program that runs: its process group is its own, its output goes to files."""

    def __init__(self, command, folder, environment=None):
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("out-*.txt")))
        self.out_path, self.err_path = folder / f"out-{number}.txt", folder / f"err-{number}.txt"
        self.command = [str(part) for part in command]
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment or clean_environment(),
                start_new_session=True,
                preexec_fn=_die_with_parent,
                cwd=folder,
            )
        self.pid = self.process.pid

    @property
    def out(self):
        return self.out_path.read_text(errors="replace")

    @property
    def err(self):
        return self.err_path.read_text(errors="replace")

    @property
    def code(self):
        return self.process.returncode

    def last_line(self):
        lines = [line for line in self.err.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def running(self):
        return self.process.poll() is None

    def wait(self, timeout=None):
        timeout = timeout or TIMEOUT
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"still running after {timeout} s: {self.command}\n{self.err[-3000:]}")
        return self

    def ranks(self):
        """Process ids of the program's ranks below this process, by rank."""
        found = {}
        for pid in descendants(self.pid):
            try:
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                name = pathlib.Path(f"/proc/{pid}/exe").resolve().name
            except OSError:
                continue
            for variable in variables:
                if variable.startswith((b"RANK=", b"OMPI_COMM_WORLD_RANK=")) and name == pathlib.Path(PACELINE).name:
                    found[int(variable.split(b"=")[1])] = pid
        return found

    def kill_all(self):
        for pid in [*descendants(self.pid), self.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        self.process.wait()


def descendants(pid):
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        for child in parents.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition, what, timeout=None, process=None):
    end = time.monotonic() + (timeout or TIMEOUT)
    while not condition():
        assert process is None or process.running(), f"it ended ({process.code}) before {what}:\n{process.err[-3000:]}"
        assert time.monotonic() < end, f"no {what} in time"
        time.sleep(0.001)


class Run:
    """One run: its settings, its folder, and the processes that trained it."""

    def __init__(self, home, settings):
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.folder = home / "run"
        self.settings = {"run.folder": str(self.folder), **settings}
        self.file = write_settings(home / "train.toml", self.settings)

    def command(self, *arguments):
        ranks = ranks_of(self.settings)
        return [PACELINE, "train", self.file, *(["--nproc", ranks] if ranks > 1 else []), *arguments]

    def start(self, *arguments, environment=None, before=()):
        return Started([*before, *self.command(*arguments)], self.home / "output", environment)

    def train(self, *arguments, expect=0, **options):
        """Runs it to its end and asserts its exit code."""
        done = self.start(*arguments, **options).wait()
        assert done.code == expect, f"exit code {done.code}, not {expect}:\n{done.err[-3000:]}"
        return done

    def again(self, **changes):
        """The same run folder with other settings."""
        other = Run.__new__(Run)
        other.home, other.folder = self.home, self.folder
        other.settings = {**self.settings, **changes}
        other.file = write_settings(self.home / "train.toml", other.settings)
        return other

    # --- what it left behind

    def metrics(self):
        """The steps' metrics in order; the last line may still be in the writing."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().split("\n") if path.exists() else []
        return [json.loads(line) for line in lines[:-1]]

    def last_step(self):
        metrics = self.metrics()
        return metrics[-1]["step"] if metrics else 0

    def wait_for_step(self, step, process):
        wait_until(lambda: self.last_step() >= step, f"step {step}", process=process)

    def values(self, key):
        return [metrics[key] for metrics in self.metrics()]

    def checkpoints(self):
        folder = self.folder / "checkpoints"
        return sorted(path for path in folder.glob("step_*") if ".tmp" not in path.name) if folder.exists() else []

    def checkpoint(self, step=None):
        if step is None:
            return self.folder / "checkpoints" / (self.folder / "checkpoints" / "latest").read_text().strip()
        return self.folder / "checkpoints" / f"step_{step:08}"

    def rewound(self, home, step, **changes):
        """A new run that holds this one's checkpoint of `step` as its latest, and this one's metrics."""
        other = Run(home, {key: value for key, value in {**self.settings, **changes}.items() if key != "run.folder"})
        source = self.checkpoint(step)
        shutil.copytree(source, other.folder / "checkpoints" / source.name)
        (other.folder / "checkpoints" / "latest").write_text(source.name + "\n")
        shutil.copy(self.folder / "metrics.jsonl", other.folder / "metrics.jsonl")
        return other


def without_time(metrics):
    return [{key: value for key, value in step.items() if key not in TIMELIKE} for step in metrics]


def assert_same_metrics(run, other):
    """Every value of every step, bit for bit (JSON's numbers hold 17 digits)."""
    mine, others = without_time(run.metrics()), without_time(other.metrics())
    assert [step["step"] for step in mine] == [step["step"] for step in others]
    for a, b in zip(mine, others):
        a, b = dict(a), dict(b)
        if "eval_loss" not in a or "eval_loss" not in b:  # another interval of looking
            a.pop("eval_loss", None), b.pop("eval_loss", None)
        assert a == b, f"step {a['step']}"


def assert_close_metrics(run, other, tolerance, keys=("loss", "grad_norm")):
    mine, others = run.metrics(), other.metrics()
    assert [step["step"] for step in mine] == [step["step"] for step in others]
    for a, b in zip(mine, others):
        for key in keys:
            assert abs(a[key] - b[key]) <= tolerance * abs(a[key]), f"step {a['step']}: {key} {a[key]!r} and {b[key]!r}"


def assert_same_tensors(checkpoint, other):
    """Every tensor file of two checkpoints of one layout holds the same bytes; the header names the run."""
    names = sorted(path.name for path in checkpoint.glob("*.safetensors"))
    assert names and names == sorted(path.name for path in other.glob("*.safetensors"))
    for name in names:
        headers, values = zip(*(split_safetensors(folder / name) for folder in (checkpoint, other)))
        for header in headers:
            header.pop("__metadata__")
        assert headers[0] == headers[1], name
        assert values[0] == values[1], name


def split_safetensors(path):
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def tensors(checkpoint, state="weights"):
    """Whole tensors of a checkpoint of any layout, put together from their blocks."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    files, whole = {}, {}
    for name, tensor in manifest["tensors"].items():
        if state not in tensor["states"]:
            continue
        filled = numpy.zeros(tensor["shape"], dtype=bool)
        for block in tensor["states"][state]["blocks"]:
            if block["file"] not in files:
                files[block["file"]] = load_file(checkpoint / block["file"])
            ends = [begin + extent for begin, extent in zip(block["begin"], block["extent"])]
            key = f"{state}/{name}[{','.join(f'{begin}:{end}' for begin, end in zip(block['begin'], ends))}]"
            values = files[block["file"]][key]
            place = tuple(slice(begin, end) for begin, end in zip(block["begin"], ends))
            whole.setdefault(name, numpy.zeros(tensor["shape"], dtype=values.dtype))[place] = values.reshape(
                block["extent"]
            )
            assert not filled[place].any(), f"{name}: a block twice"
            filled[place] = True
        assert filled.all(), f"{name}: a part is missing"
    return whole


def assert_close_tensors(a, b, tolerance, global_norm):
    """||a - b|| <= tolerance x max(||a||, 1e-3 x global norm), tensor by tensor."""
    assert a.keys() == b.keys()
    for name in a:
        difference = numpy.linalg.norm((a[name] - b[name]).ravel())
        allowed = tolerance * max(numpy.linalg.norm(a[name].ravel()), 1e-3 * global_norm)
        assert difference <= allowed, f"{name}: {difference} > {allowed}"


def norm_of(whole):
    return float(numpy.sqrt(sum(float((values.astype(numpy.float64) ** 2).sum()) for values in whole.values())))
