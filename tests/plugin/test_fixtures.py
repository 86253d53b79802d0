"""The fixtures: every example in their docstrings, and what each promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradconform.fixtures.stages import ZOO
from gradconform.plugins.pytest import fixtures as pytest_fixtures

#: See conftest.py.
IN_TWO = True

Judge = Callable[..., pytest.RunResult]

FIXTURES = sorted(
    name for name in vars(pytest_fixtures) if name.startswith(("gradconform_", "assert_")) and name != "annotations"
)


def test_the_examples_pass_with_any_number_of_processes(
    judge: Judge, pytester: pytest.Pytester, example_of: Callable[[Any], str], processes: tuple[str, ...]
) -> None:
    assert len(FIXTURES) == 9
    for name in FIXTURES:
        pytester.makepyfile(**{f"test_{name}": example_of(vars(pytest_fixtures)[name])})
    narrowed = "not complex and not recomputes and not gradconform_target or mlp"
    result = judge("-v", "-k", narrowed, *processes)
    told = result.parseoutcomes()
    assert told.keys() - {"deselected"} == {"passed"}
    for name in FIXTURES:
        result.stdout.fnmatch_lines_random([f"*test_{name}.py::*"])


def test_pytest_shows_a_working_example_of_each_fixture_without_v(pytester: pytest.Pytester, judge: Judge) -> None:
    shown = dict.fromkeys(FIXTURES, "")
    name = ""
    for line in pytester.runpytest("--fixtures").outlines:
        name = line.partition(" ")[0] if " -- " in line else name
        if name in shown and line.strip().startswith("Example: "):
            shown[name] = line.strip().removeprefix("Example: ").strip("`.")
    assert all(shown.values()), shown
    given = "backward, stage, args, output_grads = (lambda x, y, g: None), torch.nn.Identity(), torch.ones(()), None\n"
    for name, line in shown.items():
        of_stage = name in {"gradconform_stage", "gradconform_output_grads"}
        marks = "@pytest.mark.gradconform_stages('mlp')\n" if of_stage else ""
        pytester.makepyfile(**{f"test_of_{name}": f"import pytest, torch\n{given}{marks}{line}\n"})
    told = judge("-v").parseoutcomes()
    assert told.keys() == {"passed"}, told


def test_without_a_target_the_target_fixture_fails_and_requires_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_own(gradconform_target): pass")
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*gradconform_target requires a target; add --gradconform TARGET*"])


def test_a_test_runs_once_per_device_and_dtype_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_own(gradconform_device, gradconform_dtype): print(gradconform_dtype)")
    pytester.runpytest().assert_outcomes(passed=1)
    options = ("--gradconform-device=cpu", "--gradconform-device=cpu:0", "--gradconform-dtype=float64")
    result = pytester.runpytest("-v", *options, "--gradconform-dtype=bfloat16")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines_random(["*test_own[[]*cpu:0*bfloat16*]*"])


def test_an_invalid_dtype_in_the_ini_file_fails_the_test_that_uses_it(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngradconform_dtype = float31")
    pytester.makepyfile("def test_own(gradconform_dtype): pass", test_other="def test_other(): pass")
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*unsupported dtype 'float31'*"])


def test_the_generator_is_seeded_from_the_seed_and_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_one(gradconform_rng): print("DRAWN", gradconform_rng.initial_seed())
        def test_two(gradconform_rng): print("DRAWN", gradconform_rng.initial_seed())
        """
    )

    def drawn(*options: str) -> Any:
        return [line for line in pytester.runpytest("-s", *options).stdout.lines if "DRAWN" in line]

    first = drawn()
    assert len(set(first)) == 2
    assert drawn("-p", "no:cacheprovider") == first
    assert set(drawn("--gradconform-seed=7")).isdisjoint(first)


def test_without_a_marker_a_test_runs_on_the_whole_zoo(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_own(gradconform_stage): gradconform_stage.module(*gradconform_stage.args())")
    pytester.runpytest().assert_outcomes(passed=len(ZOO))


def test_a_stage_without_a_form_in_the_dtype_is_skipped(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gradconform_stages("complex")
        def test_own(gradconform_stage): pass
        """
    )
    assert pytester.runpytest("--gradconform-dtype=bfloat16").parseoutcomes().keys() == {"skipped"}


def test_the_marker_selects_and_excludes_by_name_and_trait(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gradconform_stages("mlp*", "nested_output", without="*-no-bias")
        def test_own(gradconform_stage):
            assert gradconform_stage.name != "mlp-no-bias"
            assert gradconform_stage.name == "mlp" or "nested_output" in gradconform_stage.traits
        """
    )
    nested = sum("nested_output" in case.traits for case in ZOO.values())
    pytester.runpytest().assert_outcomes(passed=1 + nested)


@pytest.mark.parametrize(
    ("marker", "told"),
    [
        ('gradconform_stages("mlq")', "*no stage or trait matches 'mlq'; nearest: *mlp*"),
        ('gradconform_stages(without=("mlq",))', "*no stage or trait matches 'mlq'; nearest: *mlp*"),
        ('gradconform_patterns("some")', "*matches no pattern of these stages; patterns: *"),
    ],
)
def test_a_marker_that_matches_nothing_is_a_collection_error(pytester: pytest.Pytester, marker: str, told: str) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.{marker}
        def test_own(gradconform_output_grads): pass
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([told])


def test_output_gradients_use_every_pattern_and_wrong_ones_on_request(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gradconform_stages("two-outputs")
        def test_right(gradconform_stage, gradconform_output_grads):
            grads = gradconform_output_grads(gradconform_stage.module(*gradconform_stage.args()))
            assert [grad is None for grad in grads].count(True) == {"none:all": 2, "none:0": 1, "none:1": 1,
                "only:0": 1, "only:1": 1}.get(gradconform_output_grads.pattern, 0)

        @pytest.mark.gradconform_stages("two-outputs")
        @pytest.mark.gradconform_patterns("short")
        def test_wrong(gradconform_stage, gradconform_output_grads):
            assert len(gradconform_output_grads(gradconform_stage.module(*gradconform_stage.args()))) == 1
        """
    )
    result = pytester.runpytest("-v")
    result.assert_outcomes(passed=3 + 4 + 3 + 1)
    result.stdout.fnmatch_lines(["*test_right[[]two-outputs-none:all]*", "*test_right[[]two-outputs-layout:expanded]*"])
