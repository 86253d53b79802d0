"""What isolation costs: python benchmarks/isolation.py [TARGET] [--profile P] [--rounds N].

Times the command from the shell with its checks in a worker process, with two workers, and in its own process, in turn;
prints medians of the wall time and of the processor time of all processes. Goal: at most 10 % over one process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

GOAL = 1.1
WAYS: dict[str, tuple[str, ...]] = {
    "one process": ("--no-isolation",),
    "isolated": (),
    "two workers": ("--workers", "2"),
}


def cost(command: list[str]) -> tuple[float, float]:
    """Return the wall time and the processor time of a command, in seconds."""
    before, started = os.times(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - started, os.times()
    if done.returncode not in {0, 1}:
        sys.exit(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stderr}")
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="reference-split")
    parser.add_argument("--profile", default="standard")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    script = str(Path(sys.executable).with_name("gradconform"))
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way, words in WAYS.items():
            found[way].append(cost([script, "run", options.target, "--profile", options.profile, *words]))
    walls = {way: statistics.median(wall for wall, _ in times) for way, times in found.items()}
    busy = {way: statistics.median(processor for _, processor in times) for way, times in found.items()}
    for way in WAYS:
        print(f"{way}: {walls[way]:.2f} s, {busy[way]:.2f} s of processor time (medians of {options.rounds})")
    for name, times in (("wall", walls), ("processor", busy)):
        print(f"{name} time isolated / one process: {times['isolated'] / times['one process']:.2f}; goal {GOAL}")


if __name__ == "__main__":
    main()
