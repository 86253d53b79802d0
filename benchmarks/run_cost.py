"""What a run costs beyond the bare work: python benchmarks/run_cost.py [TARGET] [--profile P] [--rounds N].

Prints the time of a run divided by the time of the bare work (benchmarks/bare_work.py), goal 1.5, and checks per
second, goal 200. Both are timed in turn in one process, on one thread, in processor time, and medians are taken. Torch
and what it imports late (checkpointing imports its compiler) is imported before the clock starts.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import warnings
from collections.abc import Callable

import torch
import torch._dynamo  # checkpointing imports it at first use, which takes a second
from bare_work import bare_run, make_stages, trials_of

from gradconform.session import Session

GOAL_RATIO = 1.5
GOAL_RATE = 200.0


def seconds(work: Callable[[], object]) -> float:
    """Return how long ``work`` keeps the processor busy: other processes do not count."""
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="reference-split")
    parser.add_argument("--profile", default="standard")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    session = Session(options.target, profile=options.profile)
    first = seconds(session.run)
    full: list[float] = []
    bare: list[float] = []
    for _ in range(options.rounds):
        gc.freeze()  # a run does so itself: the ratio is of work alone
        bare.append(seconds(lambda: bare_run(session)))
        gc.unfreeze()
        full.append(seconds(Session(options.target, profile=options.profile).run))
    run_s, bare_s = statistics.median(full), statistics.median(bare)
    ratios = sorted(one / other for one, other in zip(full, bare, strict=True))
    count = len(session.plan.items)
    print(f"{options.target}, profile {options.profile}: {count} checks, {len(trials_of(session))} trials")
    print(f"run {run_s:.3f} s, bare work {bare_s:.3f} s (medians of {options.rounds})")
    print(f"of the bare work, making the stages takes {seconds(lambda: make_stages(session)) / bare_s:.0%}")
    print(f"ratio {run_s / bare_s:.2f} (per round {ratios[0]:.2f} to {ratios[-1]:.2f}); goal {GOAL_RATIO}")
    print(f"{count / first:.0f} checks/s in the first run, {count / run_s:.0f} in later ones; goal {GOAL_RATE:.0f}")


if __name__ == "__main__":
    main()
