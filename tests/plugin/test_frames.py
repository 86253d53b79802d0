"""What pytest shows of a failure: the user's lines, the check by its name, and one reason per capability."""

from __future__ import annotations

import pytest

TESTS = """
import gradconform, pytest, torch

def raises(stage, args, output_grads):
    raise KeyError("ours")

def test_what_a_backward_raises(assert_matches_autograd):
    assert_matches_autograd(raises, torch.nn.ReLU(), torch.ones(3), torch.ones(3))

def test_a_wrong_use(gradconform_oracle):
    gradconform_oracle(torch.nn.ReLU(), torch.ones(3), [1, 2])

@gradconform.parametrize_checks("torch", checks="property.mixed.02")
def test_a_failed_check(check):
    check()

def test_a_report():
    gradconform.check_stage_backward("torch", checks="property.mixed.02").raise_if_failed()

def test_a_defect_of_the_kit(monkeypatch):
    import gradconform.drive.user_stage
    monkeypatch.setattr("gradconform.drive.user_stage.AutogradAdapter", object)
    gradconform.autograd_gradients(torch.nn.ReLU(), torch.ones(3), torch.ones(3))
"""


def shown(pytester: pytest.Pytester, *options: str) -> dict[str, str]:
    """Return what is printed of each failure."""
    pytester.makepyfile(TESTS)
    printed = pytester.runpytest(*options).stdout.str().partition("= FAILURES =")[2].partition("= gradconform =")[0]
    names = ["what_a_backward_raises", "a_wrong_use", "a_failed_check", "a_report", "a_defect_of_the_kit"]
    places = [printed.index(f"_ test_{name}") for name in names]
    return {name: printed[a:b] for name, a, b in zip(names, places, [*places[1:], None], strict=True)}


def test_a_failure_shows_no_line_of_the_kit(pytester: pytest.Pytester) -> None:
    kit = ("user_stage.py:", "matching.py:", "items.py:", "run.py:", "results.py:")
    found = shown(pytester)
    defect = found.pop("a_defect_of_the_kit")
    assert [(name, file) for name, text in found.items() for file in kit if file in text] == []
    assert "KeyError: 'ours'" in found["what_a_backward_raises"]
    assert "2 output gradients for 1 output;" in found["a_wrong_use"]
    assert "gradconform.CheckFailedError: micro-batch 2 missing" in found["a_failed_check"]
    assert "check = <check property.mixed.02[cpu-float32]>" in found["a_failed_check"]
    assert "ContractRun(" not in found["a_failed_check"]
    assert "gradconform.NonConformingError: torch does not conform, by 1 check" in found["a_report"]
    assert "user_stage.py:" in defect


def test_full_trace_shows_the_frames_of_the_kit(pytester: pytest.Pytester) -> None:
    assert "user_stage.py:" in shown(pytester, "--full-trace")["a_wrong_use"]


def test_unclaimed_capabilities_are_listed_on_one_line_each(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import gradconform
        from gradconform.reference.autograd import AutogradAdapter

        class Adapter(AutogradAdapter):
            capabilities = dict.fromkeys(("split", "lists", "edge_roots", "param_groups", "nested_output"), False)

        @gradconform.parametrize_checks(Adapter(), checks=["split.*", "grad_tuple.*", "full.gradients.*"])
        def test_conformance(check):
            check()
        """
    )
    reasons = [line for line in pytester.runpytest("-ra").outlines if line.startswith("SKIPPED")]
    named = [line.rpartition(": ")[2] for line in reasons]
    assert {"split", "nested_output"} <= set(named)
    assert len(named) == len(set(named))
    assert not any("," in name for name in named)


def test_an_unclaimed_dtype_is_the_skip_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import gradconform
        from gradconform.reference.autograd import AutogradAdapter

        class Adapter(AutogradAdapter):
            capabilities = {"dtypes": ("float64",), "split": False}

        @gradconform.parametrize_checks(Adapter(), checks="split.gradients.mlp")
        def test_conformance(check):
            check()
        """
    )
    result = pytester.runpytest("-ra")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*: not claimed: dtype float32"])


def test_a_junit_message_begins_with_the_cause(pytester: pytest.Pytester) -> None:
    options = ("--gradconform=torch", "--gradconform-checks=property.mixed.02", "--junitxml=junit.xml")
    pytester.runpytest(*options)
    told = (pytester.path / "junit.xml").read_text(encoding="utf-8")
    assert '<failure message="micro-batch 2 missing: after W, a parameter gradient has a wrong value' in told
