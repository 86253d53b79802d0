"""Single kernels in other layouts of their arguments: what is tried, what counts as a difference, what accuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from gradconform.devices.device import device_of
from gradconform.fixtures.inputs import arrange
from gradconform.fixtures.operations.sample_tensor import laid_out_alike
from gradconform.judge.kernel_call import KernelCall, kept
from gradconform.judge.layouts import LAYOUTS, LayoutsTried
from gradconform.judge.operation_layouts import _ways
from gradconform.judge.rounding import shrinks

from .planted import as_if_contiguous, planted

CPU = torch.device("cpu")
TANH = torch.ops.aten.tanh_backward.default


def tried(func: Callable[..., Any], *args: Any) -> LayoutsTried:
    log = LayoutsTried(device_of("cpu"), each=True, known=set())
    with log:
        func(*args)
    assert log.failed is None
    return log


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_arranged_tensor_has_the_same_values_in_another_layout(layout: str) -> None:
    values = torch.randn([2, 3, 4, 5, 6][: max(3, min(LAYOUTS[layout][-1], 5))])
    found = arrange(values, layout, CPU)
    assert torch.equal(found, values)
    assert (found.stride(), found.storage_offset()) != (values.stride(), 0)


@pytest.mark.parametrize("copied", [kept, partial(laid_out_alike, device=CPU)])
def test_gaps_between_copied_indices_are_zero(copied: Callable[[Tensor], Tensor]) -> None:
    index = torch.arange(10).view(5, 2)[:, 0]
    for _ in range(9):  # torch.empty_strided gets memory that was used before
        torch.full((9,), 2**40)
        found = copied(index)
        assert (found.tolist(), found.stride()) == ([0, 2, 4, 6, 8], (2,))
        assert found.as_strided((4,), (2,), 1).tolist() == [0] * 4


def test_running_a_kernel_call_does_not_change_its_written_arguments() -> None:
    written = torch.ones(2, 3)
    call = KernelCall(torch.ops.aten.mul_.Tensor, (written, torch.full((2, 3), 2.0)), {})
    assert [one.written for one in call.arguments] == [True, False]
    found = call.run()
    assert found is not None
    assert torch.equal(found[0], torch.full((2, 3), 2.0))
    assert torch.equal(written, torch.ones(2, 3))


def test_an_in_place_kernel_is_tried_too() -> None:
    log = tried(torch.ops.aten.mul_.Tensor, torch.randn(3, 4), torch.randn(3, 4))
    assert log.fault is None
    assert log.calls == 6


def test_a_kernel_that_ignores_strides_is_reported_with_the_argument() -> None:
    def wrong(grad: Tensor, output: Tensor) -> Tensor:
        return grad * (1 - as_if_contiguous(output).square())

    with planted("tanh_backward", wrong):
        log = tried(TANH, torch.randn(3, 4), torch.randn(3, 4))
    assert log.fault is not None
    assert (log.fault.kernel, log.fault.argument) == ("aten::tanh_backward", "argument 1 (output)")
    assert log.fault.ignored
    assert not log.fault.by_autograd


def test_a_nondeterministic_kernel_is_not_reported_as_wrong() -> None:
    def noisy(grad: Tensor, output: Tensor) -> Tensor:
        return grad * output * torch.rand_like(grad)

    with planted("tanh_backward", noisy):
        log = tried(TANH, torch.randn(3, 4), torch.randn(3, 4))
    assert log.fault is None
    assert log.not_tried["it gives other values each time"] == {"aten::tanh_backward"}


def test_a_kernel_that_refuses_a_layout_is_not_reported_as_wrong() -> None:
    def strict(grad: Tensor, output: Tensor) -> Tensor:
        if not grad.is_contiguous():
            msg = "grad must be contiguous"
            raise RuntimeError(msg)
        return grad * (1 - output * output)

    with planted("tanh_backward", strict):
        log = tried(TANH, torch.randn(3, 4), torch.randn(3, 4))
    assert log.fault is None
    assert log.not_tried["it raises for a layout"] == {"aten::tanh_backward"}


@pytest.mark.parametrize(
    ("func", "args", "why"),
    [
        (torch.ops.aten.t.default, (torch.ones(2, 3),), "a view, random, or of memory alone"),
        (torch.ops.aten.bernoulli.default, (torch.full((3,), 0.5),), "a view, random, or of memory alone"),
        (torch.ops.aten.as_strided_copy.default, (torch.ones(6), [2], [1], 1), "its arguments name a place in memory"),
        (torch.ops.aten.sin.default, (torch.ones(()),), "no tensor with two elements or more"),
    ],
    ids=["view", "random", "place", "number"],
)
def test_layout_dependent_operations_are_not_tried_and_the_reason_is_reported(
    func: Callable[..., Any], args: tuple[Any, ...], why: str
) -> None:
    log = tried(func, *args)
    assert log.calls == 0
    assert list(log.not_tried) == [why]


@pytest.mark.parametrize(
    ("error", "again", "dtype", "other", "expected"),
    [
        (2.5e-8, 3e-16, torch.float32, torch.float64, True),
        (0.5, 0.5, torch.float32, torch.float64, False),
        (3e-16, 2.5e-8, torch.float64, torch.float32, True),
        (0.5, 0.5, torch.float64, torch.float32, False),
        (0.01, 2e-16, torch.bfloat16, torch.float64, True),
    ],
)
def test_the_rounding_bound_shrinks_with_eps(
    error: float, again: float, dtype: torch.dtype, other: torch.dtype, *, expected: bool
) -> None:
    assert shrinks(error, again, dtype, other) is expected


def test_layouts_that_no_argument_can_have_are_skipped_and_all_others_run_once() -> None:
    matrix, gradient = torch.ones(2, 3), torch.ones(2, 3, 4, 5)
    layouts = [way[0].args[0] for way in _ways([matrix], [matrix]) if isinstance(way[0], partial)]
    assert layouts == ["offset", "strided", "transposed"]
    more = [way[0].args[0] for way in _ways([matrix], [gradient]) if isinstance(way[0], partial)]
    assert more == ["offset", "strided", "transposed", "reversed", "channels_last"]
    assert len(list(_ways([torch.ones(())], [torch.ones(())]))) == 1  # as it was drawn
    single = [way[0].args for way in _ways([matrix, torch.ones(1), matrix], []) if isinstance(way[0], partial)]
    assert single[3:] == [("strided", 0), ("strided", 2)]
