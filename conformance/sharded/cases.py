"""The rows of a run of a sharded stage, the checks that judge each row, and the job of the ranks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradconform.covering.dimension import Dimension
from gradconform.requirements.clause import Clause
from gradconform.trial.mesh import Mesh

from .dimensions import ORDERS, settings

#: The kinds of check of a row: the requirement sentence, and the practical failure that it prevents.
KINDS: Mapping[str, tuple[str, str]] = {
    "program": (
        "Every rank MUST run the program to its end, with the same collectives in the same order as its peers",
        "A rank that calls one collective less hangs the others, or pairs unrelated tensors.",
    ),
    "outputs": (
        "Every rank MUST return its part of the outputs of the whole stage",
        "A wrong output trains every later stage on wrong values.",
    ),
    "input-gradients": (
        "Every rank MUST return its part of the gradients of the whole stage's arguments",
        "The stage before it trains on a gradient that lacks the part of the other ranks.",
    ),
    "gradients": (
        "Every rank MUST have its part of each parameter's gradient, and every copy of a parameter the whole gradient",
        "Nothing raises, and the loss still falls, but to a worse model.",
    ),
    "copies": (
        "All copies of a parameter MUST be equal bit by bit, in gradient and value, after three steps of SGD too",
        "Copies that differ drift apart, and the ranks train different models.",
    ),
    "steps": (
        "Every rank MUST have its part of the whole stage's parameters after three steps of SGD",
        "State that a step leaves behind makes later steps wrong.",
    ),
    "norm": (
        "The norm of all gradients MUST count each parameter of the whole stage once, on every rank",
        "A wrong norm clips by a wrong factor, and a norm that differs between ranks lets copies drift.",
    ),
    "buffers": (
        "Every rank MUST have its part of the whole stage's buffers",
        "A wrong buffer shows only in evaluation.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run of a sharded stage and of the whole one, judged by several checks.

    ``mesh`` has the size of each dimension, and ``options`` the position of the value of each option. The other fields
    are set by values of the kit's own dimensions.
    """

    id: str
    words: tuple[str, ...]
    tried: str
    mesh: Mapping[str, int]
    options: Mapping[str, int] = field(default_factory=dict)
    order: str = "one-mb"
    output_grads: str = "drawn"
    frozen: str = ""
    standing: str = ""
    checkpoint: bool = False

    @property
    def program(self) -> tuple[tuple[str, int], ...]:
        """The actions of a step, each with its micro-batch."""
        return tuple((action[0], int(action[1:])) for action in ORDERS[self.order].split())

    @property
    def microbatches(self) -> int:
        """The number of micro-batches of a step."""
        return 1 + max(mb for _, mb in self.program)

    @property
    def backwards(self) -> tuple[int, ...]:
        """The micro-batches in the order in which their parameter gradients are added."""
        return tuple(mb for letter, mb in self.program if letter in "BW")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCheck(Clause):
    """One check of a row: its ``kind`` says what it judges."""

    row: Row
    kind: str

    @property
    def tried(self) -> str:
        """Return the row's values, as the first line of a message."""
        return self.row.tried


def row_of(name: str, dimensions: Sequence[Dimension], words: tuple[str, ...]) -> Row:
    """Return the row with these words."""
    sets: dict[str, Any] = {"options": {}}
    shown: list[str] = []
    for dimension, value in zip(dimensions, settings(dimensions, words), strict=True):
        for key, one in value.sets.items():
            if key == "option":
                sets["options"][one[0]] = one[1]
            else:
                sets[key] = one
        if dimension.name == "mesh" or value is not dimension.values[0]:
            shown.append(value.phrase)
    return Row(id=name, words=words, tried=", ".join(shown), **sets)


def checks_of(rows: Sequence[Row], kinds: Sequence[str]) -> list[RowCheck]:
    """Return the checks of rows, row by row."""
    return [_check(row, kind) for row in rows for kind in kinds]


def _check(row: Row, kind: str) -> RowCheck:
    sentence, why = KINDS[kind]
    return RowCheck(
        id=check_id(kind, row.id),
        level="MUST",
        requirement=f"{sentence}, with {row.tried}.",
        why=why,
        row=row,
        kind=kind,
    )


def check_id(kind: str, row: str) -> str:
    """Return the id of the check of a kind on a row."""
    return f"sharded.{kind}.{row}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedJob:
    """The work of every rank: ``target`` names the sharded stage, and ``cases`` are rows of one number of ranks.

    ``backward`` names the target that runs F, B, I and W; empty for plain autograd. ``kinds`` are judged.
    """

    target: str
    backward: str
    cases: tuple[Row, ...]
    kinds: tuple[str, ...]
    device: str
    dtype: str
    seed: int
    timeout: float
    plugins: tuple[str, ...] = ()
    reads_views: str = "copy"
    backend: str = "gloo"
    process: str = "gradconform.sharded.rank_process"

    def limit(self, _: Any) -> float:
        """Return the time limit of a row in seconds."""
        return self.timeout

    def to_json(self) -> str:
        """Return the job as JSON text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ShardedJob:
        """Return the job that :meth:`to_json` wrote."""
        values = json.loads(text)
        several = {name: tuple(values[name]) for name in ("kinds", "plugins")}
        rows = tuple(Row(**{**row, "words": tuple(row["words"])}) for row in values["cases"])
        return cls(**{**values, **several, "cases": rows})


def calls_of(rank: int) -> str:
    """Return the name of the file with the collectives of a rank in a row."""
    return f"rank-{rank}.calls"


def mesh_of(row: Row) -> Mesh:
    """Return the mesh of a row."""
    return Mesh(row.mesh)
