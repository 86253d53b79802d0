"""The contract for suites of ``unittest``: one test per check, classes per device, and what pytest cannot do there."""

from __future__ import annotations

import io
import re
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradconform.plugins.unittest import conformance_case, instantiate
from gradconform.plugins.unittest.cases import CheckNotJudgedError, Conformance
from gradconform.reference import split
from gradconform.reference.autograd import AutogradAdapter
from gradconform.target.lookup import TargetError
from gradconform.user_input.values import SelectionError


def outcome(made: type[unittest.TestCase]) -> tuple[unittest.TestResult, str]:
    """Run the tests of a class as ``python -m unittest`` does."""
    stream = io.StringIO()
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(made)
    return unittest.TextTestRunner(stream=stream, verbosity=2).run(suite), stream.getvalue()


def test_a_class_has_one_test_per_check_and_prints_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    made = conformance_case("reference-split", profile="quick", checks="full.gradients.*")
    found, told = outcome(made)
    assert found.wasSuccessful()
    assert found.testsRun == len(made.report.results) == len(made.run_of_checks.plan.items) > 5
    assert "test_full_gradients_mlp " in told
    assert "B MUST return plain autograd's input gradients" in told
    assert "reference-split 1.0.0" in capsys.readouterr().err
    assert made.__module__ == __name__


def test_a_failure_has_the_kits_message_without_its_frames() -> None:
    found, told = outcome(conformance_case("torch", checks="split.gradients.embedding"))
    assert (found.testsRun, len(found.failures), len(found.errors)) == (1, 1, 0)
    assert "MUST failed: torch on cpu in float32" in told
    assert "likely cause: never accumulated" in told
    assert "cases.py" not in told.partition("FAIL:")[2]


def test_several_devices_and_dtypes_are_subtests() -> None:
    made = conformance_case(
        "torch", checks=["split.gradients.embedding", "full.gradients.mlp"], dtype=["float32", "float64"]
    )
    found, told = outcome(made)
    assert (found.testsRun, len(found.failures)) == (2, 2)
    assert len(made.report.results) == 4
    assert "(device='cpu', dtype='float64')" in told


def test_unclaimed_checks_are_skipped_with_the_reason() -> None:
    target = SimpleNamespace(stage_backward=split.stage_backward)
    found, _ = outcome(conformance_case(target, checks=["split.gradients.mlp", "full.gradients.mlp"]))
    assert [reason for _, reason in found.skipped] == ["not claimed: split"]
    assert found.wasSuccessful()


class _Broken(AutogradAdapter):
    """Fails its pre-flight: an adapter's mistake, and nothing of the implementation."""

    def open(self, stage: Any, spec: Any) -> Any:
        del stage, spec


def test_a_check_that_could_not_be_judged_is_an_error_not_a_failure() -> None:
    found, told = outcome(conformance_case(_Broken(), checks="full.gradients.mlp"))
    assert (len(found.failures), len(found.errors)) == (0, 1)
    assert CheckNotJudgedError.__name__ in told
    assert "error (adapter)" in told


def test_a_waived_failure_and_a_failed_should_are_skipped_with_the_reason(tmp_path: Path) -> None:
    waivers = tmp_path / "waivers.toml"
    waivers.write_text(
        '[[waiver]]\ncheck = "split.gradients.embedding"\nverdict = "missing"\nreason = "known"\n'
        'issue = "https://example.org/1"\nowner = "us"\nexpires = 2027-01-01\n',
        encoding="utf-8",
    )
    found, _ = outcome(conformance_case("torch", checks="split.gradients.embedding", waivers=waivers))
    assert [reason for _, reason in found.skipped] == ["waived: known (https://example.org/1, us, until 2027-01-01)"]
    assert found.wasSuccessful()


def test_results_of_a_process_that_changed_torch_are_an_error_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    made = conformance_case("reference-split", checks="full.gradients.mlp")
    assert made.run_of_checks.guard is not None
    monkeypatch.setattr(made.run_of_checks.guard, "look", lambda: "torch was changed")
    found, told = outcome(made)
    assert len(found.errors) == 1
    assert "the results of this process do not count: torch was changed" in told


def test_test_method_names_are_unique() -> None:
    made = conformance_case("reference-split", profile="full")
    names = [name for name in vars(made) if name.startswith("test_")]
    assert len(names) == len(made.run_of_checks.plan.items)
    assert all(re.fullmatch(r"\w+", name) for name in names)


@pytest.mark.parametrize(("target", "options"), [("no.such.module", {}), ("torch", {"checks": "no.such.check"})])
def test_an_invalid_target_or_check_is_refused_when_the_class_is_made(target: str, options: dict[str, str]) -> None:
    with pytest.raises((TargetError, SelectionError)):
        conformance_case(target, **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"device": "cpu"}, "device='cpu': instantiate makes a class per type of device; name them by only_for"),
        ({"only_for": "cpu", "profil": "quick"}, "unknown option 'profil'; nearest: profile"),
    ],
)
def test_an_unknown_option_is_refused_with_the_right_option(options: dict[str, str], told: str) -> None:
    scope: dict[str, Any] = {}
    with pytest.raises(TypeError, match=told):
        instantiate(scope, "reference-split", **options)  # type: ignore[arg-type] # the mistake that is told
    assert scope == {}


def test_classes_per_device_are_named_as_in_torchs_tests() -> None:
    scope: dict[str, Any] = {"__name__": "ours"}
    names = instantiate(
        scope, "reference-split", only_for="cpu", dtype=("float32", "float64"), checks="full.gradients.mlp"
    )
    assert names == ["TestStageBackwardCPU"]
    made = scope["TestStageBackwardCPU"]
    assert issubclass(made, Conformance)
    assert (made.__module__, made.device_type) == ("ours", "cpu")
    tests = [name for name in vars(made) if name.startswith("test_")]
    assert tests == ["test_full_gradients_mlp_cpu_float32", "test_full_gradients_mlp_cpu_float64"]
    assert outcome(made)[0].wasSuccessful()


def test_an_unusable_device_gets_a_class_that_is_skipped_with_the_reason() -> None:
    scope: dict[str, Any] = {}
    names = instantiate(scope, "reference-split", only_for=("cpu", "nosuch"), checks="full.gradients.mlp")
    assert names == ["TestStageBackwardCPU", "TestStageBackwardNOSUCH"]
    found, _ = outcome(scope["TestStageBackwardNOSUCH"])
    ((_, reason),) = found.skipped
    assert "'nosuch'" in reason


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PYTORCH_TESTING_DEVICE_ONLY_FOR", "cuda"), ("PYTORCH_TESTING_DEVICE_EXCEPT_FOR", "cuda,cpu")],
)
def test_torchs_variables_select_devices_and_an_empty_selection_is_skipped(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    scope: dict[str, Any] = {}
    assert instantiate(scope, "reference-split", only_for="cpu") == ["TestStageBackwardNoDevice"]
    ((_, reason),) = outcome(scope["TestStageBackwardNoDevice"])[0].skipped
    assert variable in reason


def test_parametrize_checks_on_a_method_of_unittest_is_refused_by_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import unittest
        import gradconform

        class TestOurs(unittest.TestCase):
            @gradconform.parametrize_checks("torch", checks="full.loss.*")
            def test_conformance(self, check):
                check()
        """
    )
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*TestOurs::test_conformance: parametrize_checks decorates a method of TestOurs*"])


def test_pytest_also_runs_the_unittest_classes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from gradconform.plugins.unittest import conformance_case

        TestStageBackward = conformance_case("reference-split", checks="full.gradients.mlp")
        """
    )
    pytester.runpytest().assert_outcomes(passed=1)
