"""Fuzzing finds known faults by itself, and tells each defect once and small."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradconform.drive.observation import Raised
from gradconform.fixtures.random_stages import SeededChoices, recipe_of
from gradconform.fuzz.campaign import Campaign, run_campaign
from gradconform.fuzz.hunt import BlobError, Hunt, from_blob, key_of, to_blob
from gradconform.judge import all_requirements
from gradconform.judge.finding import Finding, Kind
from gradconform.reference.faults import FAULTS
from gradconform.reference.variants import VARIANTS
from gradconform.run.runner import Runner
from gradconform.target.resolve import Target, resolve
from gradconform.trial.program import write
from gradconform.trial.random_trials import draw_trial

#: One fault per topic that random trials can see, and more.
FOUND = (
    "overwrite", "written-behind-zero-grad", "returned-buffer-reused", "biases", "parameter-hooks-never",
)  # fmt: skip


def campaign(target: Target, examples: int, dtype: torch.dtype = torch.float32) -> Campaign:
    runner = Runner(target, device=torch.device("cpu"), dtype=dtype)
    return run_campaign(runner, max_examples=examples, time_budget=3600, seed=20, most_defects=1)


@pytest.mark.parametrize("name", [*FOUND[:2], *(pytest.param(name, marks=pytest.mark.nightly) for name in FOUND[2:])])
def test_fuzzing_finds_a_fault_and_shrinks_it_to_five_lines(name: str) -> None:
    found = campaign(FAULTS[name].make(), 300)
    assert found.defects
    trial = found.defects[0].trial
    recipe = recipe_of(trial.stages[0])
    assert recipe is not None
    assert len(recipe.text.splitlines()) <= 5
    assert len(trial.actions) <= 12
    hunt = Hunt(Runner(FAULTS[name].make(), device=torch.device("cpu"), dtype=torch.float32))
    assert hunt.judge(from_blob(to_blob(trial)))


@pytest.mark.parametrize("name", ["autograd", "reference-split"])
def test_fuzzing_right_targets_finds_no_defect(name: str) -> None:
    found = campaign(resolve(name), 200, torch.bfloat16)
    assert found.defects == []
    assert found.failing == 0
    assert found.trials >= 150


@pytest.mark.parametrize("name", VARIANTS)
def test_fuzzing_right_variants_finds_no_defect(name: str) -> None:
    found = campaign(resolve(VARIANTS[name]()), 60, torch.float64)
    assert [defect.key for defect in found.defects] == []


#: By dimension of the space, what of a random trial asks for its values.
PASSED = {
    "received": "received", "lists": "kept_lists", "weights": "weights", "owner": "upstream",
    "tracking": "tracked_grads",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.dimension in PASSED])
def test_a_random_trial_finds_faults_that_need_passed_tensors_or_lists(name: str) -> None:
    fault = FAULTS[name]
    field = PASSED[str(fault.dimension)]
    runner = Runner(fault.make(), device=torch.device("cpu"), dtype=torch.float32)
    drawn = (draw_trial(SeededChoices(seed), runner.target.capabilities) for seed in range(400))
    found = next(trial for trial in drawn if getattr(trial, field) and runner.findings(trial, all_requirements))
    usual = replace(found, **{field: type(getattr(found, field))()})
    assert not runner.findings(usual, all_requirements)
    assert from_blob(to_blob(found)) == found


@pytest.mark.parametrize(
    ("name", "word"), [("evaluation-ends-the-training", "evaluate"), ("first-forward-of-a-number-kept", "lose")]
)
def test_a_random_trial_finds_faults_that_need_a_forward_without_backward(name: str, word: str) -> None:
    runner = Runner(FAULTS[name].make(), device=torch.device("cpu"), dtype=torch.float32)
    drawn = (draw_trial(SeededChoices(seed), runner.target.capabilities) for seed in range(400))
    found = next(trial for trial in drawn if word in trial.program and runner.findings(trial, all_requirements))
    usual = replace(found, program=write(action for action in found.actions if action.kind != word))
    assert not runner.findings(usual, all_requirements)


def test_findings_have_the_same_key_if_their_values_are_equal() -> None:
    def key(text: str = "", kind: Kind = "changed", raised: str = "") -> str:
        error = Raised("RuntimeError", raised) if raised else None
        return key_of(Finding(kind, "weight", "W0", text, raised=error, sort="parameter gradient"))

    assert key("changed to 3") == key("is another tensor now") != key("changed to 3", "shared")
    assert key("", "error", "no 3") == key("another sentence", "error", "no 4") != key("", "error", "not so")


def test_the_same_seed_runs_the_same_trials() -> None:
    first, second = (campaign(FAULTS["overwrite"].make(), 60) for _ in range(2))
    assert first.trials == second.trials
    assert [defect.trial for defect in first.defects] == [defect.trial for defect in second.defects]


@pytest.mark.parametrize("text", ["", "nonsense", "eJxLTEpOSU1Lz8jMys7JzcsvKCwqLiktK6-orAIAfSsJVQ=="])
def test_an_invalid_blob_is_refused(text: str) -> None:
    with pytest.raises(BlobError, match="expected a whole BLOB"):
        from_blob(text)
