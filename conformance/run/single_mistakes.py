"""Finds single mistakes that explain a failed check, by judging it again against plain autograd with the mistake.

The mistake explains each finding that disappears. A finding that remains has another cause. The
mistake is also made in control trials: if it spoils a value that is right there, it is excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from gradconform.adapter import Capabilities, UnsupportedError
from gradconform.contract.check import Check
from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.diagnosis.repeated_mistakes import SELECTING, candidates
from gradconform.diagnosis.visible_facts import VisibleFacts, WrongOne
from gradconform.drive.driver import drive
from gradconform.drive.evidence import Evidence
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages.case import StageCase
from gradconform.judge.finding import Finding, findings_in
from gradconform.judge.gradients import gradients
from gradconform.judge.values import NONFINITE
from gradconform.process.interrupts import pass_on_an_interrupt
from gradconform.reference.autograd_with_mistake import (
    FULL_INPUT,
    FULL_WEIGHT,
    INPUT,
    WEIGHT,
    MistakenAdapter,
    OneMistake,
)
from gradconform.trial.trial import Trial


class _Branching(nn.Module):
    """Three arguments and three outputs, a layer that is used twice, and a parameter of one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared = nn.Linear(5, 4), nn.Linear(4, 4)
        self.gain = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = torch.tanh(self.first(x))
        return self.shared(hidden + y), self.shared(torch.sin(hidden) * z), hidden * y * self.gain


_TRAITS = frozenset({"multi_input", "multi_output", "shared_params"})
_STAGES = (
    StageCase(
        "contrast-linear", "two Linears", lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), (Normal((7, 5)),)
    ),
    StageCase(
        "contrast-branching",
        "three arguments, three outputs and a layer that is used twice",
        _Branching,
        (Normal((7, 5)), Normal((7, 4)), Normal((7, 4))),
        _TRAITS,
    ),
)
_PROGRAMS = ("F0 I0 W0 F1 I1 W1", "F0 F1 I0 I1 W1 W0", "F0 B0 F1 B1", "F0 F1 I0 B1 W0")


def control_trials(claims: Capabilities, evidence_of: Callable[[Trial], Evidence]) -> Iterator[Evidence]:
    """Yield the evidence of the plain trials that require only claimed capabilities, except refused ones."""
    for stage in _STAGES:
        for program in _PROGRAMS:
            trial = Trial(stages=(stage,), program=program)
            if not claims.unclaimed(trial.needs):
                try:
                    yield evidence_of(trial)
                except UnsupportedError:
                    continue


#: The parts of a backward that contain the kinds of actions.
_PARTS = {
    "B": frozenset({FULL_INPUT, FULL_WEIGHT}),
    "I": frozenset({INPUT, WEIGHT}),
    "G": frozenset({WEIGHT}),
    "W": frozenset({WEIGHT}),
}

#: The part of a backward that gives a sort of gradient, by the letter of the action.
_SHOWN_IN = {
    ("parameter gradient", "B"): FULL_WEIGHT,
    ("parameter gradient", "W"): WEIGHT,
    ("input gradient", "B"): FULL_INPUT,
    ("input gradient", "I"): INPUT,
}

#: Narrower dtypes to which gradients may be rounded, and the resulting causes of findings.
_NARROWER = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_OF_ROUNDING = frozenset({None, Mistake.ROUNDED, Mistake.ROUNDED_TO_BITS, Mistake.RELATIVE_ERROR})


#: A mistake by its kind, factors, and place.
_Key = tuple[Mistake, tuple[float, ...], frozenset[str]]

#: Wrong tensors by sort and name, each with the place in the program of the first action after which it is wrong.
_Wrong = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class JudgedTrial:
    """A trial of a check, with its observations and findings."""

    evidence: Evidence
    findings: Sequence[Finding]

    @property
    def parts(self) -> frozenset[str]:
        """The parts of a backward that its program has."""
        kinds = {action.kind for action in self.evidence.trial.actions}
        return frozenset().union(*(_PARTS[kind] for kind in kinds & _PARTS.keys()))

    @property
    def refuses(self) -> bool:
        """Whether an action raised."""
        return any(finding.kind == "error" for finding in self.findings)

    @property
    def wrong(self) -> _Wrong:
        """The tensors that are wrong."""
        return _first_places(self.evidence, self.findings)


class SingleMistakes:
    """Finds the mistakes that explain failed checks of one target, device and dtype."""

    def __init__(self, control_trials: Callable[[], Iterable[Evidence]]) -> None:
        """Store how to run the ``control_trials``; they run once, when a check fails."""
        self._control_trials = control_trials
        self._refuted: dict[_Key, bool] = {}

    def explained(
        self, check: Check, failing: Sequence[JudgedTrial], likely: Sequence[Cause] = (), *, only: bool = False
    ) -> dict[Cause, list[int]]:
        """Return the mistakes that explain findings of a check, each with the places of the findings that are left.

        Findings are ``left`` if they remain when the check is judged against plain autograd with that mistake. A
        mistake that makes any other value wrong, here or in plain trials, is excluded. The ``likely`` mistakes are
        tried first: if one of them leaves nothing, or with ``only``, no others are tried.
        """
        if not failing:
            return {}
        possible = [*_candidates(failing)]
        first = [one for one in possible if one[0] in likely]
        found = self._those_that_explain(check, failing, first)
        if only or any(not left for left in found.values()):
            return found
        found |= self._those_that_explain(check, failing, [one for one in possible if one not in first])
        order = {cause: place for place, (cause, _) in enumerate(possible)}
        found = dict(sorted(found.items(), key=lambda one: order[one[0]]))
        rounded = _rounded(check, failing) if any(wrong for _, wrong in self._plain) else ()
        return found | {cause: [] for cause in rounded}

    def _those_that_explain(
        self, check: Check, failing: Sequence[JudgedTrial], possible: Iterable[tuple[Cause, OneMistake]]
    ) -> dict[Cause, list[int]]:
        shown = {part for one in failing for finding in one.findings if (part := _part(finding)) is not None}
        parts = frozenset().union(*(one.parts for one in failing))
        number = sum(len(one.findings) for one in failing)
        known: dict[_Key, list[int] | None] = {}
        found: dict[Cause, list[int]] = {}
        for cause, mistake in possible:
            at = mistake.at & parts
            if not at or (shown and at.isdisjoint(shown)):
                continue
            key = (cause.kind, cause.factors, at)
            if key not in known:
                known[key] = _left(check, failing, replace(mistake, at=at))
            left = known[key]
            if left is None or len(left) == number:
                continue
            too_few = cause.kind in SELECTING and _selects_too_few(cause.kind, failing, left)
            if not too_few and not self._is_refuted(cause, mistake):
                found[cause] = left
        return found

    @cached_property
    def _plain(self) -> list[tuple[Evidence, _Wrong]]:
        """The plain trials, each with its wrong tensors; none if one of them cannot be run."""
        try:
            return [(evidence, _wrong(replace(evidence, mistaken=True))) for evidence in self._control_trials()]
        except BaseException as error:  # noqa: BLE001 (the failure itself is reported in any case)
            pass_on_an_interrupt(error)
            return []

    def _is_refuted(self, cause: Cause, mistake: OneMistake) -> bool:
        """Return whether a mistake spoils a value of a plain trial that is right, or is right for longer."""
        key = (cause.kind, cause.factors, mistake.at)
        if key not in self._refuted:
            made = ((_with_mistake(evidence, mistake), wrong) for evidence, wrong in self._plain)
            self._refuted[key] = any(_predicts_more(_wrong(evidence), wrong) for evidence, wrong in made)
        return self._refuted[key]


def _wrong(evidence: Evidence) -> _Wrong:
    return _first_places(evidence, findings_in(gradients(evidence)))


def _first_places(evidence: Evidence, findings: Iterable[Finding]) -> _Wrong:
    """Return the tensors of findings; if an action is not in the program, its tensor is wrong from the beginning."""
    places = {str(action): place for place, action in reversed([*enumerate(evidence.trial.actions)])}
    wrong: _Wrong = {}
    for finding in findings:
        place = places.get(finding.action, 0)
        wrong[_key(finding)] = min(place, wrong.get(_key(finding), place))
    return wrong


def _predicts_more(wrong: _Wrong, seen: _Wrong) -> bool:
    """Return whether a mistake predicts wrong tensors, or earlier ones, that were not seen."""
    return any(key not in seen or place < seen[key] for key, place in wrong.items())


def _candidates(failing: Sequence[JudgedTrial]) -> Iterator[tuple[Cause, OneMistake]]:
    """Yield the mistakes that may explain a finding of the trial with the shortest program."""
    first = min(failing, key=lambda one: len(one.evidence.trial.actions))
    wrong = [WrongOne(one.sort, _key(one)[1], one.action, one.kind) for one in first.findings]
    return candidates(VisibleFacts.of(first.evidence, wrong))


def _left(check: Check, failing: Sequence[JudgedTrial], mistake: OneMistake) -> list[int] | None:
    """Return the places of the findings that a mistake does not explain; None if it predicts absent findings."""
    return _places(
        failing, (_still_wrong(check, one, partial(_with_mistake, one.evidence, mistake)) for one in failing)
    )


def _with_mistake(evidence: Evidence, mistake: OneMistake) -> Evidence:
    oracle = drive(
        MistakenAdapter(mistake), evidence.materials, loss_scale=evidence.loss_scale, known=evidence.observation
    )
    return replace(evidence, oracle=oracle, mistaken=True)


def _still_wrong(check: Check, one: JudgedTrial, make: Callable[[], Evidence]) -> set[tuple[str, str]] | None:
    """Return the tensors that are still wrong; None if others are, or are earlier, or if that is unknown."""
    found: set[tuple[str, str]] = set()
    try:
        for seen in check.judge(make()):
            if isinstance(seen, Finding):
                found.add(_key(seen))
                if _predicts_more(_first_places(one.evidence, [seen]), one.wrong):
                    return None
    except BaseException as error:  # noqa: BLE001 (the failure itself is reported in any case)
        pass_on_an_interrupt(error)
        return None
    return found


def _places(failing: Sequence[JudgedTrial], still: Iterable[set[tuple[str, str]] | None]) -> list[int] | None:
    """Return the places of the findings on tensors that are ``still`` wrong, one set per trial; None if one is None."""
    left: list[int] = []
    place = 0
    for one, found in zip(failing, still, strict=True):
        if found is None:  # the later trials are not run
            return None
        left += [place + number for number, finding in enumerate(one.findings) if _key(finding) in found]
        place += len(one.findings)
    return left


def _rounded(check: Check, failing: Sequence[JudgedTrial]) -> Iterator[Cause]:
    """Yield the roundings to narrower dtypes that leave nothing wrong, none finer than one that a finding names."""
    causes = [finding.cause for one in failing for finding in one.findings]
    if not {None if cause is None else cause.kind for cause in causes} <= _OF_ROUNDING:
        return
    named = {cause.names[0] for cause in causes if cause is not None and cause.kind is Mistake.ROUNDED}
    eps = torch.finfo(failing[0].evidence.materials.dtype).eps
    least = max((torch.finfo(_NARROWER[name]).eps for name in named & _NARROWER.keys()), default=0.0)
    of_wholes = [cause for cause in causes if cause is not None and cause.kind is Mistake.RELATIVE_ERROR]
    least = max([least, *(abs(cause.factors[0]) for cause in of_wholes)])  # a rounding moves no tensor by more
    for name, narrow in _NARROWER.items():
        room = torch.finfo(narrow).eps / eps
        if room > 1.0 and torch.finfo(narrow).eps >= least:
            still = (_still_wrong(check, one, partial(_with_room, one.evidence, room)) for one in failing)
            if _places(failing, still) == []:
                yield Cause(Mistake.ALL_ROUNDED, names=(name,))


def _with_room(evidence: Evidence, room: float) -> Evidence:
    return replace(evidence, diagnose=False, room=room)


def _selects_too_few(kind: Mistake, failing: Sequence[JudgedTrial], left: Sequence[int]) -> bool:
    """Return whether parameters that a mistake does not select are wrong in a part of a backward that it explains."""
    findings = [(one.evidence, finding) for one in failing for finding in one.findings]
    explained = {_part(finding) for place, (_, finding) in enumerate(findings) if place not in left}
    return any(
        _part(finding) in explained - {None} and not _selects(kind, evidence, finding)
        for evidence, finding in (findings[place] for place in left)
    )


def _selects(kind: Mistake, evidence: Evidence, finding: Finding) -> bool:
    """Return whether a mistake selects the parameter of a finding; also if plain autograd gives it no gradient."""
    held = next((step.param_grads for step in evidence.oracle.steps if str(step.action) == finding.action), {})
    name = _key(finding)[1]
    grad = held.get(name)
    return grad is None or SELECTING[kind](list(held).index(name), len(held), grad.dim())


def _part(finding: Finding) -> str | None:
    return _SHOWN_IN.get((finding.sort, finding.action.lstrip("0123456789")[:1]))


def _key(finding: Finding) -> tuple[str, str]:
    return finding.sort, finding.where.removesuffix(NONFINITE)
