"""What some faults have to know of a graph: which parameters it holds, and who uses them how deep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from gradconform.fixtures.trees import tensors


class Graph:
    """The graph behind some nodes, walked breadth first; ``depth`` is the least number of steps from a root."""

    def __init__(self, roots: Iterable[Node]) -> None:
        """Walk; nothing is computed."""
        self.depth: dict[Node, int] = {}
        self.users: dict[Node, list[Node]] = {}
        level = list(dict.fromkeys(roots))
        self.depth.update(dict.fromkeys(level, 0))
        while level:
            below = [(node, after) for node in level for after, _ in node.next_functions if after is not None]
            level = []
            for user, node in below:
                self.users.setdefault(node, []).append(user)
                if node not in self.depth:
                    self.depth[node] = self.depth[user] + 1
                    level.append(node)

    @classmethod
    def behind(cls, outputs: Any) -> Graph:
        """Return the graph behind the tensors of ``outputs``."""
        return cls(get_gradient_edge(output).node for output in tensors(outputs) if output.requires_grad)

    @classmethod
    def of_context(cls, groups: list[dict[str, Any]]) -> Graph:
        """Return the graph behind a weight context; an empty one where the context was used up."""
        return cls(node for group in groups for node in group.get("intermediates", ()))

    def leaves(self) -> list[Tensor]:
        """Return the leaves that gradients accumulate into: parameters and inputs."""
        return [node.variable for node in self.depth if hasattr(node, "variable")]

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters met."""
        return [leaf for leaf in self.leaves() if isinstance(leaf, nn.Parameter)]

    def users_of(self, leaf: Tensor) -> list[Node]:
        """Return the nodes that use ``leaf``, one entry per use."""
        return self.users.get(get_gradient_edge(leaf).node, [])

    def apart(self, leaf: Tensor) -> int:
        """Return how many steps lie between the shallowest and the deepest use of ``leaf``."""
        depths = [self.depth[user] for user in self.users_of(leaf)]
        return max(depths, default=0) - min(depths, default=0)

    def input_path(self) -> set[Node]:
        """Return the nodes that lead to an input, which is a leaf that is no parameter."""
        reached = {get_gradient_edge(leaf).node for leaf in self.leaves() if not isinstance(leaf, nn.Parameter)}
        level = list(reached)
        while level:
            level = [user for node in level for user in self.users.get(node, ()) if user not in reached]
            reached.update(level)
        return reached
