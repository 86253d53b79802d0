"""A description that does not fit the stage gives one sentence, before any process starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from gradconform.sharded.described import described
from gradconform.sharded.layout import layout_of, part, part_or_refuse
from gradconform.sharded.parts import Parts, Placed, refuse_gaps
from gradconform.sharded.stage import DescriptionError
from gradconform.trial.mesh import Mesh

MESH = Mesh({"tp": 2})


def parts_of(placements: Mapping[str, Any], shape: tuple[int, int] = (2, 3), **more: Any) -> list[Parts]:
    """Return the parts of two ranks of ``Linear(3, 4)``."""
    whole = nn.Linear(3, 4, bias=False)
    stage = SimpleNamespace(placements=placements, **more)
    found = []
    for rank in range(2):
        module = nn.Linear(shape[1], shape[0], bias=False)
        found.append(Placed(stage, "stage", module, whole, MESH, rank).parts)
        if found[-1].params["weight"].whole == "weight":
            expected = found[-1].params["weight"].of(whole.weight.detach())
            assert torch.equal(module.weight.detach(), expected)
    refuse_gaps("stage", whole, found)
    return found


def test_the_parts_of_all_ranks_are_the_whole_tensor() -> None:
    one, other = (parts.params["weight"].positions for parts in parts_of({"weight": Shard(0)}))
    assert torch.equal(torch.cat([one, other]), torch.arange(12).reshape(4, 3))


def _rows(number: int, start: int) -> Callable[[Tensor, Mapping[str, int], Mapping[str, int]], Tensor]:
    return lambda whole, place, _: whole[place["tp"] * start : place["tp"] * start + number]


@pytest.mark.parametrize(
    ("placements", "more", "said"),
    [
        ({}, {}, "parameter 'weight' has no placement; add 'weight' to placements"),
        ({"weight": Shard(1)}, {}, r"has the shape \(4, 2\) on rank 0, but sharded\(\) made \(2, 3\)"),
        ({"weight": Replicate()}, {}, r"has the shape \(4, 3\) on rank 0, but sharded\(\) made \(2, 3\)"),
        ({"weight": Shard(2)}, {}, r"Shard\(dim=2\) does not fit the shape \(4, 3\)"),
        ({"weight": Partial()}, {}, "a parameter cannot be Partial"),
        ({"weight": "rows"}, {}, "expected a placement"),
        ({"weight": {"dp": Shard(0)}}, {}, r"expected placements by mesh dimension \(tp\)"),
        ({"weight": Shard(0), "wieght": Shard(0)}, {}, "'wieght', which the sharded module does not have; nearest"),
        ({"weight": _rows(2, 0)}, {}, "the parts of all ranks miss 6 of its 12 elements"),
        ({"weight": _rows(2, 1)}, {}, "miss 3 of its 12 elements"),
        ({"weight": lambda *_: None}, {}, "its slice function returned NoneType"),
        ({"weight": lambda *_: 1 / 0}, {}, "its slice function raised ZeroDivisionError"),
        ({"weight": Shard(0)}, {"whole_names": {"weight": "wait"}}, "the whole stage has no 'wait'; nearest: weight"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(placements: Mapping[str, Any], more: Mapping[str, Any], said: str) -> None:
    with pytest.raises(DescriptionError, match=said):
        parts_of(placements, **more)


def test_overlapping_parts_that_are_no_copies_are_refused() -> None:
    with pytest.raises(DescriptionError, match="the parts of ranks 0 and 1 overlap without being copies"):
        parts_of({"weight": _rows(3, 1)}, (3, 3))


def test_a_parameter_that_no_rank_has_is_refused() -> None:
    whole = nn.Linear(3, 4)
    module = nn.Linear(3, 2, bias=False)
    stage = SimpleNamespace(placements={"weight": Shard(0)})
    found = [Placed(stage, "stage", module, whole, MESH, rank).parts for rank in range(2)]
    with pytest.raises(DescriptionError, match="no rank has the whole stage's parameter 'bias'"):
        refuse_gaps("stage", whole, found)


def test_placements_of_two_dimensions_cut_in_their_order() -> None:
    mesh = Mesh({"dp": 2, "tp": 2})
    layout = layout_of({"dp": Shard(0), "tp": Shard(0)}, mesh, "x")
    assert [part(torch.arange(8), layout, mesh, rank).tolist() for rank in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(DescriptionError, match="the mesh has the dimensions dp and tp; give the placement of each"):
        layout_of(Shard(0), mesh, "x")


def test_an_uneven_tensor_is_cut_as_torch_cuts_it() -> None:
    mesh = Mesh({"tp": 4})
    layout = layout_of(Shard(0), mesh, "x")
    assert [part(torch.arange(5), layout, mesh, rank).tolist() for rank in range(4)] == [[0, 1], [2, 3], [4], []]


def test_a_packed_tensor_is_cut_block_by_block_as_torch_cuts_it() -> None:
    packed = _StridedShard(0, split_factor=2)  # two blocks of rows, as gate and up in one weight
    found = [part(torch.arange(8), {"tp": packed}, MESH, rank) for rank in range(2)]
    assert [one.tolist() for one in found] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    with pytest.raises(DescriptionError, match="does not fit the shape"):
        part_or_refuse(torch.arange(8), {"tp": _StridedShard(1, split_factor=2)}, MESH, 0, "x")


#: A process of its own: another test may have joined a group.
OTHER_NAMES = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from gradconform.sharded.layout import layout_of_dtensor
from gradconform.trial.mesh import Mesh

dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
own = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "tp"))
tensor = DTensor.from_local(torch.ones(2), own, [Shard(0), Replicate()])
assert layout_of_dtensor(tensor, Mesh({"ep": 2, "tp": 2})) == {"ep": Shard(0), "tp": Replicate()}
dist.destroy_process_group()
"""


def test_a_dtensor_may_name_the_dimensions_of_its_mesh_otherwise() -> None:
    done = subprocess.run([sys.executable, "-c", OTHER_NAMES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


STAGE = """
class Stage:
    mesh = {mesh}
    {more}
    def whole(self): ...
    def sharded(self, mesh): ...
    def args(self, generator): ...
"""


@pytest.mark.parametrize(
    ("mesh", "more", "said"),
    [
        ("{'tp': 1}", "", "has no size from 2 to 64 ranks"),
        ("{'tp': ('2',)}", "", "expected whole numbers from 1 for 'tp'"),
        ("('tp', 2)", "", "expected the sizes of each dimension"),
        ("{'tp': 2}", "options = {'flag': True}", "expected the values of each argument"),
        ("{'tp': 2}", "placement = {}", "has 'placement', which the kit does not read; did you mean placements"),
    ],
)
def test_a_wrong_member_is_named(mesh: str, more: str, said: str, tmp_path: Any) -> None:
    path = tmp_path / "mine.py"
    path.write_text(STAGE.format(mesh=mesh, more=more))
    with pytest.raises(DescriptionError, match=said):
        _read(str(path))


def _read(name: str) -> None:
    found = described(name)
    assert found.meshes
    assert found.options


def test_a_class_without_the_required_members_is_named(tmp_path: Any) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class Stage:\n    mesh = {'tp': 2}\n    def whole(self): ...\n")
    with pytest.raises(DescriptionError, match="has no sharded and no args; see docs/my-sharded-stage"):
        described(f"{path}:Stage")
