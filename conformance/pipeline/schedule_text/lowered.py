"""The requirements of a lowered schedule: the same computation, and communication in time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gradconform.fixtures.schedules.order import ScheduledAction, placed_actions

_TRANSFER = re.compile(r"(\d+)(SEND|RECV)_([FB])(\d+)")
_SHARDING = re.compile(r"(\d+)(UNSHARD|RESHARD)")


class Transfer(NamedTuple):
    """A transfer from one stage to the next: activations of a micro-batch (``F``) or gradients back (``B``)."""

    sender: int
    letter: str
    mb: int

    @property
    def receiver(self) -> int:
        """Return the stage that receives it."""
        return self.sender + (1 if self.letter == "F" else -1)


def problems(
    rows: Sequence[Sequence[str]], lowered: Sequence[Sequence[str]], ranks: Mapping[int, int]
) -> Iterator[str]:
    """Yield the errors of ``lowered``, the schedule ``rows`` with communication; ``ranks`` by stage."""
    for rank, (row, low) in enumerate(zip(rows, lowered, strict=True)):
        if _computing(row) != _computing(low):
            yield f"rank {rank} computes in another order than before: {' '.join(low)}"
    wanted = _transfers(rows, ranks)
    found = [_parsed(low) for low in lowered]
    yield from _missing_or_surplus(wanted, found, ranks)
    for rank, cells in enumerate(found):
        yield from _too_late(rank, cells, lowered[rank])
        yield from _sharding(rank, lowered[rank])
    stuck = _deadlock(found)
    if stuck:
        yield f"deadlock of blocking transfers: {stuck}"


def _computing(row: Sequence[str]) -> list[ScheduledAction]:
    return [placed.action for placed in placed_actions([row])[0]]


def _transfers(rows: Sequence[Sequence[str]], ranks: Mapping[int, int]) -> set[Transfer]:
    """Return the transfers between ranks: stages on one rank need no communication."""
    last = max(ranks)
    found = set()
    for action in (action for row in rows for action in _computing(row)):
        letter = "F" if action.letter == "F" else "B"
        transfer = Transfer(action.stage, letter, action.mb)
        inside = 0 <= transfer.receiver <= last
        if action.letter != "W" and inside and ranks[transfer.receiver] != ranks[action.stage]:
            found.add(transfer)
    return found


def _parsed(row: Sequence[str]) -> list[tuple[str, Transfer | ScheduledAction]]:
    """Return the cells of a lowered row as ``SEND``, ``RECV`` or ``RUN`` with their subject, without sharding."""
    found: list[tuple[str, Transfer | ScheduledAction]] = []
    for cell in row:
        match = _TRANSFER.fullmatch(cell)
        if match is not None:
            stage, way, letter, mb = int(match[1]), match[2], match[3], int(match[4])
            sender = stage if way == "SEND" else stage - (1 if letter == "F" else -1)
            found.append((way, Transfer(sender, letter, mb)))
        else:
            found += [("RUN", action) for action in _computing([cell])]
    return found


def _missing_or_surplus(
    wanted: set[Transfer], found: list[list[tuple[str, Transfer | ScheduledAction]]], ranks: Mapping[int, int]
) -> Iterator[str]:
    for way in ("SEND", "RECV"):
        there = [(rank, what) for rank, cells in enumerate(found) for kind, what in cells if kind == way]
        for transfer in sorted(wanted):
            home = ranks[transfer.sender if way == "SEND" else transfer.receiver]
            if there.count((home, transfer)) != 1:
                yield f"expected one {_name(way, transfer)} on rank {home}, got {there.count((home, transfer))}"
        for rank, what in there:
            if what not in wanted:
                yield f"{way} of {what} on rank {rank}, where nothing has to be sent"


def _name(way: str, transfer: Transfer) -> str:
    stage = transfer.sender if way == "SEND" else transfer.receiver
    return f"{stage}{way}_{transfer.letter}{transfer.mb}"


def _too_late(rank: int, cells: list[tuple[str, Transfer | ScheduledAction]], row: Sequence[str]) -> Iterator[str]:
    """Yield the values that are sent before they are computed, or computed before they are received."""
    position = {(kind, what): number for number, (kind, what) in enumerate(cells)}
    for (kind, what), number in position.items():
        if isinstance(what, ScheduledAction):
            continue
        stage = what.sender if kind == "SEND" else what.receiver
        letters = "F" if what.letter == "F" else "BI"
        computed = [position.get(("RUN", ScheduledAction(stage, letter, what.mb))) for letter in letters]
        at = next((one for one in computed if one is not None), None)
        if at is not None and (number < at if kind == "SEND" else number > at):
            yield f"rank {rank}: {_name(kind, what)} is on the wrong side of its computing: {' '.join(row)}"


def _sharding(rank: int, row: Sequence[str]) -> Iterator[str]:
    """Yield actions on a stage that is not unsharded, and stages unsharded or resharded twice or left open."""
    open_stages: set[int] = set()
    for cell in row:
        match = _SHARDING.fullmatch(cell)
        if match is not None:
            stage, opens = int(match[1]), match[2] == "UNSHARD"
            if opens == (stage in open_stages):
                yield f"rank {rank}: {cell} where the stage is {'unsharded' if opens else 'sharded'} already"
            open_stages ^= {stage}
        for action in _computing([cell]) if match is None and "_" not in cell.replace("OVERLAP_F_B", "") else ():
            if action.stage not in open_stages:
                yield f"rank {rank}: {action} runs on a sharded stage"
    if open_stages:
        yield f"rank {rank}: stages {sorted(open_stages)} are left unsharded"


def _deadlock(found: list[list[tuple[str, Transfer | ScheduledAction]]]) -> str:
    """Return the ranks that deadlock if a receive waits for its send (sends do not wait); empty if none does."""
    left = [list(cells) for cells in found]
    sent: set[object] = set()
    while any(left):
        ready = [cells for cells in left if cells and (cells[0][0] != "RECV" or cells[0][1] in sent)]
        if not ready:
            return "; ".join(f"rank {rank} waits for {cells[0][1]}" for rank, cells in enumerate(left) if cells)
        for cells in ready:
            kind, what = cells.pop(0)
            if kind == "SEND":
                sent.add(what)
    return ""
