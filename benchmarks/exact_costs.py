"""What the kit costs, in numbers that do not depend on a machine's speed: python benchmarks/exact_costs.py [--check].

Counts the Python calls and torch operations of a check, on a right target, on torch's own and on one with a fault; the
modules that `gradconform run`, its worker and `import gradconform` import; and the most bytes that tensors take in a
run. Each figure repeats to the digit on one version of Python and torch. A check's cost is without imports: earlier
runs in its process have made them, with other seeds, so that no value of it is known.

`--check` fails if a figure is more than 3 % above the recorded one in exact_costs.json. `--write` records the figures
for this Python and torch: when one has fallen, or when what it buys is worth it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

RECORDED = Path(__file__).with_suffix(".json")
#: How much a figure may exceed the recorded one, as a share.
ALLOWED = 0.03
#: The command that records the figures again.
RECORD = "python benchmarks/exact_costs.py --write"

_FAULT = str(Path(__file__).with_name("one_line_fault.py"))
_TARGETS = {"reference-split": "reference-split", "torch": "torch", "a fault": _FAULT}
#: The checks on which the figures were first recorded: in another profile quick, other checks would hide a change.
_CONTRACT = "1.1"
#: Of profile standard, the quarter that has the largest tensors: the whole one takes a minute and says no more.
_PARTS = {"standard": "4/4"}
#: A run's seed: earlier runs make the imports, and later ones share no values with them.
_SEEDS = 1, 20, 21
#: The smallest tensor that is weighed, in bytes: the others are many and small.
PAGE = 4096

Figures = dict[str, float]


def run(target: str, profile: str, seed: int) -> int:
    """Run a profile of contract 1.1 in this process, of standard a part; return how many checks were run."""
    import gradconform  # noqa: PLC0415 (the process that starts the others counts nothing and imports nothing)

    options = {"profile": profile, "seed": seed, "contract": _CONTRACT, "shard": _PARTS.get(profile)}
    return len(gradconform.check_stage_backward(target, **options).results)


def quick(profile: str) -> Figures:
    """Return what profile quick costs: operations and bytes of its first run, and the calls of later ones by target."""
    found = tensors(profile)
    run(_FAULT, profile, _SEEDS[0])  # it imports what explains failures
    for name, target in _TARGETS.items():
        found |= calls(name, target, profile)
    return found


def calls(name: str, target: str, profile: str) -> Figures:
    """Return how many Python functions a check calls; a generator is called at each step."""
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        del frame, argument
        counted += event == "call"

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        checks = run(target, profile, _SEEDS[2])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {f"Python calls per check, {name}": round(counted / checks, 1)}


def tensors(profile: str) -> Figures:
    """Return the torch operations that a check dispatches, and the most bytes that tensors take in the run."""
    with tensors_weighed() as weighed:
        checks = run("reference-split", profile, _SEEDS[1])
    what = f"profile {profile}" + (f", part {_PARTS[profile]}" if profile in _PARTS else "")
    return {
        f"torch operations per check, {what}": round(weighed.operations / checks, 1),
        f"peak bytes of tensors, {what}": weighed.peak,
    }


def tensors_weighed() -> Any:
    """Return a context that counts the operations of torch and the bytes of live tensors of a page or more."""
    from torch import Tensor, strided  # noqa: PLC0415 (as in run)
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415 (as in run)

    class Weighed(TorchDispatchMode):
        """Adds up the storages that operations return, until they are freed."""

        def __init__(self) -> None:
            super().__init__()
            self.operations = self.now = self.peak = 0
            self.live: dict[int, weakref.ref[Any]] = {}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            self.operations += 1
            found = func(*args, **(kwargs or {}))
            for tensor in found if isinstance(found, (tuple, list)) else (found,):
                if type(tensor) is Tensor and tensor.layout is strided and tensor.nbytes >= PAGE:
                    self.weigh(tensor.untyped_storage())
            return found

        def weigh(self, storage: Any) -> None:
            """Count a storage that is new."""
            address, size = storage.data_ptr(), storage.nbytes()
            known = self.live.get(address)
            if known is not None and known() is not None:
                return
            self.now += size
            self.peak = max(self.peak, self.now)

            def freed(reference: weakref.ref[Any]) -> None:
                self.now -= size
                if self.live.get(address) is reference:
                    del self.live[address]

            self.live[address] = weakref.ref(storage, freed)

    return Weighed()


#: A target that writes down which modules its process has imported, whenever there are more of them.
_NOTING = """
import os, sys
from gradconform.reference import split

def _noted(function):
    seen = 0
    def noted(*args, **options):
        nonlocal seen
        if len(sys.modules) != seen:
            seen = len(sys.modules)
            with open("worker", "w", encoding="utf-8") as file:
                file.write(chr(10).join([str(os.getpid()), *sys.modules]))
        return function(*args, **options)
    return noted

stage_backward = _noted(split.stage_backward)
stage_backward_input = _noted(split.stage_backward_input)
stage_backward_weight = _noted(split.stage_backward_weight)
"""
_RUNNING = """
import os, sys
from gradconform.cli import main
assert main(["run", "target.py", "--profile", "quick", "--contract", "1.1", "--no-waivers", "-q"]) == 0
with open("parent", "w", encoding="utf-8") as file:
    file.write(chr(10).join([str(os.getpid()), *sys.modules]))
"""
_IMPORTING = "import gradconform, sys; print(chr(10).join(sys.modules))"


def modules(name: str) -> Figures:
    """Return how many modules a process of the kit imports: those of the kit, and all others with Python's own."""
    if name == "`import gradconform`":
        command = [sys.executable, "-c", _IMPORTING]
        return _counted({name: subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()})
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "target.py").write_text(_NOTING, encoding="utf-8")
        subprocess.run([sys.executable, "-c", _RUNNING], cwd=folder, check=True, capture_output=True)
        parent, worker = (Path(folder, one).read_text(encoding="utf-8").split("\n") for one in ("parent", "worker"))
    if parent[0] == worker[0]:
        msg = "the run has judged the target in its own process; expected a worker"
        raise RuntimeError(msg)
    return _counted({"`gradconform run`": parent[1:], "its worker": worker[1:]})


def _counted(imported: Mapping[str, list[str]]) -> Figures:
    found: Figures = {}
    for process, names in imported.items():
        own = sum(name.partition(".")[0] == "gradconform" for name in names)
        found[f"modules of the kit, {process}"] = own
        found[f"other modules, {process}"] = len(names) - own
    return found


#: What a new process measures, by name: a function and its argument.
MEASURED: dict[str, tuple[Callable[[str], Figures], str]] = {
    "profile quick": (quick, "quick"),
    **{f"modules of {name}": (modules, name) for name in ("`gradconform run`", "`import gradconform`")},
    "tensors of profile standard": (tensors, "standard"),
}


def measured() -> Figures:
    """Return all figures, each measured in a new process with one thread."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    found: Figures = {}
    for name in MEASURED:
        command = [sys.executable, __file__, "--measure", name]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr.strip()}")
        found.update(json.loads(done.stdout.splitlines()[-1]))
    return found


def release() -> str:
    """Return what the figures depend on: the minor version of Python, and the release of torch."""
    return f"Python {sys.version_info.major}.{sys.version_info.minor}, torch {version('torch').partition('+')[0]}"


def problems(recorded: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Return a line for each figure that exceeds the recorded one by more than is allowed, or is not recorded."""
    found = [f"{name}: not recorded, now {value:,}" for name, value in now.items() if name not in recorded]
    for name, value in now.items():
        before = recorded.get(name)
        if before is not None and value > before * (1 + ALLOWED):
            more = f"{value / before - 1:+.1%}" if before else "new"
            found.append(f"{name}: recorded {before:,}, now {value:,} ({more}; allowed {ALLOWED:+.0%})")
    return found


def fallen(recorded: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Return a line for each figure that has fallen by more than is allowed the other way."""
    pairs = [(name, recorded[name], value) for name, value in now.items() if name in recorded]
    return [f"{name}: recorded {a:,}, now {b:,}" for name, a, b in pairs if b < a * (1 - ALLOWED)]


def check(now: Mapping[str, float], recorded: Mapping[str, Mapping[str, float]]) -> int:
    """Print how the figures compare with the recorded ones; return the exit code."""
    if release() not in recorded:
        known = "; ".join(recorded) or "none"
        print(f"nothing is recorded for {release()} (recorded: {known}); record it: {RECORD}")
        return 1
    wrong, less = problems(recorded[release()], now), fallen(recorded[release()], now)
    if wrong:
        print("costs more than recorded:", *wrong, f"find out why; if it is worth it, record again: {RECORD}", sep="\n")
    if less:
        print("costs less than recorded:", *less, f"keep it so, record again: {RECORD}", sep="\n")
    return int(bool(wrong))


def main() -> int:
    """Measure and print; compare or record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a figure exceeds the recorded one by 3 %%")
    parser.add_argument("--write", action="store_true", help=f"record the figures in {RECORDED.name}")
    parser.add_argument("--measure", choices=list(MEASURED), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        function, argument = MEASURED[options.measure]
        print(json.dumps(function(argument)))
        return 0
    now = measured()
    print(f"{release()}:", *(f"{value:>14,}  {name}" for name, value in now.items()), sep="\n")
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    if options.write:
        recorded = dict(sorted({**recorded, release(): now}.items()))
        RECORDED.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    return check(now, recorded) if options.check else 0


if __name__ == "__main__":
    sys.exit(main())
