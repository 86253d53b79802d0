"""The list of all checks by topic: shared text is printed once, and a passed check has one line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from gradconform.contract.space.dimensions import DIMENSIONS
from gradconform.report.clauses import clause_of
from gradconform.results import STATUSES

from .rows import ReportedResult, Row, area_of

#: The placeholder for a check's id in a command that serves many checks.
CHECK = "CHECK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row with its own text: the words before and after its program, if it has one, and other programs."""

    row: Row
    before: str
    program: str
    after: str
    programs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Checks whose ids differ only in the last part; ``shared`` words and ``programs`` belong to all of them."""

    name: str
    area: str
    level: str
    shared: str
    programs: tuple[str, ...]
    entries: tuple[Entry, ...]
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Listing:
    """All topics, and the meanings of names that appear in several lines, such as stages.

    ``causes`` has the names of likely causes, by their texts; ``in_columns`` is set if a row has columns of numbers.
    """

    topics: tuple[Topic, ...]
    meanings: Mapping[str, str]
    causes: Mapping[str, str]
    in_columns: bool

    def shortened(self, text: str) -> str:
        """Return the text of a row with the names of likely causes."""
        for cause, name in self.causes.items():
            text = text.replace(f"{_LIKELY}{cause}", name)
        return text


def listing_of(rows: Sequence[Row]) -> Listing:
    """Return the topics of ``rows`` in alphabetical order; rows that need attention come first in each."""
    meanings = {**_described(rows), **_planned(rows)}
    found = groupby(sorted(rows, key=_topic_of), key=_topic_of)
    topics = tuple(_topic(name, list(group), meanings) for name, group in found)
    causes = _causes(rows)
    in_columns = any(one is not None and one.numbers for row in rows for one in row.reported)
    return Listing(topics, {**meanings, **_inverse(causes)}, causes, in_columns)


def _topic_of(row: Row) -> str:
    return row.place.check.rpartition(".")[0] or row.place.check


def by_topic(checks: Iterable[str]) -> str:
    """Return ids of checks with the name of each topic once: ``full.loss.mlp split.loss.{chunks tied}``."""
    cases: dict[str, list[str]] = {}
    for check in checks:
        topic, dot, case = check.rpartition(".")
        cases.setdefault(topic + dot, []).append(case)
    return " ".join(f"{topic}{{{' '.join(own)}}}" if len(own) > 1 else topic + own[0] for topic, own in cases.items())


def _inverse(causes: Mapping[str, str]) -> dict[str, str]:
    """Return the likely causes by name, in the order of their numbers."""
    named = {name: f"{_LIKELY}{text}" for text, name in causes.items()}
    return dict(sorted(named.items(), key=lambda one: (len(one[0]), one[0])))


#: What a finding has before its cause; a name stands for both.
_LIKELY = "likely cause: "

#: The least number of letters of a likely cause that gets a name.
_LONG = 24


def _causes(rows: Iterable[Row]) -> dict[str, str]:
    """Return a name for each likely cause of several results, the longest first: one may begin like another."""
    met = Counter(
        text for row in rows for result in row.results if not row.quiet
        for text in {str(one["cause"]["text"]) for one in result.findings if one["cause"]}
    )  # fmt: skip
    several = [text for text, number in met.most_common() if number > 1 and len(text) >= _LONG]
    names = {text: f"cause-{number}" for number, text in enumerate(several, start=1)}
    return dict(sorted(names.items(), key=lambda one: -len(one[0])))


#: A name with its meaning: ``mlp (an MLP with biases)``.
_MEANING = re.compile(r"(?P<name>[\w-]+) \((?!\d+ actions\))(?P<meaning>[^()]+)\)")


def _described(rows: Iterable[Row]) -> dict[str, str]:
    """Return the meanings that appear more than once, by name; a name with several meanings is skipped."""
    met = Counter(pair for row in rows for pair in _MEANING.findall(row.requirement))
    several = Counter(name for name, _ in met)
    return {name: meaning for (name, meaning), number in sorted(met.items()) if number > 1 and several[name] == 1}


#: The area whose rows are planned from values that have one word each.
_SPACE = "space"
_WORDS = {one.phrase: one.word for dimensions in DIMENSIONS.values() for each in dimensions for one in each.values}
_PHRASES = re.compile(rf"(?<!\S)(?:{'|'.join(sorted(map(re.escape, _WORDS), key=len, reverse=True))})(?=[;,.]|$)")


def _planned(rows: Iterable[Row]) -> dict[str, str]:
    """Return the meanings of the planned values that appear in some row."""
    of_space = (row.requirement for row in rows if area_of(row.place.check) == _SPACE)
    met = {phrase for requirement in of_space for phrase in _PHRASES.findall(requirement)}
    return {word: phrase for phrase, word in _WORDS.items() if phrase in met}


def _shortened(row: Row, text: str, meanings: Mapping[str, str]) -> str:
    """Return a row's text with names only, for meanings that are printed once for all rows."""
    if area_of(row.place.check) == _SPACE:
        text = _PHRASES.sub(lambda found: _WORDS[found[0]], text)
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
    """Return a pattern that finds a program among words, but not as the start of a longer program."""
    return re.compile(rf"(?<!\S){re.escape(program)}(?![^\s,.;]| \d*[FBIWG]\d)")


@dataclass(frozen=True, slots=True)
class Again:
    """The command that reproduces any check without a command of its own, for one run, device and dtype."""

    run: int
    cell: str
    command: str


def commands_again(rows: Sequence[Row]) -> list[Again]:
    """Return the command of most rows of each run and cell, with :data:`CHECK` in place of the id."""
    found: dict[tuple[int, str], Counter[str]] = {}
    for row in rows:
        for run, reported in enumerate(row.reported):
            if reported is not None and reported.command is not None:
                found.setdefault((run, row.cell), Counter())[_pattern(reported)] += 1
    return [Again(*place, patterns.most_common(1)[0][0]) for place, patterns in found.items()]


def _pattern(reported: ReportedResult) -> str:
    return f" {reported.command} ".replace(f" {reported.result.check} ", f" {CHECK} ", 1).strip()


def is_shown_once(reported: ReportedResult, run: int, cell: str, again: Iterable[Again]) -> bool:
    """Return whether a shared command also serves this result."""
    return any((one.run, one.cell) == (run, cell) and one.command == _pattern(reported) for one in again)
