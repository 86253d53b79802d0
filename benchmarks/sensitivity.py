"""The smallest error that is found: python benchmarks/sensitivity.py [--trials N] [--runs N] [--dtype D] [--plot F].

Judges random trials on plain autograd whose gradients are made wrong on purpose, in two ways: every gradient off by
one relative error, and one element of one gradient off by a share of that gradient's largest element. Prints, per
dtype, the smallest error (a power of two times eps) that is found in at least 99 of 100 trials, and the share found of
3e-6 in float32. Prints as well the smallest uniform error that at least 99 of 100 runs of profile standard find, each
of another seed, with the rule of the mean and without it; the error is positive in one run and negative in the next.
With --plot it draws the share found against the error (needs matplotlib, of the group `dev`).
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec
from gradconform.contract import checks_of
from gradconform.devices.dtypes import dtype_named
from gradconform.drive.oracle import OracleError
from gradconform.fixtures.random_stages import SeededChoices
from gradconform.judge import gradients
from gradconform.reference.autograd import AutogradAdapter, AutogradSession
from gradconform.run.runner import Runner
from gradconform.target.resolve import resolve
from gradconform.trial.random_trials import draw_trial

MARKERS = {"float64": "o", "float32": "s", "bfloat16": "^", "float16": "D"}
DTYPES = tuple(MARKERS)
FOUND = 0.99

#: The ways in which gradients are made wrong, and what a plot calls them.
WAYS = {"uniform": "every element off by a relative error", "one element": "one element of one gradient off"}

Edit = Callable[[Tensor], Tensor]
Curve = list[tuple[float, float]]


class WrongSession(AutogradSession):
    """Plain autograd whose gradients pass through ``edit`` on their way out; what is accumulated stays right."""

    edit: Edit

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        """Run B and edit what it returns."""
        return self._edited(super().backward(mb, output_grads))

    def backward_input(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        """Run I and edit what it returns."""
        return self._edited(super().backward_input(mb, output_grads))

    def param_grads(self) -> dict[str, Tensor | None]:
        """Return the parameters' gradients, edited."""
        return {name: None if grad is None else self.edit(grad) for name, grad in super().param_grads().items()}

    def _edited(self, grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return tuple(None if grad is None else self.edit(grad) for grad in grads)


class WrongAdapter(AutogradAdapter):
    """Opens :class:`WrongSession` with an edit made anew for each stage."""

    def __init__(self, make: Callable[[], Edit]) -> None:
        self._make = make

    def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
        """Return a session whose gradients are wrong."""
        session = WrongSession(stage, spec)
        session.edit = self._make()
        return session


def uniform(error: float) -> Callable[[], Edit]:
    """Return a maker of edits that put the relative ``error`` on every element."""
    return lambda: lambda grad: (grad.double() * (1.0 + error)).to(grad.dtype)


def one_element(error: float, source: random.Random) -> Callable[[], Edit]:
    """Return a maker of edits that put ``error`` times the largest element on one element of one gradient."""

    def make() -> Edit:
        chosen: list[torch.Size] = []

        def edit(grad: Tensor) -> Tensor:
            if not grad.numel() or (chosen and grad.shape != chosen[0]):
                return grad
            chosen.append(grad.shape)
            wrong = grad.double().clone()
            flat = wrong.view(-1) if wrong.is_contiguous() else wrong.reshape(-1)
            index = source.randrange(flat.numel())
            flat[index] += error * float(wrong.abs().max())
            return flat.reshape(grad.shape).to(grad.dtype)

        return edit

    return make


def share_found(make: Callable[[], Edit], dtype: str, trials: int) -> float:
    """Return the share of random trials in which the error is found."""
    target = replace(resolve(WrongAdapter(make)), own_adapter=False)  # it would not get past its pre-flight
    runner = Runner(target, device=torch.device("cpu"), dtype=dtype_named(dtype))
    judged = found = seed = 0
    while judged < trials:
        trial = draw_trial(SeededChoices(seed), target.capabilities)
        seed += 1
        try:
            findings = [f for f in runner.findings(trial, gradients) if f.kind in {"mismatch", "nonfinite"}]
        except OracleError:
            continue
        steps = runner.evidence(trial).oracle.steps
        grads = [grad for step in steps for grad in (*(step.input_grads or ()), *step.param_grads.values())]
        if not any(grad is not None and bool(grad.to_dense().abs().max() > 0) for grad in grads if _counts(grad)):
            continue  # zeros stay zeros, whatever they are multiplied by
        judged += 1
        found += bool(findings)
    return found / judged


def _counts(grad: Tensor | None) -> bool:
    return grad is not None and grad.numel() > 0


def curve(way: str, dtype: str, trials: int) -> Curve:
    """Return (error, share found) for errors of eps times powers of two."""
    eps = torch.finfo(dtype_named(dtype)).eps
    points: Curve = []
    for power in range(-1, 9):
        error = eps * 2.0**power
        make = uniform(error) if way == "uniform" else one_element(error, random.Random(power))  # noqa: S311 (no secret)
        points.append((error, share_found(make, dtype, trials)))
        if len(points) > 1 and points[-2][1] >= FOUND:
            break
    return points


def run_finds(error: float, dtype: str, seed: int, *, means: bool) -> bool:
    """Tell whether a run of profile standard finds a uniform error, by the rule of the mean as well where ``means``."""
    target = replace(resolve(WrongAdapter(uniform(error))), own_adapter=False)
    runner = Runner(target, device=torch.device("cpu"), dtype=dtype_named(dtype), seed=seed, diagnose=False)
    checks = [check for check in checks_of().values() if check.profile != "full" and (means or check.pooled is None)]
    checks.sort(key=lambda check: check.pooled is None)  # what finds it soonest comes first
    return any(runner.run(check).status == "failed" for check in checks)


def often_found(error: float, dtype: str, runs: int, *, means: bool) -> bool:
    """Tell whether enough of so many runs find a uniform error; no more are made than have to be."""
    missed = 0
    for seed in range(runs):
        missed += not run_finds(error if seed % 2 else -error, dtype, seed, means=means)
        if missed > runs * (1.0 - FOUND) + 1e-9:
            return False
    return True


def in_runs(dtypes: Sequence[str], runs: int) -> list[str]:
    """Return the smallest uniform error that runs find, per dtype, with the rule of the mean and without it."""
    lines = ["| dtype | element by element alone | with the rule of the mean |", "|---|---:|---:|"]
    for dtype in dtypes:
        found = [
            next((error for error in errors_from(start, dtype) if often_found(error, dtype, runs, means=means)), None)
            for means, start in ((False, 2.0), (True, 0.2))
        ]
        lines.append(f"| {dtype} | {' | '.join('none' if error is None else f'{error:.0e}' for error in found)} |")
    return lines


def errors_from(start: float, dtype: str) -> list[float]:
    """Return errors of 1, 2, 3 and 5 times powers of ten, from about ``start`` eps on, up to 1000 times as large."""
    least = start * torch.finfo(dtype_named(dtype)).eps
    power = math.floor(math.log10(least))
    several = [step * 10.0**exponent for exponent in range(power, power + 4) for step in (1, 2, 3, 5)]
    return [error for error in several if least <= error <= 1000.0 * least]


def measure(dtypes: Sequence[str], trials: int) -> dict[tuple[str, str], Curve]:
    """Return the curves by way and dtype."""
    return {(way, dtype): curve(way, dtype, trials) for dtype in dtypes for way in WAYS}


def least(points: Curve) -> float | None:
    """Return the smallest error of a curve that is found often enough."""
    return next((error for error, share in points if share >= FOUND), None)


def table(curves: dict[tuple[str, str], Curve]) -> list[str]:
    """Return the smallest error found per dtype, as a table in Markdown."""
    lines = [
        "| dtype | eps | smallest uniform relative error found | smallest single wrong element found |",
        "|---|---:|---:|---:|",
    ]
    for dtype in dict.fromkeys(dtype for _, dtype in curves):
        found = [least(curves[way, dtype]) for way in WAYS]
        cells = ["none" if error is None else f"{error:.1e}" for error in found]
        lines.append(f"| {dtype} | {torch.finfo(dtype_named(dtype)).eps:.1e} | {' | '.join(cells)} |")
    return lines


def plot(curves: dict[tuple[str, str], Curve], path: Path) -> None:
    """Draw the share found against the error as SVG, one panel per way; the same curves give the same file."""
    import matplotlib as mpl  # noqa: PLC0415 (of the group `dev`, only where a plot is asked for)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 (as above)

    # Text stays text, which is small and can be searched, and no random id or date changes the file.
    style = {"svg.fonttype": "none", "svg.hashsalt": "gradconform", "font.family": "sans-serif", "font.size": 9}
    with mpl.rc_context(style):
        figure, panels = plt.subplots(1, len(WAYS), figsize=(9, 3.4), sharey=True, layout="constrained")
        for panel, (way, title) in zip(panels, WAYS.items(), strict=True):
            for (dtype, marker), style in zip(MARKERS.items(), ("-", "--", "-.", ":"), strict=True):
                if (way, dtype) in curves:
                    panel.semilogx(*zip(*curves[way, dtype], strict=True), marker=marker, linestyle=style, label=dtype)
            panel.axhline(FOUND, linewidth=0.8, color="grey")
            panel.set(title=title, xlabel="error, as a part of the value", ylim=(-0.03, 1.05))
        panels[0].set_ylabel("share of trials in which it is found")
        panels[0].legend(loc="center", title=f"line at {FOUND:.0%}")
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dtypes = options.dtype or DTYPES
    curves = measure(dtypes, options.trials)
    print(*table(curves), sep="\n")
    if "float32" in dtypes:
        print(f"float32, uniform error of 3e-6: found in {share_found(uniform(3e-6), 'float32', options.trials):.0%}")
    print(*in_runs(dtypes, options.runs), sep="\n")
    if options.plot is not None:
        plot(curves, options.plot)


if __name__ == "__main__":
    main()
