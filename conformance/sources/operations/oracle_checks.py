"""The oracles that judge a device on each operation: extra checks outside the contract, on the device itself.

Plain autograd on a device is compared with the CPU's, but the CPU's with nothing. Three oracles need no other device. A
kernel's values do not depend on the layout of its arguments. A gradient is the slope of its forward. Rows that a
forward treats independently have independent gradients. Two compare other devices with the CPU: one runs an operation
alone, without layers around it, and one compares each kernel on the kit's own samples, where torch's do not reach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gradconform.contract.check import Check
from gradconform.contract.extra_ids import ADDITIVE, ALONE, EDGES, FINITE_DIFFERENCES, LAYOUT, OPERATIONS, chosen
from gradconform.fixtures.operations.cases import Judgeable
from gradconform.fixtures.operations.edges.edge_sample import Edges, EdgeSample
from gradconform.fixtures.operations.edges.plans import plans
from gradconform.judge.gradients import gradients
from gradconform.requirements.clause import paragraphs
from gradconform.trial.trial import Trial

from .selected import OnOperations


def layout() -> None:
    """Every kernel that plain autograd runs for {what} MUST give the same values in every layout of its arguments.

    A kernel that ignores strides is wrong as soon as a caller transposes or expands a tensor.

    Catches: a kernel that reads a strided tensor as if it were contiguous.
    """


def finite_differences() -> None:
    """The gradient of {what} MUST be the slope of its forward, by finite differences in float64.

    A formula that is wrong on every device passes each comparison of one device with another.

    Catches: a backward that is not the derivative of its forward.
    """


def additive() -> None:
    """If {what} treats rows separately, a batch MUST get the gradients of its rows in micro-batches.

    A pipeline divides a batch and adds up gradients, so a backward that mixes rows trains another model.

    Catches: a backward that mixes the rows of a batch.
    """


def alone() -> None:
    """The outputs and gradients of {what}, run alone, MUST be the CPU's, also if its arguments have another layout.

    A device has its own kernels, and each operation runs others.

    Catches: a kernel of the forward or the backward that is wrong on the device, or ignores strides.
    """


def edges() -> None:
    """Every kernel that plain autograd runs for {what} MUST agree with the CPU's at the edges of kernels.

    A kernel has several formulas: for large values, long rows, strides with gaps. Ordinary samples reach one of them.

    Catches: a kernel that is wrong from a size, in a region of values, or for one combination of arguments.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleCheck(Check):
    """A check of a device on one operation: ``oracle`` names the judge of its trials, one for each sample.

    ``edges`` plans the kit's own samples, for the oracle that has no trials; ``every_pair`` of their values, or else
    every value.
    """

    oracle: str
    edges: Edges | None = None
    every_pair: bool = True

    @property
    def samples(self) -> tuple[EdgeSample, ...]:
        """The kit's own samples. They are planned at their first use, so only the worker that judges them does it."""
        if self.edges is None:
            return ()
        return self.edges.samples if self.every_pair else self.edges.few


@dataclass(frozen=True, slots=True)
class OnOracles:
    """The selected checks, and their ``oracles``."""

    checks: tuple[Check, ...]
    oracles: tuple[str, ...]

    @property
    def description(self) -> str:
        """Return the report's text on them before any check runs."""
        return f"{', '.join(self.oracles)}, each on every operation that is judged"


#: The requirement of each oracle, and the dtypes that it runs in; empty means every one.
_CLAUSES: Mapping[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    LAYOUT: (layout, ()),
    FINITE_DIFFERENCES: (finite_differences, ("float64",)),
    ADDITIVE: (additive, ()),
    ALONE: (alone, ()),
    EDGES: (edges, ()),
}


def select_checks(
    patterns: Sequence[str],
    operations: OnOperations,
    *,
    in_short: bool = False,
    whole: bool = False,
    alone: bool = False,
) -> OnOracles:
    """Return the checks by the oracles that ``patterns`` name, on each of ``operations`` that can be judged.

    The kit's own samples have every pair of values of their dimensions, and each of torch's is tried in every layout.
    ``in_short``, the own ones have every value, and only the first of torch's is tried in layouts. ``alone``, each
    sample runs alone on other devices than the CPU. Of a ``whole`` device, two samples are tried in every layout, or
    ``in_short`` none is, and rows on the CPU alone, with which others are compared. Raises
    :class:`~gradconform.user_input.values.SelectionError` for a pattern that names none.
    """
    names = chosen(patterns, {name: name for name in _CLAUSES}, "unknown oracle {}")
    if ALONE in names and not alone and ALONE not in patterns:  # the checks in B and in I and W do the same
        names.remove(ALONE)
    laid_out = 1 if in_short else 2 if whole else None
    checks = [
        _check(
            oracle,
            name,
            tuple(map(_trial, found[:laid_out] if oracle == LAYOUT else found)),
            cpu_only=whole and (oracle == ADDITIVE or (in_short and oracle == LAYOUT)),
        )
        for oracle in names
        for name, outcomes in operations.outcomes.items()
        if oracle != EDGES and (found := [one for _, one in outcomes if not isinstance(one, str)])
    ]
    own = [plans()[name] for name in operations.outcomes if name in plans()] if EDGES in names else []
    checks += [_check(EDGES, one.operation, (), one, every_pair=not in_short) for one in own]
    return OnOracles(tuple(checks), tuple(names))


def _trial(judgeable: Judgeable) -> Trial:
    return Trial(stages=(judgeable.case,), program="F0 B0")


def _check(  # noqa: PLR0913 (the check, and where it runs)
    oracle: str,
    name: str,
    trials: tuple[Trial, ...],
    edges: Edges | None = None,
    *,
    every_pair: bool = True,
    cpu_only: bool = False,
) -> OracleCheck:
    clause, dtypes = _CLAUSES[oracle]
    head, why, catches = paragraphs(clause)
    return OracleCheck(
        id=f"{OPERATIONS}.{oracle}.{name}",
        level="MUST",
        profile="quick",
        requirement=head.format(what=f"the operation {name}"),
        why=why,
        catches=catches.removeprefix("Catches: "),
        trials=trials,
        judge=gradients,
        needs=frozenset(),
        source=f"{clause.__module__}:{clause.__qualname__}",
        dtypes=dtypes,
        judges="the device",
        oracle=oracle,
        edges=edges,
        every_pair=every_pair,
        off_cpu=oracle in {ALONE, EDGES},
        cpu_only=cpu_only,
    )
