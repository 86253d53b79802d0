"""How long a run takes from the shell, import of torch included: python benchmarks/shell_time.py [TARGET].

Goals, on two cores: profile quick 5 s, standard 30 s.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from figures import Figure

GOALS_S = {"quick": 5.0, "standard": 30.0, "full": None}


def measure(profile: str, target: str = "reference-split", rounds: int = 3) -> Figure:
    """Time the command; raise ``CalledProcessError`` where it gives no verdict."""
    command = [str(Path(sys.executable).with_name("gradconform")), "run", target, "--profile", profile]
    times: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, check=False)
        times.append(time.perf_counter() - started)
        if done.returncode > 1:
            done.check_returncode()
    goal = GOALS_S[profile]
    wanted = "none" if goal is None else f"{goal:.0f} s"
    what = f"`gradconform run {target} --profile {profile}`"
    return Figure(what, f"{statistics.median(times):.1f} s", wanted, "shell_time.py")


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
