"""How many random trials per second one core judges: python benchmarks/fuzz_rate.py [TARGET] [--trials N].

Two figures, in processor time on one thread: trials drawn from a seeded generator (goal 100 per second), and those of a
campaign of ``gradconform fuzz``, half of which are programs of the state machine, which are longer.
"""

from __future__ import annotations

import argparse
import time

import torch
from figures import Figure

from gradconform.fixtures.random_stages import SeededChoices
from gradconform.fuzz.campaign import run_campaign
from gradconform.judge import all_requirements
from gradconform.run.runner import Runner
from gradconform.target.resolve import resolve
from gradconform.trial.random_trials import draw_trial

GOAL = 100.0


def seeded(runner: Runner, first: int, trials: int) -> float:
    """Return trials per second, drawing included."""
    started = time.process_time()
    for seed in range(first, first + trials):
        runner.findings(draw_trial(SeededChoices(seed), runner.claims), all_requirements)
    return trials / (time.process_time() - started)


def drawn_by_hypothesis(runner: Runner, trials: int) -> float:
    """Return trials per second of a campaign: half of it random trials, half of it the state machine."""
    started = time.process_time()
    campaign = run_campaign(runner, max_examples=trials, time_budget=600.0, seed=20)
    return campaign.trials / (time.process_time() - started)


def measure(target: str = "reference-split", trials: int = 1000) -> list[Figure]:
    """Return both rates."""
    runner = Runner(resolve(target), device=torch.device("cpu"), dtype=torch.float32)
    seeded(runner, 10**6, 50)
    rate, campaign = seeded(runner, 0, trials), drawn_by_hypothesis(runner, trials)
    what = "random trials per second of one core"
    return [
        Figure(f"{what}, from a seed", f"{rate:.0f}", f"{GOAL:.0f}", "fuzz_rate.py"),
        Figure(f"{what}, in a campaign of `gradconform fuzz`", f"{campaign:.0f}", "none", "fuzz_rate.py"),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="reference-split")
    parser.add_argument("--trials", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.target}, float32, torch {torch.__version__}")
    print(*measure(options.target, options.trials), sep="\n")


if __name__ == "__main__":
    main()
