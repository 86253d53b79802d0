"""Each line of the pre-flight, and each dtype's trial, fails on the fault that it is there for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradconform.devices.device import Device
from gradconform.devices.dtypes import COMPLEX, DTYPES, product_keeps_digits, try_dtype
from gradconform.devices.preflight import (
    PREFLIGHT,
    backward_raises,
    clone_is_apart,
    conj_and_neg_views_are_read,
    copy_is_bitwise,
    draws_as_the_cpu,
    index_is_kept,
    mixing_is_refused,
    replaces_data,
    requires_grad_survives,
    second_backward_accumulates,
    seeding_reproduces,
    strided_is_read,
    version_is_counted,
    view_is_copied,
    view_writes_through,
)
from gradconform.devices.probe import Request, WrongAnswerError
from gradconform.devices.probe_questions import probe_here

CPU = Device("cpu")


class Faulty(TorchFunctionMode):
    """The CPU with some functions replaced: each gets the right one, and its arguments."""

    def __init__(self, replaced: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self._replaced = replaced

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call what stands for ``func``."""
        del types
        wrong = self._replaced.get(func)
        with torch._C.DisableTorchFunction():
            return wrong(func, *args, **(kwargs or {})) if wrong else func(*args, **(kwargs or {}))


def overwriting(func: Any, tensor: Tensor, *args: Any, **options: Any) -> None:
    for leaf in (node[0].variable for node in tensor.grad_fn.next_functions[0][0].next_functions if node[0]):  # type: ignore[union-attr] # None would fail the test
        leaf.grad = None
    func(tensor, *args, **options)


def hidden(func: Any, tensor: Tensor, *args: Any, **options: Any) -> None:
    try:
        func(tensor, *args, **options)
    except Exception as error:
        raise RuntimeError from error


def without_gaps(func: Any, tensor: Tensor) -> Tensor:
    """Copy the first elements in memory, whatever the strides are."""
    strides = torch.empty(tensor.shape, device="meta").stride()
    return func(tensor if 0 in tensor.stride() else tensor.as_strided(tensor.shape, strides))


#: By line: the functions that are replaced.
FAULTS: dict[Callable[[Device], None], Mapping[Any, Callable[..., Any]]] = {
    copy_is_bitwise: {Tensor.to: lambda f, x, *a: f(x, *a).where(x.abs() > 1e-38, 0) if x.is_floating_point() else x},
    index_is_kept: {torch.ones: lambda f, *a, **o: f(*a, **{**o, "device": "meta"})},
    view_writes_through: {Tensor.__getitem__: lambda f, *a: f(*a).clone()},
    strided_is_read: {Tensor.contiguous: lambda _, x: x.as_strided(x.shape, (x.shape[1], 1))},
    view_is_copied: {Tensor.cpu: without_gaps},
    conj_and_neg_views_are_read: {Tensor.mul: lambda f, x, y: f(x.conj() if x.is_conj() else x, y)},
    clone_is_apart: {Tensor.clone: lambda _, x: x},
    second_backward_accumulates: {Tensor.backward: overwriting},
    requires_grad_survives: {Tensor.to: lambda f, *a: f(*a).detach()},
    version_is_counted: {Tensor.add_: lambda _, x, value: x.data.add_(value)},
    mixing_is_refused: {},  # on the CPU nothing is mixed, so nothing is refused
    seeding_reproduces: {torch.rand: lambda f, *a, **o: f(*a, **o) + next(COUNTER)},
}
COUNTER = iter(range(100))


@pytest.mark.parametrize("line", PREFLIGHT.values(), ids=lambda line: line.__name__)
def test_a_pre_flight_line_passes_on_the_cpu_and_fails_with_its_fault(line: Callable[[Device], None]) -> None:
    if line is not mixing_is_refused:
        line(CPU)
    with Faulty(FAULTS[line]), pytest.raises((WrongAnswerError, RuntimeError)):  # torch itself may notice first
        line(CPU)


@pytest.mark.parametrize(
    ("replaced", "told"),
    [
        ({Tensor.resolve_conj: lambda _, x: x.conj()}, "a conjugate view that was resolved: expected"),
        ({Tensor.resolve_neg: lambda _, x: -x}, "a negative view that was resolved: expected"),
        ({Tensor.add: lambda f, x, y: f(-x if x.is_neg() else x, y)}, "a sum of a negative view: expected"),
    ],
)
def test_a_lost_bit_of_a_view_is_named(replaced: Mapping[Any, Callable[..., Any]], told: str) -> None:
    with Faulty(replaced), pytest.raises(WrongAnswerError, match=told):
        conj_and_neg_views_are_read(CPU)


def test_seed_seeds_only_the_module_of_the_device_and_the_cpu() -> None:
    device, seeds = Device("meta"), list[int]()
    vars(device)["_module"] = SimpleNamespace(manual_seed_all=seeds.append)
    torch.manual_seed(3)
    drawn = torch.rand(4)
    before = len(torch.cuda._queued_calls)  # torch.manual_seed would add a call of each kind of device
    device.seed(3)
    assert torch.equal(torch.rand(4), drawn)
    assert (seeds, len(torch.cuda._queued_calls)) == ([3], before)


def test_an_ignored_seed_is_found() -> None:
    with Faulty({torch.rand: lambda _, n, **o: torch.full((n,), 0.5, **o), torch.dropout: lambda _, x, *__, **___: x}):
        with pytest.raises(WrongAnswerError, match="two seeds gave the same draws"):
            seeding_reproduces(CPU)
        assert draws_as_the_cpu(CPU)  # the same mode replaces the CPU's draws


def test_the_cpu_has_every_dtype() -> None:
    (probed,) = probe_here(Request(type="cpu"))
    assert probed.dtypes == dict.fromkeys((*DTYPES, *COMPLEX), "")


def arriving_as(change: Callable[[Tensor], Tensor]) -> Mapping[Any, Callable[..., Any]]:
    """Change what is copied to a device, and leave casts alone."""
    return {Tensor.to: lambda f, x, to: change(f(x, to)) if isinstance(to, torch.device) else f(x, to)}


@pytest.mark.parametrize(
    ("replaced", "told"),
    [
        (arriving_as(Tensor.float), "a round trip silently became torch.float32"),
        (arriving_as(lambda x: x.float().double()), "a round trip is wrong"),
        ({Tensor.mul: lambda f, x, y: f(x.float(), y).double()}, r"x \* 1 is wrong"),
        ({Tensor.matmul: lambda f, x, y: f(x.float(), y.float())}, "a matrix product silently became torch.float32"),
        ({Tensor.matmul: lambda f, x, y: f(x, y.T)}, "a matrix product is wrong"),
        ({Tensor.backward: lambda *_, **__: None}, "no gradient came"),
    ],
    ids=["float32", "float32 in disguise", "narrow arithmetic", "narrow product", "wrong product", "no gradient"],
)
def test_a_float64_that_is_silently_another_dtype_is_found(
    replaced: Mapping[Any, Callable[..., Any]], told: str
) -> None:
    with Faulty(replaced), pytest.raises(WrongAnswerError, match=told):
        try_dtype(CPU, "float64")


def test_a_product_rounded_to_tf32_is_found() -> None:
    assert product_keeps_digits(CPU)
    with Faulty({Tensor.matmul: lambda f, x, y: f(x.bfloat16().float(), y)}):
        assert not product_keeps_digits(CPU)


def test_data_that_cannot_be_replaced_is_found() -> None:
    assert replaces_data(CPU)
    with Faulty({Tensor.data.__set__: lambda *_: None}):  # type: ignore[attr-defined] # a descriptor
        assert not replaces_data(CPU)


def test_an_exception_in_a_backward_must_arrive_unchanged() -> None:
    assert backward_raises(CPU)
    with Faulty({Tensor.backward: hidden}):
        assert not backward_raises(CPU)


def test_backward_errors_are_probed_again_after_one_is_lost() -> None:
    asked: list[Tensor] = []

    def lost_once(func: Any, tensor: Tensor, *args: Any, **options: Any) -> None:
        asked.append(tensor)
        try:
            func(tensor, *args, **options)
        except Exception as error:
            if len(asked) > 1:
                raise
            raise SystemError from error

    with Faulty({Tensor.backward: lost_once}):
        assert not backward_raises(CPU)
    assert len(asked) == 6  # three errors, and behind each what needs the same thread


def test_a_copy_to_the_cpu_that_ignores_strides_is_reported() -> None:
    with Faulty({Tensor.cpu: without_gaps}), pytest.raises(WrongAnswerError, match="copied to the CPU, every second"):
        view_is_copied(CPU)
