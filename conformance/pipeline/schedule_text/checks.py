"""The checks of area ``schedule_text``: each takes the adapter and yields findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from gradconform.adapter import UnsupportedError
from gradconform.fixtures.schedules import Schedule
from gradconform.fixtures.schedules.order import ScheduledAction, placed_actions
from gradconform.judge.finding import Finding, Judged
from gradconform.pipeline.extra_checks import Judge, check
from gradconform.requirements.clause import Clause

from . import ScheduleText
from .lowered import problems

#: Every form of a cell that torch writes.
CELLS = (
    "0F0", "12F34", "1B2", "3I1", "3W1", "0UNSHARD", "1RESHARD", "2REDUCE_GRAD",
    "0SEND_F1", "1RECV_F1", "1SEND_B0", "0RECV_B0", "(0F1;1B0)OVERLAP_F_B",
    "2WAIT_REDUCE_GRAD", "0WAIT_SEND_F1", "1WAIT_SEND_B0",
)  # fmt: skip
#: The numbers of ranks, and of stages on each, in the placement checks.
_SIZES = ((2, 2), (3, 2), (4, 1), (2, 3))


class Wrong(NamedTuple):
    """A text that looks like an action but is none, and the level at which it must be refused."""

    cell: str
    level: str


#: Text after a valid action makes a schedule incomplete, which is detected later.
WRONG_CELLS = tuple(
    Wrong(cell, "SHOULD" if cell.startswith("0F0") else "MUST")
    for cell in ("0X1", "F0", "-1F0", "0F0 1", "hello", "0", "0F0;1F0")
)


def checks_of(schedules: Sequence[Schedule]) -> dict[Clause, Judge]:
    """Return every check; those on schedules once per schedule."""
    found = [
        *(_check(f"prints.{_word(cell)}", _prints, cell=cell) for cell in CELLS),
        *(_check(f"refuses.cell-{_word(wrong.cell)}", _refuses, wrong=wrong) for wrong in WRONG_CELLS),
        *(
            _check(f"mapping.{shape.lower()}-{ranks}x{each}", _places, ranks=ranks, stages=ranks * each, shape=shape)
            for ranks, each in _SIZES
            for shape in ("loop", "V")
        ),
        _check("merges.input-and-weight", _merges),
    ]
    for schedule in schedules:
        word, splits = _word(schedule.name), any(action.letter == "I" for step in schedule.steps for action in step)
        found += [_check(f"{judge.__name__[1:]}.{word}", judge, schedule=schedule) for judge in (_accepts, _lowers)]
        found += [
            _check(f"refuses.{name}-{word}", _refuses_spoiled, schedule=schedule, spoiled=spoiled)
            for name, spoiled in _SPOILED.items()
            if splits or name != "w-before-i"
        ]
    return dict(found)


def _check(name: str, judge: Callable[..., Judged], **given: Any) -> tuple[Clause, Judge]:
    return check(f"schedule_text.{name}", judge, **given)


def _word(cell: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in cell.lower()).strip("-") or "empty"


def _prints(subject: ScheduleText, *, cell: str) -> Iterator[Finding]:
    """{cell} MUST be the same parsed and printed."""
    got = subject.rewritten(cell)
    if got != cell:
        yield Finding("mismatch", "the cell", "", f"expected {cell!r} after parsing and printing, got {got!r}")


def _refuses(subject: ScheduleText, *, wrong: Wrong) -> Iterator[Finding]:
    """{wrong.cell!r}, which is no action, {wrong.level} be refused."""
    yield from _not_refused("the cell", wrong.cell, lambda: subject.rewritten(wrong.cell))


def _not_refused(where: str, what: str, call: Callable[[], object]) -> Iterator[Finding]:
    try:
        call()
    except UnsupportedError:
        raise
    except Exception:  # noqa: BLE001 (any other exception is a refusal)
        return
    yield Finding("no_error", where, "", f"is accepted where an error was expected: {what}")


def _places(subject: ScheduleText, *, ranks: int, stages: int, shape: str) -> Iterator[Finding]:
    """{stages} stages on {ranks} ranks MUST be placed in a {shape}."""
    expected = {stage: _rank_of(stage, ranks, shape) for stage in range(stages)}
    got = dict(subject.mapping(ranks, stages, shape.lower()))
    if got != expected:
        yield Finding("mismatch", "the mapping of stages to ranks", "", f"expected {expected}, got {got}")


def _rank_of(stage: int, ranks: int, shape: str) -> int:
    lap, place = divmod(stage, ranks)
    return ranks - 1 - place if shape == "V" and lap % 2 else place


def _merges(subject: ScheduleText) -> Iterator[Finding]:
    """An I that its own W follows at once MUST become a B, bubbles left aside, and nothing else change."""
    row = ["0F0", "", "0I0", "0W0", "0F1", "0I1", "1I0", "0W1", "1I1", "", "1W1", "1W0", "0B2", "0I3", "1W3"]
    expected = ["0F0", "0B0", "0F1", "0I1", "1I0", "0W1", "1B1", "1W0", "0B2", "0I3", "1W3"]
    got = [cell for cell in subject.merged(row) if cell]
    if got != expected:
        yield Finding("mismatch", "the merged row", "", f"expected {' '.join(expected)}, got {' '.join(got)}")


def _accepts(subject: ScheduleText, *, schedule: Schedule) -> Iterator[Finding]:
    """{schedule.name} ({schedule.size}) MUST be read, printed the same and found legal."""
    rewritten = [[subject.rewritten(cell) for cell in row] for row in schedule.rows]
    if rewritten != [list(row) for row in schedule.rows]:
        yield Finding("mismatch", "the rows", "", "they are not the same parsed and printed")
    got = dict(subject.placed(schedule.rows, schedule.stages, schedule.microbatches))
    if got != ranks_of(schedule):
        yield Finding("mismatch", "the ranks of stages", "", f"expected {ranks_of(schedule)}, got {got}")


def ranks_of(schedule: Schedule) -> dict[int, int]:
    """Return the rank of each stage, from the rows of its actions."""
    return {placed.action.stage: placed.row for row in placed_actions(schedule.rows) for placed in row}


def _lowers(subject: ScheduleText, *, schedule: Schedule) -> Iterator[Finding]:
    """{schedule.name} ({schedule.size}) lowered MUST compute in the same order, send and receive once what crosses
    ranks, in time and without deadlock, and shard and unshard around its computing.
    """  # noqa: D205 (one sentence)
    lowered = subject.lowered(schedule.rows, schedule.stages, schedule.microbatches)
    for problem in problems(schedule.rows, lowered, ranks_of(schedule)):
        yield Finding("mismatch", "the lowered schedule", "", problem)


Cells = list[list[str]]


def _without(rows: Cells, letter: str) -> Cells:
    """Return rows without the last action of a letter on the first rank that has it."""
    row = next(row for row in rows if any(letter in cell for cell in row))
    at = max(number for number, cell in enumerate(row) if letter in cell)
    row[at] = "" if "OVERLAP" not in row[at] else row[at].strip("()").split(";")[1].split(")")[0]
    return rows


def _backward_first(rows: Cells) -> Cells:
    """Return rows with the first backward of the last rank before every forward."""
    row = rows[-1]
    at = next(number for number, cell in enumerate(row) if "OVERLAP" not in cell and ("B" in cell or "I" in cell))
    row.insert(0, row.pop(at))
    return rows


def _weight_first(rows: Cells) -> Cells:
    """Return rows with the first W of the row that has one directly before its I."""
    row = next(row for row in rows if any("W" in cell for cell in row))
    weight = next(cell for cell in row if "W" in cell)
    row.remove(weight)
    action = placed_actions([[weight]])[0][0].action
    row.insert(row.index(str(ScheduledAction(action.stage, "I", action.mb))), weight)
    return rows


def _on_two_ranks(rows: Cells) -> Cells:
    """Return rows with the last action of the first rank moved to the second."""
    at = max(number for number, cell in enumerate(rows[0]) if cell)
    rows[1].append(rows[0][at])
    rows[0][at] = ""
    return rows


def _twice(rows: Cells) -> Cells:
    """Return rows with the first action of the first rank repeated."""
    at = next(number for number, cell in enumerate(rows[0]) if cell)
    rows[0].insert(at, rows[0][at])
    return rows


class Spoiled(NamedTuple):
    """A change that makes a legal schedule illegal, its description, and the level at which it must be refused."""

    spoil: Callable[[Cells], Cells]
    what: str
    level: str = "MUST"


_SPOILED = {
    "missing-forward": Spoiled(lambda rows: _without(rows, "F"), "a forward missing"),
    "missing-rank": Spoiled(lambda rows: rows[:-1], "a rank missing"),
    "wrong-order": Spoiled(_backward_first, "a backward before its forward"),
    "w-before-i": Spoiled(_weight_first, "a W before its I"),
    "stage-on-two-ranks": Spoiled(_on_two_ranks, "a stage on two ranks"),
    # The runtime raises at the second one, so no wrong value is computed.
    "duplicate": Spoiled(_twice, "an action twice", "SHOULD"),
}


def _refuses_spoiled(subject: ScheduleText, *, schedule: Schedule, spoiled: Spoiled) -> Iterator[Finding]:
    """{schedule.name} ({schedule.size}) with {spoiled.what} {spoiled.level} be refused before anything runs."""
    rows = spoiled.spoil([list(row) for row in schedule.rows])
    call = lambda: subject.lowered(rows, schedule.stages, schedule.microbatches)  # noqa: E731 (passed on once)
    yield from _not_refused("the spoiled schedule", f"{schedule.name} with {spoiled.what}", call)
