"""The tensors of a stage by name: always those that ``named_parameters`` and ``named_buffers`` return now."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from torch import nn

from gradconform.target.named_tensors import NamedTensors


class _Lists(nn.Linear):
    """Lists its weight alone."""

    def named_parameters(
        self,
        prefix: str = "",
        recurse: bool = True,  # noqa: FBT001, FBT002 (torch's own)
        remove_duplicate: bool = True,  # noqa: FBT001, FBT002 (as above)
    ) -> Iterator[tuple[str, nn.Parameter]]:
        return (one for one in super().named_parameters(prefix, recurse, remove_duplicate) if one[0] == "weight")


def _stage() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2, bias=False)))


def _replace_parameter(stage: nn.Sequential) -> None:
    stage[0].weight = nn.Parameter(stage[0].weight.detach().clone())


def _replace_layer(stage: nn.Sequential) -> None:
    stage[1][1] = nn.Linear(2, 2)


def _add_layer(stage: nn.Sequential) -> None:
    stage[1].append(nn.Linear(2, 2))


def _add_parameter(stage: nn.Sequential) -> None:
    stage.register_parameter("gain", nn.Parameter(stage[0].bias.detach().clone()))


def _remove_parameter(stage: nn.Sequential) -> None:
    stage[0].register_parameter("bias", None)


def _tie(stage: nn.Sequential) -> None:
    stage[1][1].weight = stage[0].weight


def _freeze(stage: nn.Sequential) -> None:
    stage.requires_grad_(requires_grad=False)


@pytest.mark.parametrize(
    "change",
    [_replace_parameter, _replace_layer, _add_layer, _add_parameter, _remove_parameter, _tie, _freeze],
)
def test_a_changed_stage_has_its_new_parameters(change: Callable[[nn.Sequential], None]) -> None:
    stage = _stage()
    parameters = NamedTensors(stage)
    assert list(parameters.parameters()) == ["0.weight", "0.bias", "1.1.weight"]
    change(stage)
    found, expected = parameters.parameters(), dict(stage.named_parameters())
    assert list(found) == list(expected)
    assert all(found[name] is parameter for name, parameter in expected.items())


def test_a_stage_may_list_its_parameters_in_its_own_way() -> None:
    assert list(NamedTensors(_Lists(2, 2)).parameters()) == ["weight"]


def test_a_changed_stage_has_its_new_buffers() -> None:
    stage = nn.Sequential(nn.BatchNorm1d(2), nn.ReLU())
    tensors = NamedTensors(stage)
    assert list(tensors.buffers()) == ["0.running_mean", "0.running_var", "0.num_batches_tracked"]
    stage[0].running_mean = stage[0].running_mean + 1
    stage[0].register_buffer("running_var", None)
    stage[1].register_buffer("own", stage[0].running_mean)
    found, expected = tensors.buffers(), dict(stage.named_buffers())
    assert list(found) == list(expected) == ["0.running_mean", "0.num_batches_tracked"]
    assert all(found[name] is buffer for name, buffer in expected.items())


def test_one_module_has_its_own_parameters() -> None:
    assert list(NamedTensors(nn.Linear(2, 2)).parameters()) == ["weight", "bias"]
