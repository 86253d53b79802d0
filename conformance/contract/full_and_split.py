"""Checks of one operation, block or setting in B, and in I and W, with two micro-batches in flight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradconform.fixtures.programs import full_all_forwards_first, split_all_forwards_first
from gradconform.fixtures.stages.case import StageCase
from gradconform.judge import gradients
from gradconform.requirements.clause import paragraphs
from gradconform.trial.trial import Trial

from .check import Check, Judge
from .extra_ids import FULL, SPLIT


def in_full() -> Judge:
    """B MUST return plain autograd's input gradients and accumulate its parameter gradients, on {what}.

    A stage backward meets autograd nodes of every kind, and an unknown kind may hold views or outputs without
    gradients.

    Catches: a kind of node that B walks wrongly, or a wrong forward or backward kernel of a device.
    """
    return gradients


def in_split() -> Judge:
    """I MUST return plain autograd's input gradients, and W accumulate its parameter gradients, on {what}.

    W starts in the middle of the graph, so the split decides at each node what belongs to inputs and to weights.

    Catches: a kind of node that is cut at the wrong place, or whose work is done twice or not at all.
    """
    return gradients


#: The requirement for each middle part of an id, and the program that tests it.
_WAYS = {FULL: (in_full, full_all_forwards_first(2)), SPLIT: (in_split, split_all_forwards_first(2))}


def checks_on(  # noqa: PLR0913 (the checks and their run)
    area: str,
    name: str,
    what: str,
    cases: Sequence[StageCase],
    *,
    modes: frozenset[str] = frozenset(),
    dtypes: tuple[str, ...] = (),
    split: bool = True,
    in_turn: bool = False,
) -> Iterator[Check]:
    """Yield the checks ``area.full.name`` and ``area.split.name``, on all of ``cases``; ``what`` describes them.

    They run in ``modes``, and only in ``dtypes`` if some are given. Without ``split``, only the first is yielded. With
    ``in_turn``, each of several cases is in one of the checks, by turns.
    """
    ways = _WAYS if split else {FULL: _WAYS[FULL]}
    for at, (way, (clause, program)) in enumerate(ways.items()):
        head, why, catches = paragraphs(clause)
        own = cases[at :: len(ways)] if in_turn and len(cases) > 1 else cases
        trials = tuple(Trial(stages=(case,), program=program, modes=modes) for case in own)
        yield Check(
            id=f"{area}.{way}.{name}",
            level="MUST",
            profile="quick",
            requirement=head.format(what=what),
            why=why,
            catches=catches.removeprefix("Catches: "),
            trials=trials,
            judge=clause(),
            needs=frozenset[str]().union(*(trial.needs for trial in trials)),
            source=f"{clause.__module__}:{clause.__qualname__}",
            dtypes=dtypes,
        )
