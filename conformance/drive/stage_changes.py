"""Changes to a stage between actions, as an optimizer makes them: new parameter values and new gradient tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from gradconform.devices.tensor_facts import without_repeats
from gradconform.fixtures.inputs import arrange

#: The factor for every parameter: exact in every dtype, so it adds no error to a gradient.
FACTOR = -0.5


def change_in_place(stage: nn.Module) -> None:
    """Change every parameter in place, as an optimizer does."""
    with torch.no_grad():
        for parameter in stage.parameters():
            parameter.mul_(FACTOR)


def replace_data(stage: nn.Module) -> None:
    """Give every parameter other memory with changed values, as a loaded or gathered parameter has."""
    for parameter in stage.parameters():
        parameter.data = parameter.data * FACTOR


def rebind_parameters(stage: nn.Module) -> None:
    """Replace every parameter by a new one with changed values and without a gradient."""
    made: dict[int, nn.Parameter] = {}
    for module in stage.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(parameter.detach() * FACTOR, parameter.requires_grad)
            setattr(module, name, made[id(parameter)])


def tie(stage: nn.Module, first: nn.Module, names: Iterable[str]) -> None:
    """Replace the parameters ``names`` of ``stage`` by those of ``first``."""
    for name in names:
        owner, _, own = name.rpartition(".")
        setattr(stage.get_submodule(owner), own, first.get_parameter(name))


def restride_grads(stage: nn.Module) -> None:
    """Replace every gradient by one with other strides: transposed, or with gaps in one dimension."""
    for parameter in stage.parameters():
        grad = parameter.grad
        if grad is not None and grad.layout is torch.strided:
            parameter.grad = arrange(grad.detach(), "transposed" if grad.dim() > 1 else "strided", grad.device)


def into_bucket(stage: nn.Module) -> None:
    """Make every gradient a view of one flat buffer per dtype, zeros for a missing one, as a wrapper's bucket does."""
    held = [p for p in stage.parameters() if p.requires_grad and (p.grad is None or p.grad.layout is torch.strided)]
    for dtype in {parameter.dtype for parameter in held}:
        own = [parameter for parameter in held if parameter.dtype is dtype]
        flat = torch.zeros(sum(parameter.numel() for parameter in own), dtype=dtype, device=own[0].device)
        for parameter, part in zip(own, flat.split([one.numel() for one in own]), strict=True):
            parameter.grad = _filled(part.view(parameter.shape), parameter.grad)


def _filled(view: Tensor, grad: Tensor | None) -> Tensor:
    return view if grad is None else view.copy_(grad.detach())


#: The changes of a stage, by the word of a program.
CHANGES = {
    "step": change_in_place,
    "replace": replace_data,
    "rebind": rebind_parameters,
    "restride": restride_grads,
    "bucket": into_bucket,
}


def write_over(tensor: Tensor) -> None:
    """Write another number into every element, as the owner of a tensor may; a sparse tensor is not changed."""
    if tensor.layout != torch.strided:
        return
    with torch.no_grad():
        without_repeats(tensor.detach()).fill_(7)
