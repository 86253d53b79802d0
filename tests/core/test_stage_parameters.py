"""The parameters of a session's stage: always those that ``named_parameters`` returns at that moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from torch import nn

from gradconform.target.session import StageParameters


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
    parameters = StageParameters(stage)
    assert list(parameters.by_name()) == ["0.weight", "0.bias", "1.1.weight"]
    change(stage)
    found, expected = parameters.by_name(), dict(stage.named_parameters())
    assert list(found) == list(expected)
    assert all(found[name] is parameter for name, parameter in expected.items())


def test_a_stage_may_list_its_parameters_in_its_own_way() -> None:
    assert list(StageParameters(_Lists(2, 2)).by_name()) == ["weight"]


def test_one_module_has_its_own_parameters() -> None:
    assert list(StageParameters(nn.Linear(2, 2)).by_name()) == ["weight", "bias"]
