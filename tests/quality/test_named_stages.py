"""What is asked on a stage of a user's own accuses nobody who is right, whatever the stage; and it finds faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gradconform.contract.cases import REENTRANT, STAGES
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages import ZOO, StageCase
from gradconform.reference.faults import FAULTS
from gradconform.results import Report

Judge = Callable[..., Report]

#: The stages that a rule of what cannot be asked was made for.
ODD = (
    "all-frozen", "complex-parameter", "dict-output", "embedding-sparse", "empty-batch", "lstm", "output-is-input",
    "output-is-parameter", "parameter-input", "scalar-output", "sum-of-inputs", "transposed-input",
)  # fmt: skip
OTHERS = [case.name for case in (*STAGES, *REENTRANT) if case.name not in ODD]
IN_CI = 12


@pytest.mark.parametrize(
    "name",
    [
        *ODD,
        *OTHERS[::IN_CI],
        *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHERS if name not in OTHERS[::IN_CI]),
    ],
)
def test_a_right_split_backward_passes_on_every_stage_of_the_zoo(name: str, judge: Judge) -> None:
    report = judge("reference-split", stage=ZOO[name], strict=True, diagnose=False)
    assert [(result.check, result.message) for result in report.failures] == []
    assert report.summary["error"] == 0
    unsupported = [result for result in report if result.status == "unsupported"]
    # Nothing was left to be found out that the stage shows beforehand: what plain autograd raises is the stage's own.
    allowed = {"custom-linear", "in-place-activation", "lstm"}
    assert name in allowed or not [result for result in unsupported if result.kind == "environment"]
    assert report.summary["passed"] > 100


def _block() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.RMSNorm(9), torch.nn.Linear(9, 6))


BLOCK = StageCase("block", "a block of ours", _block, (Normal((3, 6)),), own_values=True)


@pytest.mark.parametrize("fault", ["doubled", "biases", "overwrite", "returned-buffer-reused", "graph-retained"])
def test_a_fault_is_found_on_a_user_stage(fault: str, judge: Judge) -> None:
    report = judge(FAULTS[fault].make(), stage=BLOCK, strict=True, diagnose=False)
    assert report.verdict == "failed"
    assert report.summary["error"] == 0


@pytest.mark.parametrize("layer", [torch.nn.LayerNorm(4), torch.nn.Linear(4, 4)], ids=["ones", "zeros"])
def test_constant_parameters_are_changed_to_differ_and_others_are_kept(layer: torch.nn.Module) -> None:
    layer.get_parameter("bias").data.zero_()
    case = StageCase("kept", "one layer", lambda: layer, (Normal((3, 4)),), own_values=True)
    made = case.make(dtype=torch.float32, device=torch.device("cpu"), seed=3)
    assert len(set(made.get_parameter("bias").tolist())) == 4
    if isinstance(layer, torch.nn.Linear):
        assert torch.equal(made.get_parameter("weight"), layer.weight)
