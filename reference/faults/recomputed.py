"""Faults of stages that recompute a part of the forward: recomputed twice, or with a wrong re-entrant accumulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from gradconform.reference.deferred_linear import product
from gradconform.reference.recomputed import recomputes
from gradconform.target.functions import FunctionsSession
from gradconform.target.layer_swap import swap
from gradconform.target.resolve import Target
from gradconform.trees import tensors

from .alterations import RIGHT, Grads, Graph, target, with_session
from .registry import fault


@fault("state.recomputed_buffers.*-split")
def recomputed_in_both_halves() -> Target:
    """A part of the forward that I recomputes is recomputed in W as well."""

    class Session(FunctionsSession):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._again: dict[int, tuple[Any, ...]] = {}

        def backward_input(self, mb: int, output_grads: Any) -> Grads:
            args, outputs = self._forwards[mb]
            if recomputes(output for output in tensors(outputs) if output.requires_grad):
                self._again[mb] = args
            return super().backward_input(mb, output_grads)

        def backward_weight(self, mb: int) -> Grads | None:
            found = super().backward_weight(mb)
            if mb in self._again:
                with torch.no_grad(), torch.random.fork_rng(devices=[]):
                    self._stage(*self._again.pop(mb))
            return found

    return with_session(Session)


@fault("split.reentrant.*", cause="added")
def accumulated_inside_and_again() -> Target:
    """Gradients that a re-entrant backward accumulates in I remain, and W adds them again."""

    def input_pass(outputs: Any, grads: Any, inputs: Sequence[Any], weights: Iterator[nn.Parameter]) -> Any:
        parameters = list(weights)
        found, groups = RIGHT.input_pass(outputs, grads, inputs, iter(parameters))
        if any("Checkpoint" in node.name() for node in Graph.behind(outputs).depth):
            RIGHT.weight_pass(iter(parameters), [dict(group) for group in groups], retain_graph=True)
        return found, groups

    return target(replace(RIGHT, input_pass=input_pass))


@fault("accumulate.reentrant.*", "full.*.checkpoint-reentrant", cause="detached_copy")
def accumulated_inside_and_lost() -> Target:
    """Only parameters in the graph accumulate: gradients of a re-entrant backward are removed."""

    class Session(FunctionsSession):
        def backward(self, mb: int, output_grads: Any) -> Grads:
            shown = set(Graph.behind(self._forwards[mb][1]).parameters())
            hidden = [parameter for parameter in self._stage.parameters() if parameter not in shown]
            before = [None if parameter.grad is None else parameter.grad.clone() for parameter in hidden]
            found = super().backward(mb, output_grads)
            for parameter, grad in zip(hidden, before, strict=True):
                parameter.grad = grad
            return found

    return with_session(Session)


class _Written(torch.autograd.Function):
    """Linear whose backward writes the gradient of its weight itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        if weight.requires_grad or weight.grad_fn is None:
            added = rows.T @ x.detach().reshape(-1, x.shape[-1]).conj()
            weight.grad = added if weight.grad is None else weight.grad + added
        return grad @ weight.detach().conj(), None, rows.sum(0) if ctx.needs_input_grad[2] else None


class _WritingLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's own name)
        if not self.weight.requires_grad:
            return super().forward(input)
        result: Any = _Written.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call] # torch's
        return cast("Tensor", result)


@fault("full.gradients.checkpoint", "full.loss.checkpoint", cause="detached_copy")
def written_to_a_detached_copy() -> Target:
    """A Linear writes to .grad of its saved weight, which is a detached copy under checkpointing."""

    class Session(FunctionsSession):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            swap(self._stage, nn.Linear, _WritingLinear)

    return with_session(Session, split=False)


@fault("space.full.all-fixed-2", "space.full.uneven-1", cause="buffers_new", takes="parameters=buffer")
def recomputed_with_updated_buffers() -> Target:
    """B runs the forward again, with the buffers as they are then, and restores them."""

    class Session(FunctionsSession):
        def backward(self, mb: int, output_grads: Any) -> Grads:
            args, _ = self._forwards[mb]
            before = {name: one.clone() for name, one in self._stage.named_buffers()}
            if before and self._spec.loss_fn is None and not self._spec.releases_outputs:
                self._forwards[mb] = args, self._stage(*args)
                for name, one in self._stage.named_buffers():
                    one.copy_(before[name])
            return super().backward(mb, output_grads)

    return with_session(Session)


def _recomputing(again: Callable[[nn.Module, tuple[Any, ...]], Any]) -> Target:
    """Return a target whose B runs the forward ``again``, with the random numbers of the first one or others."""

    class Session(FunctionsSession):
        def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
            vars(self).setdefault("drawn", {})[mb] = torch.get_rng_state()
            return super().forward(mb, args, target)

        def backward(self, mb: int, output_grads: Any) -> Grads:
            args, _ = self._forwards[mb]
            if self._spec.loss_fn is None and not self._spec.releases_outputs:
                before = torch.get_rng_state()
                if self._stage.training:
                    torch.set_rng_state(vars(self)["drawn"][mb])
                self._forwards[mb] = args, again(self._stage, args)
                torch.set_rng_state(before)
            return super().backward(mb, output_grads)

    return with_session(Session)


@fault("mode.gradients.eval-always-dropout-full", cause="drawn_again")
def random_state_kept_in_training_alone() -> Target:
    """B runs the forward again, and in evaluation mode it does not restore the random state."""

    def again(stage: nn.Module, args: tuple[Any, ...]) -> Any:
        before = [one.clone() for one in stage.buffers()]
        outputs = stage(*args)
        for buffer, value in zip(stage.buffers(), before, strict=True):
            buffer.copy_(value)
        return outputs

    return _recomputing(again)


@fault("state.buffers.unsaved-buffer-full")
def unsaved_buffers_updated_twice() -> Target:
    """B runs the forward again, and restores only buffers that ``state_dict`` has."""

    def again(stage: nn.Module, args: tuple[Any, ...]) -> Any:
        before = {name: one.clone() for name, one in stage.state_dict().items()}
        outputs = stage(*args)
        for name, buffer in stage.named_buffers():
            if name in before:
                buffer.copy_(before[name])
        return outputs

    return _recomputing(again)


@fault("state.buffers.batch-norm-*", "space.full.uneven-1", cause="forward_too_often", takes="parameters=buffer")
def forward_run_to_measure() -> Target:
    """Before each forward the stage runs once more, to measure its outputs."""

    class Session(FunctionsSession):
        def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
            if any(True for _ in self._stage.buffers()):
                with torch.no_grad(), torch.random.fork_rng(devices=[]):
                    self._stage(*args)
            return super().forward(mb, args, target)

    return with_session(Session)
