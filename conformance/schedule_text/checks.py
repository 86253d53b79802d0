"""The checks of area ``schedule_text``: each takes what is judged and yields what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gradconform.beside import BesideCheck
from gradconform.fixtures.schedules import Schedule
from gradconform.fixtures.schedules.placed import ScheduledAction, placed_actions
from gradconform.judge.finding import Finding
from gradconform.schedule_text.lowered import problems
from gradconform.schedule_text.subject import ScheduleText

#: Every form of a cell that torch writes.
CELLS = (
    "0F0", "12F34", "1B2", "3I1", "3W1", "0UNSHARD", "1RESHARD", "2REDUCE_GRAD",
    "0SEND_F1", "1RECV_F1", "1SEND_B0", "0RECV_B0", "(0F1;1B0)OVERLAP_F_B",
)  # fmt: skip
#: Ranks, and stages of each, that stages are placed for.
_SIZES = ((2, 2), (3, 2), (4, 1), (2, 3))
#: What looks like an action and is none.
WRONG_CELLS = ("0X1", "F0", "-1F0", "0F0 1", "hello", "0", "0F0;1F0")


def checks_of(schedules: Sequence[Schedule]) -> list[BesideCheck]:
    """Return every check, those on schedules once per schedule."""
    found = [
        *(_printing(cell) for cell in CELLS),
        *(_refusing(cell) for cell in WRONG_CELLS),
        *(_mapping(ranks, per_rank, style) for ranks, per_rank in _SIZES for style in ("loop", "v")),
        _merging(),
    ]
    for schedule in schedules:
        found += [_accepting(schedule), _lowering(schedule)]
        found += [_illegal(schedule, name) for name in _SPOILED if name != "w-before-i" or _splits(schedule)]
    return found


def _splits(schedule: Schedule) -> bool:
    return any(action.letter == "I" for step in schedule.steps for action in step)


def _word(cell: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in cell.lower()).strip("-") or "empty"


def _printing(cell: str) -> BesideCheck:
    def judge(subject: ScheduleText) -> Iterator[Finding]:
        got = subject.rewritten(cell)
        if got != cell:
            yield Finding("mismatch", "the cell", "", f"expected {cell!r} after parsing and printing, got {got!r}")

    return BesideCheck(
        f"schedule_text.prints.{_word(cell)}", "MUST", f"{cell} MUST be the same parsed and printed.", judge
    )


def _refusing(cell: str) -> BesideCheck:
    # What merely stands behind an action makes a schedule incomplete, which is noticed later.
    level = "SHOULD" if cell.startswith("0F0") else "MUST"

    def judge(subject: ScheduleText) -> Iterator[Finding]:
        yield from _not_refused("the cell", cell, lambda: subject.rewritten(cell))

    requirement = f"{cell!r}, which is no action, {level} be refused."
    return BesideCheck(f"schedule_text.refuses.cell-{_word(cell)}", level, requirement, judge)


def _not_refused(where: str, what: str, call: Callable[[], object]) -> Iterator[Finding]:
    try:
        call()
    except Exception:  # noqa: BLE001 (whatever it raises, it refuses)
        return
    yield Finding("no_error", where, "", f"is accepted where an error was expected: {what}")


def _mapping(ranks: int, per_rank: int, style: str) -> BesideCheck:
    stages = ranks * per_rank

    def judge(subject: ScheduleText) -> Iterator[Finding]:
        expected = {stage: _rank_of(stage, ranks, style) for stage in range(stages)}
        got = dict(subject.mapping(ranks, stages, style))
        if got != expected:
            yield Finding("mismatch", "the mapping of stages to ranks", "", f"expected {expected}, got {got}")

    requirement = f"{stages} stages on {ranks} ranks MUST be placed in a {'loop' if style == 'loop' else 'V'}."
    return BesideCheck(f"schedule_text.mapping.{style}-{ranks}x{per_rank}", "MUST", requirement, judge)


def _rank_of(stage: int, ranks: int, style: str) -> int:
    lap, place = divmod(stage, ranks)
    return ranks - 1 - place if style == "v" and lap % 2 else place


def _merging() -> BesideCheck:
    row = ["0F0", "", "0I0", "0W0", "0F1", "0I1", "1I0", "0W1", "1I1", "", "1W1", "1W0", "0B2", "0I3", "1W3"]
    expected = ["0F0", "0B0", "0F1", "0I1", "1I0", "0W1", "1B1", "1W0", "0B2", "0I3", "1W3"]

    def judge(subject: ScheduleText) -> Iterator[Finding]:
        got = [cell for cell in subject.merged(row) if cell]
        if got != expected:
            yield Finding("mismatch", "the merged row", "", f"expected {' '.join(expected)}, got {' '.join(got)}")

    requirement = "An I that its own W follows at once MUST become a B, bubbles left aside, and nothing else change."
    return BesideCheck("schedule_text.merges.input-and-weight", "MUST", requirement, judge)


def _accepting(schedule: Schedule) -> BesideCheck:
    def judge(subject: ScheduleText) -> Iterator[Finding]:
        rewritten = [[subject.rewritten(cell) for cell in row] for row in schedule.rows]
        if rewritten != [list(row) for row in schedule.rows]:
            yield Finding("mismatch", "the rows", "", "they are not the same parsed and printed")
        got = dict(subject.placed(schedule.rows, schedule.stages, schedule.microbatches))
        if got != ranks_of(schedule):
            yield Finding("mismatch", "the ranks of stages", "", f"expected {ranks_of(schedule)}, got {got}")

    requirement = f"{schedule.name} ({schedule.size}) MUST be read, printed the same and found legal."
    return BesideCheck(f"schedule_text.accepts.{_word(schedule.name)}", "MUST", requirement, judge)


def ranks_of(schedule: Schedule) -> dict[int, int]:
    """Return the rank of each stage, from where its actions stand."""
    return {placed.action.stage: placed.row for row in placed_actions(schedule.rows) for placed in row}


def _lowering(schedule: Schedule) -> BesideCheck:
    def judge(subject: ScheduleText) -> Iterator[Finding]:
        lowered = subject.lowered(schedule.rows, schedule.stages, schedule.microbatches)
        for problem in problems(schedule.rows, lowered, ranks_of(schedule)):
            yield Finding("mismatch", "the lowered schedule", "", problem)

    requirement = (
        f"{schedule.name} ({schedule.size}) lowered MUST compute in the same order, send and receive once what crosses "
        "ranks, in time and without deadlock, and shard and unshard around its computing."
    )
    return BesideCheck(f"schedule_text.lowers.{_word(schedule.name)}", "MUST", requirement, judge)


Cells = list[list[str]]


def _without(rows: Cells, letter: str) -> Cells:
    """Leave out the last action of a letter on the first rank that has it."""
    row = next(row for row in rows if any(letter in cell for cell in row))
    at = max(number for number, cell in enumerate(row) if letter in cell)
    row[at] = "" if "OVERLAP" not in row[at] else row[at].strip("()").split(";")[1].split(")")[0]
    return rows


def _backward_first(rows: Cells) -> Cells:
    """Put the first backward of the last rank before every forward."""
    row = rows[-1]
    at = next(number for number, cell in enumerate(row) if "OVERLAP" not in cell and ("B" in cell or "I" in cell))
    row.insert(0, row.pop(at))
    return rows


def _weight_first(rows: Cells) -> Cells:
    """Put the first W of the row that has one right before its I."""
    row = next(row for row in rows if any("W" in cell for cell in row))
    weight = next(cell for cell in row if "W" in cell)
    row.remove(weight)
    action = placed_actions([[weight]])[0][0].action
    row.insert(row.index(str(ScheduledAction(action.stage, "I", action.mb))), weight)
    return rows


def _on_two_ranks(rows: Cells) -> Cells:
    """Move the last action of the first rank to the second."""
    at = max(number for number, cell in enumerate(rows[0]) if cell)
    rows[1].append(rows[0][at])
    rows[0][at] = ""
    return rows


def _twice(rows: Cells) -> Cells:
    """Repeat the first action of the first rank."""
    at = next(number for number, cell in enumerate(rows[0]) if cell)
    rows[0].insert(at, rows[0][at])
    return rows


#: How a legal schedule is spoiled, what is said of it, and how strongly that must be refused.
_SPOILED: dict[str, tuple[Callable[[Cells], Cells], str, str]] = {
    "missing-forward": (lambda rows: _without(rows, "F"), "MUST", "a forward missing"),
    "missing-rank": (lambda rows: rows[:-1], "MUST", "a rank missing"),
    "wrong-order": (_backward_first, "MUST", "a backward before its forward"),
    "w-before-i": (_weight_first, "MUST", "a W before its I"),
    "stage-on-two-ranks": (_on_two_ranks, "MUST", "a stage on two ranks"),
    # The runtime raises when it comes to the second one, so nothing wrong is computed.
    "duplicate": (_twice, "SHOULD", "an action twice"),
}


def _illegal(schedule: Schedule, name: str) -> BesideCheck:
    spoil, level, what = _SPOILED[name]

    def judge(subject: ScheduleText) -> Iterator[Finding]:
        rows = spoil([list(row) for row in schedule.rows])
        call = lambda: subject.lowered(rows, schedule.stages, schedule.microbatches)  # noqa: E731 (handed on once)
        yield from _not_refused("the spoiled schedule", f"{schedule.name} with {what}", call)

    requirement = f"{schedule.name} ({schedule.size}) with {what} {level} be refused before anything runs."
    return BesideCheck(f"schedule_text.refuses.{name}-{_word(schedule.name)}", level, requirement, judge)
