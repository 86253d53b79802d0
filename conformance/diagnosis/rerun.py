"""Runs micro-batches again in float64 and keeps their graph, so that other output gradients can be tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from gradconform.drive.evidence import Evidence
from gradconform.drive.gradient_hooks import HOOK_FACTOR, HOOKS
from gradconform.drive.observation import Step
from gradconform.drive.reference64 import widen
from gradconform.reference.autograd import run_backward
from gradconform.trees import as_tuple, leaves, map_leaves
from gradconform.trial.materials import mean_squares
from gradconform.trial.program import forward_of

from .parts import output_grads_at
from .wrong_tensor import dense

Start = Tensor | None

#: A function that changes a stage before its forward.
Prepare = Callable[[nn.Module], object]


@dataclass(frozen=True, slots=True)
class Grads:
    """The result of a backward: one gradient per argument, and one per parameter; None for none."""

    inputs: tuple[Tensor | None, ...]
    params: dict[str, Tensor | None]


class Rerun:
    """One micro-batch of one stage after its forward in float64.

    ``roots`` is where a backward starts: the leaves of the outputs, the loss, or the outputs of the node into whose
    weight context gradients were set by hand. None represents a leaf without a gradient. ``given`` are the right
    gradients there.
    """

    def __init__(self, evidence: Evidence, lane: int, mb: int, forward: int, prepare: Prepare | None = None) -> None:
        """Run the F at the position ``forward`` of the program, on a stage changed by ``prepare``."""
        passed = evidence.references.passed(lane, mb, forward, prepare)
        self.stage, self.args, outputs = passed.stage, passed.args, passed.outputs
        self.outputs = dict(leaves(as_tuple(outputs)))
        self.roots: list[Tensor | GradientEdge | None] = [
            leaf if isinstance(leaf, Tensor) and leaf.requires_grad else None for leaf in self.outputs.values()
        ]
        self.given: list[Start] = []
        self._factor = HOOK_FACTOR if evidence.trial.altering == "scale" else 1.0
        self._hook = HOOKS.get(evidence.trial.altering)
        if evidence.trial.loss_at(lane):
            loss = mean_squares(outputs, map_leaves(widen, evidence.materials.target(lane, mb)))
            self.roots, self.given = [loss], [torch.full_like(loss, evidence.loss_scale)]
        elif evidence.trial.hand_grads:
            node = next(get_gradient_edge(leaf).node for leaf in self.outputs.values() if isinstance(leaf, Tensor))
            self.given = [widen(grad) for grad in evidence.materials.hand_grads(lane, mb)]
            self.roots = [GradientEdge(node, slot) for slot in range(len(self.given))]
        else:
            self.given = [widen(grad) for grad in output_grads_at(evidence, lane, mb, list(self.outputs))]

    @property
    def shapes(self) -> list[torch.Size | None]:
        """The shapes of the gradients at the roots; None if none can flow."""
        leaves_ = list(self.outputs.values())  # in all existing trials the outputs of a node are those of the stage
        return [
            None if root is None else root.shape if isinstance(root, Tensor) else leaves_[place].shape
            for place, root in enumerate(self.roots)
        ]

    def starts_otherwise(self, starts: Sequence[Start]) -> bool:
        """Return whether a backward can start from ``starts`` and differs from the right one."""
        if len(starts) != len(self.roots):
            return False
        different = False
        for root, shape, start, given in zip(self.roots, self.shapes, starts, self.given, strict=True):
            if root is None:
                continue
            if start is not None and start.shape != shape:
                return False
            same = start is given or (start is not None and given is not None and torch.equal(start, given))
            different = different or not same
        return different

    def grads(self, starts: Sequence[Start]) -> Grads:
        """Return the gradients of a backward from ``starts``, one per root."""
        pairs = [(r, s) for r, s in zip(self.roots, starts, strict=True) if r is not None and s is not None]
        sought = (*self.args, *self.stage.parameters())
        found = run_backward([r for r, _ in pairs], [s for _, s in pairs], sought, keep_graph=True)
        known = {key: grad if grad is None else dense(grad) for key, grad in found.items()}
        return Grads(
            tuple(known.get(id(arg)) for arg in self.args),
            {
                name: grad if (grad := known.get(id(parameter))) is None or self._hook is None else self._hook(grad)
                for name, parameter in self.stage.named_parameters()
            },
        )

    def uses(self, leaf: Tensor) -> list[Tensor]:
        """Return the gradients that reach ``leaf`` along each edge of the graph: their sum is its gradient."""
        pairs = [(r, s) for r, s in zip(self.roots, self.given, strict=True) if r is not None and s is not None]
        if not pairs or not leaf.requires_grad:
            return []
        found = [start for root, start in pairs if root is leaf]
        handles = [
            node.register_hook(_collector(slots, found)) for node, slots in _users(get_gradient_edge(leaf).node, pairs)
        ]
        run_backward([root for root, _ in pairs], [grad for _, grad in pairs], [leaf], keep_graph=True)
        for handle in handles:
            handle.remove()
        factor = self._factor if isinstance(leaf, nn.Parameter) else 1.0
        return [dense(grad) * factor for grad in found]


def rerun(evidence: Evidence, lane: int, mb: int, before: int, prepare: Prepare | None = None) -> Rerun:
    """Return a micro-batch run again, from its last F before a position of the program.

    Forwards on an unchanged stage are kept for the next question about the trial.
    """
    forward = forward_of(evidence.trial.actions, lane, mb, before)
    if prepare is not None:
        return Rerun(evidence, lane, mb, forward, prepare)
    found: Rerun = evidence.recomputed.of(("rerun", lane, mb, forward), lambda: Rerun(evidence, lane, mb, forward))
    return found


def rerun_of(evidence: Evidence, step: Step, prepare: Prepare | None = None) -> Rerun:
    """Return the micro-batch of a step run again."""
    return rerun(evidence, step.action.stage, step.action.mb, step.position + 1, prepare)


def _users(accumulator: Node, pairs: Sequence[tuple[Any, Tensor]]) -> Iterator[tuple[Node, list[int]]]:
    """Yield the nodes that send a gradient to ``accumulator``, each with the slots that do."""
    stack = [root.node if isinstance(root, GradientEdge) else get_gradient_edge(root).node for root, _ in pairs]
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack += [child for child, _ in node.next_functions if child is not None]
        slots = [slot for slot, (child, _) in enumerate(node.next_functions) if child is accumulator]
        if slots:
            yield node, slots


def _collector(slots: list[int], found: list[Tensor]) -> Any:
    def hook(grad_inputs: tuple[Tensor | None, ...], grad_outputs: object) -> None:
        del grad_outputs
        found.extend(grad for slot in slots if (grad := grad_inputs[slot]) is not None)

    return hook
