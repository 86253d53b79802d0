"""The list of all checks, by topic: what the checks of a topic share is told once, and what passed has one line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from gradconform.contract.space.dimensions import DIMENSIONS
from gradconform.report.clauses import clause_of
from gradconform.results import STATUSES

from .rows import Row, Told, area_of

#: What stands for the id of a check where one command is told for many of them.
CHECK = "CHECK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row, with what is its own: the words before and after its program where they have it, and other programs."""

    row: Row
    before: str
    program: str
    after: str
    programs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Checks whose ids differ in the last part alone; ``shared`` words and ``programs`` are of each of them."""

    name: str
    area: str
    level: str
    shared: str
    programs: tuple[str, ...]
    entries: tuple[Entry, ...]
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Listing:
    """All topics, and what the names mean that several of their lines have: of stages, say."""

    topics: tuple[Topic, ...]
    meanings: Mapping[str, str]


def listing_of(rows: Sequence[Row]) -> Listing:
    """Return the topics of ``rows`` by the alphabet, what needs a look first in each."""
    meanings = {**_described(rows), **_planned(rows)}
    found = groupby(sorted(rows, key=_topic_of), key=_topic_of)
    return Listing(tuple(_topic(name, list(group), meanings) for name, group in found), meanings)


def _topic_of(row: Row) -> str:
    return row.place.check.rpartition(".")[0] or row.place.check


#: A name with what it means: ``mlp (an MLP with biases)``.
_MEANING = re.compile(r"(?P<name>[\w-]+) \((?!\d+ actions\))(?P<meaning>[^()]+)\)")


def _described(rows: Iterable[Row]) -> dict[str, str]:
    """Return what is said more than once of a name, by name; nothing of one that means several things."""
    met = Counter(pair for row in rows if row.quiet for pair in _MEANING.findall(row.requirement))
    several = Counter(name for name, _ in met)
    return {name: meaning for (name, meaning), number in sorted(met.items()) if number > 1 and several[name] == 1}


#: The area whose rows are planned of values that have a word each, by what is said of them.
_SPACE = "space"
_WORDS = {one.said: one.word for dimensions in DIMENSIONS.values() for each in dimensions for one in each.values}
_SAID = re.compile(rf"(?<!\S)(?:{'|'.join(sorted(map(re.escape, _WORDS), key=len, reverse=True))})(?=[;,.]|$)")


def _planned(rows: Iterable[Row]) -> dict[str, str]:
    """Return what the words of planned values mean, of those that stand in some row."""
    of_space = (row.requirement for row in rows if row.quiet and area_of(row.place.check) == _SPACE)
    met = {said for requirement in of_space for said in _SAID.findall(requirement)}
    return {word: said for said, word in _WORDS.items() if said in met}


def _shortened(row: Row, text: str, meanings: Mapping[str, str]) -> str:
    """Return text of a row with names alone, where what they mean is told once for all rows."""
    if area_of(row.place.check) == _SPACE:
        text = _SAID.sub(lambda found: _WORDS[found[0]], text)
    text = _MEANING.sub(
        lambda found: found["name"] if meanings.get(found["name"]) == found["meaning"] else found[0], text
    )
    return "" if text == row.place.check.rpartition(".")[2] else text


def _topic(name: str, rows: list[Row], meanings: Mapping[str, str]) -> Topic:
    clause = clause_of(list(dict.fromkeys(row.requirement for row in rows)))
    own = dict(zip(dict.fromkeys(row.requirement for row in rows), clause.own, strict=True))
    levels, programs = {row.level for row in rows}, {row.programs for row in rows}
    shared = programs.pop() if len(programs) == 1 and len(rows) > 1 else ()
    statuses = Counter(status for row in rows for status in row.statuses)
    return Topic(
        name=name,
        area=area_of(rows[0].place.check),
        level=levels.pop() if len(levels) == 1 else "",
        shared=clause.shared,
        programs=shared,
        entries=tuple(_entry(row, _shortened(row, own[row.requirement], meanings), shared) for row in rows),
        counts={status: statuses[status] for status in (*STATUSES, "absent") if statuses[status]},
    )


def _entry(row: Row, own: str, shared: tuple[str, ...]) -> Entry:
    found = ((program, _in(program).search(own)) for program in row.programs)
    program, place = next(((program, place) for program, place in found if place), ("", None))
    before, after = (own[: place.start()], own[place.end() :]) if place else (own, "")
    rest = () if row.programs == shared else tuple(one for one in row.programs if one != program)
    return Entry(row=row, before=before, program=program, after=after, programs=rest)


def _in(program: str) -> re.Pattern[str]:
    """Return what finds a program among words, where it is not the beginning of a longer one."""
    return re.compile(rf"(?<!\S){re.escape(program)}(?![^\s,.;]| \d*[FBIWG]\d)")


@dataclass(frozen=True, slots=True)
class Again:
    """The command that runs any check again that has none of its own; in which run, on which device and dtype."""

    run: int
    cell: str
    command: str


def commands_again(rows: Sequence[Row]) -> list[Again]:
    """Return the command of most quiet rows of each run and cell, with :data:`CHECK` in the place of the id."""
    found: dict[tuple[int, str], Counter[str]] = {}
    for row in rows:
        for run, told in enumerate(row.told):
            if told is not None and row.quiet and told.command is not None:
                found.setdefault((run, row.cell), Counter())[_pattern(told)] += 1
    return [Again(*place, patterns.most_common(1)[0][0]) for place, patterns in found.items()]


def _pattern(told: Told) -> str:
    return f" {told.command} ".replace(f" {told.result.check} ", f" {CHECK} ", 1).strip()


def is_told_once(told: Told, run: int, cell: str, again: Iterable[Again]) -> bool:
    """Tell whether the command that is told for many is that of this result as well."""
    return any((one.run, one.cell) == (run, cell) and one.command == _pattern(told) for one in again)
