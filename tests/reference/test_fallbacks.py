"""Which parameters the right split leaves to W, and which I computes itself and why; all gradients are autograd's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from gradconform.reference.parameter_uses import Reason
from gradconform.reference.split import stage_backward_input, stage_backward_weight
from gradconform.trees import as_tuple

WIDTH = 4


class Counted(Function):
    """Passes on what it is given, and counts its backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, calls: list[int]) -> Tensor:
        """Return a copy."""
        ctx.calls = calls
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Count."""
        ctx.calls.append(1)
        return grad, None


class Stopped(Function):
    """Passes values on, and no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return a copy."""
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        """Return none."""


class TwoProducts(Function):
    """A product with a weight, and twice that product; for no gradient it gives zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply."""
        ctx.save_for_backward(x, weight)
        return x @ weight, 2.0 * (x @ weight)

    @staticmethod
    def backward(ctx: Any, once: Tensor, twice: Tensor) -> tuple[Tensor, Tensor]:
        """Return both gradients."""
        x, weight = ctx.saved_tensors
        grad = once + 2.0 * twice
        return grad @ weight.t(), x.t() @ grad


class Stage(nn.Module):
    """Layers that each case composes in its own way."""

    def __init__(self, run: Callable[[Stage, Tensor], Any]) -> None:
        """Take what the forward does."""
        super().__init__()
        self.run, self.calls = run, []  # type: ignore[var-annotated] # of ints
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.hooked = nn.LayerNorm(WIDTH), nn.Identity()
        self.matrix = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.flat = nn.Parameter(torch.randn(2 * WIDTH * WIDTH))

    def forward(self, x: Tensor) -> Any:
        """Run the case."""
        return self.run(self, x)

    def halves(self) -> list[Tensor]:
        """Return two matrices that are views of one parameter."""
        return [half.view(WIDTH, WIDTH) for half in self.flat.chunk(2)]


def between(stage: Stage, x: Tensor) -> Tensor:
    return stage.two(Counted.apply(torch.tanh(stage.one(x)), stage.calls))  # type: ignore[no-untyped-call, no-any-return] # torch's


def two_depths(stage: Stage, x: Tensor) -> Tensor:
    return stage.one(torch.tanh(stage.two(torch.tanh(stage.one(x)))))  # type: ignore[no-any-return] # a module's


def side_by_side(stage: Stage, x: Tensor) -> Tensor:
    return stage.two(stage.one(x).tanh() + stage.one(x.sin()))  # type: ignore[no-any-return] # a module's


def checkpointed(stage: Stage, x: Tensor) -> Tensor:
    def inside(hidden: Tensor) -> Tensor:
        stage.calls.append(1)
        return torch.tanh(stage.one(torch.tanh(hidden)))

    return stage.two(checkpoint(inside, x, use_reentrant=False))  # type: ignore[no-any-return] # a module's


def re_entered(stage: Stage, x: Tensor) -> Tensor:
    return stage.two(checkpoint(stage.one, x, use_reentrant=True))  # type: ignore[no-any-return] # a module's


def compiled(stage: Stage, x: Tensor) -> Tensor:
    run = torch.compile(lambda hidden: torch.tanh(stage.one(hidden)).square(), backend="aot_eager")
    return stage.two(run(x))  # type: ignore[no-any-return] # a module's


def hooked_module(stage: Stage, x: Tensor) -> Tensor:
    stage.hooked.register_full_backward_hook(lambda _, given, __: tuple(3.0 * one for one in given))
    return stage.two(x @ stage.hooked(stage.matrix))  # type: ignore[no-any-return] # a module's


def nothing_comes(stage: Stage, x: Tensor) -> Tensor:
    first, _ = TwoProducts.apply(x, stage.matrix)  # type: ignore[no-untyped-call] # torch's
    return stage.one(x) + Stopped.apply(first)  # type: ignore[no-untyped-call, no-any-return] # torch's


def two_outputs_of_a_node(stage: Stage, x: Tensor) -> Tensor:
    first, second = TwoProducts.apply(stage.one(x), stage.matrix)  # type: ignore[no-untyped-call] # torch's
    return first * second.sin()


def output_of_an_output(stage: Stage, x: Tensor) -> tuple[Tensor, ...]:
    hidden = stage.one(x)
    return hidden, stage.two(hidden.tanh()), hidden.chunk(2)[0]


def views_at_two_depths(stage: Stage, x: Tensor) -> Tensor:
    first, second = stage.halves()
    return stage.one(x) @ first.tanh() @ second


def views_at_one_depth(stage: Stage, x: Tensor) -> Tensor:
    first, second = stage.halves()
    return stage.one(x @ first + x.sin() @ second)  # type: ignore[no-any-return] # a module's


def changed_in_place(stage: Stage, x: Tensor) -> Tensor:
    hidden = stage.one(x)
    hidden[:1].mul_(2.0)
    return stage.two(hidden.relu_())  # type: ignore[no-any-return] # a module's


def output_apart(stage: Stage, x: Tensor) -> tuple[Tensor, ...]:
    return stage.two(x), stage.one(stage.matrix) @ stage.one(stage.matrix)


def output_apart_used_on(stage: Stage, x: Tensor) -> tuple[Tensor, ...]:
    made = stage.matrix.tanh()
    return stage.two(x @ made), made


def normed(stage: Stage, x: Tensor) -> Tensor:
    return stage.two(stage.norm(stage.one(x)))  # type: ignore[no-any-return] # a module's


def hooked_use(stage: Stage, x: Tensor) -> Tensor:
    hidden = stage.one(x)
    hidden.register_hook(lambda grad: 3 * grad)
    return stage.two(hidden)  # type: ignore[no-any-return] # a module's


def hooked_norm(stage: Stage, x: Tensor) -> Tensor:
    hidden = stage.norm(stage.one(x))
    hidden.register_hook(lambda grad: 3 * grad)
    return stage.two(hidden.tanh() @ stage.matrix)  # type: ignore[no-any-return] # a module's


#: What each case falls back for, and why; all else is left to W.
CASES: dict[Callable[[Stage, Tensor], Any], dict[str, Reason]] = {
    between: {},
    two_depths: dict.fromkeys(["one.weight", "one.bias"], Reason.TWO_DEPTHS),
    side_by_side: {},
    checkpointed: {"one.weight": Reason.CHECKPOINT, "one.bias": Reason.CHECKPOINT},
    re_entered: dict.fromkeys(["one.weight", "one.bias", "two.weight", "two.bias"], Reason.REENTRANT),
    compiled: dict.fromkeys(["one.weight", "one.bias", "two.weight", "two.bias"], Reason.COMPILED),
    hooked_module: {"matrix": Reason.MODULE_HOOK},
    nothing_comes: {"matrix": Reason.NO_GRADIENT},
    two_outputs_of_a_node: {},
    output_of_an_output: {},
    views_at_two_depths: {"flat": Reason.TWO_DEPTHS},
    views_at_one_depth: {},
    changed_in_place: {},
    output_apart: {},
    output_apart_used_on: {"matrix": Reason.TWO_DEPTHS},
    normed: dict.fromkeys(["norm.weight", "norm.bias"], Reason.VECTOR),
}


def made(case: Callable[[Stage, Tensor], Any]) -> tuple[Stage, Tensor, list[Tensor], list[Tensor]]:
    """Return a stage, its argument, outputs and output gradients; the same numbers every time."""
    torch.manual_seed(20)
    stage = Stage(case).double()
    x = torch.randn(3, WIDTH, dtype=torch.float64, requires_grad=True)
    outputs = list(as_tuple(stage(x)))
    return stage, x, outputs, [torch.randn_like(output) for output in outputs]


def of_autograd(case: Callable[[Stage, Tensor], Any]) -> tuple[Tensor | None, dict[str, Tensor | None]]:
    stage, x, outputs, grads = made(case)
    torch.autograd.backward(outputs, grads)
    return x.grad, {name: parameter.grad for name, parameter in stage.named_parameters()}


def split(
    stage: Stage, x: Tensor, outputs: list[Tensor], grads: list[Tensor]
) -> tuple[Tensor | None, dict[str, Reason]]:
    """Run I and W; return the input gradient, and by name why I computed the gradients of which parameters."""
    (found,), context = stage_backward_input(outputs, grads, [x], stage.parameters(), explain=True)
    assert all(parameter.grad is None for parameter in stage.parameters())
    names = {id(parameter): name for name, parameter in stage.named_parameters()}
    explained = {names[id(one.parameter)]: one.reason for one in context[0]["explained"]}
    for grad in grads:
        grad.fill_(float("nan"))  # what held it is received into
    outputs.clear()
    stage_backward_weight(stage.parameters(), context)
    return found, explained


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_only_parameters_that_need_the_fallback_use_it(case: Callable[[Stage, Tensor], Any]) -> None:
    of_input, of_parameters = of_autograd(case)
    stage, x, outputs, grads = made(case)
    found, explained = split(stage, x, outputs, grads)
    assert explained == CASES[case]
    torch.testing.assert_close(found, of_input)
    for name, parameter in stage.named_parameters():
        assert (parameter.grad is None) == (of_parameters[name] is None), name
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, of_parameters[name], msg=name)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # compiled autograd reads it
@pytest.mark.parametrize("around_w", [False, True])
@pytest.mark.parametrize("around_i", [False, True])
@pytest.mark.parametrize("case", [hooked_use, hooked_norm], ids=lambda case: case.__name__)
def test_under_compiled_autograd_a_hook_on_an_activation_is_applied_once(
    case: Callable[[Stage, Tensor], Any], *, around_i: bool, around_w: bool
) -> None:
    of_input, of_parameters = of_autograd(case)
    stage, x, outputs, grads = made(case)
    with compiled_autograd._enable(lambda graph: graph) if around_i else nullcontext():
        (found,), context = stage_backward_input(outputs, grads, [x], stage.parameters(), explain=True)
    with compiled_autograd._enable(lambda graph: graph) if around_w else nullcontext():
        stage_backward_weight(stage.parameters(), context)
    compiled_ones = [one.reason for one in context[0]["explained"] if one.reason is Reason.COMPILED_AUTOGRAD]
    wanted = {name: grad for name, grad in of_parameters.items() if grad is not None}
    assert len(compiled_ones) == (len(wanted) if around_i else 0)
    torch.testing.assert_close(found, of_input)
    torch.testing.assert_close({name: stage.get_parameter(name).grad for name in wanted}, wanted)


def test_w_does_not_run_the_code_between_two_uses_again() -> None:
    stage, x, outputs, grads = made(between)
    _, context = stage_backward_input(outputs, grads, [x], stage.parameters())
    assert len(stage.calls) == 1
    stage_backward_weight(stage.parameters(), context)
    assert len(stage.calls) == 1


def test_a_checkpointed_part_is_recomputed_once() -> None:
    stage, x, outputs, grads = made(checkpointed)
    split(stage, x, outputs, grads)
    assert len(stage.calls) == 2


@pytest.mark.parametrize(
    "case", [between, two_depths, side_by_side, normed, checkpointed], ids=lambda case: case.__name__
)
def test_w_calls_each_parameter_hook_once_with_the_whole_gradient(case: Callable[..., Any]) -> None:
    _, wanted = of_autograd(case)
    stage, x, outputs, grads = made(case)
    seen: dict[str, list[Tensor]] = {name: [] for name, grad in wanted.items() if grad is not None}
    for name, parameter in stage.named_parameters():
        if name in seen:
            parameter.register_hook(seen[name].append)
    _, context = stage_backward_input(outputs, grads, [x], stage.parameters())
    assert not any(seen.values())
    stage_backward_weight(stage.parameters(), context)
    assert {name: len(given) for name, given in seen.items()} == dict.fromkeys(seen, 1)
    for name, (given,) in seen.items():
        torch.testing.assert_close(given, wanted[name], msg=name)


def test_fallbacks_are_explained_only_on_request() -> None:
    stage, x, outputs, grads = made(normed)
    _, context = stage_backward_input(outputs, grads, [x], stage.parameters())
    assert not any("explained" in group for group in context)


def test_a_fallback_is_described_in_a_sentence() -> None:
    stage, x, outputs, grads = made(views_at_two_depths)
    _, context = stage_backward_input(outputs, grads, [x], stage.parameters(), explain=True)
    (told,) = map(str, context[0]["explained"])
    why = "it is used again below one of its uses, so W would reach it twice"
    assert told == f"the gradient of a parameter of shape (32,) is computed in I: {why}"
