"""The run that the library makes: what is wrong with its arguments is refused first, and what is asked for is run."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import gradconform
from gradconform.reference.autograd import AutogradAdapter, AutogradSession
from gradconform.results import Result
from gradconform.run.options import RunOptions
from gradconform.run.run import Run
from gradconform.target.lookup import TargetError
from gradconform.user_input.values import SelectionError

ONE = "full.gradients.mlp"


class TwiceTheInputs(AutogradAdapter):
    """Doubles input gradients of all but the pre-flight's stage, so that messages hold numbers."""

    def open(self, stage: Any, spec: Any) -> Any:
        """Return a session that doubles."""

        class Session(AutogradSession):
            def backward(self, mb: int, output_grads: Any) -> Any:
                found = super().backward(mb, output_grads)
                small = len(list(stage.modules())) == 1
                return found if small else tuple(None if grad is None else grad * 2 for grad in found)

        return Session(stage, spec)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "cpuu"}, "device 'cpuu' cannot be used"),
        ({"device": ["cpu", "cpuu"]}, "device 'cpuu' cannot be used"),
        ({"device": []}, "no device or no dtype is given"),
        ({"dtype": "float23"}, "unsupported dtype 'float23'"),
        ({"dtype": ["float32", torch.int8]}, "unsupported dtype 'int8'"),
        ({"profile": "all"}, "unknown profile 'all'; expected one of quick, standard, full"),
        ({"checks": "ful.*"}, "check pattern 'ful.*' matches no check; nearest: "),
        ({"checks": ["full.*", "nope"]}, "check pattern 'nope' matches no check"),
        ({"seed": -1}, "seed: expected an integer from 0 to 4294967295, got -1"),
        ({"seed": 2**32}, "got 4294967296"),
        ({"seed": "20"}, "got '20'"),
        ({"seed": True}, "got True"),
        ({"seed": 1.0}, "got 1.0"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_with_its_value(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SelectionError) as raised:
        gradconform.check_stage_backward("autograd", **options)
    assert said in str(raised.value)
    assert isinstance(raised.value, ValueError)


def test_an_unmatched_exclude_pattern_is_refused() -> None:
    with pytest.raises(SelectionError, match="'nope' matches no check"):
        Run(RunOptions.of("autograd", exclude_checks="nope"))


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(TargetError, match="'autogard' is not a registered name"):
        gradconform.check_stage_backward("autogard", checks=ONE)


def test_a_wrong_argument_is_refused_before_anything_runs() -> None:
    opened: list[object] = []

    class Watched(AutogradAdapter):
        def open(self, stage: Any, spec: Any) -> Any:
            opened.append(stage)
            return super().open(stage, spec)

    with pytest.raises(ValueError, match="seed"):
        gradconform.check_stage_backward(Watched(), checks=ONE, seed=-1)
    assert not opened
    gradconform.check_stage_backward(Watched(), checks=ONE)
    assert opened


@pytest.mark.parametrize(
    "options",
    [{"device": "cpu", "dtype": "float64"}, {"device": torch.device("cpu"), "dtype": torch.float64}],
    ids=["names", "objects"],
)
def test_devices_and_dtypes_are_accepted_as_names_or_objects(options: dict[str, Any]) -> None:
    (found,) = gradconform.check_stage_backward("autograd", checks=ONE, **options).results
    assert (found.status, found.device, found.dtype) == ("passed", "cpu", "float64")


def test_each_dtype_makes_one_item() -> None:
    report = gradconform.check_stage_backward("autograd", checks=ONE, dtype=["float32", "bfloat16"])
    assert [found.dtype for found in report] == ["float32", "bfloat16"]
    assert report.summary["manifest"] % 2 == 0
    assert report.summary["planned"] == 2


def test_a_selection_never_conforms_although_everything_passed() -> None:
    report = gradconform.check_stage_backward("autograd", checks=[ONE, "full.loss.mlp"])
    assert [found.status for found in report] == ["passed", "passed"]
    assert not report.conforms
    assert report.exit_code == 5
    report.raise_if_failed()


def test_the_report_is_json_and_has_seed_and_target() -> None:
    values = json.loads(gradconform.check_stage_backward("reference-split", checks=ONE, seed=3).to_json())
    assert values["seed"] == 3
    assert values["target"]["text"] == values["target"]["name"] == "reference-split"
    assert values["target"]["file"].endswith("split.py")
    assert len(values["target"]["sha256"]) == 64


def test_each_result_is_passed_to_the_callback_and_excluded_checks_do_not_run() -> None:
    seen: list[Result] = []
    report = Run(RunOptions.of("autograd", checks="full.loss.*", exclude_checks=["*.mlp*"], profile="quick")).run(
        seen.append
    )
    assert seen == report.results
    assert seen
    assert not [found for found in seen if found.check.endswith("mlp")]


def test_the_same_seed_repeats_the_results_and_another_seed_changes_the_numbers() -> None:
    def results(seed: int) -> list[dict[str, Any]]:
        found = gradconform.check_stage_backward(TwiceTheInputs(), checks="full.gradients.t*", seed=seed).results
        return [{**one.to_dict(), "duration_s": 0.0} for one in found]

    assert results(1) == results(1)
    assert results(1) != results(2)


def test_a_run_restores_generators_threads_and_grad_mode() -> None:
    generator, threads = torch.get_rng_state(), torch.get_num_threads()
    gradconform.check_stage_backward("autograd", checks="*.dropout*")
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()


def test_selected_places_run_in_the_given_order_and_each_start_is_reported() -> None:
    run = Run(
        RunOptions.of("reference-split", checks=["full.loss.mlp", "full.gradients.mlp", "repeat.*"], profile="quick")
    )
    places = [place for place in reversed(run.header().places) if place.check.startswith("full.")]
    told: list[Result] = []
    report = run.run(told.append, on_start=told.append, places=places)
    assert [result.place for result in report] == places
    assert told[1::2] == report.results
    known = ("place", "level", "requirement", "core", "programs")
    assert [[getattr(one, name) for name in known] for one in told[::2]] == [
        [getattr(one, name) for name in known] for one in report
    ]
    assert {one.status for one in told[::2]} == {"not_run"}
    assert report.summary["not_run"] == report.planned - 2 > 0
