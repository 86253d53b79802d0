"""How long a run takes from the shell, import of torch included: python benchmarks/shell_time.py [TARGET].

Prints the processor time of the command and all that it starts, which other work on the machine hardly changes, and how
long it took. A first run, which is not counted, lets Python keep what it has compiled. Goal for profile quick: 2.5 s of
processor time, of which torch's own import is told apart.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from figures import ENVIRONMENT, Figure

GOALS_S = {"quick": 2.5, "standard": None, "full": None}


def seconds(command: list[str], folder: str | None = None) -> tuple[float, float]:
    """Run a command, in a folder if one is given; return its processor time and how long it took.

    Raise where it gives no verdict.
    """
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=False, env=ENVIRONMENT, cwd=folder)
    took, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode > 1:
        done.check_returncode()
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, took


def measure(profile: str, target: str = "reference-split", rounds: int = 3) -> Figure:
    """Time the command; raise ``CalledProcessError`` where it gives no verdict."""
    command = [str(Path(sys.executable).with_name("gradconform")), "run", target, "--profile", profile]
    seconds(command)
    busy, took = (statistics.median(times) for times in zip(*(seconds(command) for _ in range(rounds)), strict=True))
    torch_s = statistics.median(seconds([sys.executable, "-c", "import torch"])[0] for _ in range(rounds))
    goal = GOALS_S[profile]
    wanted = "none" if goal is None else f"{goal:.1f} s"
    what = f"`gradconform run {target} --profile {profile}`, in processor time"
    value = f"{busy:.1f} s, of which `import torch` is {torch_s:.1f} s; it took {took:.1f} s"
    return Figure(what, value, wanted, "shell_time.py")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="reference-split")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for profile in GOALS_S:
        print(measure(profile, options.target, options.rounds), flush=True)


if __name__ == "__main__":
    main()
