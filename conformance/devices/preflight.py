"""A device's pre-flight: conditions without which its gradients say nothing about an implementation.

A line that does not hold is a fault of the device and is never charged to the implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from gradconform.requirements.clause import Clause, register

from .copies import wrong_copies
from .device import Device
from .probe import WrongAnswerError

#: A line: its docstring is the requirement; the function raises if the device does not meet it.
Line = Callable[[Device], None]
#: In the order of the report, keyed by requirement. Mixing and index lines do not apply to the CPU.
PREFLIGHT: dict[Clause, Line] = {}


def _wrong(what: str) -> NoReturn:
    raise WrongAnswerError(what)


def _is_refused(device: Device, operation: Callable[..., Tensor], *args: Tensor) -> bool:
    """Return whether an operation raises, at once or when its result is read; each backend refuses in its own way."""
    try:
        device.to_cpu(operation(*args))
    except Exception:  # noqa: BLE001 (as said above)
        return True
    return False


def _put(device: Device, values: Tensor) -> Tensor:
    return values.to(device.torch_device)


def _want(device: Device, got: Tensor, wanted: Any) -> None:
    seen = device.to_cpu(got).tolist()
    if seen != wanted:
        _wrong(f"expected {wanted}, got {seen}")


@register(PREFLIGHT, "preflight.copy_is_bitwise")
def copy_is_bitwise(device: Device) -> None:
    """Copying to the device and back MUST give the same bits."""
    values = torch.tensor([float("inf"), -float("inf"), -0.0, 1e-40, 1.0 + 2**-23, 3.4e38])
    back = device.to_cpu(_put(device, values))
    if back.dtype != values.dtype or back.view(torch.int32).tolist() != values.view(torch.int32).tolist():
        _wrong(f"{values.tolist()} came back as {back.tolist()} in {back.dtype}")
    if not torch.isnan(device.to_cpu(_put(device, torch.tensor([float("nan")])))).all():
        _wrong("NaN came back as a number")
    whole = torch.tensor([0, -1, 2**40 + 1])
    _want(device, _put(device, whole), whole.tolist())


@register(PREFLIGHT, "preflight.index_is_kept")
def index_is_kept(device: Device) -> None:
    """A tensor, its results and their gradients MUST stay on the index that was named."""
    x = torch.ones(2, device=device.torch_device, requires_grad=True)
    y = x * 2
    y.sum().backward()
    places = [tensor.device for tensor in (x, y, x.grad, _put(device, torch.ones(1))) if tensor is not None]
    named = device.torch_device
    strayed = [place for place in places if place.type != named.type or named.index not in {None, place.index}]
    if strayed:
        _wrong(f"found on {', '.join(map(str, strayed))}")


@register(PREFLIGHT, "preflight.view_writes_through")
def view_writes_through(device: Device) -> None:
    """Writing through a view MUST change the viewed tensor."""
    whole = _put(device, torch.zeros(3, 2))
    whole[1].fill_(3.0)
    whole.t()[0, 2] = 5.0
    _want(device, whole, [[0.0, 0.0], [3.0, 3.0], [5.0, 0.0]])


@register(PREFLIGHT, "preflight.strided_is_read")
def strided_is_read(device: Device) -> None:
    """A transposed or strided tensor MUST be read by its strides."""
    whole = _put(device, torch.arange(6.0).reshape(2, 3))
    _want(device, whole.t().contiguous(), [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]])
    _want(device, whole.t() @ whole, [[9.0, 12.0, 15.0], [12.0, 17.0, 22.0], [15.0, 22.0, 29.0]])
    _want(device, whole[:, ::2] + 1, [[1.0, 3.0], [4.0, 6.0]])


@register(PREFLIGHT, "preflight.view_is_copied")
def view_is_copied(device: Device) -> None:
    """A copy of a view, or into one, MUST have the view's elements."""
    found = wrong_copies(device.torch_device, device.copied)
    if found:
        _wrong("; ".join(f"copied {way}, {what}" for way, what in found.items()))


@register(PREFLIGHT, "preflight.conj_and_neg_views_are_read")
def conj_and_neg_views_are_read(device: Device) -> None:
    """A view with the conjugate or the negative bit MUST be read with that bit applied."""
    whole = _put(device, torch.tensor([1.0 + 2.0j, 3.0 - 4.0j]))
    conjugate, negative = whole.conj(), whole.conj().imag
    seen = {
        "a conjugate view that was copied": (conjugate, [1.0 - 2.0j, 3.0 + 4.0j]),
        "a conjugate view that was resolved": (conjugate.resolve_conj(), [1.0 - 2.0j, 3.0 + 4.0j]),
        "a product of a conjugate view": (conjugate * 1, [1.0 - 2.0j, 3.0 + 4.0j]),
        "a negative view that was copied": (negative, [-2.0, 4.0]),
        "a negative view that was resolved": (negative.resolve_neg(), [-2.0, 4.0]),
        "a sum of a negative view": (negative + 1, [-1.0, 5.0]),
    }
    for what, (got, wanted) in seen.items():
        found = device.to_cpu(got).tolist()
        if found != wanted:
            _wrong(f"{what}: expected {wanted}, got {found}")


@register(PREFLIGHT, "preflight.clone_is_apart")
def clone_is_apart(device: Device) -> None:
    """A clone MUST have its own memory."""
    whole = _put(device, torch.ones(3))
    whole.clone().add_(1)
    _want(device, whole, [1.0, 1.0, 1.0])


@register(PREFLIGHT, "preflight.second_backward_accumulates")
def second_backward_accumulates(device: Device) -> None:
    """A second backward MUST add to `.grad`."""
    weight = _put(device, torch.ones(3)).requires_grad_()
    (weight * 2).sum().backward()
    (weight * 3).sum().backward()
    if weight.grad is None:
        _wrong("`.grad` is None")
    _want(device, weight.grad, [5.0, 5.0, 5.0])


@register(PREFLIGHT, "preflight.requires_grad_survives")
def requires_grad_survives(device: Device) -> None:
    """Moving a module or a tensor MUST keep requires_grad and the graph."""
    module = nn.Linear(2, 2).to(device.torch_device)
    if not all(p.requires_grad and p.is_leaf for p in module.parameters()):
        _wrong("a parameter of the moved module is not a leaf that requires a gradient")
    if not module(_put(device, torch.ones(1, 2))).requires_grad:
        _wrong("the output of the module that was moved requires no gradient")
    leaf = torch.ones(2, requires_grad=True)
    (leaf.to(device.torch_device) * 3).sum().backward()
    if leaf.grad is None or leaf.grad.tolist() != [3.0, 3.0]:
        _wrong(f"a leaf on the CPU got {leaf.grad} through its copy on the device, expected [3.0, 3.0]")


@register(PREFLIGHT, "preflight.version_is_counted")
def version_is_counted(device: Device) -> None:
    """A backward MUST notice an in-place change of a tensor that it needs."""
    leaf = _put(device, torch.ones(3)).requires_grad_()
    output = leaf.exp()
    output.add_(1)
    try:
        output.sum().backward()
    except RuntimeError:
        return
    _wrong("the backward went through")


@register(PREFLIGHT, "preflight.mixing_is_refused")
def mixing_is_refused(device: Device) -> None:
    """Adding or multiplying a tensor on the CPU and one on the device MUST be refused."""
    ours, theirs = _put(device, torch.ones(2, 2)), torch.ones(2, 2)
    for name, operation in (("a sum", torch.add), ("a matrix product", torch.matmul)):
        if not _is_refused(device, operation, ours, theirs):
            _wrong(f"{name} gave a result")


#: The lines that make no value wrong if they do not hold: the kit itself never mixes devices.
TOLERATED = frozenset({mixing_is_refused})


@register(PREFLIGHT, "preflight.seeding_reproduces")
def seeding_reproduces(device: Device) -> None:
    """The same seed MUST give the same random numbers and dropout, and another seed others."""
    first, again, other = (_drawn(device, seed) for seed in (7, 7, 8))
    if first != again:
        _wrong("two draws after the same seed differ")
    if first == other:
        _wrong("two seeds gave the same draws")


def _drawn(device: Device, seed: int) -> list[list[float]]:
    device.seed(seed)
    ones = torch.ones(64, device=device.torch_device)
    draws = (torch.rand(8, device=device.torch_device), torch.dropout(ones, 0.5, train=True))
    return [device.to_cpu(draw).tolist() for draw in draws]


class _RaisedError(Exception):
    """The error that :func:`backward_raises` raises in a backward."""


#: The number of errors raised in backwards, one after the other.
_RAISED = 3


def backward_raises(device: Device) -> bool:
    """Return whether a hook's error leaves the backward every time; it may end the process.

    Autograd's thread for the device ends the process, perhaps a moment later. So after each error, another backward
    that raises none uses that thread. A thread that loses errors does not end the process about once in a hundred times
    (``run_backward returned NULL without setting an exception``), so the other errors are still raised.
    """
    came_out = [_comes_out(device) for _ in range(_RAISED)]
    return all(came_out)


def _comes_out(device: Device) -> bool:
    leaf = _put(device, torch.ones(2)).requires_grad_()
    output = leaf * 2
    output.register_hook(_raised)
    try:
        output.sum().backward()
    except _RaisedError:
        came_out = True
    except Exception:  # noqa: BLE001 (the checks that need it report others)
        came_out = False
    else:
        came_out = False
    (_put(device, torch.ones(2)).requires_grad_() * 2).sum().backward()
    return came_out


def _raised(grad: Tensor) -> NoReturn:
    raise _RaisedError(grad)


def draws_as_the_cpu(device: Device) -> bool:
    """Return whether dropout with one seed drops the same elements as on the CPU."""
    cpu = Device("cpu")
    return all(_drawn(device, seed) == _drawn(cpu, seed) for seed in (7, 8))


def replaces_data(device: Device) -> bool:
    """Return whether a parameter has the values of ``tensor`` after ``parameter.data = tensor``.

    Torch replaces only the ``TensorImpl``. A wrapper subclass keeps the tensor that it wraps, and so its old values.
    """
    parameter = nn.Parameter(_put(device, torch.ones(3)))
    parameter.data = _put(device, torch.full((3,), 5.0))
    return bool(device.to_cpu(parameter.detach()).tolist() == [5.0, 5.0, 5.0])
