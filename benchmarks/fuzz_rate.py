"""How many random trials per second one core judges: python benchmarks/fuzz_rate.py [TARGET] [--trials N].

Two figures, in processor time on one thread: trials drawn from a seeded generator (goal 100 per second), and those of a
campaign of ``gradconform fuzz``, half of which are programs of the state machine, which are longer.
"""

from __future__ import annotations

import argparse
import time

import torch

from gradconform.fixtures.random_stages import SeededChoices
from gradconform.fuzz.campaign import run_campaign
from gradconform.judge import whole
from gradconform.random_trial import draw_trial
from gradconform.run import Runner
from gradconform.targets import resolve

GOAL = 100.0


def seeded(runner: Runner, first: int, trials: int) -> float:
    """Return trials per second, drawing included."""
    started = time.process_time()
    for seed in range(first, first + trials):
        runner.findings(draw_trial(SeededChoices(seed), runner.target.capabilities), whole)
    return trials / (time.process_time() - started)


def drawn_by_hypothesis(runner: Runner, trials: int) -> float:
    """Return trials per second of a campaign: half of it random trials, half of it the state machine."""
    started = time.process_time()
    campaign = run_campaign(runner, max_examples=trials, time_budget=600.0, seed=20)
    return campaign.trials / (time.process_time() - started)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="reference-split")
    parser.add_argument("--trials", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    runner = Runner(resolve(options.target), device=torch.device("cpu"), dtype=torch.float32)
    seeded(runner, 10**6, 50)
    print(f"{options.target}, float32, torch {torch.__version__}, trials per second of one core:")
    print(f"random trials from a seed        {seeded(runner, 0, options.trials):.0f}; goal {GOAL:.0f}")
    print(f"campaign of gradconform fuzz     {drawn_by_hypothesis(runner, options.trials):.0f}")


if __name__ == "__main__":
    main()
