"""Every differentiable operation of torch, judged one by one: extra checks outside the contract.

Each stage has one operation between linear layers, per sample of torch's own lists, with two micro-batches in flight,
in B and in I and W. A sample that plain autograd does not support is skipped, which is reported before any check runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradconform.contract.check import Check
from gradconform.contract.extra_ids import OPERATIONS, chosen
from gradconform.contract.full_and_split import checks_on
from gradconform.fixtures.operations.cases import Judgeable, Why, judgeable
from gradconform.fixtures.operations.entries import Entry, Sample, entries
from gradconform.fixtures.operations.measured import Outcomes, outcomes_of, to_json
from gradconform.run.planning import Planning
from gradconform.text.counts import count
from gradconform.torch_releases.names import installed
from gradconform.user_input.values import Profile

from . import unlisted

#: The number of samples of an entry per profile, chosen to differ as much as torch's list allows; None means all.
SAMPLES: dict[Profile, int | None] = {"quick": 2, "standard": 6, "full": None}


@dataclass(frozen=True, slots=True)
class OnOperations:
    """The selected checks on operations, and their statistics.

    ``listed`` counts the named entries. ``left_out`` counts samples by the reason why they cannot be judged.
    ``untried`` are the entries without any usable sample. ``nodes`` are the kinds of autograd nodes in the backwards.
    ``outcomes`` are the measurements by entry.
    """

    checks: tuple[Check, ...]
    listed: int
    samples: int
    left_out: Mapping[Why, int]
    untried: tuple[str, ...]
    nodes: frozenset[str]
    outcomes: Mapping[str, Outcomes]

    @property
    def description(self) -> str:
        """Return the report's text on them before any check runs."""
        tried = self.listed - len(self.untried)
        share = f"{tried} of {self.listed} operations that torch {installed()} lists as differentiable"
        samples = "1 sample" if self.samples == 1 else f"{self.samples:,} samples"
        parts = [f"{share}, {samples}, {count(len(self.nodes), 'kind')} of autograd nodes"]
        if self.left_out:
            reasons = ", ".join(f"{number} which {why}" for why, number in self.left_out.items())
            parts.append(f"samples skipped: {reasons}")
        if self.untried:
            parts.append(f"not tried: {', '.join(self.untried)}")
        return "; ".join(parts)


def select_checks(  # noqa: PLR0913 (what to judge, and what is known of it)
    patterns: Sequence[str],
    profile: Profile,
    measured: Mapping[str, Any] | None = None,
    *,
    in_turn: bool = False,
    in_stages: int | None = None,
    keep: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> OnOperations:
    """Return the checks on the operations that ``patterns`` name: names, globs, or ``all``.

    With ``in_turn``, a sample is judged in B, or in I and W; otherwise in both. These checks are on so many samples as
    ``in_stages`` says, or on all; the others are for the oracles. Each sample is run to find out whether
    it can be judged. The entries in ``measured`` are not run again: a plan of the same run wrote them
    (:func:`gradconform.fixtures.operations.measured.to_json`); ``keep`` gets each other one as soon as it is measured.
    Raises :class:`~gradconform.user_input.values.SelectionError` for a pattern that names none,
    :class:`~gradconform.torch_releases.names.UnavailableError` if torch has no such lists, and
    :class:`~gradconform.exits.RunRefusedError` if the run's time budget is used up.
    """
    named = chosen(patterns, entries(), unlisted())
    checks, untried, nodes = list[Check](), list[str](), set[str]()
    left_out: Counter[Why] = Counter()
    samples = 0
    outcomes: dict[str, Outcomes] = {}
    planning = Planning("operations", len(named))
    for done, entry in enumerate(named):
        known = outcomes_of(measured or {}, entry.name)
        if known is None:
            planning.begin(done)
            known = tuple(_outcomes(entry, SAMPLES[profile]))
            keep(to_json({entry.name: known}))
        outcomes[entry.name] = known
        found = [one for _, one in known if not isinstance(one, str)]
        left_out.update(one for _, one in known if isinstance(one, str))
        samples += len(found)
        nodes |= frozenset[str]().union(*(one.nodes for one in found))
        if found:
            cases = [one.case for one in found[:in_stages]]
            checks += checks_on(OPERATIONS, entry.name, f"the operation {entry.name}", cases, in_turn=in_turn)
        else:
            untried.append(entry.name)
    return OnOperations(tuple(checks), len(named), samples, left_out, tuple(untried), frozenset(nodes), outcomes)


def _outcomes(entry: Entry, wanted: int | None) -> Iterator[tuple[int, Judgeable | Why]]:
    """Yield the outcomes of samples, the most different ones first, until ``wanted`` of them can be judged."""
    count = 0
    for number in unlike_first(entry.samples(torch.float32, 0), wanted):
        found = judgeable(entry, number)
        yield number, found
        count += not isinstance(found, str)
        if count == wanted:
            return


def unlike_first(samples: Sequence[Sample], wanted: int | None) -> Iterator[int]:
    """Yield the numbers of samples: first ``wanted`` with as many new features as possible, then the others.

    The features of a sample are its shapes, its dimensions and each argument that is no tensor, by position. Among
    samples with equally many new features, the one with the most values comes first.
    """
    left = {number: _features(sample) for number, sample in enumerate(samples)}
    if wanted is None:
        yield from left
        return
    sizes = [sum(one.numel() for one in sample.tensors) for sample in samples]
    seen: set[object] = set()
    for _ in range(min(wanted, len(samples))):
        best = max(left, key=lambda number: (len(left[number] - seen), sizes[number], -number))
        seen |= left.pop(best)
        yield best
    yield from left


def _features(sample: Sample) -> frozenset[object]:
    others, tensors = sample.form
    reported = [(at, other) for at, other in enumerate(others)]
    shapes = [(at, one[0]) for at, one in enumerate(tensors)]
    dimensions = [(at, "dimensions", len(one[0])) for at, one in enumerate(tensors)]
    return frozenset([*reported, *shapes, *dimensions, ("tensors", len(tensors)), ("others", len(others))])
