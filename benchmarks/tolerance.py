"""What c of tolerances.toml right backwards need: python benchmarks/tolerance.py [--seeds N].

Runs right-but-reordered backwards (benchmarks/reordered.py) over the stage zoo and prints, per dtype and way, the c
that would have just let every gradient pass: (error - 2 * error of autograd) / (eps * scale), for the largest error and
for the root mean square. Set c above what is printed, and far below what a real mistake makes: in float32 an error of
3e-6 of the value everywhere is 25 eps.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from reordered import KERNELS, SUMS, Reordered
from torch import Tensor

from gradconform.drive.oracle import OracleError
from gradconform.fixtures.programs import full_immediate
from gradconform.fixtures.stages import ZOO
from gradconform.judge import gradients
from gradconform.judge import values as judging
from gradconform.judge.finding import findings_in
from gradconform.run.runner import Runner
from gradconform.target.resolve import resolve
from gradconform.tolerance import Judgement, Partials, floor_factor
from gradconform.tolerance import judge as judge_by_rule
from gradconform.trial.trial import Trial

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MICROBATCHES = 10


@dataclass
class Needed:
    """The c needed, per stage, and how many tensors were not bit-equal."""

    by_stage: dict[str, float] = field(default_factory=dict)
    compared: int = 0
    refused: int = 0

    def add(  # noqa: PLR0913 (a tensor, what it is held against, and how much room it has)
        self,
        stage: str,
        got: Tensor,
        oracle: Tensor,
        reference: Tensor | None,
        scale: Partials,
        *,
        spread: float,
        factor: float,
    ) -> None:
        """Take one tensor, with the spread and the factor that the rule is given."""
        self.compared += 1
        wide = torch.complex128 if oracle.is_complex() else torch.float64
        eps = torch.finfo(oracle.dtype).eps
        got, exact = got.to(wide), oracle.to(wide) if reference is None else reference.to(wide)
        error, oracle_error = (got - exact).abs(), (oracle.to(wide) - exact).abs()
        scale = scale.with_(exact)
        most = 0.0
        for size, peak in ((_largest, scale.peak), (_rms, scale.rms)):
            excess = size(error) / factor - 2 * size(oracle_error) - spread
            if excess > 0:
                most = max(most, excess / (eps * peak) if peak else math.inf)
        self.by_stage[stage] = max(self.by_stage.get(stage, 0.0), most)
        self.refused += most > floor_factor(oracle.dtype.to_real())

    @property
    def worst(self) -> list[tuple[str, float]]:
        """The stages that need most, first the worst."""
        return sorted(self.by_stage.items(), key=lambda pair: -pair[1])


def _largest(tensor: Tensor) -> float:
    return float(tensor.max()) if tensor.numel() else 0.0


def _rms(tensor: Tensor) -> float:
    return math.sqrt(float(tensor.square().mean())) if tensor.numel() else 0.0


@contextmanager
def recording(needed: Needed, stage: str) -> Iterator[None]:
    """Write down what every comparison would need."""

    def judge(  # noqa: PLR0913 (as the function that it stands for)
        got: Tensor,
        oracle: Tensor,
        reference: Tensor | None,
        scale: Partials,
        *,
        spread: float = 0.0,
        factor: float = 1.0,
        terms: Callable[[], Partials] | None = None,
    ) -> Judgement:
        needed.add(stage, got, oracle, reference, scale, spread=spread, factor=factor)
        return judge_by_rule(got, oracle, reference, scale, spread=spread, factor=factor, terms=terms)

    judging.judge_numbers = judge
    try:
        yield
    finally:
        judging.judge_numbers = judge_by_rule


def measure(way: str, dtype: torch.dtype, seeds: range) -> tuple[Needed, list[str]]:
    """Run one way over the zoo; return what it needs, and the stages that cannot run."""
    needed, impossible = Needed(), []
    target = resolve(Reordered(way))
    for case in ZOO.values():
        if "duplicate_input" in case.traits:  # its slots are tried in two readings, of which one is always far off
            continue
        for seed in seeds:
            runner = Runner(target, device=torch.device("cpu"), dtype=dtype, seed=seed)
            for loss in (False, True):
                trial = Trial(stages=(case,), program=full_immediate(MICROBATCHES), loss=loss)
                with recording(needed, case.name):
                    try:
                        found = [str(finding) for finding in findings_in(gradients(runner.evidence(trial)))]
                    except (OracleError, NotImplementedError):
                        continue
                impossible += [f"{case.name}: {text}" for text in found if "bound" not in text]
    if way in SUMS and not needed.compared:  # a kernel may be bit-equal in some dtype, another order of sums is not
        msg = f"{way} in {dtype} was compared with nothing: the recording no longer stands where the kit compares"
        raise RuntimeError(msg)
    return needed, impossible


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        largest = 0.0
        for way in (*SUMS, *KERNELS):
            needed, impossible = measure(way, dtype, seeds)
            worst = ", ".join(f"{stage} {c:.2f}" for stage, c in needed.worst[:4])
            largest = max([largest, *needed.by_stage.values()])
            print(f"{name}: {way}: {needed.compared} tensors not bit-equal, {needed.refused} need more than the c set")
            print(f"    c needed: {worst}")
            for text in sorted(set(impossible))[:3]:
                print(f"    not judged by numbers: {text[:160]}")
        print(f"{name}: largest c needed {largest:.2f}\n", flush=True)


if __name__ == "__main__":
    main()
