"""Finds mistakes inside the graph of a micro-batch: expanded gradients, rows left out, another layer's activations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.reference.recomputed import nodes_behind
from gradconform.trees import leaves

from .cause import Cause, Mistake
from .memory_layout import repeated
from .parts import Part, own_part
from .rerun import Grads, Rerun, Start, rerun_of
from .wrong_tensor import WrongTensor, dense

#: The sizes of blocks of rows that a kernel may sum, of which the last one can be left out.
_BLOCKS = tuple(2**power for power in range(12, 4, -1))


def strided_as_gradients(evidence: Evidence, step: Step, again: Rerun) -> Iterator[tuple[Cause, Grads]]:
    """Yield the results if one operation gives its gradient the strides of 0 of the gradient that it receives."""
    starts = _as_expanded(evidence, step, again)
    for node, dims in _receiving_expanded(again, starts).items():
        for place in (-1, 0):  # what is written last stays; a kernel that reads one element may read the first
            with _hooked(node, dims, place):
                grads = again.grads(starts)
            yield Cause(Mistake.STRIDED_AS_GRADIENT, names=(node.name().partition("Backward")[0],)), grads


def _as_expanded(evidence: Evidence, step: Step, again: Rerun) -> list[Start]:
    """Return the right output gradients, expanded where those of the program are."""
    if evidence.trial.chain or evidence.trial.hand_grads or evidence.trial.loss_at(step.action.stage):
        return again.given
    raw = dict(leaves(evidence.materials.output_grads(step.action.stage, step.action.mb)))
    return [
        grad if grad is None else _one_for_all(grad, repeated(raw[path]), 0)
        for path, grad in zip(again.outputs, again.given, strict=True)
    ]


def _one_for_all(tensor: Tensor, dims: tuple[int, ...], place: int) -> Tensor:
    for dim in dims:
        tensor = tensor.narrow(dim, place % tensor.shape[dim], 1).expand(tensor.shape)
    return tensor


def _receiving_expanded(again: Rerun, starts: list[Start]) -> dict[Node, tuple[int, ...]]:
    """Return the nodes with one result that receive one expanded gradient, with its dimensions."""
    found: dict[Node, tuple[int, ...]] = {}

    def recording(node: Node) -> Any:
        def record(grads: tuple[Tensor | None, ...]) -> None:
            dims = repeated(grads[0]) if len(grads) == 1 else ()
            if dims:
                found[node] = dims

        return record

    with ExitStack() as hooks:
        for node in _operations(again):
            hooks.callback(node.register_prehook(recording(node)).remove)
        again.grads(starts)
    return found


def _operations(again: Rerun) -> list[Node]:
    """Return the nodes of the graph that compute something: those of leaves only store what they receive."""
    nodes = nodes_behind([root for root in again.roots if root is not None])
    return [node for node in nodes if node.name() != "torch::autograd::AccumulateGrad"]


def _hooked(node: Node, dims: tuple[int, ...], place: int) -> ExitStack:
    def repeat(results: tuple[Tensor | None, ...], received: tuple[Tensor | None, ...]) -> Any:
        shape = None if received[0] is None else received[0].shape
        return tuple(one if one is None or one.shape != shape else _one_for_all(one, dims, place) for one in results)

    hooks = ExitStack()
    hooks.callback(node.register_hook(repeat).remove)
    return hooks


def with_received_written_over(again: Rerun) -> Iterator[tuple[Cause, Grads]]:
    """Yield the results if all operations of one kind write a gradient into the memory of the one that they receive.

    What receives the same gradient and runs later, as the other way around a residual block does, reads the wrong one.
    """
    of_kind: dict[str, list[Node]] = {}
    for node in _operations(again):
        of_kind.setdefault(node.name(), []).append(node)
    for kind, nodes in of_kind.items():
        written: list[Tensor] = []
        with ExitStack() as hooks:
            for node in nodes:
                hooks.callback(node.register_hook(_writing_over(written)).remove)
            grads = again.grads([start if start is None else start.clone() for start in again.given])
        if written:
            yield Cause(Mistake.RECEIVED_WRITTEN_OVER, names=(kind.partition("Backward")[0],)), grads


def _writing_over(written: list[Tensor]) -> Any:
    def write(results: tuple[Tensor | None, ...], received: tuple[Tensor | None, ...]) -> None:
        memory = received[0]
        for one in results:
            if one is not None and memory is not None and one.shape == memory.shape and memory.is_contiguous():
                if one is not memory:  # an addition hands on what it receives
                    written.append(memory.copy_(one.clone()))
                return

    return write


def rows_left_out(wrong: WrongTensor, name: str, parts: list[Part]) -> Cause | None:
    """Return the cause that the action's own part is a sum over whole blocks of rows only."""
    own = own_part(wrong, parts)
    if own is None or wrong.evidence.trial.loss_at(wrong.step.action.stage):
        return None
    again = rerun_of(wrong.evidence, wrong.step)
    rows = min((grad.shape[0] for grad in again.given if grad is not None and grad.dim()), default=0)
    tried: set[int] = set()
    for block in _BLOCKS:
        kept = rows // block * block
        if not 0 < kept < rows or kept in tried:
            continue
        tried.add(kept)
        found = _of_first_rows(wrong, again, kept).params[name]
        if found is not None and wrong.explained_by(wrong.right - own + dense(found)):
            return Cause(Mistake.ROWS_LEFT_OUT, counts=(rows - kept, rows, block))
    return None


def _of_first_rows(wrong: WrongTensor, again: Rerun, kept: int) -> Grads:
    """Return the results of the first ``kept`` rows of the output gradients, computed once for all parameters."""

    def run() -> Grads:
        return again.grads([grad if grad is None else _first_rows(grad, kept) for grad in again.given])

    found: Grads = wrong.evidence.recomputed.of(("rows", id(wrong.step), kept), run)
    return found


def _first_rows(grad: Tensor, kept: int) -> Tensor:
    rows = grad.clone()
    rows[kept:] = 0
    return rows


def activations_of_another_layer(wrong: WrongTensor, name: str, parts: list[Part]) -> Cause | None:
    """Return the linear layer whose activations were used for the weight gradient of another one."""
    own, (owner, _, kind) = own_part(wrong, parts), name.rpartition(".")
    if own is None or own.dim() != 2 or kind != "weight":  # noqa: PLR2004 (a matrix)
        return None
    key = "linear layers", id(wrong.step)
    layers = wrong.evidence.recomputed.of(key, lambda: _linear_layers(wrong.evidence, wrong.step))
    if owner not in layers:
        return None
    activations, grads = layers[owner]
    for other, (others, _) in layers.items():
        if others.shape == activations.shape and wrong.explained_by(wrong.right - own + grads.T @ others):
            return Cause(Mistake.ACTIVATIONS_OF_LAYER, names=(other,))
    return None


def _linear_layers(evidence: Evidence, step: Step) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the activations and output gradients, as rows, of each linear layer that a stage calls once."""
    calls: dict[str, list[Tensor]] = {}
    grads: dict[str, Tensor] = {}

    def watching(name: str) -> Any:
        def watch(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            calls.setdefault(name, []).append(args[0].detach())
            if output.requires_grad:
                output.register_hook(lambda grad: grads.update({name: grad}))

        return watch

    def watch_all(stage: nn.Module) -> None:
        for name, layer in stage.named_modules():
            if isinstance(layer, nn.Linear):
                layer.register_forward_hook(watching(name))

    again = rerun_of(evidence, step, watch_all)
    again.grads(again.given)
    once = [name for name, found in calls.items() if len(found) == 1 and name in grads]
    return {name: (_rows(calls[name][0]), _rows(grads[name])) for name in once}


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])
