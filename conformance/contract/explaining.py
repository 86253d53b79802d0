"""What is to be known of a check and of a stage beside what a version fixes, as texts: made from the checks."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch

from gradconform.devices.dtypes import DTYPES
from gradconform.fixtures.inputs import written
from gradconform.fixtures.stages.case import StageCase
from gradconform.tolerance import floor_factor, mean_floor
from gradconform.trial.modes import MODES
from gradconform.trial.trial import Trial

from .check import Check
from .explained import Explained, ExplainedCheck, ExplainedStage, Program

#: The numeric rule; :func:`factors` has c and eps.
FORMULA = "max|g - g64| <= 2 * max|g_autograd - g64| + c * eps(dtype) * scale"

#: The rule of the mean; :mod:`gradconform.bias` has it in full.
MEAN = "|sum of shifts| <= X * sqrt(sum of squared shifts), one shift per draw: the slope of g - g_autograd on g64"

_LETTERS = {
    "F": "F forward",
    "B": "B full backward",
    "I": "I input-gradient backward",
    "W": "W weight-gradient backward",
    "G": "G a weight context put in by hand",
    "receive": "receive what held the output gradients is written over",
    "send": "send the outputs are sent and let go of: a backward starts at their gradient edges",
    "lose": "lose a forward on other values that gets no backward",
    "evaluate": "evaluate the caller runs the stage without gradients",
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


def explanations(checks: Mapping[str, Check]) -> Explained:
    """Return what is to be known of checks, and of the stages that they run on."""
    stages = {case.name: case for check in checks.values() for trial in check.trials for case in trial.stages}
    return Explained(
        {name: explanation_of(check) for name, check in checks.items()},
        {name: _stage(stages[name]) for name in sorted(stages)},
    )


def explanation_of(check: Check) -> ExplainedCheck:
    """Return what is to be known of a check."""
    drawn = f"on {len(check.trials)} draws of all that is random, judged together" if check.pooled is not None else ""
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
    """Return on which stages a program is run, and how it is fed where that is not the usual way."""
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
        *([f"meanwhile {MODES[mode]}" for mode in sorted(trial.modes)]),
        *(["all sessions are on one module"] if trial.one_module else []),
        *(["every second micro-batch has a row less"] if trial.ragged else []),
        *trial.passed,
        *([f"the stages share {', '.join(trial.tied)}"] if trial.tied else []),
        *([f"hooks on every parameter's gradient {_ALTERING[trial.altering]}"] if trial.altering else []),
        *([f"the backward of micro-batch {', '.join(map(str, trial.raising))} raises"] if trial.raising else []),
        *([f"the weight context put in by hand holds {_slots(trial)}"] if trial.hand_grads else []),
        *([f"output {', '.join(map(str, trial.unsent))} stays where it is"] if trial.unsent else []),
        *([f"run {trial.repeats} times, each on a new stage"] if trial.repeats > 1 else []),
    ]
    return f"on {stages}; {'; '.join(fed)}"


def _slots(trial: Trial) -> str:
    return ", ".join("a gradient" if held else "None" for held in trial.hand_grads)


def _legend(check: Check) -> str:
    actions = [action for trial in check.trials for action in trial.actions]
    kinds = dict.fromkeys(action.kind for action in actions)
    misuse = "; ! a misuse that may raise" if any(action.misuse for action in actions) else ""
    lanes = "; 1F0 is an action of the second stage" if any(action.stage for action in actions) else ""
    return f"({', '.join(_LETTERS.get(kind, kind) for kind in kinds)}; the number is the micro-batch{lanes}{misuse})"


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
    """Return the source of a stage's builder."""
    try:
        return textwrap.dedent(inspect.getsource(case.build))
    except (OSError, TypeError):
        return f"(the source of {case.build!r} is not at hand)"
