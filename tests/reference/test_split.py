"""The split reference against torch.autograd, directly: gradients, errors that change nothing, what it lets go of."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from gradconform.fixtures.stages import ZOO
from gradconform.reference.split import stage_backward, stage_backward_input, stage_backward_weight
from gradconform.trees import as_tuple, leaves, tensors
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial

STAGES = (
    "mlp", "conv2d", "layer-norm", "fused-qkv", "embedding", "lstm", "residual", "tied-apart", "chunk", "two-inputs",
    "unused-input", "two-outputs", "mask-output", "frozen-weight", "parameter-input", "duplicate-input",
    "scalar-output", "output-is-parameter", "output-slice", "dict-output", "none-in-output", "no-parameters",
)  # fmt: skip


def fresh(name: str, prior: float | None = None) -> tuple[nn.Module, tuple[Any, ...], Any, tuple[Any, ...]]:
    """Return a new stage, its arguments, outputs and output gradients; the same numbers every time."""
    trial = Trial(stages=(ZOO[name],), program="F0 B0")
    materials = Materials(trial, dtype=torch.float64, device=torch.device("cpu"), seed=20)
    stage = materials.stage(0)
    args = materials.args(0, 0, stage)
    outputs = as_tuple(stage(*args))
    if prior is not None:
        for tensor in tensors(args):
            tensor.grad = torch.full_like(tensor, prior) if tensor.requires_grad else None
        for parameter in stage.parameters():
            parameter.grad = torch.full_like(parameter, prior)
    return stage, args, outputs, materials.output_grads(0, 0)


def split_backward(stage: nn.Module, args: Any, outputs: Any, grads: Any) -> tuple[Tensor | None, ...]:
    flat = [grad for (_, out), (_, grad) in zip(leaves(outputs), leaves(grads), strict=True) if isinstance(out, Tensor)]
    found, groups = stage_backward_input(tensors(outputs), flat, list(args), stage.parameters())
    stage_backward_weight(stage.parameters(), groups)
    return found


def autograd(name: str) -> tuple[list[Tensor | None], dict[str, Tensor | None]]:
    stage, args, outputs, grads = fresh(name)
    pairs = [(o, g) for (_, o), (_, g) in zip(leaves(outputs), leaves(grads), strict=True) if g is not None]
    sought = [arg for arg in (*args, *stage.parameters()) if isinstance(arg, Tensor) and arg.requires_grad]
    found = iter(torch.autograd.grad([o for o, _ in pairs], sought, [g for _, g in pairs], allow_unused=True))
    inputs = [next(found) if isinstance(arg, Tensor) and arg.requires_grad else None for arg in args]
    params = {key: next(found) if value.requires_grad else None for key, value in stage.named_parameters()}
    return inputs, params


def assert_same(got: Tensor | None, wanted: Tensor | None) -> None:
    assert (got is None) == (wanted is None)
    if got is not None and wanted is not None:
        assert torch.allclose(got.to_dense(), wanted.to_dense(), rtol=1e-10, atol=1e-12)


def stored(stage: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in stage.named_parameters()}


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("split", [False, True], ids=["B", "I and W"])
@pytest.mark.parametrize("name", STAGES)
def test_gradients_equal_those_of_torch_autograd(name: str, *, split: bool) -> None:
    inputs, params = autograd(name)
    stage, args, outputs, grads = fresh(name)
    found = split_backward(stage, args, outputs, grads) if split else stage_backward(outputs, grads, list(args))
    assert len(found) == len(args)
    for got, wanted in zip(found, inputs, strict=True):
        assert_same(got, wanted)
    for name_of, parameter in stage.named_parameters():
        assert_same(parameter.grad, params[name_of])


@pytest.mark.parametrize("split", [False, True], ids=["B", "I and W"])
def test_parameters_accumulate_and_existing_input_gradients_are_kept(*, split: bool) -> None:
    inputs, params = autograd("mlp")
    stage, args, outputs, grads = fresh("mlp", prior=2.0)
    before = [arg.grad for arg in args]
    found = split_backward(stage, args, outputs, grads) if split else stage_backward(outputs, grads, list(args))
    assert all(arg.grad is grad for arg, grad in zip(args, before, strict=True))
    assert torch.equal(args[0].grad, torch.full_like(args[0], 2.0))
    assert_same(found[0], inputs[0])
    for name, parameter in stage.named_parameters():
        assert parameter.grad is not None
        assert params[name] is not None
        assert_same(parameter.grad - 2.0, params[name])


def test_the_input_pass_does_not_change_parameter_gradients() -> None:
    stage, args, outputs, grads = fresh("mlp", prior=2.0)
    before = stored(stage)
    stage_backward_input(list(outputs), list(grads), list(args), stage.parameters())
    assert all(torch.equal(grad, before[name]) for name, grad in stored(stage).items())  # type: ignore[arg-type] # None would fail the test


WRONG: dict[str, tuple[Any, str]] = {
    "short": (lambda g: g[:-1], "expected a tuple of 2, one per output"),
    "long": (lambda g: (*g, g[0]), "expected a tuple of 2, one per output"),
    "shape": (lambda g: (g[0][:1], g[1]), "an output gradient has shape"),
    "one row more": (lambda g: (torch.cat([g[0], g[0][:1]]), g[1]), "an output gradient has shape"),
    "last is wrong": (lambda g: (g[0], g[1].t()), "an output gradient has shape"),
    "number": (lambda g: (1.0, g[1]), "an output gradient is 1.0; expected a tensor or None"),
    "bare tensor": (lambda g: g[0], "output gradients are a Tensor; expected a tuple of 2"),
    "dict": (lambda g: dict(enumerate(g)), "output gradients are a dict with the keys [0, 1]; expected a tuple of 2"),
}


@pytest.mark.parametrize("function", ["full", "input"])
@pytest.mark.parametrize("wrong", WRONG)
def test_gradients_of_wrong_structure_are_refused_before_anything_changes(wrong: str, function: str) -> None:
    spoil, said = WRONG[wrong]
    stage, args, outputs, grads = fresh("two-outputs", prior=2.0)
    before, flags = stored(stage), [parameter.requires_grad for parameter in stage.parameters()]
    calls: dict[str, Callable[[], object]] = {
        "full": lambda: stage_backward(outputs, spoil(grads), list(args)),
        "input": lambda: stage_backward_input(list(outputs), spoil(grads), list(args), stage.parameters()),
    }
    with pytest.raises(ValueError, match="output gradient") as raised:
        calls[function]()
    assert said in str(raised.value)
    assert all(torch.equal(grad, before[name]) for name, grad in stored(stage).items())  # type: ignore[arg-type] # None would fail the test
    assert [parameter.requires_grad for parameter in stage.parameters()] == flags
    wanting = [arg for arg in tensors(args) if arg.requires_grad]
    assert all(torch.equal(arg.grad, torch.full_like(arg, 2.0)) for arg in wanting)  # type: ignore[arg-type] # None would fail the test
    stage_backward(outputs, grads, list(args))  # the graph is still there


def test_a_dict_of_gradients_needs_the_keys_of_the_outputs() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match=r"a dict with the keys \['b'\]; expected a dict with the keys \['a'\]"):
        stage_backward({"a": x * 2}, {"b": torch.ones(3)}, [x])


def test_a_used_context_is_refused_and_changes_nothing() -> None:
    stage, args, outputs, grads = fresh("mlp")
    _, groups = stage_backward_input(list(outputs), list(grads), list(args), stage.parameters())
    stage_backward_weight(stage.parameters(), groups)
    before = stored(stage)
    with pytest.raises(RuntimeError, match="this weight context was used before; call stage_backward_input again"):
        stage_backward_weight(stage.parameters(), groups)
    assert all(torch.equal(grad, before[name]) for name, grad in stored(stage).items())  # type: ignore[arg-type] # None would fail the test


def test_the_weight_pass_returns_the_stored_gradients() -> None:
    stage, args, outputs, grads = fresh("frozen-weight")
    _, groups = stage_backward_input(list(outputs), list(grads), list(args), stage.parameters())
    returned = stage_backward_weight(stage.parameters(), groups)
    assert [id(grad) for grad in returned] == [id(parameter.grad) for parameter in stage.parameters()]


def test_outputs_can_be_freed_between_the_two_passes() -> None:
    stage, args, outputs, grads = fresh("mlp")
    reference = weakref.ref(outputs[0])
    _, groups = stage_backward_input(list(outputs), list(grads), list(args), stage.parameters())
    del outputs
    assert reference() is None
    stage_backward_weight(stage.parameters(), groups)
    for name, parameter in stage.named_parameters():
        assert_same(parameter.grad, autograd("mlp")[1][name])


@pytest.mark.parametrize("split", [False, True], ids=["B", "I and W"])
def test_the_graph_is_freed_after_the_last_pass_without_the_garbage_collector(*, split: bool) -> None:
    stage, args, outputs, grads = fresh("mlp")
    node = weakref.ref(args[0])
    if split:
        split_backward(stage, args, outputs, grads)
    else:
        stage_backward(outputs, grads, list(args))
    del args, outputs
    assert node() is None


class Passes(nn.Module):
    """Hands its output gradient on as it is, to both of its inputs."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Add."""
        return x + y


@pytest.mark.parametrize("split", [False, True], ids=["B", "I and W"])
def test_no_two_gradients_share_storage(*, split: bool) -> None:
    stage = Passes()
    args = (torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True))
    outputs, grads = (stage(*args),), (torch.full((3,), 2.0),)
    found = split_backward(stage, args, outputs, grads) if split else stage_backward(outputs, grads, list(args))
    named = [*found, *grads, *args]
    for one, other in itertools.combinations(named, 2):
        assert one is not None
        assert other is not None
        assert one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()


@pytest.mark.parametrize("grads", [(None, None), (None, "given"), ("given", None)], ids=["none", "second", "first"])
def test_none_as_output_gradient_means_no_gradient(grads: tuple[Any, Any]) -> None:
    stage, args, outputs, drawn = fresh("two-outputs")
    given = tuple(grad if want else None for grad, want in zip(drawn, grads, strict=True))
    pulled = [(output, grad) for output, grad in zip(outputs, given, strict=True) if grad is not None]
    wanted: tuple[Tensor | None, ...] = (None,) * len(args)
    if pulled:
        wanted = torch.autograd.grad(
            [o for o, _ in pulled], args, [g for _, g in pulled], allow_unused=True, retain_graph=True
        )
    for got, one in zip(stage_backward(outputs, given, list(args)), wanted, strict=True):
        assert_same(got, one)
    if not pulled:
        assert all(grad is None for grad in stored(stage).values())


@pytest.mark.parametrize("split", [False, True], ids=["B", "I and W"])
def test_the_gradient_of_a_loss_starts_at_one_and_is_none_if_not_required(*, split: bool) -> None:
    stage, x = nn.Linear(5, 3), torch.ones(7, 5)
    for trainable in (True, False):
        stage.requires_grad_(trainable).zero_grad()
        loss = stage(x).sum()
        if split:
            found, groups = stage_backward_input([loss], None, [x], stage.parameters())
            stage_backward_weight(stage.parameters(), groups)
        else:
            found = stage_backward(loss, None, [x])
        assert found == (None,)
        assert (stage.bias.grad is not None) == trainable
        assert not trainable or stage.bias.grad.tolist() == [7.0] * 3  # type: ignore[union-attr] # None would fail the test


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_an_edge_can_replace_a_freed_output(*, split: bool, several: bool) -> None:
    stage, arg = nn.Linear(3, 2, dtype=torch.float64), torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    grad = torch.full((4, 2), 0.5, dtype=torch.float64)
    expected = torch.autograd.grad(stage(arg), [arg, *stage.parameters()], grad)
    roots: Any = get_gradient_edge(stage(arg))
    roots, grads = ((None, roots), (None, grad)) if several or split else (roots, grad)
    if split:
        found, context = stage_backward_input(roots, grads, [arg], stage.parameters())
        stage_backward_weight(stage.parameters(), context)
    else:
        found = stage_backward(roots, grads, [arg])
    torch.testing.assert_close((*found, stage.weight.grad, stage.bias.grad), expected)
