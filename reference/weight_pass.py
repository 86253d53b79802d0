"""Runs W on its context: it computes the gradients of factors itself, and starts the engine once for many.

The engine cannot start at two uses at once if one is below the other: it would run the lower one twice. The edges of a
product that lead to its parameters lead to no other use. So the engine can start below many products at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from gradconform.torch_releases.engine import accumulate
from gradconform.torch_releases.node_hooks import running_on
from gradconform.torch_releases.products import engine_is_needed, factor_grads

from .gradients import starts_of

#: How many bytes of gradients are computed before the engine accumulates them: little compared with a stage, and enough
#: that small gradients share one start of the engine.
_AT_ONCE = 8 * 2**20


@torch.no_grad()
def accumulate_groups(groups: Sequence[dict[str, Any]], trained: set[int], *, retain_graph: bool) -> None:
    """Accumulate the gradients of a weight context into the parameters whose ids are ``trained``, and free it."""
    weight_pass = _WeightPass(trained, retain_graph=retain_graph)
    for group in groups:
        run = weight_pass.run_batch if "parameters" in group else weight_pass.run
        run(group)
    weight_pass.flush()


#: The start of the engine: edges and their gradients.
_Starts = list[tuple[GradientEdge, Tensor]]


def _is_copied(node: Node, sides: Sequence[int]) -> bool:
    """Return whether a large gradient would be copied: the engine copies gradients that it gets directly for a leaf."""
    leaves = (getattr(node.next_functions[side][0], "variable", None) for side in sides)
    return any(leaf is not None and leaf.nbytes > _AT_ONCE for leaf in leaves)


class _WeightPass:
    """One W. Gradients of factors wait until the engine accumulates many of them at once."""

    def __init__(self, trained: set[int], *, retain_graph: bool) -> None:
        self._trained, self._retain_graph = trained, retain_graph
        self._engine_is_needed = engine_is_needed()
        self._edges: list[GradientEdge] = []
        self._grads: list[Tensor] = []
        self._leaves: list[Tensor] = []
        self._bytes = 0

    def run_batch(self, group: dict[str, Any]) -> None:
        """Compute a group of independent uses, each of which is freed when it is finished."""
        nodes, grads, params = group.pop("intermediates"), group.pop("grads"), group["params"]
        sides, parameters = group.pop("sides"), group.pop("parameters")
        sought = self._sought(params)
        leaves = self._leaves = self._leaves + sought
        for place, some in enumerate(sides if sought else ()):
            node, (grad,) = nodes[place], grads[place]
            nodes[place] = grads[place] = None
            if grad is None:
                continue
            if self._engine_is_needed or not self._add(node, grad, some):
                first = sum(parameters[:place])
                own = self._sought(params[first : first + parameters[place]])
                if own:
                    self._run_uses([(GradientEdge(node, 0), grad)], own, [node])
            elif self._bytes > _AT_ONCE:
                self.flush()
                self._leaves = leaves

    def run(self, group: dict[str, Any]) -> None:
        """Compute a group whose uses share their parameters."""
        sides, ran = group.pop("sides", None), group.pop("ran", ())
        sought = self._sought(group["params"], group.get("stand_ins", ()))
        self.flush()
        if sides is not None and sought and not self._engine_is_needed:
            pairs = list(zip(group["intermediates"], group["grads"], sides, strict=True))
            if all(
                grad is not None and not _is_copied(node, some) and self._add(node, grad, some)
                for node, (grad,), some in pairs
            ):
                self._leaves = sought
                self.flush(again=group["overlaps"])
                sought = []
            else:
                self._drop()
        starts, keepers = starts_of(group), group.pop("edges", None)
        if starts and sought and group.get("joins"):  # the next group's start of the engine
            edges, grads = zip(*starts, strict=True)
            self._edges, self._grads, self._leaves = [*edges], [*grads], sought
        elif starts and sought:
            self._run_uses(starts, sought, ran, again=group.get("again", False))
        del keepers

    def _run_uses(
        self, starts: _Starts, leaves: Sequence[Tensor], ran: Collection[Node], *, again: bool = False
    ) -> None:
        """Let the engine run uses; those that ``ran`` on their gradients in I, after hooks, run on them again."""
        edges, grads = zip(*starts, strict=True)
        exact = [(edge.node, grad) for edge, grad in starts if edge.node in ran]
        with running_on(exact):
            accumulate(edges, grads, leaves, retain_graph=self._retain_graph or again)

    def _sought(self, nodes: Sequence[Any], stand_ins: Collection[Any] = ()) -> list[Tensor]:
        """Return the leaves that nodes accumulate into, if they are trained or replace trained ones."""
        trained = self._trained
        if stand_ins:
            return [node.variable for node in nodes if id(node.variable) in trained or node in stand_ins]
        return [leaf for node in nodes if id(leaf := node.variable) in trained]

    def _add(self, node: Node, grad: Tensor, sides: Sequence[int]) -> bool:
        """Return whether the gradients of a product's factors could be computed outside the engine, and queue them."""
        found = factor_grads(node, grad, sides)
        if found is None:
            return False
        children = node.next_functions
        self._edges += [GradientEdge(*children[side]) for side in sides]  # type: ignore[arg-type] # to a parameter
        self._grads += found
        for one in found:
            self._bytes += one.nbytes
        return True

    def _drop(self) -> None:
        self._edges, self._grads, self._leaves, self._bytes = [], [], [], 0

    def flush(self, *, again: bool = False) -> None:
        """Accumulate the queued gradients; ``again`` if nodes below are run once more."""
        edges, grads, leaves = self._edges, self._grads, self._leaves
        self._drop()
        if edges:
            accumulate(edges, grads, leaves, retain_graph=self._retain_graph or again)
