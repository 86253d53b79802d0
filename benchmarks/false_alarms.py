"""How often the kit accuses what is right: python benchmarks/false_alarms.py [--trials N] [--dtype D] [TARGET ...].

Judges random trials (gradconform.trial.random_trials, seeds 0 to N - 1) on plain autograd and on
gradconform.reference.split, which are both right, per dtype. Prints a table of trials, failures and the largest
error/bound, and every failure; exits with 1 if there is one. A release requires 20,000
trials per dtype and target.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import get_context

import torch

from gradconform.devices.dtypes import dtype_named
from gradconform.drive.evidence import Evidence
from gradconform.drive.oracle import OracleError
from gradconform.fixtures.random_stages import SeededChoices
from gradconform.judge import all_requirements
from gradconform.judge.finding import Judged, error_ratios_in
from gradconform.run.runner import Runner
from gradconform.target.resolve import resolve
from gradconform.trial.random_trials import draw_trial

TARGETS = ("autograd", "reference-split")
DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclass(slots=True)
class Row:
    """What was seen on one target and dtype."""

    target: str
    dtype: str
    judged: int = 0
    unjudged: int = 0
    error_ratio: float = 0.0
    seconds: float = 0.0
    alarms: list[str] = field(default_factory=list)

    def judge(self, evidence: Evidence) -> Judged:
        """Judge one trial, and keep the largest error/bound."""
        judged = list(all_requirements(evidence))
        self.error_ratio = max([self.error_ratio, *error_ratios_in(judged)])
        yield from judged

    def __str__(self) -> str:
        """Return the row of the table."""
        trials, alarms, rate = f"{self.judged:,}", f"{len(self.alarms)}", f"{self.judged / self.seconds:.0f}"
        return f"| `{self.target}` | {self.dtype} | {trials} | {alarms} | {self.error_ratio:.2g} | {rate} |"


HEAD = """\
| target | dtype | trials | failures | largest error/bound | trials/s of a core |
|---|---|---:|---:|---:|---:|"""


def measure(target: str, dtype: str, trials: int) -> Row:
    """Judge the trials of seeds 0 to ``trials`` - 1."""
    torch.set_num_threads(1)
    started = time.process_time()
    row = Row(target, dtype)
    runner = Runner(resolve(target), device=torch.device("cpu"), dtype=dtype_named(dtype))
    for seed in range(trials):
        trial = draw_trial(SeededChoices(seed), runner.claims)
        try:
            findings = runner.findings(trial, row.judge)
        except OracleError:
            row.unjudged += 1
            continue
        row.judged += 1
        if findings:
            case = trial.stages[0]
            row.alarms.append(f"seed {seed}, {case.special}, {trial.program}: {findings[0]}")
    row.seconds = time.process_time() - started
    return row


def measure_all(targets: Sequence[str], dtypes: Sequence[str], trials: int, workers: int) -> Iterator[Row]:
    """Yield a row per target and dtype, from so many processes."""
    pairs = list(product(targets, dtypes))
    with ProcessPoolExecutor(min(workers, len(pairs)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(measure, *zip(*pairs, strict=True), [trials] * len(pairs))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="*", default=TARGETS)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    print(f"torch {torch.__version__}\n{HEAD}")
    alarms: list[str] = []
    for row in measure_all(options.target, options.dtype or DTYPES, options.trials, options.workers):
        print(row, flush=True)
        alarms += [f"{row.target} {row.dtype}, {alarm}" for alarm in row.alarms]
    print(*alarms, sep="\n")
    return int(bool(alarms))


if __name__ == "__main__":
    sys.exit(main())
