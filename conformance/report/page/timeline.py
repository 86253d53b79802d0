"""A program drawn as a timeline: a column per action, a row per micro-batch, or per stage where there are several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gradconform.program import Action, parse

#: Of one action, and of the names beside the rows and below the last one, in pixels.
_CELL, _ROW, _NAMES, _FOOT = 30, 26, 62, 20

#: Letters of actions; all else is what happens around the stage, and stands in a row of its own.
_LETTERS = frozenset("FBIWG")


@dataclass(frozen=True, slots=True)
class Cell:
    """One action: where it stands, and whether it is the first wrong one."""

    text: str
    kind: str
    x: int
    y: int
    width: int
    wrong: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One program, and the first action of it at which something was wrong, if any. ``id`` is for the page."""

    id: str
    program: str
    wrong: str | None
    rows: tuple[tuple[str, int], ...]
    cells: tuple[Cell, ...]
    width: int
    height: int

    @property
    def label(self) -> str:
        """What a reader hears in place of the drawing."""
        return f"program {self.program}" + (f"; first wrong action: {self.wrong}" if self.wrong else "")


@dataclass(slots=True)
class Timelines:
    """The timelines of a page; one that several checks share is drawn once."""

    drawn: dict[tuple[str, str | None], Timeline] = field(default_factory=dict)

    def of(self, programs: Iterable[str], actions: Sequence[str]) -> list[Timeline]:
        """Return a timeline of each program; ``actions`` are those of the findings, in their order.

        A report does not say which of several programs a finding is of, so each that has the action is marked.
        """
        return [self._one(program, _first_wrong(program, actions)) for program in programs]

    def _one(self, program: str, wrong: str | None) -> Timeline:
        key = (program, wrong)
        if key not in self.drawn:
            self.drawn[key] = _draw(f"timeline-{len(self.drawn)}", program, wrong)
        return self.drawn[key]


def _first_wrong(program: str, actions: Sequence[str]) -> str | None:
    tokens = program.split()
    return min((action for action in actions if action in tokens), key=tokens.index, default=None)


def _draw(name: str, program: str, wrong: str | None) -> Timeline:
    actions = parse(program)
    rows = _rows(actions)
    heights = {row: index * _ROW for index, row in enumerate(rows)}
    cells: list[Cell] = []
    left = _NAMES
    for action in actions:
        text = str(action)
        width = max(_CELL, 8 * len(text) + 10)
        first = text == wrong and not any(cell.wrong for cell in cells)
        kind = action.kind if action.kind in _LETTERS else "other"
        cells.append(Cell(text, kind, left, heights[_row(action, rows)], width - 2, first))
        left += width
    height = len(rows) * _ROW + (_FOOT if wrong else 0)
    named = tuple(heights.items())
    return Timeline(id=name, program=program, wrong=wrong, rows=named, cells=tuple(cells), width=left, height=height)


def _rows(actions: Sequence[Action]) -> list[str]:
    """Return the names of the rows: of the stages where there are several, else of the micro-batches."""
    inner = [action for action in actions if action.kind in _LETTERS]
    stages = sorted({action.stage for action in inner})
    if len(stages) > 1:
        named = [f"stage {stage}" for stage in stages]
    else:
        named = [f"mb {mb}" for mb in sorted({action.mb for action in inner})]
    return [*named, *(["around"] if len(inner) < len(actions) else [])]


def _row(action: Action, rows: Sequence[str]) -> str:
    if action.kind not in _LETTERS:
        return "around"
    stage = f"stage {action.stage}"
    return stage if stage in rows else f"mb {action.mb}"
