"""The dimensions of a sharded stage's rows: those of the kit, and those of the stage: its meshes and its options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from gradconform.covering.dimension import Dimension, Value, hiding, never, value
from gradconform.covering.rows import named
from gradconform.covering.search import array
from gradconform.covering.space import Space, Words
from gradconform.trial.mesh import Mesh
from gradconform.user_input.values import nearest

from .stage import DescriptionError

#: The programs of one step: F, B, I and W of each micro-batch. Every rank runs the same.
ORDERS: Mapping[str, str] = {
    "one-mb": "F0 B0",
    "three-mb": "F0 B0 F1 B1 F2 B2",
    "forwards-first": "F0 F1 F2 B0 B1 B2",
    "backwards-reversed": "F0 F1 F2 B2 B1 B0",
    "split": "F0 I0 W0",
    "split-three-mb": "F0 F1 I0 F2 I1 W0 I2 W1 W2",
    "split-late": "F0 F1 F2 I0 I1 I2 W0 W1 W2",
}

_PHRASES = {
    "one-mb": "one micro-batch",
    "three-mb": "three micro-batches in turn",
    "forwards-first": "three forwards before three backwards",
    "backwards-reversed": "three backwards in reverse order",
    "split": "a split backward",
    "split-three-mb": "a split backward of three micro-batches",
    "split-late": "a split backward whose W run last",
}

#: The values that only some stages have.
_OPTIONAL_WORDS = frozenset({"none-for-one", "standing", "first-frozen", "others-frozen"})

_CONSTRAINTS = (
    never("a split backward may not recompute", {"order": "split split-three-mb split-late"}, {"memory": "checkpoint"}),
)


def dimensions_of(facts: Mapping[str, Any], meshes: Sequence[Mesh], *, full: bool, split: bool) -> list[Dimension]:
    """Return the dimensions of a stage's rows; ``full`` and ``split`` say which backward the target has."""
    orders = [word for word, program in ORDERS.items() if (full if "B" in program else split)]
    found = [
        Dimension(
            name="mesh",
            description="the size of each mesh dimension",
            values=tuple(value(mesh.word, f"{mesh.shown}", mesh=dict(mesh.sizes)) for mesh in meshes),
        )
    ]
    for name, words in facts["options"].items():
        some = tuple(value(word, word.replace("-", " "), option=(name, place)) for place, word in enumerate(words))
        found.append(Dimension(name=name, description="an option of the stage", values=some))
    several = (
        (hiding("none-for-one", "None for the first output", output_grads="none"),) if facts["outputs"] > 1 else ()
    )
    whole = () if facts["finish"] else (value("standing", "gradients found in place", standing="values"),)
    frozen = (
        (
            hiding("first-frozen", "the first parameter frozen", frozen="first"),
            hiding("others-frozen", "all parameters but the first frozen", frozen="others"),
        )
        if facts["parameters"] > 1
        else ()
    )
    found += [
        Dimension(name="order", description="the order of actions", values=tuple(
            value(word, _PHRASES[word], order=word) for word in orders)),
        Dimension(name="output_grads", description="the output gradients", values=(
            value("drawn", "drawn output gradients"),
            value("expanded", "expanded output gradients", output_grads="expanded"),
            *several,
        )),
        Dimension(name="weights", description="the trained parameters", values=(
            value("trained", "all parameters trained"), *frozen)),
        Dimension(name="before", description="gradients before the first backward", values=(
            value("cleared", "no gradient in place"),
            value("zeros", "zeros in place", standing="zeros"),
            *whole,
        )),
        Dimension(name="memory", description="what is stored for the backward", values=(
            value("stored", "all activations stored"),
            value("checkpoint", "activation checkpointing", checkpoint=True),
        )),
    ]  # fmt: skip
    _refuse_same_names(facts["options"], found)
    _refuse_unknown(facts["unsupported"], found)
    return [_without(one, frozenset(facts["unsupported"])) for one in found]


def _refuse_same_names(options: Iterable[str], dimensions: Sequence[Dimension]) -> None:
    """Raise :class:`.DescriptionError` for an option with the name of a dimension of the kit: rows would mix them."""
    names = [one.name for one in dimensions]
    for name in options:
        if names.count(name) > 1:
            msg = f"options: the kit has a dimension {name!r} of its own; rename the option"
            raise DescriptionError(msg)


def _refuse_unknown(words: Sequence[str], dimensions: Sequence[Dimension]) -> None:
    """Raise :class:`.DescriptionError` for a word that names no value: it would withhold nothing."""
    known = {*_PHRASES, *_OPTIONAL_WORDS}
    known |= {word for one in dimensions for word in (one.name, *one.words)}
    for word in words:
        if word not in known:
            msg = f"unsupported: unknown value {word!r}; nearest: {nearest(word, known)}"
            raise DescriptionError(msg)


def _without(dimension: Dimension, unsupported: frozenset[str]) -> Dimension:
    first, *others = dimension.values
    kept = tuple(one for one in others if one.word not in unsupported and dimension.name not in unsupported)
    return Dimension(name=dimension.name, description=dimension.description, values=(first, *kept))


def rows_of(dimensions: Sequence[Dimension], profile: str) -> dict[str, Words]:
    """Return the rows of a profile by name.

    Quick has the plain row, a row for each value of the stage's own options, and rows with the other values, each value
    once, on the smallest mesh. Standard adds rows with every pair of values, on all meshes.
    """
    quick = _quick(dimensions)
    if profile == "quick":
        return quick
    rows = array(dimensions, _CONSTRAINTS, list(quick.values()))
    more = named(dimensions, rows[len(quick) :])
    return {**quick, **{f"pairs-{name}": row for name, row in more.items()}}


def _quick(dimensions: Sequence[Dimension]) -> dict[str, Words]:
    plain = tuple(one.values[0].word for one in dimensions)
    found = {"plain": plain}
    fixed = {"order", "output_grads", "weights", "before", "memory"}
    space = Space(dimensions, _CONSTRAINTS)
    own = [place for place, one in enumerate(dimensions) if one.name not in {*fixed, "mesh"}]
    for place in own:
        for one in dimensions[place].values[1:]:
            found[one.word] = (*plain[:place], one.word, *plain[place + 1 :])
    others = [[(place, one.word) for one in dimensions[place].values[1:]] for place in range(len(plain))
              if dimensions[place].name in fixed]  # fmt: skip
    left = [[one for one in column if one is not None] for column in zip_longest(*others)]
    for number, held in enumerate(left, 1):
        for place, word in _fitting(space, held):
            found[f"mixed-{number}" if place == 0 else f"mixed-{number}-{place}"] = word
    return found


def _fitting(space: Space, held: Sequence[tuple[int, str]]) -> list[tuple[int, Words]]:
    """Return the fewest rows that have the held values; values that exclude each other are in separate rows."""
    rows: list[dict[int, str]] = []
    for place, word in held:
        home = next((row for row in rows if space.row_with({**row, place: word}) is not None), None)
        if home is None:
            rows.append({place: word})
        else:
            home[place] = word
    found = [space.row_with(row) for row in rows]
    return [(number, row) for number, row in enumerate(found) if row is not None]


def settings(dimensions: Sequence[Dimension], row: Words) -> list[Value]:
    """Return the values of a row."""
    return [one.value(word) for one, word in zip(dimensions, row, strict=True)]
