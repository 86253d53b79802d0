"""How well single operations are judged: python benchmarks/operations.py [--wrong] [--names GLOB …].

Prints how many of the entries that torch lists as differentiable are tried, and how many kinds of autograd nodes the
backwards of their samples go through, goal 95 % of the entries. With --wrong each operation that reaches the simulated
device is made wrong there in turn, in each way that changes an output or a gradient of an entry which calls it: the
share that is named as the device's fault is printed, goal 99 %, and every one that is not.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from figures import Figure

from gradconform.contract.check import Check
from gradconform.contract.extra_ids import ALL
from gradconform.fixtures.inputs import draw_arguments, place_arguments
from gradconform.fixtures.stages.case import StageCase
from gradconform.fixtures.stages.shown_traits import alike
from gradconform.plugins.devices import simx
from gradconform.run.runner import Runner
from gradconform.sources.operations.selected import select_checks
from gradconform.target.resolve import resolve
from gradconform.torch_releases.dispatch import Called
from gradconform.trees import tensors

TRIED, NAMED = 0.95, 0.99
WAYS = ("index", "stale", "transpose")
#: How many entries that call an operation are tried, those that call the fewest others first.
ENTRIES = 12


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--names", nargs="+", default=[ALL])
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    selected = select_checks(options.names, "quick")
    tried = selected.listed - len(selected.untried)
    print(selected.description)
    print(Figure("entries tried", f"{tried / selected.listed:.1%}", f"{TRIED:.0%}", "operations.py"))
    if options.wrong:
        _make_wrong([check for check in selected.checks if check.id.startswith("ops.full.")])


def _make_wrong(checks: Sequence[Check]) -> None:
    """Make each operation wrong in turn."""
    simx.load()
    callers = _callers(checks)
    outcomes = {name: _outcome(name, some) for name, some in sorted(callers.items())}
    able = {name: found for name, found in outcomes.items() if found is not None}
    for name, found in able.items():
        if not found.named:
            print(f"  {name}: {found.message}")
    share = sum(found.named for found in able.values()) / len(able)
    print(f"{len(callers)} operations reach the device, of {len(able)} of which a wrong result shows in an entry")
    print(Figure("wrong operations named", f"{share:.1%}", f"{NAMED:.0%}", "operations.py"))


def _callers(checks: Sequence[Check]) -> dict[str, list[Check]]:
    """Return the checks on whose stages plain autograd calls an operation on the device, by the operation."""
    callers: dict[str, list[tuple[int, Check]]] = {}
    for check in checks:
        called = Called()
        try:
            for trial in check.trials:
                _shown(trial.stages[0], called)
        except (RuntimeError, NotImplementedError):  # the device has it not
            continue
        names = {_plain(one.name()) for one in called.operations if not one.is_view}
        for name in names:
            callers.setdefault(name, []).append((len(names), check))
    return {
        name: [check for _, check in sorted(some, key=lambda one: one[0])[:ENTRIES]] for name, some in callers.items()
    }


def _plain(name: str) -> str:
    """Return the name that an operation has in all its forms."""
    short = name.partition(".")[0]
    return short[:-1] if short.endswith("_") and not short.endswith("__") else short


def _shown(case: StageCase, mode: Called | None = None) -> list[torch.Tensor]:
    """Return all that one forward and backward show on the device."""
    device = torch.device("simx:0")
    module = case.make(dtype=torch.float32, device=device, seed=0)
    args = place_arguments(case.inputs, draw_arguments(case.inputs, seed=0, dtype=torch.float32), module, device)
    with mode or contextlib.nullcontext(), torch.enable_grad():
        outputs = tensors(module(*args))
        with_grad = [one for one in outputs if one.requires_grad]
        torch.autograd.backward(with_grad, [_grad(one) for one in with_grad])
    leaves = [leaf.grad for leaf in (*args, *module.parameters()) if isinstance(leaf, torch.Tensor)]
    return [one.detach().cpu() for one in (*outputs, *leaves) if one is not None]


def _grad(like: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(like.numel())
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a wrong operation is named, and what is told of it."""

    named: bool
    message: str


def _outcome(name: str, checks: Sequence[Check]) -> Outcome | None:
    """Make one operation wrong in each way; None where no output and no gradient tells of it."""
    message = "nothing"
    shows = False
    for check, way in itertools.product(checks, WAYS):
        try:
            before = [_shown(trial.stages[0]) for trial in check.trials]
            with simx.inject(wrong=f"{name}:{way}"):
                after = [_shown(trial.stages[0]) for trial in check.trials]
                if all(all(map(alike, *both)) for both in zip(before, after, strict=True)):
                    continue
                shows = True
                result = _runner().run(check)
        except ValueError:  # the device cannot make it wrong: it never reaches it by this name
            return None
        except RuntimeError as error:
            message = f"{check.id}, {way}: raised {error}"[:200]  # loudly
            continue
        named = {cause for finding in result.findings for cause in (finding["cause"] or {}).get("names", ())}
        if result.kind == "device" and name in map(_plain, named):
            return Outcome(named=True, message=check.id)
        message = f"{check.id}, {way}: {result.status} {result.kind} {result.message[:160]!r}"
    return Outcome(named=False, message=message) if shows else None


def _runner() -> Runner:
    return Runner(resolve("reference-split"), device=torch.device("simx:0"), dtype=torch.float32, seed=20)


if __name__ == "__main__":
    main()
