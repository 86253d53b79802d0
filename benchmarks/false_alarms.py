"""How often the kit accuses what is right: python benchmarks/false_alarms.py [--trials N] [--dtype D] [TARGET ...].

Judges random trials (gradconform.random_trial, seeds 0 to N - 1) on plain autograd and on gradconform.reference.split,
which are both right, per dtype. Prints a table of trials, failures and the largest headroom met (1 is the bound), and
every failure; exits with 1 where there is one. The issue asks for 20,000 trials per dtype and target.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field

import torch

from gradconform.devices import dtype_named
from gradconform.evidence import Evidence
from gradconform.fixtures.random_stages import SeededChoices
from gradconform.judge import Finding, whole
from gradconform.random_trial import draw_trial
from gradconform.run import OracleError, Runner
from gradconform.targets import resolve

TARGETS = ("autograd", "reference-split")
DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclass(slots=True)
class Row:
    """What was seen on one target and dtype."""

    target: str
    dtype: str
    judged: int = 0
    unjudged: int = 0
    headroom: float = 0.0
    alarms: list[str] = field(default_factory=list)

    def judge(self, evidence: Evidence) -> list[Finding]:
        """Judge one trial, and note the largest headroom."""
        found = list(whole(evidence))
        self.headroom = max([self.headroom, *evidence.headrooms])
        return found


def measure(target: str, dtype: str, trials: int) -> Row:
    """Judge the trials of seeds 0 to ``trials`` - 1."""
    row = Row(target, dtype)
    runner = Runner(resolve(target), device=torch.device("cpu"), dtype=dtype_named(dtype))
    for seed in range(trials):
        trial = draw_trial(SeededChoices(seed), runner.target.capabilities)
        try:
            findings = runner.findings(trial, lambda evidence: iter(row.judge(evidence)))
        except OracleError:
            row.unjudged += 1
            continue
        row.judged += 1
        if findings:
            case = trial.stages[0]
            row.alarms.append(f"seed {seed}, {case.special}, {trial.program}: {findings[0]}")
    return row


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="*", default=TARGETS)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| target | dtype | trials | failures | largest headroom | trials/s | (torch {torch.__version__})")
    print("|---|---|---:|---:|---:|---:|")
    alarms: list[str] = []
    for target in options.target:
        for dtype in options.dtype or DTYPES:
            started = time.process_time()
            row = measure(target, dtype, options.trials)
            rate = row.judged / (time.process_time() - started)
            cells = (target, dtype, f"{row.judged:,}", len(row.alarms), f"{row.headroom:.2g}", f"{rate:.0f}")
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            alarms += [f"{target} {dtype}, {alarm}" for alarm in row.alarms]
    print("\n".join(alarms))
    return int(bool(alarms))


if __name__ == "__main__":
    sys.exit(main())
