"""Tests capabilities that nobody claimed explicitly, by running functions on one Linear."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from gradconform.process.forks import OneProcess
from gradconform.process.interrupts import pass_on_an_interrupt

Function = Callable[..., Any]
#: Runs B, or I and W, from a root with its gradient, for one input of a stage.
Way = Callable[[object, Tensor, Tensor, nn.Module], Any]

#: How near a gradient must be to the right one to count as a claim: wide enough for the rounding of any dtype.
_NEAR = 0.05


def shown_by_split(split: tuple[Function, Function], device: torch.device, dtype: torch.dtype) -> dict[str, bool]:
    """Return whether ``param_groups`` and ``weight_result`` are met; nothing if I or W raises."""
    stage, arg = _linear(device, dtype)
    try:
        output = stage(arg)
        with OneProcess():
            _, context = split[0]((output,), (torch.ones_like(output),), [arg], stage.parameters())
            groups = _is_param_groups(context)
            result = split[1](stage.parameters(), context)
    except BaseException as error:  # noqa: BLE001 (the checks meet and report every error)
        pass_on_an_interrupt(error)
        return {}
    return {"param_groups": groups, "weight_result": isinstance(result, (tuple, list))}


def takes_edges(
    full: Function | None, split: tuple[Function, Function] | None, device: torch.device, dtype: torch.dtype
) -> bool:
    """Return whether the available ones of B, and I with W, give right gradients for an edge instead of the output.

    Functions from before torch 2.15 raise there, or read it as an output that needs no gradient.
    """
    ways = [*([_by_full(full)] if full else []), *([_by_split(*split)] if split else [])]
    try:
        with OneProcess():
            return bool(ways) and all(_is_right(way, device, dtype) for way in ways)
    except BaseException as error:  # noqa: BLE001 (refusing an edge is not a mistake)
        pass_on_an_interrupt(error)
        return False


def _by_full(full: Function) -> Way:
    return lambda root, start, arg, _: full((root,), (start,), [arg])


def _by_split(input_pass: Function, weight_pass: Function) -> Way:
    def run(root: object, start: Tensor, arg: Tensor, stage: nn.Module) -> Any:
        given, context = input_pass((root,), (start,), [arg], stage.parameters())
        weight_pass(stage.parameters(), context)
        return given

    return run


def _is_right(way: Way, device: torch.device, dtype: torch.dtype) -> bool:
    stage, arg = _linear(device, dtype)
    output = stage(arg)
    edge, start = get_gradient_edge(output), torch.ones_like(output)
    wanted = torch.autograd.grad(output, (arg, *stage.parameters()), start, retain_graph=True)
    del output
    (given,) = way(edge, start, arg, stage)
    found = (given, *(parameter.grad for parameter in stage.parameters()))
    return all(_near(one, other) for one, other in zip(found, wanted, strict=True))


def _linear(device: torch.device, dtype: torch.dtype) -> tuple[nn.Linear, Tensor]:
    stage = nn.Linear(2, 2, device=device, dtype=dtype)
    return stage, torch.ones(3, 2, device=device, dtype=dtype, requires_grad=True)


def _near(found: object, wanted: Tensor) -> bool:
    return isinstance(found, Tensor) and torch.allclose(found, wanted, rtol=_NEAR, atol=_NEAR)


def _is_param_groups(context: object) -> bool:
    """Return whether a weight context has torch's form, so that one can be set by hand."""
    return isinstance(context, (list, tuple)) and bool(context) and all(map(_is_group, context))


def _is_group(group: object) -> bool:
    if not isinstance(group, Mapping) or not {"params", "intermediates", "grads"} <= group.keys():
        return False
    nodes = [*group["params"], *group["intermediates"]]
    return all(isinstance(node, Node) for node in nodes) and all(isinstance(grads, tuple) for grads in group["grads"])
