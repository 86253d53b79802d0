"""``gradconform compare``: what is worse is found and decides, what else changed is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline

from gradconform.cli import main
from gradconform.reading.comparison import (
    DEFAULT,
    NAMES,
    CompareError,
    Comparison,
    Expression,
    ExpressionError,
    compare,
)
from gradconform.report.comparison import comparison_lines, comparison_markdown
from gradconform.report.detail import Detail
from gradconform.results import Report, Result

MLP, TIED, EMBEDDING = "full.gradients.mlp", "split.gradients.tied-apart", "split.gradients.embedding"


def changed(report: Report, check: str, **values: Any) -> Report:
    """Return the report with one result changed, or left out where ``without`` is given."""
    assert any(result.check == check for result in report.results)
    results = [replace(r, **values) if r.check == check else r for r in report.results]
    return replace(report, results=results)


def without(report: Report, check: str) -> Report:
    return replace(report, results=[result for result in report.results if result.check != check])


def names(found: Comparison) -> dict[str, list[str]]:
    return {name: [one.place.check for one in changes] for name, changes in found.changes.items() if changes}


PASSED: dict[str, Any] = {"status": "passed", "kind": None, "findings": (), "message": ""}
FAILED: dict[str, Any] = {"status": "failed", "kind": "mismatch", "message": "input 0, after B0: wrong"}
Change = Callable[[Report], Report]

CHANGES: list[tuple[str, Change, dict[str, list[str]], bool]] = [
    ("nothing", lambda new: new, {}, False),
    ("a pass that fails", lambda new: changed(new, MLP, **FAILED), {"new_failures": [MLP]}, True),
    ("an error", lambda new: changed(new, MLP, status="error", kind="kit"), {"new_failures": [MLP]}, True),
    ("a failure mended", lambda new: changed(new, TIED, **PASSED), {"fixed": [TIED]}, False),
    ("another failure", lambda new: changed(new, TIED, kind="missing"), {"other_failures": [TIED]}, False),
    (
        "unsupported",
        lambda new: changed(new, MLP, status="unsupported"),
        {"lost": [MLP], "newly_unsupported": [MLP]},
        True,
    ),
    ("not run", lambda new: changed(new, MLP, status="not_run"), {"lost": [MLP], "newly_not_run": [MLP]}, True),
    ("no result", lambda new: without(new, MLP), {"lost": [MLP], "newly_not_run": [MLP]}, True),
    ("a failure that is lost", lambda new: without(new, TIED), {"lost": [TIED], "newly_not_run": [TIED]}, True),
    ("waived", lambda new: changed(new, TIED, status="waived"), {"newly_waived": [TIED]}, False),
    ("a larger error", lambda new: changed(new, MLP, error_ratio=0.2), {"headroom_drift": [MLP]}, False),
    ("a larger error below the floor", lambda new: changed(new, MLP, error_ratio=0.09), {}, False),
    ("slower", lambda new: changed(new, MLP, duration_s=9.0), {"slower": [MLP]}, False),
    ("slower below the floor", lambda new: changed(new, MLP, duration_s=0.19), {}, False),
]


@pytest.mark.parametrize(("change", "found", "worse"), [one[1:] for one in CHANGES], ids=[one[0] for one in CHANGES])
def test_each_change_is_reported_and_only_worse_changes_decide(
    real: Report, change: Change, found: dict[str, list[str]], *, worse: bool
) -> None:
    base = changed(real, MLP, error_ratio=0.0, duration_s=0.01)
    comparison = compare(base, change(base))
    told = {name: checks for name, checks in names(comparison).items() if name != "failures"}
    assert told == found
    assert Expression.parse(DEFAULT).holds(comparison.counts) is worse
    assert comparison.counts["failures"] == len(change(base).failures)


def test_a_new_failing_check_is_a_new_failure(real: Report) -> None:
    assert names(compare(without(real, TIED), real))["new_failures"] == [TIED]
    assert "new_failures" not in names(compare(without(real, TIED), real, intersection=True))


def test_an_intersection_reports_no_lost_checks(real: Report) -> None:
    assert "lost" not in names(compare(real, without(real, MLP), intersection=True))


def test_the_given_drift_factors_are_used(real: Report) -> None:
    base = changed(real, MLP, error_ratio=0.1, duration_s=1.0)
    new = changed(real, MLP, error_ratio=0.35, duration_s=3.5)
    assert {"headroom_drift", "slower"} <= set(names(compare(base, new)))
    assert not {"headroom_drift", "slower"} & set(names(compare(base, new, headroom_factor=4, slower_factor=4)))


def test_differences_of_seed_target_and_environment_are_reported(real: Report) -> None:
    environment = {**real.environment, "torch": "2.12.0", "variables": {"OMP_NUM_THREADS": "7"}}
    new = replace(
        real, seed=7, environment=environment, target={**real.target, "sha256": "0" * 64, "file": "elsewhere"}
    )
    told = {name: now for name, _, now in compare(real, new).differences}
    expected = {"seed": 7, "target.sha256": "0" * 64, "environment.torch": "2.12.0"}
    assert expected.items() <= told.items()
    assert told["environment.variables.OMP_NUM_THREADS"] == "7"
    assert "target.file" not in told


def test_reports_that_cannot_be_compared_are_refused(real: Report) -> None:
    with pytest.raises(CompareError, match=r"different contracts, BASE 1\.3 and NEW 2\.0; .* --intersection"):
        compare(real, replace(real, contract="2.0"))
    assert compare(real, replace(real, contract="2.0"), intersection=True).counts["lost"] == 0
    elsewhere = replace(real, results=[replace(result, device="cuda:0") for result in real.results])
    with pytest.raises(CompareError, match="have no check in common"):
        compare(real, elsewhere)


COUNTS = {**dict.fromkeys(NAMES, 0), "new_failures": 2, "fixed": 1}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        (DEFAULT, True),
        ("lost", False),
        ("not lost", True),
        ("new_failures > 2", False),
        ("new_failures >= 2 and fixed == 1", True),
        ("1 < new_failures < 3", True),
        ("1 < new_failures < 2", False),
        ("lost or (fixed and new_failures != 2)", False),
        ("not (lost or slower)", True),
        ("new_failures > 1.5", True),
        ("  fixed  ", True),
        ("0", False),
    ],
)
def test_a_condition_is_evaluated_as_in_python(text: str, *, holds: bool) -> None:
    assert Expression.parse(text).holds(COUNTS) is holds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not a condition"),
        ("new_failures >", "is not a condition: invalid syntax"),
        ("regressions", "expected one of new_failures, fixed, lost"),
        ("__import__('os').system('true')", "expected names, numbers, comparisons"),
        ("new_failures.real", "got 'new_failures.real'"),
        ("new_failures + 1", "got 'new_failures + 1'"),
        ("lost in [1]", "got 'lost in [1]'"),
        ("'a' == 'a'", "got \"'a'\" in "),
        ("True", "got 'True'"),
        ("-1", "got '-1'"),
        ("[lost for lost in (1,)]", "expected names, numbers"),
        ("lambda: lost", "expected names, numbers"),
        ("lost; lost", "is not a condition"),
        ("lost := 1", "is not a condition"),
        ("(" * 400 + "lost" + ")" * 90, "is not a condition"),
        ("lost or " * 100 + "lost", "expected at most 500 characters, got 804"),
        ("lost\0", "is not a condition"),
    ],
    ids=range(17),
)
def test_an_invalid_condition_is_refused_and_not_executed(text: str, told: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        Expression.parse(text)
    assert told in str(refused.value)


def test_each_name_of_the_condition_language_is_a_count(real: Report) -> None:
    assert set(compare(real, real).counts) == set(NAMES)


@pytest.fixture
def small(real: Report) -> tuple[Report, Report]:
    """Two reports of four checks in a made-up environment, the second one worse."""
    kept = {MLP, TIED, EMBEDDING, "hooks.post_accumulate.mlp-split"}
    results = [replace(result, duration_s=0.5) for result in real.results if result.check in kept]
    base = replace(
        real, results=results, planned=4, manifest=4, environment={"torch": "2.13.0", "devices": [{"name": "cpu"}]},
        target={"text": "mine", "name": "mine", "version": "1.0"},
    )  # fmt: skip
    new = changed(base, MLP, **{**FAILED, "message": "program F0 B0\nwrong | <b> `y`\n[z](w)", "programs": ("F0 B0",)})
    new = changed(without(new, TIED), EMBEDDING, **PASSED)
    return base, replace(new, environment={"torch": "2.13.1", "devices": [{"name": "cuda"}]})


def test_the_text_lists_all_changes_and_its_last_line_gives_the_result(small: tuple[Report, Report]) -> None:
    lines = comparison_lines(compare(*small), Expression.parse(DEFAULT), 100)
    assert_expected_inline(
        "\n".join(map(str, lines)),
        """\
base  mine 1.0, contract 1.3, profile quick: does not conform; 1 passed, 3 failed
new   mine 1.0, contract 1.3, profile quick: does not conform; 1 passed, 2 failed, 1 not run

new failures: 1 check
  [1] 1 check: program F0 B0
      full.gradients.mlp[cpu-float32]: passed, 0.50 s -> failed, mismatch, 0.50 s; wrong | <b> `y`

judged before, not run now: 1 check
  1 check: no result: split.gradients.tied-apart[cpu-float32]

fixed: 1 check
  split.gradients.embedding[cpu-float32]: failed, missing, 0.50 s -> passed, 0.50 s

other differences: 2
  environment.torch: '2.13.0' before, '2.13.1' now
  environment.devices.0.name: 'cpu' before, 'cuda' now

mine 1.0 is worse than before: new_failures or lost (new_failures = 1, lost = 1)""",
    )


def test_markdown_has_a_table_per_change_and_free_text_is_escaped(small: tuple[Report, Report]) -> None:
    assert_expected_inline(
        comparison_markdown(compare(*small), Expression.parse("fixed > 1")),
        """\
## mine 1.0 is no worse than before: fixed &gt; 1 (fixed = 1)

| | run |
|---|---|
| base | mine 1.0, contract 1.3, profile quick: does not conform; 1 passed, 3 failed |
| new | mine 1.0, contract 1.3, profile quick: does not conform; 1 passed, 2 failed, 1 not run |

### New failures: 1

| check | before | now | |
|---|---|---|---|
| full.gradients.mlp\\[cpu-float32\\] | passed, 0.50 s | failed, mismatch, 0.50 s | wrong \\| &lt;b&gt; \\`y\\` |

### Judged before, not run now: 1

| check | before | now | |
|---|---|---|---|
| split.gradients.tied-apart\\[cpu-float32\\] | failed, error, 0.50 s | no result |  |

### Fixed: 1

| check | before | now | |
|---|---|---|---|
| split.gradients.embedding\\[cpu-float32\\] | failed, missing, 0.50 s | passed, 0.50 s |  |

<details><summary>Different besides: 2</summary>

| | before | now |
|---|---|---|
| environment.torch | 2.13.0 | 2.13.1 |
| environment.devices.0.name | cpu | cuda |

</details>
""",
    )


def test_a_long_list_is_cut_and_counted(real: Report) -> None:
    result = real.results[0]
    many = [replace(result, check=f"full.gradients.s{index}") for index in range(60)]
    failed: list[Result] = [replace(one, status="failed", kind="mismatch") for one in many]
    found = compare(replace(real, results=many), replace(real, results=failed))
    text = "\n".join(map(str, comparison_lines(found, Expression.parse(DEFAULT), 100)))
    assert "new failures: 60 checks" in text
    assert "  [1] 60 checks: " in text
    assert "      and 59 more checks" in text
    every = comparison_lines(found, Expression.parse(DEFAULT), 100, Detail(1))
    assert sum("full.gradients.s" in line.text for line in every) == 60
    assert "\n\nand 10 more" in comparison_markdown(found, Expression.parse(DEFAULT))


def test_the_command_reports_a_worse_report_in_each_format(
    real: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = changed(real, MLP, **FAILED)
    base, new = str(tmp_path / "base.json"), str(tmp_path / "new.json")
    Path(base).write_text(real.to_json())
    Path(new).write_text(worse.to_json())
    assert main(["compare", base, base]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("(new_failures = 0, lost = 0)")
    assert main(["compare", base, new]) == 6
    assert "is worse than before: new_failures or lost (new_failures = 1" in capsys.readouterr().out
    assert main(["compare", base, new, "--fail-on", "lost"]) == 0
    assert main(["compare", new, base, "--fail-on", "fixed"]) == 6
    capsys.readouterr()
    assert main(["compare", base, new, "--format", "json"]) == 6
    values = json.loads(capsys.readouterr().out)
    assert (values["regressed"], values["counts"]["new_failures"], values["fail_on"]) == (True, 1, DEFAULT)
    (failure,) = values["changes"]["new_failures"]
    assert (failure["check"], failure["before"]["status"], failure["now"]["status"]) == (MLP, "passed", "failed")
    assert main(["compare", base, new, "--format", "markdown"]) == 6
    assert capsys.readouterr().out.startswith(f"## torch {torch.__version__}")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("none.json",), "none.json: cannot read the file: No such file or directory"),
        (("{base}", "--fail-on", "worse"), "expected one of new_failures"),
        (("{base}", "--slower-factor", "0.5"), "expected a number of at least 1, got '0.5'"),
        (("{base}", "--headroom-factor", "inf"), "expected a number of at least 1, got 'inf'"),
        (("{base}", "--format", "html"), "invalid choice: 'html'"),
    ],
)
def test_invalid_arguments_give_2(
    real: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    base = tmp_path / "base.json"
    base.write_text(real.to_json())
    assert main(["compare", str(base), *(one.format(base=base) for one in arguments)]) == 2
    assert told in capsys.readouterr().err


def test_the_help_lists_each_name_of_the_condition_language(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in NAMES)
    assert "  6    compare: the new run is worse" in out
