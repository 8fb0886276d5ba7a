"""Holds the includes of src/paceline against the law of direction, the DEPS in src/paceline/CMakeLists.txt.

A folder may include itself and its DEPS, directly or through them. The command line may include every folder without
torch; only a folder declared TORCH may include torch's headers.
"""

import pathlib
import re
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "src" / "paceline"
TORCH_HEADER = re.compile(r'#include\s+[<"](ATen|c10|torch|caffe2)/')
OWN_HEADER = re.compile(r'#include\s+"paceline/([a-z_]+)/')
# The shared library and the headers through which the program asks it are not a module of their own.
ENGINE_CALLERS = {"cli", "checkpoint", "train", "infer"}


def read_law():
    text = (SOURCE / "CMakeLists.txt").read_text()
    law, torch = {}, set()
    for name, rest in re.findall(r"paceline_module\((\w+)([^)]*)\)", text):
        words = rest.split()
        if "TORCH" in words:
            torch.add(name)
        depends = words[words.index("DEPS") + 1 :] if "DEPS" in words else []
        law[name] = set(depends[: depends.index("LIBS")] if "LIBS" in depends else depends)
    return law, torch


def reachable(law, name):
    seen, pending = {name}, [name]
    while pending:
        for other in law.get(pending.pop(), ()):
            if other not in seen:
                seen.add(other)
                pending.append(other)
    return seen


def main():
    law, torch = read_law()
    faults = []
    for name, depends in law.items():
        faults += [f"CMakeLists.txt: {name} depends on itself through {d}" for d in depends if name in reachable(law, d)]
    everything_without_torch = set(law) - torch
    for path in sorted(SOURCE.rglob("*.h")) + sorted(SOURCE.rglob("*.cc")):
        folder = path.relative_to(SOURCE).parts[0]
        if folder == "engine" and path.suffix == ".cc":
            continue
        allowed = reachable(law, folder) if folder in law else everything_without_torch | {"cli", "engine"}
        if folder in ENGINE_CALLERS:
            allowed = allowed | {"engine"}
        for number, line in enumerate(path.read_text().splitlines(), 1):
            where = f"{path.relative_to(SOURCE.parent)}:{number}"
            own = OWN_HEADER.match(line)
            if own and own.group(1) not in allowed:
                faults.append(f"{where}: {folder} may not include {own.group(1)}")
            if TORCH_HEADER.match(line) and folder not in torch:
                faults.append(f"{where}: {folder} is without torch")
    for fault in faults:
        print(fault)
    print(f"{len(law)} folders, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
