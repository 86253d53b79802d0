"""What a run costs beyond the bare work: python benchmarks/run_cost.py [TARGET] [--profile P] [--rounds N].

Prints the time of a run divided by the time of the bare work (benchmarks/bare_work.py), goal 1.3, and checks per
second, goal 200. Both are timed in turn in one process, on one thread, in processor time, and the ratio is the median
of those of the rounds: two neighbours in time see the same machine. Their spread, and the ratio in wall time, are
printed beside it. Torch and what it imports late (checkpointing imports its compiler) is imported before the clock
starts.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch._dynamo  # checkpointing imports it at first use, which takes a second
from bare_work import bare_run, make_stages, trials_of
from figures import Figure

from gradconform.run.options import RunOptions
from gradconform.run.run import Run

GOAL_RATIO = 1.3
GOAL_RATE = 200.0


class Seconds(NamedTuple):
    """How long work kept the processor busy, where other processes do not count, and how long it took."""

    processor: float
    wall: float


def seconds(work: Callable[[], object]) -> Seconds:
    """Time ``work`` by both clocks."""
    started = Seconds(time.process_time(), time.perf_counter())
    work()
    return Seconds(time.process_time() - started.processor, time.perf_counter() - started.wall)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of runs, the first one and later ones, and of the bare work in turn with the later ones."""

    run: Run
    first: Seconds
    full: list[Seconds]
    bare: list[Seconds]

    @property
    def run_s(self) -> float:
        """The median of the later runs."""
        return statistics.median(one.processor for one in self.full)

    @property
    def bare_s(self) -> float:
        """The median of the bare work."""
        return statistics.median(one.processor for one in self.bare)

    def ratios(self) -> list[Seconds]:
        """Return the ratio of every round, by both clocks."""
        rounds = zip(self.full, self.bare, strict=True)
        return [Seconds(one.processor / other.processor, one.wall / other.wall) for one, other in rounds]

    def figures(self) -> list[Figure]:
        """Return the ratio and the rate."""
        count = len(self.run.plan.items)
        rate = f"{count / self.first.processor:.0f} in the first run, {count / self.run_s:.0f} in later ones"
        ratio = f"{statistics.median(one.processor for one in self.ratios()):.2f}"
        return [
            Figure("time of a run, divided by the time of the bare work", ratio, f"{GOAL_RATIO}", "run_cost.py"),
            Figure("checks per second of one core", rate, f"{GOAL_RATE:.0f}", "run_cost.py"),
        ]


def measure(target: str = "reference-split", profile: str = "standard", rounds: int = 9) -> Cost:
    """Time runs and the bare work in turn."""
    run = Run(RunOptions.of(target, profile=profile))
    first = seconds(run.run)
    full: list[Seconds] = []
    bare: list[Seconds] = []
    for _ in range(rounds):
        gc.freeze()  # a run does so itself: the ratio is of work alone
        bare.append(seconds(lambda: bare_run(run)))
        gc.unfreeze()
        full.append(seconds(Run(RunOptions.of(target, profile=profile)).run))
    return Cost(run, first, full, bare)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="reference-split")
    parser.add_argument("--profile", default="standard")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cost = measure(options.target, options.profile, options.rounds)
    run = cost.run
    checks, trials = len(run.plan.items), len(trials_of(run))
    print(f"{options.target}, profile {options.profile}: {checks} checks, {trials} trials")
    print(f"run {cost.run_s:.3f} s, bare work {cost.bare_s:.3f} s (medians of {options.rounds})")
    stages = seconds(lambda: make_stages(run)).processor
    print(f"of the bare work, making the stages takes {stages / cost.bare_s:.0%}")
    for clock, ratios in zip(Seconds._fields, zip(*cost.ratios(), strict=True), strict=True):
        print(f"ratio in {clock} time: {spread(ratios)}")
    print(*cost.figures(), sep="\n")


def spread(ratios: Sequence[float]) -> str:
    """Return the median of the rounds' ratios, and how they spread where there are several."""
    if len(ratios) == 1:
        return f"{ratios[0]:.2f}, of one round"
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f}, half the rounds {low:.2f} to {high:.2f}, all {min(ratios):.2f} to {max(ratios):.2f}"


if __name__ == "__main__":
    main()
