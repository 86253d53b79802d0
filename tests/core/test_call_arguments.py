"""Tensors received into again, an earlier graph that goes on, and lists that a caller keeps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradconform.contract.areas import QUICK
from gradconform.contract.space.checks import ROWS
from gradconform.contract.space.dimensions import DIMENSIONS
from gradconform.drive.receive_buffers import ReceiveBuffers
from gradconform.drive.upstream_graph import UpstreamGraph
from gradconform.target.call_arguments import KeptLists, ListChangedError, weights_for


def test_a_receive_buffer_is_reused_after_its_micro_batch_ends() -> None:
    buffers = ReceiveBuffers()
    first, second = buffers.received(0, (torch.zeros(2),)), buffers.received(1, (torch.ones(2),))
    assert first[0] is not second[0]
    buffers.after("B", 0)
    third = buffers.received(2, (torch.full((2,), 3.0),))
    assert third[0] is first[0]
    assert first[0].tolist() == [3.0, 3.0]


def test_after_w_a_buffer_is_free_only_at_the_end_of_the_step_and_for_its_shape() -> None:
    buffers = ReceiveBuffers()
    first = buffers.received(0, (torch.zeros(2),))
    buffers.after("W", 0)
    assert buffers.received(1, (torch.ones(2),))[0] is not first[0]
    buffers.after("finish", 0)
    assert buffers.received(2, (torch.ones(3),))[0] is not first[0]
    assert buffers.received(3, (torch.ones(2),))[0] is first[0]


@pytest.mark.parametrize(("change", "wrong"), [(False, False), (True, True)])
def test_an_earlier_graph_continues_unless_its_memory_was_overwritten(change: bool, wrong: bool) -> None:  # noqa: FBT001 (a parameter)
    upstream = UpstreamGraph()
    (arg,) = upstream.args(0, (torch.ones(2, requires_grad=True),))
    assert arg.is_leaf
    upstream.returned(0, (torch.ones(2),))
    if change:
        arg.data.add_(1.0)
    assert bool(upstream.go_on()) is wrong


def test_a_list_that_a_function_changes_is_reported() -> None:
    kept = KeptLists()
    (weights,) = kept.of(("weights",), [iter([1, 2])])
    weights.pop()
    with pytest.raises(ListChangedError, match="expected 2 entries, got 1"):
        kept.check("stage_backward_weight")


def test_w_gets_the_weights_in_reverse_and_i_does_not() -> None:
    one, other = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    assert [*weights_for("W", "reversed", iter([one, other]))] == [other, one]
    assert [*weights_for("I", "reversed", iter([one, other]))] == [one, other]
    assert len(list(weights_for("I", "twice", iter([one, other])))) == 3


def test_profile_quick_has_a_row_of_every_dimension() -> None:
    for way, dimensions in DIMENSIONS.items():
        rows = [ROWS[check][1] for check in QUICK if check in ROWS and ROWS[check][0] == way]
        plain = {one.name: one.values[0].word for one in dimensions}
        assert {name for row in rows for name, word in row.items() if word != plain[name]} == set(plain)
