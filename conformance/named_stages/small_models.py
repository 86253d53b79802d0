"""Makes models small by their constructors' arguments: widths, heads, depths and image sizes."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from typing import Any

from torch import nn

#: Returns what takes the place of an argument of a constructor.
Rule = Callable[[Any], Any]


def _each(value: Any, rule: Callable[[int, int], Any]) -> Any:
    """Return the result of a rule for a number, or for each of several with its place; other values unchanged."""
    if type(value) is int:
        return rule(value, 0)
    if isinstance(value, (tuple, list)) and all(type(one) is int for one in value):
        return type(value)(rule(one, place) for place, one in enumerate(value))
    return value


def _at_most(value: Any, most: float) -> Any:
    return min(value, most) if type(value) is type(most) else value


def _width(value: Any, first: int) -> Any:
    """Return widths that double from stage to stage, as in most models."""
    return _each(value, lambda one, place: min(one, first * 2**place))


def _heads(value: Any) -> Any:
    """Return a power of two that divides a small width."""
    return _each(value, lambda one, _: 2 ** (min(one, 4).bit_length() - 1))


def _depth(value: Any) -> Any:
    """Return two layers for the first stage, so that one follows another, and one for each other stage."""
    return _each(value, lambda one, place: min(one, 1 if place else 2))


def _patch(value: Any) -> Any:
    return _each(value, lambda one, _: min(one, 8))


_DEPTHS: Mapping[str, Rule] = dict.fromkeys(
    ("depth", "depths", "layers", "num_layers", "num_blocks", "block_config", "block_layers", "stages_repeats"), _depth
)

_WIDTHS: Mapping[str, Rule] = {
    **dict.fromkeys(("embed_dim", "hidden_dim"), partial(_width, first=32)),
    **dict.fromkeys(("embed_dims", "dims", "channels", "block_channels"), partial(_width, first=16)),
    **dict.fromkeys(("stem_width", "num_init_features", "num_classes"), partial(_at_most, most=16)),
    **dict.fromkeys(("num_heads", "heads"), _heads),
    "mlp_dim": partial(_at_most, most=48),
    "growth_rate": partial(_at_most, most=8),
    "width_mult": partial(_at_most, most=0.25),
    "patch_size": _patch,
}

#: What is made smaller, the most first: the first that a model can be built and run with is taken.
SMALLER: tuple[Mapping[str, Rule], ...] = ({**_WIDTHS, **_DEPTHS}, _DEPTHS, {})

_IMAGES = ("img_size", "image_size", "input_size", "spatial_size")


def for_images(side: int, frames: int) -> Mapping[str, Rule]:
    """Return the rules of a constructor with arguments for the image size and the number of video frames."""
    fit = partial(_each, rule=lambda _, __: side)
    return {**dict.fromkeys(_IMAGES, fit), "temporal_size": partial(_at_most, most=frames)}


@contextlib.contextmanager
def smaller(kind: type[nn.Module] | None, rules: Mapping[str, Rule]) -> Iterator[None]:
    """Apply ``rules`` to the named arguments, with defaults, of a module class's constructor in a context.

    A library function that builds a model mostly passes fixed sizes to the class, and accepts no others.
    """
    owner, known = _constructor(kind, rules) if kind is not None else (None, None)
    if owner is None or known is None:
        yield
        return
    whole = vars(owner)["__init__"]

    @wraps(whole)
    def construct(*args: Any, **kwargs: Any) -> None:
        given = known.bind(*args, **kwargs)
        given.apply_defaults()
        for name, rule in rules.items():
            if name in given.arguments:
                given.arguments[name] = rule(given.arguments[name])
        whole(*given.args, **given.kwargs)

    owner.__init__ = construct
    try:
        yield
    finally:
        owner.__init__ = whole


def _constructor(kind: type[nn.Module], rules: Mapping[str, Rule]) -> tuple[Any, inspect.Signature] | tuple[None, None]:
    """Return the base class of ``kind`` whose constructor has an argument of ``rules``, and its signature."""
    for owner in kind.__mro__:
        if owner is not nn.Module and "__init__" in vars(owner):
            known = inspect.signature(vars(owner)["__init__"])
            if not rules.keys().isdisjoint(known.parameters):
                return owner, known
    return None, None
