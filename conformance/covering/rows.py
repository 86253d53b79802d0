"""The rows of a covering array, as text of a file and by name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from .dimension import Dimension
from .space import Words


def text(rows: Mapping[str, Sequence[Words]]) -> str:
    """Return the text of the file, one line per row for readable diffs."""
    listed = {way: ",\n".join(map(json.dumps, some)) for way, some in rows.items()}
    ways = ",\n".join(f"{json.dumps(way)}: [\n{some}\n]" for way, some in listed.items())
    return f"{{\n{ways}\n}}\n"


def named(dimensions: Sequence[Dimension], rows: Sequence[Words]) -> dict[str, Words]:
    """Return the rows by name: the value in it that has named the fewest rows, and a number.

    So every value names rows, and a name shows one special value of a row. Values that hide others name rows first: a
    row with another name tests its values.
    """
    plain = {dimension.values[0].word for dimension in dimensions}
    hiding = {value.word for dimension in dimensions for value in dimension.values if value.hides}
    special = [[w for w in row if w in hiding] or [w for w in row if w not in plain] or [row[0]] for row in rows]
    words = {place: word for word, place in _one_row_each(special).items()}
    counts: Counter[str] = Counter(words.values())
    for place, several in enumerate(special):
        if place not in words:
            words[place] = min(several, key=counts.__getitem__)
            counts[words[place]] += 1
    numbers: Counter[str] = Counter()
    found: dict[str, Words] = {}
    for place, row in enumerate(rows):
        numbers[words[place]] += 1
        found[f"{words[place]}-{numbers[words[place]]}"] = row
    return found


def _one_row_each(special: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return a different row for each word, by position: a matching by augmenting paths."""
    places: dict[str, list[int]] = {}
    for place, several in enumerate(special):
        for word in several:
            places.setdefault(word, []).append(place)
    taken: dict[str, int] = {}
    of: dict[int, str] = {}

    def makes_room(word: str, seen: set[int]) -> bool:
        for place in places[word]:
            if place not in seen:
                seen.add(place)
                if place not in of or makes_room(of[place], seen):
                    taken[word], of[place] = place, word
                    return True
        return False

    for word in places:
        makes_room(word, set())
    return taken
