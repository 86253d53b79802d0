"""Explanations of checks and stages: everything that a version of the contract does not freeze."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from gradconform.devices.dtypes import DTYPES
from gradconform.fixtures.grad_tuples import gives_none
from gradconform.fixtures.inputs import written
from gradconform.fixtures.stages.case import StageCase
from gradconform.tolerance import floor_factor, mean_floor
from gradconform.trial.modes import MODES
from gradconform.trial.trial import Trial

from .check import Check
from .explanation_file import Explained, ExplainedCheck, ExplainedStage, Program

#: The numeric rule; :func:`factors` has c and eps.
FORMULA = "max|g - g64| <= 2 * max|g_autograd - g64| + c * eps(dtype) * scale"

#: The rule of the mean; :mod:`gradconform.judge.mean_rule` has the details.
MEAN = "|sum of shifts| <= X * sqrt(sum of squared shifts), one shift per draw: the slope of g - g_autograd on g64"

#: Every word of a program, and its meaning.
LETTERS = {
    "F": "forward",
    "B": "full backward",
    "I": "input-gradient backward",
    "W": "weight-gradient backward",
    "G": "the caller puts a weight context in by hand, instead of I",
    "receive": "the caller overwrites the output gradients, as the next receive does",
    "send": "the caller sends and frees the outputs, so a backward starts from their gradient edges",
    "lose": "a forward on other values that gets no backward",
    "evaluate": "the caller runs the stage without gradients",
    "write": "the caller doubles the outputs in place",
    "refill": "the caller doubles the arguments in place",
    "drop": "the caller frees outputs and arguments",
    "overwrite": "the caller overwrites the input gradients",
    "finish": "the end of the step",
    "close": "the end of the session",
    "reopen": "the session closes and another one opens on the same module",
    "zero_none": "zero_grad(set_to_none=True)",
    "zero_fill": "zero_grad(set_to_none=False)",
    "hook": "the caller adds hooks to every parameter",
    "unhook": "the caller removes these hooks",
    "freeze": "the caller freezes the parameter with this number",
    "unfreeze": "the caller unfreezes the parameter with this number",
    "step": "every parameter changes in place",
    "replace": "the .data of every parameter is replaced",
    "rebind": "new parameters replace all parameters",
    "restride": "every gradient gets other strides",
    "bucket": "every gradient becomes a view of one flat buffer",
    "buffer": "every gradient becomes a view of one flat buffer, which the caller reads",
    "zero_buffer": "the caller fills this buffer with zeros",
    "collect": "the garbage collector runs",
}
_ALTERING = {"scale": "scale it", "clip": "clip its elements", "move": "move it out of .grad"}


def factors() -> list[tuple[str, float, float]]:
    """Return name, c and eps of every dtype that a run can use."""
    return [(name, floor_factor(dtype), torch.finfo(dtype).eps) for name, dtype in DTYPES.items()]


def mean_floors() -> list[tuple[str, float, float]]:
    """Return name and the floors of the rule of the mean, in eps, for every dtype that a run can use."""
    return [(name, mean_floor("shift", dtype), mean_floor("spread", dtype)) for name, dtype in DTYPES.items()]


def explanations(checks: Mapping[str, Check]) -> Explained:
    """Return the explanations of checks and of the stages that they run on."""
    stages = {case.name: case for check in checks.values() for trial in check.trials for case in trial.stages}
    return Explained(
        {name: explanation_of(check) for name, check in checks.items()},
        {name: _stage(stages[name]) for name in sorted(stages)},
    )


def explanation_of(check: Check) -> ExplainedCheck:
    """Return the explanation of a check."""
    drawn = f"on {len(check.trials)} draws of all random values, judged together" if check.pooled is not None else ""
    return ExplainedCheck(
        why=check.why,
        catches=check.catches,
        seed=check.seed,
        source=check.source,
        tried=tuple(Program(trial.program, _fed(trial)) for trial in check.trials if not trial.draw),
        drawn=drawn,
        legend=_legend(check),
        judged=tuple(_judged(check)),
        stages=tuple(dict.fromkeys(case.name for trial in check.trials for case in trial.stages)),
    )


def _fed(trial: Trial) -> str:
    """Return the stages of a program, and every setting of its trial that is not the default."""
    stages = (", then " if trial.chain else " and ").join(case.name for case in trial.stages)
    fed = [
        "each stage sends its outputs to the next and its input gradients back; the last stage has a loss"
        if trial.chain and trial.loss
        else f"a loss, read: {trial.output_grads}"
        if trial.loss and gives_none(trial.output_grads)
        else "a loss"
        if trial.loss
        else f"output gradients: {trial.output_grads}",
        *(["parameters have gradients before the first action"] if trial.prior_grads else []),
        *(["all micro-batches use the same argument tensors"] if trial.same_args else []),
        *([f"also watched: {', '.join(sorted(trial.watch))}"] if trial.watch else []),
        *(["W runs with retain_graph"] if trial.retain_graph else []),
        *([f"W of micro-batch {', '.join(map(str, trial.retained))} runs with retain_graph"] if trial.retained else []),
        *([f"{MODES[mode]}" for mode in sorted(trial.modes)]),
        *(["all sessions use one module"] if trial.one_module else []),
        *(["equal actions of two stages run in two threads at once"] if trial.at_once else []),
        *(["every second micro-batch has one row less"] if trial.ragged else []),
        *trial.passed,
        *([f"the stages share {', '.join(trial.tied)}"] if trial.tied else []),
        *([f"hooks on every parameter change its gradient: {_ALTERING[trial.altering]}"] if trial.altering else []),
        *([f"the backward of micro-batch {', '.join(map(str, trial.raising))} raises"] if trial.raising else []),
        *([f"the hand-made weight context holds {_slots(trial)}"] if trial.hand_grads else []),
        *([f"output {', '.join(map(str, trial.unsent))} is not sent"] if trial.unsent else []),
        *([f"run {trial.repeats} times, each on a new stage"] if trial.repeats > 1 else []),
    ]
    return f"on {stages}; {'; '.join(fed)}"


def _slots(trial: Trial) -> str:
    return ", ".join("a gradient" if held else "None" for held in trial.hand_grads)


def _legend(check: Check) -> str:
    actions = [action for trial in check.trials for action in trial.actions]
    kinds = dict.fromkeys(action.kind for action in actions)
    misuse = "; ! marks a misuse that may raise" if any(action.misuse for action in actions) else ""
    lanes = "; 1F0 is an action of the second stage" if any(action.stage for action in actions) else ""
    meanings = ", ".join(f"{kind} {LETTERS[kind]}" for kind in kinds)
    return f"({meanings}; the number is the micro-batch{lanes}{misuse})"


def _judged(check: Check) -> Iterator[str]:
    judge = check.judge.func if isinstance(check.judge, partial) else check.judge
    yield f"{judge.__module__}.{judge.__qualname__}: {_first_line(judge)}"
    if getattr(judge, "by_numeric_rule", False):
        yield f"The numeric rule: {FORMULA}, and the same with root mean squares."
        yield ", ".join(f"{name}: c = {c:g}, eps = {eps:.3g}" for name, c, eps in factors()) + "."
    if check.pooled is not None:
        yield f"{_first_line(check.pooled.judge)} The rule of the mean: {MEAN}."


def _first_line(judge: Callable[..., object]) -> str:
    return (inspect.getdoc(judge) or "").partition("\n")[0]


def _stage(case: StageCase) -> ExplainedStage:
    return ExplainedStage(case.special, "; ".join(map(written, case.inputs)), source(case))


def source(case: StageCase) -> str:
    """Return the source of a stage's builder, with the arguments that it is called with."""
    build: Any = case.build
    called = ""
    if isinstance(build, partial):
        build, called = build.func, f"{build.func.__name__}({', '.join(map(repr, build.args))})\n\n"
    try:
        return called + textwrap.dedent(inspect.getsource(build))
    except (OSError, TypeError):
        return f"(no source available for {case.build!r})"
