"""Every differentiable operation of torch: that they are tried, that nobody who is right is accused, what is found."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradconform.contract.extra_ids import ALL
from gradconform.contract.full_and_split import checks_on
from gradconform.fixtures.inputs import draw_arguments
from gradconform.fixtures.operations import entries as entries_module
from gradconform.fixtures.operations.cases import Judgeable, judgeable
from gradconform.fixtures.operations.entries import entries
from gradconform.fixtures.operations.stage import OperationStage
from gradconform.results import Report
from gradconform.sources.operations.selected import select_checks, unlike_first
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial

Judge = Callable[..., Report]

#: In how many parts the entries are judged: in CI four of them in float32, and the first in every dtype.
PARTS = 12
DTYPES = ("float32", "float64", "bfloat16", "float16")
PLACES = [
    pytest.param(number, dtype, marks=() if number < 4 * (dtype == "float32") or number == 0 else pytest.mark.nightly)
    for dtype in DTYPES
    for number in range(PARTS)
]


def part(number: int) -> list[str]:
    return list(entries())[number::PARTS]


@pytest.mark.nightly
def test_at_least_95_per_cent_of_the_operations_are_tried() -> None:
    asked = select_checks([ALL], "quick")
    assert asked.listed > 500
    assert len(asked.untried) / asked.listed < 0.05
    assert len(asked.nodes) > 300
    assert {check.id.split(".")[1] for check in asked.checks} == {"full", "split"}
    assert len({check.id for check in asked.checks}) == len(asked.checks) == 2 * (asked.listed - len(asked.untried))


def test_in_turn_each_sample_is_in_one_of_two_checks_and_otherwise_in_both() -> None:
    def samples(*, in_turn: bool) -> dict[str, list[str]]:
        checks = select_checks(["mul", "nn.functional.dropout"], "quick", in_turn=in_turn).checks
        return {check.id: [trial.stages[0].name for trial in check.trials] for check in checks}

    both, in_turn = samples(in_turn=False), samples(in_turn=True)
    for name in ("mul", "nn.functional.dropout"):
        full, split = both[f"ops.full.{name}"], both[f"ops.split.{name}"]
        assert full == split
        assert len(full) == 2
        assert [in_turn[f"ops.full.{name}"], in_turn[f"ops.split.{name}"]] == [full[:1], split[1:]]


def test_an_operation_with_one_sample_is_judged_in_both_checks_in_turn_too() -> None:
    case = case_of("mul", 1).case
    full, split = checks_on("ops", "mul", "mul", [case], in_turn=True)
    assert [trial.stages for check in (full, split) for trial in check.trials] == [(case,), (case,)]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "dtype"), PLACES)
def test_a_right_split_backward_passes_on_every_operation(number: int, dtype: str, judge: Judge) -> None:
    report = judge("reference-split", operation=part(number), profile="quick", dtype=dtype, strict=True, diagnose=False)
    assert [(result.check, result.message) for result in report.failures] == []
    assert report.summary["error"] == 0
    # What plain autograd cannot do in a dtype is the environment's.
    assert {result.kind for result in report if result.status == "unsupported"} <= {"environment"}
    assert report.summary["passed"] > 60


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(PARTS))
def test_a_right_split_backward_passes_on_every_sample(number: int, judge: Judge) -> None:
    report = judge("reference-split", operation=part(number), profile="full", strict=True, diagnose=False)
    assert [(result.check, result.message) for result in report.failures] == []
    assert report.summary["error"] == 0


def test_a_cell_that_torch_runs_twice_is_found_with_its_sample(judge: Judge) -> None:
    report = judge("torch", operation="nn.LSTM", diagnose=False)
    failed = {result.check: result for result in report.failures}
    assert list(failed) == ["ops.split.nn.LSTM"]
    (finding,) = failed["ops.split.nn.LSTM"].findings
    told = re.fullmatch(r"(\d+) \((\d+) of (\d+) fail\)", finding["needs"]["sample"])
    assert told is not None
    number, count, of = map(int, told.groups())
    assert 0 < count <= of == 6
    assert number < len(entries()["nn.LSTM"].samples(torch.float32, 0))


def test_reading_torchs_operation_lists_does_not_change_the_process() -> None:
    look = """
import os, warnings, torch
def seen():
    return dict(os.environ), list(warnings.filters), torch.get_default_dtype(), torch._C.ScriptFunction.__call__
before = seen()
from gradconform.fixtures.operations.entries import entries
from gradconform.fixtures.operations.stage import OperationStage
assert entries()
torch.backends.mkldnn.enabled = True  # refused from then on, where torch's tests are imported
assert seen() == before
"""
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def case_of(name: str, number: int) -> Judgeable:
    found = judgeable(entries()[name], number)
    assert isinstance(found, Judgeable)
    return found


def test_a_sample_runs_six_times_until_it_is_planned_and_seeds_the_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[bool] = []
    run, of_all = OperationStage.alone, torch.manual_seed

    def counted(stage: OperationStage, *args: Tensor) -> list[Tensor]:
        runs.append(torch.manual_seed is of_all)
        return run(stage, *args)

    monkeypatch.setattr(OperationStage, "alone", counted)
    judgeable.cache_clear()
    case_of("nn.functional.dropout", 0)
    assert (runs, torch.manual_seed) == ([False] * 6, of_all)


def test_micro_batches_differ_but_the_tensors_of_a_sample_stay_together() -> None:
    recipes = case_of("mul", 1).case.inputs
    first, again, other = (draw_arguments(recipes, seed=seed, dtype=torch.float32) for seed in (3, 3, 4))
    assert all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(a is not None and b is not None and torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_micro_batches_and_unused_forwards_have_different_values_of_few_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    lists: list[int] = []
    drawn = entries_module._drawn  # each list costs much to draw: count them

    def counted(name: str, dtype: torch.dtype, seed: int) -> tuple[entries_module.Drawn, ...]:
        lists.append(seed)
        return drawn(name, dtype, seed)

    monkeypatch.setattr(entries_module, "_drawn", counted)
    materials = [
        Materials(
            Trial(stages=(case_of("mul", number).case,), program="F0 F1 B0 B1"),
            dtype=torch.float32,
            device=torch.device("cpu"),
            seed=0,
        )
        for number in (1, 2)
    ]
    for one in materials:
        stage = one.stage(0)
        values = [one.args(0, 0, stage), one.args(0, 1, stage), one.lost_args(0, 1, stage), one.lost_args(0, 0, stage)]
        assert len({tuple(float(arg.detach().sum()) for arg in args) for args in values}) == 4
    assert set(lists) == {0, 1, 4, 5}  # of each micro-batch and each unused forward, for both samples


def test_a_sample_missing_in_a_dtype_is_rounded_from_float64() -> None:
    recipes = case_of("linalg.cholesky", 0).case.inputs
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        drawn = draw_arguments(recipes, seed=1, dtype=dtype)
        assert {one.dtype for one in drawn if one is not None} == {dtype}


def test_values_that_decide_a_shape_are_the_same_in_every_micro_batch() -> None:
    recipes = case_of("masked_select", 2).case.inputs
    first, other = (draw_arguments(recipes, seed=seed, dtype=torch.float32) for seed in (3, 4))
    assert all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_an_argument_without_derivative_is_fixed_and_others_keep_gradients() -> None:
    case = case_of("nn.functional.batch_norm", 0).case
    assert "fixed_input" in case.traits
    assert any(getattr(recipe, "requires_grad", False) for recipe in case.inputs)


def test_random_numbers_are_detected_despite_the_seed_of_the_list() -> None:
    assert "rng" in case_of("nn.functional.dropout", 2).case.traits
    assert "rng" not in case_of("nn.functional.relu", 0).case.traits


@pytest.mark.parametrize("wanted", [1, 2, 6, 100, None])
def test_different_samples_are_first_and_each_sample_is_used_once(wanted: int | None) -> None:
    samples = entries()["nn.functional.dropout"].samples(torch.float32, 0)
    found = list(unlike_first(samples, wanted))
    assert sorted(found) == list(range(len(samples)))
    drawing = [number for number in found[:6] if "0.5" in samples[number].form[0]]
    assert wanted != 6 or any(samples[number].tensors[0].numel() > 1 for number in drawing)


def test_an_empty_sample_list_selects_no_sample() -> None:
    assert list(unlike_first((), 2)) == []
