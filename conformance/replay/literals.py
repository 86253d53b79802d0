"""Values as Python text: tensors with all their digits, trees, arguments with their layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def literal(value: Any) -> str:
    """Return text that makes ``value`` again: a tensor, a tree of them, a number, a string or None."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, tuple):
        return "(" + "".join(f"{literal(one)}, " for one in value).rstrip() + ")"
    return repr(value)


def _tensor(tensor: Tensor) -> str:
    values = tensor.detach().cpu()
    made = f"torch.tensor({_numbers(values)}, dtype={values.dtype})"
    if 0 in values.shape:
        made = f"torch.empty({tuple(values.shape)}, dtype={values.dtype})"
    if not values.is_contiguous():
        made = f"torch.empty_strided({tuple(values.shape)}, {values.stride()}, dtype={values.dtype}).copy_({made})"
        if 0 in values.stride():
            made = f"{_tensor(values.reshape(-1)[:1].clone())}.reshape(()).expand({tuple(values.shape)})"
    on_device = made if tensor.device.type == "cpu" else f"{made}.to({str(tensor.device)!r})"
    return f"{on_device}.requires_grad_()" if tensor.requires_grad else on_device


def _numbers(values: Tensor) -> str:
    """Return the elements as nested lists; nine digits give a float32 again."""
    if values.dim():
        return "[" + ", ".join(map(_numbers, values)) + "]"
    number = values.item()
    return f"{number:.9g}" if values.dtype == torch.float32 else repr(number)


def arguments(args: tuple[Any, ...], stage: nn.Module) -> str:
    """Return text that makes the arguments of one forward, ``stage`` being the name of its module there.

    A parameter of the stage is named, and what is passed twice is the same object.
    """
    parameters = {id(parameter): name for name, parameter in stage.named_parameters()}
    lines: list[str] = []
    first: dict[int, int] = {}
    for place, arg in enumerate(args):
        if id(arg) in parameters and isinstance(arg, nn.Parameter):
            lines.append(f"    a{place} = stage.get_parameter({parameters[id(arg)]!r})")
        elif isinstance(arg, Tensor) and id(arg) in first:
            lines.append(f"    a{place} = a{first[id(arg)]}")
        else:
            lines.append(f"    a{place} = {literal(arg)}")
        first.setdefault(id(arg), place)
    names = "".join(f"a{place}, " for place in range(len(args))).rstrip()
    return "\n".join([*lines, f"    return ({names})"])


def state(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers that make ``module`` what it is, each once."""
    return {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}
