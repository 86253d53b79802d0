"""Extra checks on a user's own stage: those that the contract runs on a plain stage.

The user's stage replaces the zoo's MLP in each check that runs on the MLP alone. The recorded schedules, or the user's
own, run on a chain of it. A check that plain autograd cannot run on the stage is skipped, and the report says why.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradconform.contract import checks_of
from gradconform.contract.check import Check
from gradconform.contract.extra_ids import STAGES as AREA
from gradconform.contract.plan import check_of, schedules_of
from gradconform.fixtures.schedules import Schedule
from gradconform.fixtures.stages.case import StageCase
from gradconform.fixtures.stages.shown_traits import Seen, observe
from gradconform.named_stages.named import described, stages_of
from gradconform.run.options import RunOptions
from gradconform.run.selection import Selected
from gradconform.trial.program import CHANGES, OF_ONE, ProgramError
from gradconform.trial.trial import Trial
from gradconform.version import CONTRACT_VERSION

#: The stage that the user's stage replaces.
_PLAIN = "mlp"

#: Checks that only the MLP supports: hand-made weight contexts name its layers.
_OF_THE_MLP = ("grad_tuple.by_hand.",)

#: Checks on chains of plain stages, in the orders of torch's schedules.
_OF_CHAINS = ("schedule.gradients.", "schedule.large.")


@dataclass(frozen=True, slots=True)
class OnStage:
    """The selected checks on one stage, and the number of skipped checks by reason."""

    checks: tuple[Check, ...]
    left_out: Mapping[str, int]


def select(options: RunOptions, measured: Mapping[str, Any] | None) -> Selected:
    """Return the checks on the stages that the options name, with the named schedules in place of the contract's own.

    Raises ``ValueError`` for a stage that cannot be found, built or run, and for an invalid schedule.
    """
    del measured
    schedules = schedules_of(options.schedule)
    checks: list[Check] = []
    lines = []
    for name, case in stages_of(options.stage).items():
        selected = select_checks(case, schedules or None, options.contract)
        checks += selected.checks
        lines.append(f"{name}: {described(case, selected.left_out)}")
    return Selected(checks=checks, lines=tuple(lines))


def select_checks(
    case: StageCase, schedules: Mapping[str, Schedule] | None = None, version: str = CONTRACT_VERSION
) -> OnStage:
    """Return the checks on one stage: those of a version of the contract, with ``schedules`` in place of its own."""
    seen, found = observe(case, torch.float32), list[Check]()
    left_out: Counter[str] = Counter()
    for check in _with_replaceable_stages(checks_of(version).values(), schedules):
        reasons = [why for why, of_check, of_stage in _RULES if of_check(check) and of_stage(seen)]
        trials = [] if reasons else [_with(case, trial, seen) for trial in check.trials]
        if reasons or None in trials:
            left_out[next(iter(reasons), "its parameters cannot be changed so")] += 1
        else:
            found.append(_on(check, case, tuple(filter(None, trials))))
    return OnStage(tuple(found), left_out)


def _with_replaceable_stages(checks: Iterable[Check], schedules: Mapping[str, Schedule] | None) -> Iterator[Check]:
    """Yield the checks whose stages can be replaced."""
    for check in checks:
        stages = {stage.name for trial in check.trials for stage in trial.stages}
        of_chains = schedules is None and check.id.startswith(_OF_CHAINS)
        if of_chains or (stages == {_PLAIN} and not check.id.startswith(_OF_THE_MLP)):
            yield check
    for name, schedule in (schedules or {}).items():
        yield check_of(name, schedule)


def _of_topics(*topics: str) -> Callable[[Check], bool]:
    """Return a rule: a check belongs to one of these topics."""
    return lambda check: check.id.startswith(topics)


def _gives(*patterns: str) -> Callable[[Check], bool]:
    """Return a rule: a check gives output gradients of one of these patterns."""
    return lambda check: any(trial.output_grads.startswith(patterns) for trial in check.trials)


def _chains(seen: Seen) -> bool:
    """Return whether a stage's only argument can be its own output."""
    if len(seen.args) != 1 or seen.output is not seen.outputs[0] or "no_input_grads" in seen.case.traits:
        return False
    (arg,), (output,) = seen.tensor_args, seen.outputs
    return arg.shape == output.shape and arg.dtype == output.dtype and output.requires_grad


def _puts_out_its_own(seen: Seen) -> bool:
    own = {id(tensor) for tensor in (*seen.tensor_args, *seen.module.parameters())}
    return any(id(output) in own for output in seen.outputs)


#: The checks that a stage does not support: the reason, the checks and the stages. Each entry was found on a stage of
#: the zoo. Plain autograd cannot run the check on it, or does something that a check of the MLP calls wrong.
_RULES: tuple[tuple[str, Callable[[Check], bool], Callable[[Seen], bool]], ...] = (
    (
        "its output is not accepted as its input",
        lambda check: any(trial.chain for trial in check.trials),
        lambda seen: not _chains(seen),
    ),
    (
        "no loss takes its outputs",
        lambda check: any(trial.loss for trial in check.trials),
        lambda seen: bool(seen.case.traits & {"nested_output", "complex"}),
    ),
    (
        "no parameter is trained",
        lambda check: any(trial.tied or trial.altering or _changed(trial) for trial in check.trials),
        lambda seen: not any(parameter.requires_grad for parameter in seen.module.parameters()),
    ),
    (
        # The argument has two gradients: the parameter's, and its part as an argument.
        "a parameter is an argument",
        _of_topics("hooks.post_accumulate", "state.input_grad."),
        lambda seen: "parameter_input" in seen.case.traits,
    ),
    (
        "an argument is not contiguous",
        _of_topics("state.returned_layout."),
        lambda seen: not all(arg.is_contiguous() for arg in seen.tensor_args),
    ),
    (
        "an output is an argument or a parameter, which others hold",
        _of_topics("lifetime.outputs_between.", "edges.outputs."),
        _puts_out_its_own,
    ),
    (
        "an output has no dimension, and for no output gradient autograd takes 1",
        _of_topics("grad_tuple.absent."),
        lambda seen: not all(output.dim() for output in seen.outputs),
    ),
    (
        "a tensor holds no element",
        _gives("nan", "inf", "layout:"),
        lambda seen: not all(one.numel() for one in (*seen.tensor_args, *seen.outputs)),
    ),
)


def _changed(trial: Trial) -> bool:
    """Return whether a program changes, freezes or unfreezes parameters."""
    return any(action.kind in CHANGES | OF_ONE for action in trial.actions)


def _with(case: StageCase, trial: Trial, seen: Seen) -> Trial | None:
    """Return a trial with ``case`` in place of each of its stages; None if its parameters do not allow that."""
    names = [name for name, parameter in seen.module.named_parameters() if parameter.requires_grad]
    numbers = (action.mb for action in trial.actions if action.kind in OF_ONE)
    if max(numbers, default=-1) >= sum(1 for _ in seen.module.parameters()):
        return None
    try:
        return replace(trial, stages=(case,) * len(trial.stages), tied=tuple(names[: len(trial.tied)]))
    except ProgramError:
        return None


def _on(check: Check, case: StageCase, trials: tuple[Trial, ...]) -> Check:
    """Return a check with other trials, with the stage in its id and texts."""
    before, now = (frozenset().union(*(trial.needs for trial in some)) for some in (check.trials, trials))
    topic, _, last = check.id.rpartition(".")
    words = "-".join(word for word in last.split("-") if word != _PLAIN)
    reported = f"stage {case.name} ({case.special})"
    return replace(
        check,
        id=".".join(filter(None, [AREA, case.name, topic, words])),
        requirement=re.sub(rf"stage {_PLAIN} \([^)]*\)", lambda _: reported, check.requirement),
        trials=trials,
        needs=(check.needs - before) | (now - (before - check.needs)),
        seed=None,
    )
