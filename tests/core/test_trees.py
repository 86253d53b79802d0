"""Trees: leaves in order with their paths, structure kept."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.graph import GradientEdge, get_gradient_edge

from gradconform.trees import (
    OpaqueOutputError,
    as_tuple,
    equal,
    flattened,
    in_key_order,
    leaves,
    map_leaves,
    refuse_opaque,
    tensors,
)

TREES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=3)),
    lambda branch: st.one_of(
        st.lists(branch, max_size=3),
        st.lists(branch, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), branch, max_size=3),
    ),
    max_leaves=12,
)


def test_leaves_are_in_order_with_paths_that_index_the_tree() -> None:
    tree = ({"h": 1, "c": [2, None]}, 3)
    assert list(leaves(tree)) == [("[0]['h']", 1), ("[0]['c'][0]", 2), ("[0]['c'][1]", None), ("[1]", 3)]


def test_a_gradient_edge_is_a_leaf() -> None:
    edge = get_gradient_edge(torch.ones(2, requires_grad=True) * 2)
    assert list(leaves((edge, None))) == [("[0]", edge), ("[1]", None)]
    assert flattened([edge]) == [edge]
    assert map_leaves(type, (edge,)) == (GradientEdge,)


def test_a_single_leaf_has_an_empty_path() -> None:
    assert list(leaves(7)) == [("", 7)]


@pytest.mark.parametrize("tree", [(), [], {}, ((), [{}])], ids=repr)
def test_an_empty_tree_has_no_leaves(tree: object) -> None:
    assert list(leaves(tree)) == []


@given(TREES)
def test_mapping_keeps_the_structure_and_visits_every_leaf_once(tree: Any) -> None:
    mapped = map_leaves(lambda leaf: (leaf, "seen").__repr__(), tree)
    assert [path for path, _ in leaves(mapped)] == [path for path, _ in leaves(tree)]
    assert [leaf for _, leaf in leaves(mapped)] == [repr((leaf, "seen")) for _, leaf in leaves(tree)]
    assert map_leaves(lambda leaf: leaf, tree) == tree


@given(TREES)
def test_a_path_finds_its_leaf(tree: Any) -> None:
    for path, leaf in leaves(tree):
        assert eval(f"tree{path}", {"tree": tree}) == leaf  # noqa: S307 (the paths are the kit's own)


def test_tensors_returns_only_tensors() -> None:
    one, two = torch.ones(1), torch.ones(2)
    found = tensors({"a": [one, None], "b": (3, two, "x")})
    assert [id(tensor) for tensor in found] == [id(one), id(two)]


@pytest.mark.parametrize(
    ("outputs", "expected"), [(7, (7,)), (None, (None,)), ((7,), (7,)), ([7], [7]), ({"a": 7}, {"a": 7})]
)
def test_only_a_single_leaf_becomes_a_tuple_of_one(outputs: object, expected: object) -> None:
    assert as_tuple(outputs) == expected
    assert type(as_tuple(outputs)) is type(expected)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.complex32, torch.float8_e4m3fn, torch.bool])
def test_tensors_of_every_dtype_are_compared(dtype: torch.dtype) -> None:
    one = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).to(dtype)
    other = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).to(dtype)
    assert equal(one, one.clone())
    assert equal(one[0, 0], one[1, 1].clone())
    assert not equal(one, other)
    assert equal(one[:, 0], other[:, 0])


class Pair(NamedTuple):
    hidden: Any
    extra: Any


class Ordered(OrderedDict[str, Any]):
    """Stands in for transformers' ModelOutput, which is an OrderedDict whose constructor drops a None."""

    def __init__(self, **entries: Any) -> None:
        super().__init__((key, value) for key, value in entries.items() if value is not None)


def test_a_named_tuple_keeps_its_type() -> None:
    mapped = map_leaves(lambda leaf: 10 * leaf, {"pair": Pair(1, [Pair(2, 3)])})
    assert mapped == {"pair": Pair(10, [Pair(20, 30)])}
    assert (type(mapped["pair"]), type(mapped["pair"].extra[0])) == (Pair, Pair)


def test_a_named_result_of_torch_keeps_its_type() -> None:
    found = torch.ones(2, 3).max(dim=1)
    mapped = map_leaves(torch.clone, found)
    assert type(mapped) is type(found)
    assert torch.equal(mapped.indices, found.indices)


def test_a_dict_subclass_keeps_its_type_and_its_keys_with_none_values() -> None:
    found = Ordered(logits=1, cache=2)
    mapped = map_leaves(lambda leaf: None if leaf == 2 else leaf, found)
    assert type(mapped) is Ordered
    assert list(leaves(mapped)) == [("['logits']", 1), ("['cache']", None)]
    assert list(leaves(found)) == [("['logits']", 1), ("['cache']", 2)]


def test_the_order_of_dict_keys_does_not_matter() -> None:
    example = {"a": 0, "b": [{"c": 0, "d": 0}]}
    other = {"b": [{"d": 4, "c": 3}], "a": 1}
    assert flattened(in_key_order(other, example)) == [1, 3, 4]
    assert flattened(in_key_order({"b": 2, "z": 1}, example)) == [2, 1]


@dataclass
class Record:
    hidden: Any


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        (Record(torch.ones(1)), "the output is a Record, a dataclass; expected"),
        (
            (torch.ones(1), MappingProxyType({"a": torch.ones(1)})),
            r"output \[1\] is a mappingproxy, a mapping other than",
        ),
    ],
    ids=["dataclass", "mapping"],
)
def test_an_output_type_that_cannot_be_traversed_is_refused_by_name(outputs: Any, told: str) -> None:
    with pytest.raises(OpaqueOutputError, match=told):
        refuse_opaque(outputs)


def test_traversable_outputs_are_accepted() -> None:
    outputs = (torch.ones(1), Pair(None, Ordered(a=torch.ones(1))), "text")
    refuse_opaque(outputs)
    assert len(tensors(outputs)) == 2
