"""The distribution of the slow tests over days: each day takes about as long as the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from .long_tests import read
from .together import scope_of

#: The seconds that the tests of a scope take on an idle core, where they take more than a few; the name is a node id,
#: a file, or that of tests of several files.
SECONDS: dict[str, float] = {
    f"tests/{scope}" if "/" in scope else scope: seconds
    for scope, seconds in read(Path(__file__).with_suffix(".toml"))["seconds"].items()
}

#: The mean of the slow tests without recorded seconds.
_SECONDS_OF_ANOTHER = 2.0


def days_of(nodeids: Iterable[str], days: int, recorded: Mapping[str, float]) -> dict[str, int]:
    """Return the day of each scope, from 1. The longest scope is the first to get a day, each gets the shortest day."""
    tests = Counter(map(scope_of, nodeids))
    seconds = {scope: recorded.get(scope, count * _SECONDS_OF_ANOTHER) for scope, count in tests.items()}
    lengths = dict.fromkeys(range(1, days + 1), 0.0)
    found: dict[str, int] = {}
    for scope in sorted(seconds, key=lambda name: (-seconds[name], name)):
        found[scope] = min(lengths, key=lambda day: lengths[day])
        lengths[found[scope]] += seconds[scope]
    return found
