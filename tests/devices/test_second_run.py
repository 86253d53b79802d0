"""Plain autograd runs a second time on a device only where there is a difference for it to explain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gradconform.drive.observation import Observation, Raised, Step
from gradconform.judge.device_trust import agree
from gradconform.trial.program import Action

NAN = float("nan")
STEP = Step(
    Action("B", 0),
    outputs=(torch.ones(2), 3),
    loss=torch.tensor(1.0),
    input_grads=(torch.tensor([1.0, NAN]), None),
    arg_grads=(None,),
    param_grads={"weight": torch.ones(3), "bias": None},
)


def seen(**changed: Any) -> Observation:
    """Return an observation of two steps, the last of them with what is changed."""
    return Observation(steps=(STEP, replace(STEP, **changed)))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"outputs": (torch.ones(2), 3), "param_grads": {"weight": torch.ones(3), "bias": None}},
        {"weight_result": (torch.ones(3),)},  # what plain autograd has none of explains no difference
        {"param_grads": {"weight": torch.ones(3), "bias": torch.ones(1)}},  # judged without a spread
    ],
    ids=repr,
)
def test_a_second_run_with_equal_bits_agrees(changed: dict[str, Any]) -> None:
    assert agree(seen(), seen(**changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"outputs": (torch.ones(2) * 1.0000001, 3)},
        {"outputs": (torch.ones(3), 3)},
        {"outputs": None},
        {"loss": torch.tensor(1.0, dtype=torch.float64)},
        {"input_grads": (torch.tensor([1.0, 0.0]), None)},
        {"input_grads": (torch.tensor([1.0, NAN]), None)},  # a NaN equals none, so there is a second run
        {"input_grads": (None, torch.tensor([1.0, NAN]))},
        {"param_grads": {"weight": torch.ones(3).to_sparse(), "bias": None}},
        {"param_grads": {}},
    ],
    ids=repr,
)
def test_a_second_run_with_any_difference_does_not_agree(changed: dict[str, Any]) -> None:
    assert not agree(seen(), seen(**changed))


def test_a_run_that_ended_early_does_not_agree() -> None:
    assert not agree(seen(), replace(seen(), steps=(STEP,)))
    assert not agree(seen(), seen(raised=Raised("RuntimeError", "lost")))
