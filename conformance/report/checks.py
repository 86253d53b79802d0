"""Checks for a reader: lists for a terminal, a pipe or a program, the plan of a run, and one check explained."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from typing import Any

import torch

from gradconform.contract.check import Check
from gradconform.contract.plan import Plan
from gradconform.devices.dtypes import DTYPES
from gradconform.fixtures.inputs import written
from gradconform.fixtures.stages.case import StageCase
from gradconform.naming import SelectionError, nearest
from gradconform.target.resolve import Target
from gradconform.tolerance import floor_factor, mean_floor
from gradconform.trial.modes import MODES
from gradconform.trial.trial import Trial

from .lines import Line, count, heading, wrapped


def lines(checks: Sequence[Check], width: int, *, contract: str, profile: str, manifest: int) -> list[Line]:
    """Return the list for a terminal, by area, with the requirement of each check."""
    found: list[Line] = []
    for area, group in groupby(checks, key=lambda check: check.area):
        of_area = list(group)
        found.append(heading(f"{area}: {count(len(of_area), 'check')}", width))
        for check in of_area:
            found += wrapped(f"{check.id}  {check.level}, {check.profile}, needs {needs(check)}", width, hanging=4)
            found += wrapped(check.requirement, width, indent=4, role="faint")
    total = f"{len(checks)} of {manifest} checks of contract {contract}, profile {profile}"
    return [*found, *wrapped(total, width, role="heading")]


def rows(checks: Sequence[Check]) -> list[str]:
    """Return one line per check for a pipe: id, level, profile, needs and requirement, with tabs between."""
    return [
        "\t".join((check.id, check.level, check.profile, ",".join(sorted(check.needs)) or "-", check.requirement))
        for check in checks
    ]


def as_json(checks: Sequence[Check], contract: str) -> str:
    """Return the checks of a version of the contract as JSON text."""
    return json.dumps({"contract": contract, "checks": [_values(check) for check in checks]}, indent=2)


def _values(check: Check) -> dict[str, Any]:
    return {
        "id": check.id,
        "level": check.level,
        "profile": check.profile,
        "since": check.since,
        "needs": sorted(check.needs),
        "requirement": check.requirement,
        "why": check.why,
        "catches": check.catches,
        "stages": sorted({case.name for trial in check.trials for case in trial.stages}),
        "programs": list(dict.fromkeys(trial.program for trial in check.trials)),
        "source": check.source,
        "seed": check.seed,
    }


def plan_lines(plan: Plan, target: Target, counted: str, width: int) -> list[Line]:
    """Return what a run would do: each check with what the target does not claim of its needs, and the counts."""
    found: list[Line] = []
    unclaimed = 0
    for item in plan.items:
        unmet = item.check.unmet(target.capabilities)
        unclaimed += bool(unmet)
        note = f"  not claimed: {', '.join(unmet)}" if unmet else ""
        found.append(Line(f"{item.name}  {item.check.level}{note}", "faint" if unmet else "plain"))
    told = f"; {unclaimed} ask for what {target.name} does not claim" if unclaimed else ""
    total = f"{len(plan.items)} of {plan.manifest} {counted}, would run{told}"
    return [*found, *wrapped(total, width, role="heading")]


def needs(check: Check) -> str:
    """Return the capabilities that a check needs, for reading."""
    return ", ".join(sorted(check.needs)) or "nothing"


#: The most checks that one call explains.
MOST = 3

#: The numeric rule; :func:`factors` has c and eps.
FORMULA = "max|g - g64| <= 2 * max|g_autograd - g64| + c * eps(dtype) * scale"

#: The rule of the mean; :mod:`gradconform.bias` has it in full.
MEAN = "|sum of shifts| <= X * sqrt(sum of squared shifts), one shift per draw: the slope of g - g_autograd on g64"

_COLUMN = 13

_LETTERS = {
    "F": "F forward",
    "B": "B full backward",
    "I": "I input-gradient backward",
    "W": "W weight-gradient backward",
    "G": "G a weight context put in by hand",
    "receive": "receive what held the output gradients is written over",
    "send": "send the outputs are sent and let go of: a backward starts at their gradient edges",
    "drop": "drop the caller lets go of outputs and arguments",
    "finish": "finish the end of the step",
    "close": "close the end of the session",
    "reopen": "reopen another session on the same module",
    "zero_none": "zero_none zero_grad(set_to_none=True)",
    "zero_fill": "zero_fill zero_grad(set_to_none=False)",
    "hook": "hook hooks on every parameter",
    "unhook": "unhook none of them any more",
    "freeze": "freeze the parameter of that number",
    "unfreeze": "unfreeze the parameter of that number",
    "step": "step every parameter is changed in place",
    "replace": "replace the .data of every parameter",
    "rebind": "rebind other parameters in the places of all",
    "restride": "restride every gradient is handed over with other strides",
    "bucket": "bucket every gradient is a view of one flat buffer",
    "collect": "collect the garbage collector runs",
}
_ALTERING = {"scale": "scale what it becomes", "move": "move it out of .grad"}


def factors() -> list[tuple[str, float, float]]:
    """Return name, c and eps of every dtype that a run can be asked for."""
    return [(name, floor_factor(dtype), torch.finfo(dtype).eps) for name, dtype in DTYPES.items()]


def mean_floors() -> list[tuple[str, float, float]]:
    """Return name and the floors of the rule of the mean, in eps, of every dtype that a run can be asked for."""
    return [(name, mean_floor("shift", dtype), mean_floor("spread", dtype)) for name, dtype in DTYPES.items()]


def matching(pattern: str, checks: Mapping[str, Check]) -> list[Check]:
    """Return the checks whose id is ``pattern`` or matches it.

    Raises :class:`~gradconform.naming.SelectionError` where there is none, with the nearest ids, or where there are
    more than :data:`MOST`.
    """
    found = [check for check in checks.values() if fnmatchcase(check.id, pattern)]
    if not found:
        shown = textwrap.shorten(nearest(pattern, checks), 300, placeholder=" ...")
        msg = f"no check has the id {pattern!r}; nearest: {shown}. `gradconform list` prints every id"
        raise SelectionError(msg)
    if len(found) > MOST:
        first = ", ".join(check.id for check in found[:MOST])
        msg = (
            f"{pattern!r} matches {len(found)} checks, expected {MOST} at most; the first: {first}. "
            f"`gradconform list --checks '{pattern}'` prints them all"
        )
        raise SelectionError(msg)
    return found


def explanation(check: Check, width: int) -> list[Line]:
    """Return the explanation of a check."""
    stages = list(dict.fromkeys(case for trial in check.trials for case in trial.stages))
    seed = f"{check.seed} (torch, test/distributed/pipelining/test_backward.py)" if check.seed else None
    found = [
        heading(check.id, width),
        *_field("level", f"{check.level}, from profile {check.profile} on, since contract {check.since}", width),
        *_field("requirement", check.requirement, width),
        *_field("why", check.why, width),
        *_field("catches", check.catches, width),
        *_field("needs", needs(check), width),
        *(_field("seed suite", seed, width) if seed else []),
    ]
    trials = [trial for trial in check.trials if not trial.draw]
    for number, trial in enumerate(trials, 1):
        which = f"program {number}" if len(trials) > 1 else "program"
        found += _program(which, trial, width)
    if check.pooled is not None:
        found += _field("", f"on {len(check.trials)} draws of all that is random, judged together", width)
    found += _field("", _legend(check), width)
    found += _judged(check, width)
    for case in stages:
        found += [Line(), *_stage(case, width)]
    return [*found, Line(), Line(f"try it: gradconform run TARGET --checks {check.id}", "faint"), Line()]


def _field(name: str, text: str, width: int) -> list[Line]:
    lines = wrapped(text, width, indent=_COLUMN)
    return [Line(name.ljust(_COLUMN) + lines[0].text[_COLUMN:]), *lines[1:]] if lines else []


def _program(which: str, trial: Trial, width: int) -> list[Line]:
    """Return the program, and how it is fed where that is not the usual way."""
    stages = (", then " if trial.chain else " and ").join(map(_breakable, trial.stages))
    fed = [
        "each hands its outputs to the next, and its input gradients back; a loss at the last"
        if trial.chain and trial.loss
        else "a loss"
        if trial.loss
        else f"output gradients: {trial.output_grads}",
        *(["parameters have gradients before the first action"] if trial.prior_grads else []),
        *(["every micro-batch is fed the same argument tensors"] if trial.same_args else []),
        *([f"watched beyond gradients: {', '.join(sorted(trial.watch))}"] if trial.watch else []),
        *(["W is asked to keep the graph"] if trial.retain_graph else []),
        *([f"meanwhile {MODES[mode]}" for mode in sorted(trial.modes)]),
        *(["all sessions are on one module"] if trial.one_module else []),
        *(["every second micro-batch has a row less"] if trial.ragged else []),
        *([f"the stages share {', '.join(trial.tied)}"] if trial.tied else []),
        *([f"hooks on every parameter's gradient {_ALTERING[trial.altering]}"] if trial.altering else []),
        *([f"the backward of micro-batch {', '.join(map(str, trial.raising))} raises"] if trial.raising else []),
        *([f"the weight context put in by hand holds {_slots(trial)}"] if trial.hand_grads else []),
        *([f"output {', '.join(map(str, trial.unsent))} stays where it is"] if trial.unsent else []),
        *([f"run {trial.repeats} times, each on a new stage"] if trial.repeats > 1 else []),
    ]
    return [*_field(which, trial.program, width), *_field("", f"on {stages}; {'; '.join(fed)}", width)]


def _breakable(case: StageCase) -> str:
    """Return the name of a stage; one that says how it was planned is long, and can be broken behind each word."""
    return case.name.replace(",", ", ")


def _slots(trial: Trial) -> str:
    return ", ".join("a gradient" if held else "None" for held in trial.hand_grads)


def _legend(check: Check) -> str:
    actions = [action for trial in check.trials for action in trial.actions]
    kinds = dict.fromkeys(action.kind for action in actions)
    misuse = "; ! a misuse that may raise" if any(action.misuse for action in actions) else ""
    lanes = "; 1F0 is an action of the second stage" if any(action.stage for action in actions) else ""
    return f"({', '.join(_LETTERS.get(kind, kind) for kind in kinds)}; the number is the micro-batch{lanes}{misuse})"


def _judged(check: Check, width: int) -> list[Line]:
    judge = check.judge.func if isinstance(check.judge, partial) else check.judge
    found = _field("judged", f"{judge.__module__}.{judge.__qualname__}: {_first_line(judge)}", width)
    if getattr(judge, "by_numeric_rule", False):
        found += _field("", f"The numeric rule: {FORMULA}, and the same with root mean squares.", width)
        numbers = ", ".join(f"{name}: c = {c:g}, eps = {eps:.3g}" for name, c, eps in factors())
        found += _field("", f"{numbers}.", width)
    if check.pooled is not None:
        found += _field("", f"{_first_line(check.pooled.judge)} The rule of the mean: {MEAN}.", width)
    module, _, name = check.source.partition(":")
    return [*found, *_field("source", f"{module.replace('.', '/')}.py, {name}", width)]


def _first_line(judge: Callable[..., object]) -> str:
    return (inspect.getdoc(judge) or "").partition("\n")[0]


def _stage(case: StageCase, width: int) -> Iterator[Line]:
    yield from _field("stage", f"{_breakable(case)}: {case.special}", width)
    yield from _field("fed with", "; ".join(map(written, case.inputs)) or "nothing", width)
    for text in source(case).splitlines():
        yield Line(f"    {text}".rstrip(), "faint")


def source(case: StageCase) -> str:
    """Return the source of a stage's builder."""
    try:
        return textwrap.dedent(inspect.getsource(case.build))
    except (OSError, TypeError):
        return f"(the source of {case.build!r} is not at hand)"
