"""The oracle, asked directly: it gives what torch.autograd gives, and keeps and changes no more than that."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform.adapter import Adapter, StageSpec
from gradconform.adapter import Session as SessionProtocol
from gradconform.fixtures.stages import ZOO
from gradconform.reference.autograd import AutogradAdapter, AutogradSession, pair_roots
from gradconform.trees import as_tuple, leaves, tensors
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial

STAGES = (
    "mlp", "conv2d", "fused-qkv", "embedding", "embedding-sparse", "lstm", "tied-apart", "two-inputs", "unused-input",
    "two-outputs", "mask-output", "frozen-weight", "all-frozen", "parameter-input", "duplicate-input", "dict-output",
    "output-is-input", "output-is-parameter", "same-output-twice", "dropout", "no-parameters",
)  # fmt: skip


def materials_of(name: str) -> Materials:
    trial = Trial(stages=(ZOO[name],), program="F0 B0")
    return Materials(trial, dtype=torch.float64, device=torch.device("cpu"), seed=20)


def expected(name: str) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Return the gradients of arguments and parameters, asked of torch.autograd.grad one by one."""
    materials = materials_of(name)
    stage = materials.stage(0)
    args = materials.args(0, 0, stage)
    torch.manual_seed(materials.rng_seed(0))
    pairs = zip(leaves(as_tuple(stage(*args))), leaves(materials.output_grads(0, 0)), strict=True)
    pulled = [(output, grad) for (_, output), (_, grad) in pairs if grad is not None]

    def of(leaf: Any) -> Tensor | None:
        if not (isinstance(leaf, Tensor) and leaf.requires_grad):
            return None
        found: list[Tensor | None] = [
            torch.autograd.grad(output, leaf, grad, retain_graph=True, allow_unused=True)[0] for output, grad in pulled
        ]
        present = [grad.to_dense() for grad in found if grad is not None]
        return torch.stack(present).sum(0) if present else None

    return [of(arg) for arg in args], [of(parameter) for parameter in stage.parameters()]


def assert_same(got: list[Tensor | None], wanted: list[Tensor | None]) -> None:
    assert [grad is None for grad in got] == [grad is None for grad in wanted]
    for one, other in zip(got, wanted, strict=True):
        if one is not None and other is not None:
            assert torch.allclose(one.to_dense(), other, rtol=1e-10, atol=1e-12)


def opened(name: str) -> tuple[AutogradSession, nn.Module, tuple[Any, ...], Any]:
    materials = materials_of(name)
    stage = materials.stage(0)
    session = AutogradAdapter().open(stage, StageSpec())
    args = materials.args(0, 0, stage)
    torch.manual_seed(materials.rng_seed(0))
    session.forward(0, args)
    return session, stage, args, materials.output_grads(0, 0)


@pytest.fixture(autouse=True)
def _generator() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.filterwarnings("ignore")  # lazy notes of torch's own; the driver silences them as well
@pytest.mark.parametrize("split", [False, True], ids=["B", "I and W"])
@pytest.mark.parametrize("name", STAGES)
def test_gradients_equal_those_of_torch_autograd(name: str, *, split: bool) -> None:
    inputs, params = expected(name)
    session, stage, _, grads = opened(name)
    if split:
        found = session.backward_input(0, grads)
        assert all(grad is None for grad in session.param_grads().values())
        session.backward_weight(0)
    else:
        found = session.backward(0, grads)
    assert_same(list(found), inputs)
    assert_same(list(session.param_grads().values()), params)
    assert list(session.param_grads()) == [parameter_name for parameter_name, _ in stage.named_parameters()]


def test_the_autograd_adapter_implements_the_interface() -> None:
    assert isinstance(AutogradAdapter(), Adapter)
    assert isinstance(opened("mlp")[0], SessionProtocol)


def test_existing_gradients_of_the_arguments_are_kept() -> None:
    session, _, (x,), grads = opened("mlp")
    x.grad = prior = torch.full_like(x, 3.0)
    session.backward(0, grads)
    assert x.grad is prior
    assert torch.equal(prior, torch.full_like(x, 3.0))


def test_existing_gradients_of_the_arguments_are_kept_after_an_error() -> None:
    session, _, (x,), _ = opened("mlp")
    x.grad = prior = torch.full_like(x, 3.0)
    with pytest.raises(RuntimeError):
        session.backward(0, (torch.ones(1, 2),))
    assert x.grad is prior


@pytest.mark.parametrize("method", ["backward", "backward_input"])
def test_a_second_backward_of_one_microbatch_raises(method: str) -> None:
    session, _, _, grads = opened("mlp")
    getattr(session, method)(0, grads)
    with pytest.raises(KeyError):
        getattr(session, method)(0, grads)


@pytest.mark.parametrize("before", [(), ("backward_input", "backward_weight")], ids=["before I", "twice"])
def test_a_weight_pass_without_its_input_pass_raises(before: tuple[str, ...]) -> None:
    session, _, _, grads = opened("mlp")
    calls: dict[str, Callable[[], Any]] = {
        "backward_input": lambda: session.backward_input(0, grads),
        "backward_weight": lambda: session.backward_weight(0),
    }
    for method in before:
        calls[method]()
    with pytest.raises(KeyError):
        session.backward_weight(0)


def test_all_tensors_of_a_micro_batch_are_freed_after_its_backward() -> None:
    session, _, args, grads = opened("mlp")
    reference = weakref.ref(args[0])
    gc.disable()
    try:
        session.backward(0, grads)
        del args
        assert reference() is None
    finally:
        gc.enable()


def test_a_manual_context_replaces_the_input_pass() -> None:
    stage = nn.Linear(5, 3)
    session = AutogradAdapter().open(stage, StageSpec())
    output = session.forward(0, (torch.ones(7, 5),))
    session.put_weight_context(0, output.grad_fn, (torch.ones(7, 3),))
    session.backward_weight(0)
    assert stage.bias.grad is not None
    assert stage.bias.grad.tolist() == [7.0, 7.0, 7.0]


def test_roots_are_paired_with_gradients_and_roots_without_gradient_are_omitted() -> None:
    x = torch.ones(3, requires_grad=True)
    outputs = {"a": x * 2, "b": (x * 3, torch.ones(3)), "c": "text"}
    grads = {"a": torch.ones(3), "b": (None, torch.ones(3)), "c": None}
    roots, starts = pair_roots(outputs, grads)
    assert [id(root) for root in roots] == [id(outputs["a"])]
    assert starts == [grads["a"]]


@pytest.mark.parametrize("grads", [(), (None, None)], ids=["short", "long"])
def test_gradients_of_wrong_length_are_refused(grads: tuple[None, ...]) -> None:
    with pytest.raises(ValueError, match="do not mirror the outputs"):
        pair_roots(torch.ones(3, requires_grad=True), grads)


def test_the_gradient_of_a_loss_starts_at_one() -> None:
    stage = nn.Linear(5, 3)
    session = AutogradAdapter().open(stage, StageSpec(loss_fn=lambda outputs, target: (outputs * target).sum()))
    session.forward(0, (torch.ones(7, 5),), torch.ones(7, 3))
    session.backward(0, None)
    assert tensors(session.param_grads())[1].tolist() == [7.0, 7.0, 7.0]
