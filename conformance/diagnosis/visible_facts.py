"""Collects the visible facts of a failing trial, which rule out most mistakes before any of them is tried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from fractions import Fraction

import torch
from torch import Tensor

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.drive.reference64 import widen
from gradconform.trial.program import CHANGES, Action, in_flight

from .parts import held_before, same
from .wrong_tensor import dense, flat, largest

#: How far a value may be from a guess at it, relative to its largest element: later tests are exact.
_NEAR = 1e-2

#: The largest denominator of a factor that is called simple.
_SIMPLE = 16


class Added(Enum):
    """The values that an action added to a parameter whose gradient is wrong from then on."""

    NOTHING = auto()  # the parameter held no gradient before either
    NOTHING_TO_SOME = auto()
    ALONE = auto()  # only the action's own part is there
    OTHER = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class WrongOne:
    """A wrong tensor: its sort and name, the first action after which it is wrong, and the kind of its finding."""

    sort: str
    where: str
    action: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleFacts:
    """The visible facts of a trial.

    ``added`` has the values added by the first actions after which a parameter is wrong, ``factors`` the simple factors
    of added or returned values. ``never``: a wrong parameter never gets anything. ``contexts`` is the largest number of
    pending weight contexts, ``outputs`` the number of a stage's outputs, ``inputs`` that of its arguments.
    ``wrong_inputs``, ``not_returned`` and ``returned_for_none`` are about input gradients. ``received`` is the trial's.
    ``loses``: one of its forwards is lost. ``changed_in_flight``: the caller changed a value between a forward and its
    backward, after which plain autograd may raise.
    """

    added: frozenset[Added]
    factors: tuple[float, ...]
    never: bool
    contexts: int
    outputs: int
    inputs: int
    wrong_inputs: bool
    not_returned: bool
    returned_for_none: bool
    received: str
    loses: bool
    changed_in_flight: bool

    @classmethod
    def of(cls, evidence: Evidence, wrong: Sequence[WrongOne]) -> VisibleFacts:
        """Return the visible facts of a trial with these wrong tensors."""
        of_inputs = [one for one in wrong if one.sort == "input gradient"]
        shown = [_of_step(evidence, name, step) for name, step in _firsts(evidence)]
        factors = {factor for _, factor in shown if factor is not None}.union(_factors(evidence))
        returned = [step.input_grads or () for step in evidence.oracle.steps]
        return cls(
            added=frozenset().union(*(added for added, _ in shown)),
            factors=tuple(sorted(factors)),
            never=any(_never(evidence, one.where) for one in wrong if one.sort == "parameter gradient"),
            contexts=_waiting(evidence),
            outputs=max((len(step.outputs or ()) for step in evidence.oracle.steps), default=0),
            inputs=max(map(len, returned), default=0),
            wrong_inputs=bool(of_inputs),
            not_returned=any(one.kind == "missing" for one in of_inputs),
            returned_for_none=any(one.kind == "unexpected" for one in of_inputs),
            received=evidence.trial.received,
            loses=any(action.kind == "lose" for action in evidence.trial.actions),
            changed_in_flight=_changed_in_flight(evidence.trial.actions),
        )

    def shows(self, added: Added) -> bool:
        """Return whether some action may have added this."""
        return not self.added.isdisjoint({added, Added.UNKNOWN})


def _firsts(evidence: Evidence) -> Iterator[tuple[str, Step]]:
    """Yield every parameter with the first action after which its gradient is wrong."""
    met: set[tuple[int, str]] = set()
    for step in _of_both(evidence):
        right = evidence.oracle_step(step).param_grads
        for name, got in step.param_grads.items():
            place = (step.action.stage, name)
            if place not in met and got is not right.get(name) and not _near(got, right.get(name)):
                met.add(place)
                yield name, step


def _of_both(evidence: Evidence) -> list[Step]:
    """Return the steps of the implementation that plain autograd has too: its W is not called if its I has raised."""
    positions = {step.position for step in evidence.oracle.steps}
    return [step for step in evidence.observation.steps if step.position in positions]


def _near(got: Tensor | None, right: Tensor | None) -> bool:
    if got is None or right is None or got.shape != right.shape:
        return got is right
    wide, other = dense(widen(got)), dense(widen(right))
    finite = torch.isfinite(wide.abs()) & torch.isfinite(other.abs())
    return largest((wide - other)[finite]) <= _NEAR * largest(other[finite])


def _of_step(evidence: Evidence, name: str, step: Step) -> tuple[set[Added], float | None]:
    """Return the possible additions of an action to a parameter, and their factor."""
    if step.action.kind not in {"B", "W"}:
        return {Added.UNKNOWN}, None
    before, now = held_before(evidence, name, step), step.param_grads[name]
    right = evidence.oracle_step(step).param_grads.get(name)
    found = {Added.NOTHING if before is None else Added.NOTHING_TO_SOME} if _same_values(now, before) else set()
    if now is None or right is None or now.shape != right.shape:
        return found or {Added.OTHER}, None
    wide, own = dense(widen(now)), dense(widen(right))
    if before is not None:
        own = own - before
        found |= {Added.ALONE} if _near(wide, own) else set()
        wide = wide - before
    unknown = {Added.UNKNOWN} if evidence.trial.tied else set()  # another stage may have added since
    return found | unknown or {Added.OTHER}, _factor(wide, own)


def _same_values(now: Tensor | None, before: Tensor | None) -> bool:
    """Return whether a gradient has its earlier values, or is still None."""
    if now is None or before is None:
        return now is before
    wide, held = dense(widen(now)), dense(before)
    return wide.shape == held.shape and bool(((wide == held) | (wide.isnan() & held.isnan())).all())


def _factor(got: Tensor, right: Tensor) -> float | None:
    """Return the simple factor between two tensors; None if there is none, or it is 0 or 1."""
    if got.shape != right.shape or got.is_complex() != right.is_complex():
        return None
    got, right = flat(got), flat(right)
    finite = torch.isfinite(got) & torch.isfinite(right)
    got, right = got[finite], right[finite]
    size = float((right * right).sum()) if right.numel() else 0.0
    if not 0.0 < size < math.inf:
        return None
    factor = float((got * right).sum()) / size
    if not math.isfinite(factor) or largest(got - factor * right) > _NEAR * largest(right) * max(abs(factor), 1.0):
        return None
    simple = Fraction(factor).limit_denominator(_SIMPLE)
    factor = float(simple) if abs(float(simple) - factor) <= _NEAR * abs(factor) else float(f"{factor:.3g}")
    return None if factor in {0.0, 1.0} else factor


def _factors(evidence: Evidence) -> Iterator[float]:
    """Yield the factors of returned gradients."""
    for step in _of_both(evidence):
        wanted = evidence.oracle_step(step).input_grads
        for got, right in zip(step.input_grads or (), wanted or (), strict=False):
            if got is not None and right is not None and got is not right:
                factor = _factor(dense(widen(got)), dense(widen(right)))
                yield from () if factor is None else (factor,)


def _never(evidence: Evidence, name: str) -> bool:
    """Return whether no W, or no B, ever adds anything to a parameter."""
    last: dict[int, Tensor | None] = {}
    adding: dict[str, bool] = {}
    for step in evidence.observation.steps:
        if name not in step.param_grads:
            continue
        now, lane, kind = step.param_grads[name], step.action.stage, step.action.kind
        if kind in {"B", "W"}:
            adds = now is not None if lane not in last else not same(last[lane], now)
            adding[kind] = adding.get(kind, False) or adds
        last[lane] = now
    return not all(adding.values())


#: Kinds by which the caller changes a value that a backward may need.
_WRITES = frozenset({"refill", "write", *CHANGES})


def _changed_in_flight(actions: Sequence[Action]) -> bool:
    """Return whether a value changes between a forward and a backward that may raise."""
    may_raise = [place for place, action in enumerate(actions) if action.misuse and action.kind in {"B", "I", "W"}]
    return any(
        action.kind in _WRITES and in_flight(actions[:place], action.stage) and any(place < one for one in may_raise)
        for place, action in enumerate(actions)
    )


def _waiting(evidence: Evidence) -> int:
    waiting, most = 0, 0
    for action in evidence.trial.actions:
        waiting += {"I": 1, "G": 1, "W": -1}.get(action.kind, 0)
        most = max(most, waiting)
    return most
