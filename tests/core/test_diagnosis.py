"""Parts of the diagnosis by themselves: the rules by which weight contexts get lost, and what counts as chance."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradconform.adapter import Capabilities
from gradconform.diagnosis.cause import listed, numbered
from gradconform.diagnosis.missing import rules
from gradconform.diagnosis.wrong_tensor import WrongTensor, distinct, wrong_tensor
from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Observation, Step
from gradconform.drive.reference64 import References
from gradconform.trial.materials import Materials
from gradconform.trial.program import Action, parse, write
from gradconform.trial.trial import Trial


@pytest.mark.parametrize(
    ("rule", "program", "found"),
    [
        ("only the first W of a stage adds anything", "I0 I1 1I0 W1 1W0 W0", "W1 1W0"),
        ("only the newest weight context is kept", "I0 I1 1I0 W0 W1 1W0", "W1 1W0"),
        ("only the newest 2 weight contexts are kept", "I0 I1 I2 W0 W1 W2", "W1 W2"),
        ("weight contexts are lost if a B runs between I and W", "I0 B1 1I0 W0 I2 W2 1W0", "W2 1W0"),
        ("weight contexts are stored by micro-batch and not by stage", "I0 I1 1I0 W0 1W0 W1", "W1"),
        ("a W is dropped if another one is waiting", "I0 1I0 W0 1W0 I1 W1", "1W0 W1"),
        ("W takes the oldest weight context of any stage", "I0 1I0 1W0 W0 I1 W1", "W1"),
        ("W takes the newest weight context of any stage", "I0 1I0 1W0 I1 1I1 W0 1W1 W1", "1W0 W1"),
    ],
)
def test_a_rule_names_the_w_that_find_their_context(rule: str, program: str, found: str) -> None:
    actions = list(parse(program))
    kept = {str(cause): found for cause, found in rules(actions)}[rule](actions)
    assert write(action for action in actions if action in kept) == found


def explainable(got: Tensor, right: Tensor) -> WrongTensor | None:
    trial = Trial(stages=(), program="F0 B0")
    materials = Materials(trial, dtype=got.dtype, device=torch.device("cpu"), seed=20)
    evidence = Evidence(References(materials), Capabilities(), (), Observation())
    return wrong_tensor(evidence, Step(Action("B")), got, right.double(), 0.0)


def test_one_float32_number_supports_a_simple_factor_but_not_a_fitted_one() -> None:
    asked = explainable(torch.tensor([2.0]), torch.tensor([1.0]))
    assert asked is not None
    assert asked.explained_by(torch.tensor([2.0], dtype=torch.float64))
    assert not asked.explained_by(torch.tensor([2.0], dtype=torch.float64), fitted=1)


def test_a_few_bfloat16_numbers_support_no_factor() -> None:
    right = torch.tensor([1.0, -1.5, 0.7])
    got = torch.tensor([2.1, -2.9, 1.5]).bfloat16()
    asked = explainable(got, right)
    assert asked is not None
    assert not asked.explained_by(2.0 * right.double())


def test_equal_elements_count_as_one_distinct_number() -> None:
    assert distinct(torch.full((5, 5), 0.3), 1e-6) == 1
    assert distinct(torch.tensor([0.1, 0.2, 0.2, 1e-9]), 1e-6) == 2
    assert distinct(torch.zeros(3, dtype=torch.complex128), 1e-6) == 0


@pytest.mark.parametrize(
    ("got", "right"),
    [
        (torch.ones(2), torch.ones(3)),
        (torch.ones(0), torch.ones(0)),
        (torch.tensor([float("nan"), 1.0]), torch.ones(2)),
        (torch.ones(2, dtype=torch.int64), torch.ones(2)),
    ],
)
def test_values_that_cannot_be_compared_as_numbers_get_no_cause(got: Tensor, right: Tensor) -> None:
    assert explainable(got, right) is None


def test_names_are_listed_as_in_a_sentence() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert numbered("output", [2]) == "output 2"
    assert numbered("output", [0, 2]) == "outputs 0 and 2"
