"""`paceline bench train` beside PyTorch on the same work: alternating pairs, median ratios.

    ./run bench [--pairs 5] [--modes eager,compile,huggingface,ddp] [--json]

Each pair runs Paceline and then PyTorch, so that a machine whose speed drifts treats both alike; the ratio is taken
inside a pair. ddp is compared with two ranks of Paceline, the others with one rank that has all threads.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def last_json(output):
    return json.loads(output[output.index("{"):])


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed with code {done.returncode}:\n{done.stderr[-2000:]}")
    return last_json(done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--paceline", default="build/paceline")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--modes", default="eager,compile,huggingface,ddp")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    o = parser.parse_args()

    rows = []
    for mode in o.modes.split(","):
        ours = [o.paceline, "bench", "train", "--json", "--steps", str(o.steps)]
        theirs = [sys.executable]
        if mode == "ddp":
            ours += ["--nproc", "2"]
            theirs += ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
        theirs += [str(HERE / "pytorch_training.py"), "--mode", mode, "--steps", str(o.steps)]
        pairs = []
        for pair in range(o.pairs):
            print(f"{mode}: pair {pair + 1} of {o.pairs}", file=sys.stderr, flush=True)
            pairs.append((run(ours), run(theirs)))
        median = lambda key, side: statistics.median(pair[side][key] for pair in pairs)
        ratio = lambda key: statistics.median(pair[0][key] / pair[1][key] for pair in pairs)
        rows.append({
            "mode": mode, "pairs": o.pairs,
            "paceline": {key: median(key, 0) for key in ("tokens_per_s", "mfu", "gemm_peak_tflops", "peak_memory_bytes")},
            "pytorch": {key: median(key, 1) for key in ("tokens_per_s", "mfu", "gemm_peak_tflops", "peak_memory_bytes")},
            "speed_ratio": ratio("tokens_per_s"), "memory_ratio": ratio("peak_memory_bytes"),
            "speed_ratios": [pair[0]["tokens_per_s"] / pair[1]["tokens_per_s"] for pair in pairs],
        })  # fmt: skip
    if o.json:
        print(json.dumps({"schema_version": 1, "rows": rows}, indent=2))
        return
    print(f"{'PyTorch mode':<14}{'tokens/s':>10}{'ours':>10}{'ratio':>8}{'MFU':>8}{'ours':>8}{'memory':>10}{'ours':>10}{'ratio':>8}")
    for row in rows:
        us, them = row["paceline"], row["pytorch"]
        print(f"{row['mode']:<14}{them['tokens_per_s']:>10.0f}{us['tokens_per_s']:>10.0f}{row['speed_ratio']:>8.2f}"
              f"{them['mfu']:>8.1%}{us['mfu']:>8.1%}{them['peak_memory_bytes'] / 1e6:>7.0f} MB{us['peak_memory_bytes'] / 1e6:>7.0f} MB"
              f"{row['memory_ratio']:>8.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
