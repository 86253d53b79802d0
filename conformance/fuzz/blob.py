"""Blobs: one random trial as a short text that can be pasted into a command, and read again without running code."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import asdict
from typing import Any

from gradconform.fixtures.inputs import Constant, Input, Integers, Mask, Normal, ParameterNamed, SameAs
from gradconform.fixtures.random_stages import Line, Recipe, Weight, recipe_of, stage_of
from gradconform.program import parse
from gradconform.trial import Trial

_INPUTS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Normal, Integers, Mask, Constant, SameAs, ParameterNamed)
}

#: The fields of a trial that a blob holds, where they are not the default.
_OPTIONS = ("loss", "output_grads", "prior_grads", "same_args")


class BlobError(ValueError):
    """A text that is no blob."""


def to_blob(trial: Trial) -> str:
    """Return a random trial of one stage as text; raise ``ValueError`` where the stage is none of a recipe."""
    recipe = recipe_of(trial.stages[0])
    if recipe is None:
        msg = f"the stage {trial.stages[0].name!r} has no recipe; expected a random stage"
        raise ValueError(msg)
    values: dict[str, Any] = {name: getattr(trial, name) for name in _OPTIONS if getattr(trial, name)}
    values |= {"program": trial.program, "watch": sorted(trial.watch)}
    values |= {
        "inputs": [[type(one).__name__, asdict(one)] for one in recipe.inputs],
        "weights": [[weight.name, weight.shape, weight.frozen] for weight in recipe.weights],
        "lines": [[line.targets, line.operation, line.sources] for line in recipe.lines],
        "outputs": recipe.outputs,
        "form": recipe.form,
    }
    packed = zlib.compress(json.dumps(values, separators=(",", ":")).encode(), 9)
    return base64.urlsafe_b64encode(packed).decode()


def from_blob(text: str) -> Trial:
    """Return the trial that :func:`to_blob` wrote; raise :class:`BlobError` for any other text."""
    try:
        values = json.loads(zlib.decompress(base64.urlsafe_b64decode(text.strip())))
        recipe = Recipe(
            tuple(_input(name, fields) for name, fields in values.pop("inputs")),
            tuple(Weight(name, tuple(shape), frozen) for name, shape, frozen in values.pop("weights")),
            tuple(
                Line(tuple(targets), operation, tuple(sources)) for targets, operation, sources in values.pop("lines")
            ),
            tuple(values.pop("outputs")),
            values.pop("form"),
        )
        parse(values["program"])
        return Trial(stages=(stage_of(recipe),), watch=frozenset(values.pop("watch")), **values)
    except (ValueError, zlib.error, LookupError, TypeError, AttributeError) as error:
        msg = f"{text[:40]!r} is no blob of a trial ({error}); expected what 'gradconform fuzz' printed, in full"
        raise BlobError(msg) from error


def _input(name: str, fields: dict[str, Any]) -> Input:
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    made: Input = _INPUTS[name](**given)
    return made
