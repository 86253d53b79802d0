"""Layers of a stage are swapped in place, and put back exactly."""

from __future__ import annotations

import copy
import doctest
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform import StageSpec, check_stage_backward, swap
from gradconform.reference.autograd import AutogradSession
from gradconform.target import layer_swap


class Mine(nn.Linear):
    """A layer of an implementation, in place of nn.Linear."""

    gain: float

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's own name)
        return self.gain * super().forward(input)


def made(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    return lambda x: 2.0 * nn.functional.linear(x, layer.weight, layer.bias)


class Apart(nn.Module):
    """A layer that is no nn.Linear, on the parameters of one."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.kernel, self.shift = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * (x @ self.kernel.T + self.shift)


WAYS = pytest.mark.parametrize(
    ("other", "attributes"), [(Mine, {"gain": 2.0}), (made, {}), (Apart, {})], ids=["subclass", "function", "module"]
)


def nested() -> nn.Sequential:
    """Return a stage in which one Linear stands twice and another is deep inside."""
    shared = nn.Linear(3, 3)
    return nn.Sequential(shared, nn.Sequential(nn.ReLU(), nn.ModuleDict({"deep": nn.Linear(3, 3)})["deep"]), shared)


def everything(stage: nn.Module) -> list[tuple[Any, ...]]:
    """Return all that a stage holds, so that two looks at it are equal only where nothing has changed."""
    return [
        (type(module), id(module), {name: repr(value) for name, value in vars(module).items()})
        for module in stage.modules()
    ]


@WAYS
def test_every_layer_of_the_class_uses_the_replacement_and_is_restored(other: Any, attributes: Any) -> None:
    stage, x = nested(), torch.randn(2, 3)
    inner = stage[1]
    assert isinstance(inner, nn.Sequential)
    before, plain = everything(stage), stage(x)
    with swap(stage, nn.Linear, other, **attributes) as swapped:
        assert swapped.layers == (stage[0], inner[1])
        doubled = stage(x)
    first = 2 * nn.functional.linear(x, stage[0].weight, stage[0].bias)
    second = 2 * inner[1](first.relu())
    torch.testing.assert_close(doubled, 2 * stage[2](second))
    assert everything(stage) == before
    assert torch.equal(stage(x), plain)


@WAYS
def test_a_stage_that_is_one_layer_is_swapped(other: Any, attributes: Any) -> None:
    stage, x = nn.Linear(3, 3), torch.randn(2, 3)
    with swap(stage, nn.Linear, other, **attributes):
        torch.testing.assert_close(stage(x), 2 * nn.functional.linear(x, stage.weight, stage.bias))


@WAYS
def test_a_swap_keeps_the_names_and_parameters_of_the_stage(other: Any, attributes: Any) -> None:
    stage = nested()
    stage[0].weight = stage[2].weight
    parameters, modules = dict(stage.named_parameters()), dict(stage.named_modules())
    with swap(stage, nn.Linear, other, **attributes):
        assert {name: id(one) for name, one in stage.named_parameters()} == {n: id(p) for n, p in parameters.items()}
        assert dict(stage.named_modules()) == modules
        stage(torch.randn(2, 3)).sum().backward()
    assert all(parameter.grad is not None for parameter in parameters.values())


@WAYS
def test_hooks_are_kept_and_fire_during_a_swap(other: Any, attributes: Any) -> None:
    stage, fired = nested(), list[str]()
    stage[0].register_forward_hook(lambda *_: fired.append("before the swap"))
    with swap(stage, nn.Linear, other, **attributes):
        stage[0].register_forward_hook(lambda *_: fired.append("within"))
        stage(torch.randn(2, 3))
    assert fired == ["before the swap", "within"] * 2
    stage(torch.randn(2, 3))
    assert len(fired) == 8


@WAYS
def test_an_exception_restores_the_layers(other: Any, attributes: Any) -> None:
    stage = nested()
    before = everything(stage)

    def fail() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError), swap(stage, nn.Linear, other, **attributes):
        fail()
    assert everything(stage) == before


def test_if_one_layer_cannot_be_made_no_layer_is_changed() -> None:
    stage, seen = nested(), list[nn.Linear]()
    before = everything(stage)

    def second_refused(layer: nn.Linear) -> Any:
        seen.append(layer)
        if len(seen) > 1:
            raise NotImplementedError
        return layer

    with pytest.raises(NotImplementedError):
        swap(stage, nn.Linear, second_refused)
    assert everything(stage) == before


def test_a_second_undo_does_nothing() -> None:
    stage = nested()
    swapped = swap(stage, nn.Linear, Mine, gain=2.0)
    swapped.undo()
    with swap(stage, nn.Linear, Mine, gain=3.0):
        swapped.undo()
        assert type(stage[0]) is Mine


def test_undo_restores_old_attributes_and_removes_new_ones() -> None:
    stage = nested()
    vars(stage[0])["gain"] = "the user's"
    with swap(stage, nn.Linear, Mine, gain=2.0):
        stage[0].register_buffer("cache", torch.zeros(1))
        vars(stage[0])["seen"] = 1
        stage.eval()
    assert vars(stage[0])["gain"] == "the user's"
    assert not {"seen"} & set(vars(stage[0]))
    assert dict(stage.named_buffers()) == {}
    assert not stage[0].training  # what the caller does stays


def test_a_subclass_of_the_class_is_not_swapped() -> None:
    stage = nn.MultiheadAttention(4, 2)  # whose out_proj is a Linear of another class, that it reads past forward
    with swap(stage, nn.Linear, Mine, gain=2.0) as swapped:
        assert swapped.layers == ()


def test_a_copy_of_a_swapped_stage_has_separate_parameters() -> None:
    stage, x = nested(), torch.randn(2, 3)
    with swap(stage, nn.Linear, Apart):
        twin = copy.deepcopy(stage)
        with torch.no_grad():
            stage[0].weight.zero_()
        assert not torch.equal(stage(x), twin(x))


def test_a_replacement_with_new_parameters_is_refused_with_their_names() -> None:
    with pytest.raises(ValueError, match="has parameters of its own, weight, bias; expected those of the layer"):
        swap(nested(), nn.Linear, lambda layer: nn.Linear(layer.in_features, layer.out_features))


def test_a_replacement_that_is_not_callable_is_refused() -> None:
    with pytest.raises(TypeError, match="None cannot run in place of Linear"):
        swap(nested(), nn.Linear, lambda _layer: None)  # type: ignore[arg-type,return-value] # as a user may


class Adapter:
    """Swaps in ``open``, and leaves the undoing to the kit."""

    name = "swapping"

    def __init__(self, *, fails: bool) -> None:
        self.capabilities: Any = {"split": False, "mixed": False, "shared_module": False}
        self.fails, self.stages = fails, list[nn.Module]()

    def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
        swap(stage, nn.Linear, Mine, gain=1.0)
        self.stages.append(stage)
        if self.fails:
            msg = "it cannot be opened"
            raise RuntimeError(msg)
        return AutogradSession(stage, spec)


@pytest.mark.parametrize("fails", [False, True])
def test_the_kit_undoes_swaps_made_by_open(fails: bool) -> None:  # noqa: FBT001 (a parameter of pytest)
    adapter = Adapter(fails=fails)
    check_stage_backward(adapter, checks=["full.gradients.mlp", "misuse.next_session.*"])
    assert adapter.stages
    assert {type(module) for stage in adapter.stages for module in stage.modules()}.isdisjoint({Mine})


def test_the_swap_example_passes() -> None:
    assert doctest.testmod(layer_swap).failed == 0
