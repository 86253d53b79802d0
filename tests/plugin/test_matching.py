"""``gradconform.assert_matches_autograd`` and ``gradconform.autograd_gradients``, outside pytest's fixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight

from gradconform import Gradients, NonConformingError, assert_matches_autograd, autograd_gradients


def mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def feed(mb: int = 0, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(mb)
    x = torch.randn(4, 5, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return x, torch.randn(4, 3, generator=generator, dtype=torch.float64).to(dtype)


def full(stage: nn.Module, args: Any, output_grads: Any) -> Any:
    return stage_backward((stage(*args),), output_grads, args)


def split(stage: nn.Module, args: Any, output_grads: Any) -> Any:
    grads, groups = stage_backward_input([stage(*args)], list(output_grads), list(args), stage.parameters())
    stage_backward_weight(stage.parameters(), groups)
    return grads


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("backward", [full, split])
def test_a_right_backward_passes_over_several_micro_batches(backward: Callable[..., Any], dtype: torch.dtype) -> None:
    fed = [feed(mb, dtype) for mb in range(3)]
    assert_matches_autograd(backward, mlp(dtype), [(x,) for x, _ in fed], [(grad,) for _, grad in fed])


def test_matching_changes_no_parameter_argument_or_generator() -> None:
    stage, (x, grad) = mlp(), feed()
    before, rng = [p.detach().clone() for p in stage.parameters()], torch.get_rng_state()
    assert_matches_autograd(full, stage, (x,), (grad,))
    assert x.grad is None
    assert all(torch.equal(p, old) for p, old in zip(stage.parameters(), before, strict=True))
    assert torch.equal(torch.get_rng_state(), rng)


def test_a_wrong_parameter_gradient_is_reported_with_path_index_and_numbers() -> None:
    def wrong(stage: Any, args: Any, output_grads: Any) -> Any:
        found = full(stage, args, output_grads)
        stage[2].weight.grad[1, 4] += 0.25
        return found

    x, grad = feed()
    with pytest.raises(NonConformingError) as caught:
        assert_matches_autograd(wrong, mlp(), (x,), (grad,))
    told = str(caught.value)
    assert "1 gradient differs from plain autograd on Sequential (float32 on cpu):" in told
    assert "2.weight, after B0: worst at [1, 4]: expected " in told
    assert "error 0.25, bound " in told
    assert "error/bound " in told


def test_the_first_wrong_micro_batch_is_named() -> None:
    calls: list[None] = []

    def forgets_the_second(stage: nn.Module, args: Any, output_grads: Any) -> Any:
        calls.append(None)
        kept = [None if p.grad is None else p.grad.clone() for p in stage.parameters()]
        found = full(stage, args, output_grads)
        if len(calls) == 2:
            for parameter, grad in zip(stage.parameters(), kept, strict=True):
                parameter.grad = grad
        return found

    fed = [feed(mb) for mb in range(3)]
    with pytest.raises(AssertionError, match=r"0\.weight, after B1: worst at"):
        assert_matches_autograd(forgets_the_second, mlp(), [(x,) for x, _ in fed], [(g,) for _, g in fed])


def test_given_gradients_are_compared() -> None:
    stage, (x, grad) = mlp(), feed()
    inputs = full(stage, (x,), (grad,))
    assert_matches_autograd(inputs, stage, (x,), (grad,))
    params = {name: parameter.grad for name, parameter in stage.named_parameters()}
    stage.zero_grad()
    assert_matches_autograd(Gradients(inputs, params), stage, (x,), (grad,))
    with pytest.raises(AssertionError, match=r"input 0, after B0: expected a tensor .*, got None"):
        assert_matches_autograd((None,), stage, (x,), (grad,))


def test_without_given_gradients_the_grad_attributes_are_compared() -> None:
    stage, (x, grad) = mlp(), feed()
    stage(x).backward(grad)
    assert_matches_autograd(None, stage, x, grad)
    stage[0].bias.grad = None
    with pytest.raises(AssertionError, match=r"0\.bias, after B0: expected a tensor"):
        assert_matches_autograd(None, stage, x, grad)


def test_a_loss_needs_no_output_gradient() -> None:
    def backward(stage: nn.Module, args: Any, _: Any) -> Any:
        stage(*args).square().mean().backward()

    assert_matches_autograd(backward, mlp(), feed()[0], loss_fn=lambda outputs: outputs.square().mean())


def test_random_numbers_are_the_same_for_both_or_rng_state_is_required() -> None:
    stage, (x, grad) = nn.Sequential(nn.Linear(5, 3), nn.Dropout()), feed()
    assert_matches_autograd(full, stage, (x,), (grad,))
    stage.zero_grad()
    state = torch.get_rng_state()
    inputs = full(stage, (x,), (grad,))
    with pytest.raises(ValueError, match=r"Sequential draws random numbers.*rng_state"):
        assert_matches_autograd(inputs, stage, (x,), (grad,))
    assert_matches_autograd(inputs, stage, (x,), (grad,), rng_state=state)


def test_a_callable_may_accumulate_onto_existing_gradients() -> None:
    stage, (x, grad) = mlp(), feed()
    full(stage, (x,), (grad,))
    assert_matches_autograd(full, stage, (x,), (grad,))


@pytest.mark.parametrize(
    ("args", "grads", "told"),
    [
        ([], None, "args is an empty list"),
        ([(feed()[0],)], (feed()[1],), "args is a list of 1 micro-batch, output_grads has tuple"),
        ((feed()[0],), (feed()[1], feed()[1]), "2 output gradients for 1 output;"),
        ((feed()[0],), None, r"no output_grads for outputs of shapes \[\(4, 3\)\]"),
    ],
)
def test_arguments_that_do_not_fit_the_stage_are_refused(args: Any, grads: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        autograd_gradients(mlp(), args, grads)


def test_a_backward_that_returns_the_wrong_number_of_gradients_is_refused() -> None:
    with pytest.raises(TypeError, match="the backward gave 2 entries for 1 argument;"):
        assert_matches_autograd(lambda *_: (None, None), mlp(), (feed()[0],), (feed()[1],))


def test_the_oracle_sums_over_micro_batches() -> None:
    stage, (x, grad) = mlp(), feed()
    one = autograd_gradients(stage, (x,), (grad,))
    two: Any = autograd_gradients(stage, [(x,), (x,)], [(grad,), (grad,)])
    once: Any = one.params["0.weight"]
    assert torch.equal(two.params["0.weight"], 2 * once)
    expected: Any = one.inputs
    assert all(torch.equal(found, expected[0]) for (found,) in two.inputs)
    assert all(parameter.grad is None for parameter in stage.parameters())


class _Summed(nn.Module):
    """A softmax that is summed: whatever comes before it has the gradient 0, and what comes is rounding."""

    def __init__(self, softmax: Callable[[torch.Tensor], torch.Tensor] = lambda x: torch.softmax(x, -1)) -> None:
        super().__init__()
        self.linear, self.softmax = nn.Linear(16, 33), softmax

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.softmax(self.linear(x)).sum(-1))


def _by_exponents(x: torch.Tensor) -> torch.Tensor:
    powers = (x - x.amax(-1, keepdim=True).detach()).exp()
    return powers / powers.sum(-1, keepdim=True)


def _slightly_wrong(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1) + (x - x.detach()) * 1e-4


@pytest.mark.parametrize(("softmax", "right"), [(_by_exponents, True), (_slightly_wrong, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_of_cancelling_terms_passes_and_a_larger_error_fails(
    softmax: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, *, right: bool
) -> None:
    stage = _Summed().to(dtype)
    args = [(torch.randn(6, 16, dtype=dtype, requires_grad=True),) for _ in range(3)]
    grads = [torch.randn(6, dtype=dtype) for _ in args]

    def backward(stage: nn.Module, args: tuple[torch.Tensor], output_grads: torch.Tensor) -> None:
        own = _Summed(softmax)
        own.linear = stage.linear
        own(*args).backward(output_grads)

    if right:
        assert_matches_autograd(backward, stage, args, grads)
    else:
        with pytest.raises(NonConformingError, match=r"linear\.weight"):
            assert_matches_autograd(backward, stage, args, grads)
