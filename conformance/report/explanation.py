"""One check, explained: what it requires, why, what it runs and how it is judged."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase

from gradconform.check import Check
from gradconform.devices import SelectionError, nearest
from gradconform.fixtures.inputs import Input
from gradconform.fixtures.stages.case import StageCase
from gradconform.report.judging import compares_values, first_line, judges
from gradconform.report.lines import Line, heading, wrapped
from gradconform.report.listing import needs
from gradconform.report.rule import FORMULA, factors
from gradconform.trial import Trial
from gradconform.version import CONTRACT_VERSION

#: The most checks that one call explains.
MOST = 3

_COLUMN = 13

_LETTERS = {
    "F": "F forward",
    "B": "B full backward",
    "I": "I input-gradient backward",
    "W": "W weight-gradient backward",
    "G": "G a weight context put in by hand",
    "drop": "drop the caller lets go of outputs and arguments",
    "finish": "finish the end of the step",
    "reopen": "reopen another session on the same module",
    "zero_none": "zero_none zero_grad(set_to_none=True)",
    "zero_fill": "zero_fill zero_grad(set_to_none=False)",
}


def matching(pattern: str, checks: Mapping[str, Check]) -> list[Check]:
    """Return the checks whose id is ``pattern`` or matches it.

    Raises :class:`~gradconform.devices.SelectionError` where there is none, with the nearest ids, or where there are
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
        *_field("level", f"{check.level}, from profile {check.profile} on, contract {CONTRACT_VERSION}", width),
        *_field("requirement", check.requirement, width),
        *_field("why", check.why, width),
        *_field("catches", check.catches, width),
        *_field("needs", needs(check), width),
        *(_field("seed suite", seed, width) if seed else []),
    ]
    for number, trial in enumerate(check.trials, 1):
        which = f"program {number}" if len(check.trials) > 1 else "program"
        found += _program(which, trial, width)
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
    stages = (", then " if trial.chain else " and ").join(case.name for case in trial.stages)
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
        *([f"the weight context put in by hand holds {_slots(trial)}"] if trial.hand_grads else []),
        *([f"run {trial.repeats} times, each on a new stage"] if trial.repeats > 1 else []),
    ]
    return [*_field(which, trial.program, width), *_field("", f"on {stages}; {'; '.join(fed)}", width)]


def _slots(trial: Trial) -> str:
    return ", ".join("a gradient" if held else "None" for held in trial.hand_grads)


def _legend(check: Check) -> str:
    actions = [action for trial in check.trials for action in trial.actions]
    kinds = dict.fromkeys(action.kind for action in actions)
    misuse = "; ! a misuse that may raise" if any(action.misuse for action in actions) else ""
    lanes = "; 1F0 is an action of the second stage" if any(action.stage for action in actions) else ""
    return f"({', '.join(_LETTERS.get(kind, kind) for kind in kinds)}; the number is the micro-batch{lanes}{misuse})"


def _judged(check: Check, width: int) -> list[Line]:
    found: list[Line] = []
    for judge in judges(check) or [check.judge]:
        name = f"{judge.__module__}.{getattr(judge, '__qualname__', judge)}"
        # A check whose code judges by itself has the requirement for its first line, which stands above.
        said = f"{name}: {first_line(judge)}" if judge is not check.judge else f"by its own code, {name}"
        found += _field("" if found else "judged", said, width)
    if compares_values(check):
        found += _field("", f"The numeric rule: {FORMULA}, and the same with root mean squares.", width)
        numbers = ", ".join(f"{name}: c = {c:g}, eps = {eps:.3g}" for name, c, eps in factors())
        found += _field("", f"{numbers}.", width)
    module, _, name = check.source.partition(":")
    return [*found, *_field("source", f"{module.replace('.', '/')}.py, {name}", width)]


def _stage(case: StageCase, width: int) -> Iterator[Line]:
    yield from _field("stage", f"{case.name}: {case.special}", width)
    yield from _field("fed with", "; ".join(map(_recipe, case.inputs)) or "nothing", width)
    for text in source(case).splitlines():
        yield Line(f"    {text}".rstrip(), "faint")


def _recipe(recipe: Input) -> str:
    """Return how an argument is made, without what is as usual."""
    given = [(one, getattr(recipe, one.name)) for one in fields(recipe)]
    told = ", ".join(f"{one.name}={value!r}" for one, value in given if value != one.default)
    return f"{type(recipe).__name__}({told})"


def source(case: StageCase) -> str:
    """Return the source of a stage's builder."""
    try:
        return textwrap.dedent(inspect.getsource(case.build))
    except (OSError, TypeError):
        return f"(the source of {case.build!r} is not at hand)"
