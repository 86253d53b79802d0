"""How far right backwards are off in the mean: python benchmarks/bias.py [--seeds N] [--trials N] [--dtype D].

Runs right-but-reordered backwards (benchmarks/reordered.py) and the right variants that round otherwise through the
check `full.bias.gradients`, once per seed, and over random trials (gradconform.trial.random_trials), 44 of which are
taken for the draws of one check. Prints, per dtype and way, the largest steadiness met (the sum of the shifts as a part
of the root of the sum of their squares, of which the rule accuses nothing below 5.8), the largest mean shift that was
steadier than 3, and the largest spread beyond twice plain autograd's, both in eps. Exits with 1 where the rule accuses.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from reordered import KERNELS, SUMS, Reordered

from gradconform.contract.areas import CHECKS
from gradconform.contract.cases import DRAWS
from gradconform.devices.dtypes import dtype_named
from gradconform.drive.oracle import OracleError
from gradconform.drive.reference64 import OracleCache
from gradconform.fixtures.random_stages import SeededChoices
from gradconform.judge.bias import BIAS, Draw
from gradconform.judge.finding import findings_in
from gradconform.judge.mean_rule import Errors, in_series, judge_spread
from gradconform.reference.variants import VARIANTS
from gradconform.run.runner import Runner
from gradconform.target.resolve import resolve
from gradconform.tolerance import mean_floor
from gradconform.trial.random_trials import draw_trial

DTYPES = ("float64", "float32", "bfloat16", "float16")
#: Variants whose sums are not those of plain autograd; the others are bit-equal to it here.
ROUNDED_OTHERWISE = ("main-grad-in-float32", "sums-in-float64", "sums-in-pairs")
#: From which steadiness on a shift is not taken for chance.
NOTED = 3.0

WAYS: dict[str, Callable[[], object]] = {
    **{way: (lambda way=way: Reordered(way)) for way in (*SUMS, *KERNELS)},
    **{name: VARIANTS[name] for name in ROUNDED_OTHERWISE},
}


@dataclass
class Met:
    """The largest of all series of one way."""

    series: int = 0
    steadiness: float = 0.0
    shift: float = 0.0
    spread: float = 0.0
    accused: int = 0

    def add(self, draws: Sequence[Draw]) -> None:
        """Take the draws of one check."""
        self.accused += bool(findings_in(BIAS.judge(draws)))
        eps = torch.finfo(draws[0].dtype).eps
        for errors in in_series(draw.errors for draw in draws).values():
            self.series += 1
            total, squares = sum(one.shift for one in errors), sum(one.shift**2 for one in errors)
            steadiness = abs(total) / math.sqrt(squares) if squares else 0.0
            self.steadiness = max(self.steadiness, steadiness)
            if steadiness > NOTED:
                self.shift = max(self.shift, abs(total) / len(draws) / eps)
            self.spread = max(self.spread, _beyond(len(draws), errors, draws[0].dtype))

    def __str__(self) -> str:
        """Return the cells of a row."""
        return f"{self.series:,} | {self.steadiness:.1f} | {self.shift:.2g} | {self.spread:.2g} | {self.accused}"


def _beyond(draws: int, errors: Sequence[Errors], dtype: torch.dtype) -> float:
    """Return how far the errors are spread beyond twice plain autograd's, in eps."""
    error, bound, _ = judge_spread(draws, errors, dtype)
    return (error - bound) / torch.finfo(dtype).eps + mean_floor("spread", dtype)


def of_check(way: str, dtype: str, seeds: int) -> Met:
    """Run the check once per seed, all of its draws."""
    met = Met()
    for seed in range(seeds):
        runner = Runner(resolve(WAYS[way]()), device=torch.device("cpu"), dtype=dtype_named(dtype), seed=seed)
        met.add([BIAS.read(runner.evidence(trial)) for trial in CHECKS["full.bias.gradients"].trials])
    return met


def of_random_trials(way: str, dtype: str, trials: int, oracles: OracleCache) -> Met:
    """Run random trials, so many at a time as the check has draws, of which inputs and parameters are pooled.

    ``oracles`` holds what other ways have computed of plain autograd.
    """
    met = Met()
    drawn = _random_draws(way, dtype, trials, oracles)
    while draws := list(itertools.islice(drawn, DRAWS)):
        met.add(draws)
    return met


def _random_draws(way: str, dtype: str, trials: int, oracles: OracleCache) -> Iterator[Draw]:
    runner = Runner(resolve(WAYS[way]()), device=torch.device("cpu"), dtype=dtype_named(dtype), oracles=oracles)
    for seed in range(trials):
        trial = draw_trial(SeededChoices(seed), runner.claims, way="full")
        try:
            draw = BIAS.read(runner.evidence(trial))
        except OracleError:
            continue
        pooled: dict[str, list[Errors]] = {}
        for sort, _, errors in draw.errors:
            pooled.setdefault(sort, []).append(errors)
        yield Draw(draw.dtype, tuple(("thing", sort, Errors.together(one)) for sort, one in pooled.items()))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| dtype | way | of | series | steadiness | steady shift, eps | spread, eps | accused |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    accused = 0
    for dtype in options.dtype or DTYPES:
        oracles = OracleCache()
        for way in WAYS:
            for what, met in (
                (f"{options.seeds} runs", of_check(way, dtype, options.seeds)),
                (f"{options.trials} random trials", of_random_trials(way, dtype, options.trials, oracles)),
            ):
                accused += met.accused
                print(f"| {dtype} | {way} | {what} | {met} |", flush=True)
    return int(bool(accused))


if __name__ == "__main__":
    sys.exit(main())
