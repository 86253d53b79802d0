"""The rows of the covering arrays, frozen in a file with the contract."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gradconform.covering.dimension import Dimension, allowed
from gradconform.covering.search import array
from gradconform.covering.space import Words

from .dimensions import CONSTRAINTS, DIMENSIONS, FIRST_CONSTRAINTS
from .triples import beyond

#: The files of the rows by way: those of pairs, and those of triples in addition.
ROWS, TRIPLES = (Path(__file__).with_name(name) for name in ("rows.json", "triples.json"))
#: The file of the rows of pairs that contract 1.1 has in place of those that its constraints exclude.
LATER = Path(__file__).with_name("rows-1.1.json")

#: Claims that count as one when rows are generated: a target whose gradients are outside ``.grad`` may lack both. A
#: dict of outputs is the only value with None among them, and scaling hooks are the only value that requires hooks.
_TOGETHER = {
    **dict.fromkeys(("clears_grads", "grads_on_param"), "grads_in_param_grad"),
    "none_output": "nested_output",
    "bias_hooks=as_weights": "hooks=with_grad",
}

#: Claims of one value each: a target without one only loses the rows with that value, however the others are drawn.
_OF_ONE_VALUE = {"tuple_of_one", "empty_batch"}


def made_anew() -> dict[Path, dict[str, list[Words]]]:
    """Return the rows of each file from the current dimensions; this takes allpairspy and some seconds."""
    planned = {way: drawn(dimensions) for way, dimensions in DIMENSIONS.items()}
    pairs = {way: array(dimensions, FIRST_CONSTRAINTS) for way, dimensions in planned.items()}
    triples = {way: beyond(dimensions, pairs[way]) for way, dimensions in planned.items()}
    kept = {way: [row for row in rows if stays(way, row)] for way, rows in pairs.items()}
    later = {way: array(dimensions, CONSTRAINTS, kept[way])[len(kept[way]) :] for way, dimensions in planned.items()}
    return {ROWS: pairs, TRIPLES: triples, LATER: later}


def stays(way: str, row: Words) -> bool:
    """Return whether the constraints that were added since contract 1.0 allow a row."""
    return allowed(dict(zip((one.name for one in DIMENSIONS[way]), row, strict=True)), CONSTRAINTS)


def current_rows() -> dict[str, list[Words]]:
    """Return the rows of pairs of the newest contract by way."""
    later = frozen_rows(LATER)
    return {way: [*(row for row in rows if stays(way, row)), *later[way]] for way, rows in frozen_rows().items()}


def drawn(dimensions: Iterable[Dimension]) -> tuple[Dimension, ...]:
    """Return the dimensions for generating rows: claims that a target probably lacks together become one."""
    return tuple(
        replace(one, values=tuple(replace(value, claims=_together(value.claims)) for value in one.values))
        for one in dimensions
    )


def _together(claims: frozenset[str]) -> frozenset[str]:
    return frozenset(_TOGETHER.get(claim, claim) for claim in claims - _OF_ONE_VALUE)


def frozen_rows(file: Path = ROWS) -> dict[str, list[Words]]:
    """Return the rows of a file by way: those of pairs, or of :data:`TRIPLES`."""
    found = json.loads(file.read_text(encoding="utf-8"))
    return {way: [tuple(row) for row in rows] for way, rows in found.items()}
