"""How a single operation of a device is judged: what real devices were once accused of wrongly, and what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradconform.contract import checks_of
from gradconform.devices import tensor_facts
from gradconform.devices.device import denormals_as
from gradconform.judge.kernel_results import difference
from gradconform.judge.slopes import another_backward
from gradconform.judge.term_sizes import _absolute_terms
from gradconform.trial.materials import Materials

SUM = torch.ops.aten.sum.dim_IntList


def seen(func: Callable[..., Any], args: Sequence[Any], got: Any) -> str | None:
    """Return how a device that gave ``got`` differs, or None."""
    return difference(func, (tuple(args), {}), func(*args), got)


def test_a_sum_with_cancelling_terms_is_judged_by_its_terms() -> None:
    terms = torch.tensor([[0.25, 3.0, -3.25, 7.4505806e-09]])
    args = (terms, [1])
    assert seen(SUM, args, SUM(*args) + 8.9e-9) is None  # as an H100 adds in another order
    assert seen(SUM, args, SUM(*args) + 1e-3) is not None


def test_a_convolution_with_cancelling_terms_is_judged_by_its_terms() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 64, 9), torch.randn(3, 64, 3)
    weight[:, 32:] = weight[:, :32]
    x[:, 32:] = -x[:, :32]  # all terms cancel
    found = F.conv1d(x, weight)
    assert difference(F.conv1d, ((x, weight), {}), found, found + 1e-5) is None
    assert difference(F.conv1d, ((x, weight), {}), found, found + 1e-1) is not None


ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("func", "args", "rounding"),
    [
        (
            ATEN._softmax_backward_data,
            (torch.ones(4, 64), torch.softmax(torch.randn(4, 64), 1), 1, torch.float32),
            1e-8,
        ),
        (ATEN.addmm, (torch.full((4, 4), 64.0), torch.ones(4, 64), torch.ones(64, 4)), 1e-5),
        (ATEN.var, (torch.randn(4, 64) + 1000, [1]), 1e-4),
    ],
    ids=["softmax backward", "addmm", "var"],
)
def test_cancelling_results_are_judged_relative_to_the_arguments(
    func: Callable[..., Any], args: tuple[Any, ...], rounding: float
) -> None:
    options: dict[str, Any] = {"alpha": -1} if func is ATEN.addmm else {}
    exact = func(*[one.double() if isinstance(one, Tensor) else one for one in args], **options).float()
    assert difference(func, (args, options), exact, exact + rounding) is None
    assert difference(func, (args, options), exact, exact + 1e4 * rounding) is not None


@pytest.mark.parametrize("func", [torch.exp, torch.nn.functional.gelu, torch.floor, torch.round, torch.tanh])
def test_a_wrong_function_is_not_excused_as_rounding_of_its_arguments(func: Callable[..., Tensor]) -> None:
    given = torch.tensor([-2.0, -0.5, 1.0, 2.0, 3.0])
    assert seen(func, (given,), func(given) * (1 + 2.0**-10) + 2.0**-10) is not None


@pytest.mark.parametrize(
    ("func", "arguments"),
    [
        (torch.mm, 2),
        (torch.mul, 2),
        (torch.addmm, 3),
        (torch.cumsum, 1),
        (torch.logsumexp, 1),
        (torch.exp, 1),
        (torch.sub, 2),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_only_an_operation_that_adds_products_has_terms(func: Callable[..., Tensor], arguments: int) -> None:
    torch.manual_seed(0)
    args: list[Any] = [torch.randn(4, 4) for _ in range(arguments)]
    dim = [1] if func in {torch.cumsum, torch.logsumexp} else []
    found = _absolute_terms(func, ((*args, *dim), {}), 0)
    assert (found is not None) == (func in {torch.mm, torch.mul, torch.addmm, torch.cumsum})


def test_sparse_results_are_compared_by_value_and_reported_with_numbers() -> None:
    one = torch.eye(3).mul(1 / 3).to_sparse()
    func = torch.ops.aten.add.Tensor
    args = (one, one)
    near = torch.eye(3).mul(2 / 3 * (1 + 1e-7)).to_sparse()
    assert seen(func, args, near) is None
    said = seen(func, args, torch.eye(3).to_sparse())
    assert said is not None
    assert said.compared_with("the CPU") == "at [0, 0] it gave 1, the CPU 0.666666687"


def test_a_product_flushed_to_zero_is_wrong_unless_the_device_flushes_denormals() -> None:
    one, other = torch.tensor([[1e-20, 1.0]]), torch.tensor([[1e-20], [3e-39]])
    args, zero = (one, other), torch.zeros(1, 1)
    assert seen(torch.mm, args, zero) is not None
    with denormals_as(flushed=True):
        flushed = torch.mm(one, other)
    if flushed.item() != 0.0:
        pytest.skip("this processor cannot flush denormals")
    assert difference(torch.mm, (args, {}), flushed, zero) is None


@pytest.mark.parametrize("before", [False, True])
def test_the_flush_setting_is_restored_after_the_block(*, before: bool) -> None:
    if before and not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        with denormals_as(flushed=True):
            pass
        assert ((torch.tensor(1e-20) * 1e-20).item() == 0.0) == before
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("check", ["space.split.one-element-1", "space.split.one-by-one-1"])
def test_parameters_with_shared_memory_do_not_make_a_dropout_wrong(check: str) -> None:
    (trial,) = checks_of()[check].trials
    # The mask of seed 0 keeps the parameters' part, that of seed 1 drops it, as an H100's mask and the CPU's did.
    device, cpu = (Materials(trial, dtype=torch.float32, device=torch.device("cpu"), seed=seed) for seed in (0, 1))
    assert another_backward(device, cpu) is None


@pytest.mark.parametrize("check", ["split.gradients.mlp", "space.split.one-element-1", "full.gradients.dropout"])
def test_random_operations_are_judged_without_tensor_addresses(monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    monkeypatch.setattr(tensor_facts, "address_of", lambda _: None)
    (trial,) = checks_of()[check].trials
    device, cpu = (Materials(trial, dtype=torch.float32, device=torch.device("cpu"), seed=seed) for seed in (0, 1))
    assert another_backward(device, cpu) is None
