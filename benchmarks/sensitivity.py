"""The smallest error that is found: python benchmarks/sensitivity.py [--trials N] [--dtype D] [--plot out.svg].

Judges random trials on plain autograd whose gradients are made wrong on purpose, in two ways: every gradient off by
one relative error, and one element of one gradient off by a share of that gradient's largest element. Prints, per
dtype, the smallest error (a power of two times eps) that is found in at least 99 of 100 trials, and the share found of
3e-6 in float32. With --plot it draws the share found against the error (needs matplotlib).
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec
from gradconform.devices import dtype_named
from gradconform.fixtures.random_stages import SeededChoices
from gradconform.judge import gradients
from gradconform.random_trial import draw_trial
from gradconform.reference.autograd import AutogradAdapter, AutogradSession
from gradconform.run import OracleError, Runner
from gradconform.targets import resolve

DTYPES = ("float64", "float32", "bfloat16", "float16")
FOUND = 0.99
Edit = Callable[[Tensor], Tensor]


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


def curve(way: str, dtype: str, trials: int) -> list[tuple[float, float]]:
    """Return (error, share found) for errors of eps times powers of two."""
    eps = torch.finfo(dtype_named(dtype)).eps
    points: list[tuple[float, float]] = []
    for power in range(-1, 9):
        error = eps * 2.0**power
        make = uniform(error) if way == "uniform" else one_element(error, random.Random(power))  # noqa: S311 (no secret)
        points.append((error, share_found(make, dtype, trials)))
        if len(points) > 1 and points[-2][1] >= FOUND:
            break
    return points


def plot(curves: dict[tuple[str, str], list[tuple[float, float]]], path: Path) -> None:
    """Draw the curves, one panel per way."""
    import matplotlib as mpl  # noqa: PLC0415 (only where a plot is asked for)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 (as above)

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True)
    for panel, way in zip(panels, ("uniform", "one element"), strict=True):
        for dtype in DTYPES:
            if (way, dtype) in curves:
                panel.semilogx(*zip(*curves[way, dtype], strict=True), marker="o", label=dtype)
        panel.axhline(FOUND, linewidth=0.8, linestyle="--")
        panel.set_title(f"{way}: share of trials in which it is found")
        panel.set_xlabel("relative error")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
    print("| dtype | eps | smallest uniform relative error found | smallest single wrong element found |")
    print("|---|---:|---:|---:|")
    for dtype in options.dtype or DTYPES:
        cells = []
        for way in ("uniform", "one element"):
            curves[way, dtype] = curve(way, dtype, options.trials)
            least = next((error for error, share in curves[way, dtype] if share >= FOUND), None)
            cells.append("none" if least is None else f"{least:.1e}")
        print(f"| {dtype} | {torch.finfo(dtype_named(dtype)).eps:.1e} | {' | '.join(cells)} |", flush=True)
    if "float32" in (options.dtype or DTYPES):
        print(f"float32, uniform error of 3e-6: found in {share_found(uniform(3e-6), 'float32', options.trials):.0%}")
    if options.plot is not None:
        plot(curves, options.plot)


if __name__ == "__main__":
    main()
