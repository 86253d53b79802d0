"""The arguments of a stage as recipes: those of an example, or guessed from its first layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.fixtures.inputs import Constant, Input, Normal, Rows, SameAs

from .error import StageError

#: Rows of a batch, and positions of a sequence, without an example.
_ROWS, _POSITIONS, _PIXELS = 3, 6, 16


def recipes_of(example: Any, module: nn.Module, description: str) -> tuple[Input, ...]:
    """Return one recipe per positional argument of ``example``: a tuple, a mapping by name, or one tensor.

    Tensors of floating and complex dtypes are drawn again for each micro-batch, with the example's shape and layout.
    All require a gradient, or only those that do so in the example. Other tensors, and masks of floats with infinities,
    keep their rows in another order each time. Any other argument is passed unchanged.

    Raises :class:`StageError`, whose message begins with ``description``, for arguments that no stage receives.
    """
    args = _positional(example, module, description)
    flagged = any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
    found: list[Input] = []
    for index, arg in enumerate(args):
        first = next(position for position, other in enumerate(args) if other is arg)
        if first < index and isinstance(arg, Tensor):
            found.append(SameAs(first))
        else:
            found.append(_recipe(arg, description, index, flagged=flagged))
    return tuple(found)


def _recipe(arg: Any, description: str, index: int, *, flagged: bool) -> Input:
    if isinstance(arg, Tensor):
        needs = arg.is_floating_point() or arg.is_complex()
        if not needs or not bool(torch.isfinite(arg).all()):
            return Rows.of(arg)
        needs_grad = arg.requires_grad if flagged else True
        return Normal(tuple(arg.shape), needs_grad, _layout(arg), is_complex=arg.is_complex())
    if isinstance(arg, (tuple, list, set, Mapping)) and _holds_tensors(arg):
        msg = (
            f"{description}: argument {index} of its example is a {type(arg).__name__} of tensors; expected a tensor, "
            "number, string or None. A pipeline sends tensors from stage to stage; pass each tensor as its own argument"
        )
        raise StageError(msg)
    return Constant(arg)


def _holds_tensors(arg: Any) -> bool:
    inner = arg.values() if isinstance(arg, Mapping) else arg
    return any(isinstance(one, Tensor) or (isinstance(one, (tuple, list)) and _holds_tensors(one)) for one in inner)


def _layout(arg: Tensor) -> str:
    if arg.dim() == 4 and not arg.is_contiguous() and arg.is_contiguous(memory_format=torch.channels_last):  # noqa: PLR2004 (channels_last is of four dimensions)
        return "channels_last"
    transposed = arg.dim() > 1 and not arg.is_contiguous() and arg.transpose(-1, -2).is_contiguous()
    return "transposed" if transposed else "contiguous"


def _positional(example: Any, module: nn.Module, description: str) -> tuple[Any, ...]:
    """Return an example's arguments in the order of ``forward``."""
    if isinstance(example, Tensor):
        return (example,)
    if isinstance(example, (tuple, list)):
        return tuple(example)
    if not isinstance(example, Mapping):
        kind = type(example).__name__
        msg = f"{description}: its example is a {kind}; expected a tuple, a mapping by name, or one tensor"
        raise StageError(msg)
    try:
        bound = inspect.signature(module.forward).bind(**example)
    except TypeError as error:
        msg = f"{description}: its example does not fit its forward{inspect.signature(module.forward)}: {error}"
        raise StageError(msg) from error
    if bound.kwargs:
        msg = (
            f"{description}: its forward takes {', '.join(bound.kwargs)} by keyword only, but stages get arguments by "
            "position; wrap it in a module that takes them by position"
        )
        raise StageError(msg)
    return bound.args


def guessed(module: nn.Module, description: str) -> tuple[Any, ...]:
    """Return arguments that the first layer of ``module`` requires and that its forward accepts.

    Raises :class:`StageError` if they cannot be guessed, so that the user must give them.
    """
    wanted = required(module)
    tried = list(_candidates(module)) if len(wanted) == 1 else []
    for candidate in tried:
        if _takes(module, candidate):
            return (candidate,)
    why = f"its forward takes {', '.join(wanted) or 'no positional argument'}"
    if tried:
        why = f"its forward rejects the shapes {', '.join(str(tuple(one.shape)) for one in tried)}"
    msg = (
        f"{description} requires example arguments: {why}. Return (module, example_args) from the factory, or define "
        "example_args on the factory, its module or its file: a tuple of tensors, or a function that returns one"
    )
    raise StageError(msg)


def required(module: nn.Module) -> list[str]:
    """Return the names of the positional arguments that a module's forward requires."""
    return [
        name
        for name, one in inspect.signature(module.forward).parameters.items()
        if one.default is one.empty and one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD}
    ]


def _takes(module: nn.Module, candidate: Tensor) -> bool:
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            module(candidate)
    except Exception:  # noqa: BLE001 (whatever it raises, this is not what it takes)
        return False
    return True


def _candidates(module: nn.Module) -> Iterator[Tensor]:
    """Yield possible arguments of the first layer with parameters; of several shapes, the plainest last."""
    for layer in module.modules():
        shapes = _SHAPES.get(type(layer))
        if shapes is not None:
            yield from shapes(layer)
            return


def _wide(width: int) -> Iterator[Tensor]:
    yield torch.zeros(_ROWS, _POSITIONS, width)
    yield torch.zeros(_ROWS, width)


def _tokens(layer: Any) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    yield torch.randint(layer.num_embeddings, (_ROWS, _POSITIONS), generator=generator)


def _channels(layer: Any) -> Iterator[Tensor]:
    dimensions = len(layer.kernel_size)
    for size in (_PIXELS, 2 * _PIXELS, 4 * _PIXELS, 14 * _PIXELS):
        yield torch.zeros(_ROWS, layer.in_channels, *(size,) * dimensions)


def _normalized(layer: Any) -> Iterator[Tensor]:
    yield torch.zeros(_ROWS, _POSITIONS, *layer.normalized_shape)


#: What layers of torch are fed, by their class.
_SHAPES: dict[type, Callable[[Any], Iterator[Tensor]]] = {
    nn.Linear: lambda layer: _wide(layer.in_features),
    nn.Embedding: _tokens,
    nn.Conv1d: _channels,
    nn.Conv2d: _channels,
    nn.Conv3d: _channels,
    nn.LayerNorm: _normalized,
    nn.RMSNorm: _normalized,
    nn.RNN: lambda layer: _wide(layer.input_size),
    nn.GRU: lambda layer: _wide(layer.input_size),
    nn.LSTM: lambda layer: _wide(layer.input_size),
    nn.MultiheadAttention: lambda layer: _wide(layer.embed_dim),
    nn.TransformerEncoderLayer: lambda layer: _wide(layer.linear1.in_features),
}
