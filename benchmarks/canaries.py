"""What the canaries of a run cost: python benchmarks/canaries.py [TARGET] [--profile P] [--rounds N] [--workers N].

Prints how much of the processor time of a run goes into looking at the process that judges, goal 3 %. One look and the
checks without any are timed in turn, and the medians of the rounds are put together as a run of that many workers has
them: each worker looks before its first check, after every 250, and at its end.
"""

from __future__ import annotations

import argparse
import statistics
import warnings

import torch
import torch._dynamo  # checkpointing imports it at first use, which takes a second
from figures import Figure
from run_cost import seconds

from gradconform.run.guard import EVERY, Guard
from gradconform.run.options import RunOptions
from gradconform.run.run import Run

GOAL = 0.03


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="reference-split")
    parser.add_argument("--profile", default="standard")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    looks: list[float] = []
    runs: list[float] = []
    guard = Guard()
    for _ in range(options.rounds):
        run = Run(RunOptions.of(options.target, profile=options.profile), guarded=False)
        runs.append(seconds(run.run).processor)
        looks += [seconds(guard.look).processor for _ in range(10)]
    count = len(run.plan.items)
    times = options.workers * (1 + -(-count // options.workers // EVERY))
    look, checks = statistics.median(looks), statistics.median(runs)
    print(
        f"{options.target}, profile {options.profile}: {count} checks in {checks:.2f} s, {times} looks of {look:.4f} s"
    )
    print(Figure("canaries, as a part of a run", f"{look * times / checks:.1%}", f"{GOAL:.0%}", "canaries.py"))


if __name__ == "__main__":
    main()
