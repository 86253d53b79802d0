"""Image models as stages: built small if their constructors allow it, with images of a size that they accept."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .error import StageError
from .example import required
from .libraries import Part
from .small_models import SMALLER, Rule, for_images, smaller

_ROWS = 2

#: Sides of images, and how many a video has. In those of a small model two by two are left where it halves five times.
_SMALL, _SMALL_FRAMES = (64, 128, 224), 8
_FULL, _FULL_FRAMES = (224, 256, 299), 16


def model_of_images(
    make: Callable[[], nn.Module],
    builder: Callable[..., Any],
    description: str,
    *,
    small: bool,
    sides: tuple[int, ...] = _FULL,
) -> Part:
    """Return a model as one stage, with images of the first accepted size; of ``sides`` for a large model.

    ``builder`` is the library's function that ``make`` calls, which shows the model's class. Raises :class:`StageError`
    for a model that accepts no size.
    """
    kind = (_returned(builder) or type(make())) if small else None
    shrunk = [(rules, side, _SMALL_FRAMES) for rules in SMALLER for side in _SMALL] if small else []
    for rules, side, frames in (*shrunk, *(({}, side, _FULL_FRAMES) for side in sides)):
        fitting = {**rules, **for_images(side, frames)}

        def build(fitting: Mapping[str, Rule] = fitting) -> nn.Module:
            with smaller(kind, fitting):
                return make()

        try:
            module = build()
            example = _example(module, side, frames)
            _run(module, example)
        except Exception as error:  # noqa: BLE001 (whatever it raises, this is not what it takes)
            failed = error
        else:
            return "", build, example
    msg = f"{description} fails with images of {', '.join(map(str, sides))} pixels: {type(failed).__name__}: {failed}"
    raise StageError(msg) from failed


def _returned(builder: Callable[..., Any]) -> type[nn.Module] | None:
    """Return the annotated module class of a function's result."""
    try:
        kind = typing.get_type_hints(builder).get("return")
    except (NameError, TypeError):
        return None
    return kind if isinstance(kind, type) and issubclass(kind, nn.Module) else None


def _example(module: nn.Module, side: int, frames: int) -> tuple[Tensor, ...]:
    """Return an image or a video for each argument of the model's forward."""
    convolutions = (one for one in module.modules() if isinstance(one, (nn.Conv2d, nn.Conv3d)))
    of_videos = isinstance(next(convolutions, None), nn.Conv3d)
    shape = (_ROWS, 3, *((frames,) if of_videos else ()), side, side)
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) for _ in required(module))


def _run(module: nn.Module, example: tuple[Tensor, ...]) -> None:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module.train()(*example)
