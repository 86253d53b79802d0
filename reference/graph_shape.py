"""The shape of a graph: its nodes by number and kind, without the nodes themselves.

The shape determines everything that a split must know of a graph, and is the same for most micro-batches. Every graph
is walked, since only a walk shows its shape; results computed from the shape are then looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from gradconform.torch_releases.edges import held_from_above, is_compiled
from gradconform.torch_releases.products import is_product
from gradconform.torch_releases.saved import saves_tensors


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """The relevant properties of a node in addition to its edges. Equal kinds are one object, compared by identity."""

    #: An activation checkpoint that re-enters autograd.
    reenters: bool = False
    compiled: bool = False
    #: The node of a module's full backward hook.
    module_hook: bool = False
    #: A custom Function's node, which its users above keep alive.
    held_from_above: bool = False
    saves: bool = False
    #: A product whose factors' gradients can be computed from the node's saved values.
    product: bool = False
    #: It accumulates into a leaf: None for no leaf, else whether the leaf is a trained parameter.
    trained: bool | None = None
    #: It accumulates into a leaf of one dimension at most.
    vector: bool = False


#: All kinds of nodes that accumulate, by whether the leaf is trained and whether it is a vector.
_LEAVES = {
    (trained, vector): Kind(trained=trained, vector=vector) for trained in (True, False) for vector in (True, False)
}
#: Kinds by the type of a node. Types of custom Functions are not stored: a class may hold its author's tensors.
_OF_TORCH: dict[type, Kind] = {}


@lru_cache(maxsize=256)
def _kind(*facts: bool) -> Kind:
    return Kind(*facts)


def _kind_of(node: Node) -> Kind:
    """Return the kind of a node that accumulates into no leaf."""
    kind, name = type(node), type(node).__name__
    custom = held_from_above(node)
    found = _kind(
        "Checkpoint" in name,
        is_compiled(kind),
        name == "BackwardHookFunctionBackward",
        custom,
        saves_tensors(kind),
        not custom and is_product(kind),
    )
    if not custom:
        _OF_TORCH[kind] = found
    return found


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of the graph below some roots.

    ``code`` has each node in the order of its number: its kind, then for each edge the number of the target node, -1
    for none. An output of that node other than the first follows as ``-1 - output``. ``roots`` has node and output of
    each root, ``inputs`` the nodes that accumulate into inputs, if they are in the graph.
    """

    code: tuple[Kind | int, ...]
    roots: tuple[tuple[int, int], ...]
    inputs: tuple[int, ...]

    def kinds_and_edges(self) -> tuple[list[Kind], list[list[tuple[int, int]]]]:
        """Return the kind of each node, and its edges as numbers of node and output."""
        kinds: list[Kind] = []
        edges: list[list[tuple[int, int]]] = []
        for one in self.code:
            if isinstance(one, Kind):
                kinds.append(one)
                edges.append([])
            elif one >= -1:
                edges[-1].append((one, 0))
            else:
                edges[-1][-1] = edges[-1][-1][0], -1 - one
        return kinds, edges


@dataclass(frozen=True, slots=True)
class Graph:
    """A walked graph: its shape, and its nodes by their numbers."""

    nodes: list[Node]
    shape: Shape
    leaves: list[Tensor]


def walk(roots: Sequence[GradientEdge], inputs: Iterable[Tensor], trained: Mapping[int, Tensor]) -> Graph:
    """Return the walked graph below ``roots``; ``trained`` has the parameters by their ids."""
    # Torch finds the node of a leaf by an operation on it, so the walk looks for the leaf instead.
    own = {id(one): -1 for one in inputs if one.grad_fn is None}
    nodes = list(dict.fromkeys(edge.node for edge in roots))
    numbers: dict[Node | None, int] = {None: -1, **{node: number for number, node in enumerate(nodes)}}
    code: list[Kind | int] = []
    leaves: list[Tensor] = []
    known, add, meet, count = _OF_TORCH.get, code.append, nodes.append, len(nodes)
    for node in nodes:  # the list grows meanwhile
        kind = known(type(node))
        children = node.next_functions
        if kind is None:
            leaf: Tensor | None = None if children else getattr(node, "variable", None)
            if leaf is not None:
                leaves.append(leaf)
                if id(leaf) in own:
                    own[id(leaf)] = numbers[node]
            kind = _kind_of(node) if leaf is None else _LEAVES[id(leaf) in trained, leaf.dim() <= 1]
        add(kind)
        for child, output in children:
            if child in numbers:
                add(numbers[child])
            else:
                numbers[child] = count
                add(count)
                meet(child)  # type: ignore[arg-type] # None has a number
                count += 1
            if output:
                add(-1 - output)
    shape = Shape(
        tuple(code),
        tuple((numbers[edge.node], edge.output_nr) for edge in roots),
        tuple(number for one in inputs if (number := own.get(id(one), numbers.get(one.grad_fn, -1))) >= 0),
    )
    return Graph(nodes, shape, leaves)
