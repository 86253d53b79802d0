"""Waivers: what is expected to fail may, in the way that is expected, where and until it is said to; nothing else."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch
from expecttest import assert_expected_inline

import gradconform
from gradconform.cli import main
from gradconform.judge import finding
from gradconform.reading.report import read_report
from gradconform.results import Report, Result
from gradconform.run.run import check_stage_backward
from gradconform.waivers.waiver import Scope, Waiver, WaiverError, Waivers, read_waivers, verdicts

Write = Callable[..., Path]

RELEASE = ".".join(torch.__version__.split(".")[:2])

#: Fails on torch because of a raised error; the next one because a gradient is missing.
ERROR, MISSING = "split.gradients.output-view", "split.gradients.embedding"
RIGHT = "split.gradients.mlp"
LAST_DAY = "2999-12-31"


@pytest.fixture
def waivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write gradconform-waivers.toml into the current folder, one entry per mapping of what is not usual."""
    monkeypatch.chdir(tmp_path)
    usual = {"verdict": '"error"', "reason": '"known"', "issue": '"#7"', "owner": '"ada"', "expires": LAST_DAY}

    def write(*entries: dict[str, str | None]) -> Path:
        path = tmp_path / "gradconform-waivers.toml"
        blocks = [{"check": f'"{ERROR}"', **usual, **entry} for entry in entries]
        text = [
            f"{name} = {value}"
            for block in blocks
            for name, value in [("[[waiver]]", ""), *block.items()]
            if value is not None
        ]
        path.write_text(
            "\n".join(line.replace("[[waiver]] = ", "[[waiver]]") for line in text) + "\n", encoding="utf-8"
        )
        return path

    return write


def statuses(report: Report) -> dict[str, str]:
    return {result.check: result.status for result in report.results}


def judged(*checks: str, **options: Any) -> Report:
    return check_stage_backward("torch", checks=checks, waivers="gradconform-waivers.toml", **options)


def test_a_waived_failure_is_waived_with_its_reason(waivers: Write) -> None:
    waivers({})
    report = judged(ERROR, RIGHT)
    assert statuses(report) == {ERROR: "waived", RIGHT: "passed"}
    (waived,) = (result for result in report.results if result.status == "waived")
    assert waived.waiver is not None
    assert (waived.waiver["reason"], waived.waiver["owner"], waived.kind) == ("known", "ada", "error")
    assert waived.findings
    assert report.failures == []
    assert read_report(report.to_json()).to_dict() == report.to_dict()


def test_the_library_reads_a_waiver_file_only_if_it_is_named(waivers: Write) -> None:
    path = waivers({})
    assert statuses(gradconform.check_stage_backward("torch", checks=ERROR)) == {ERROR: "failed"}
    assert statuses(gradconform.check_stage_backward("torch", checks=ERROR, waivers=path)) == {ERROR: "waived"}


def test_a_failure_of_another_kind_than_the_waived_one_still_fails_with_a_note(waivers: Write) -> None:
    waivers({"check": f'"{MISSING}"'}, {"check": f'"{ERROR}"', "verdict": '["mismatch", "missing"]'})
    report = judged(ERROR, MISSING)
    assert statuses(report) == {ERROR: "failed", MISSING: "failed"}
    missing, error = report.results
    note = "waived is only error, in gradconform-waivers.toml, and this is not"
    assert missing.message.splitlines()[1] == note
    assert "waived is only mismatch or missing" in error.message


def test_an_unexpected_pass_is_reported_and_fails_a_strict_run(waivers: Write) -> None:
    waivers({"check": f'"{RIGHT}"'})
    assert statuses(judged(RIGHT)) == {RIGHT: "unexpectedly_passed"}
    strict = judged(RIGHT, strict=True)
    assert strict.verdict == "does not conform"
    with pytest.raises(gradconform.NonConformingError, match=RIGHT):
        strict.raise_if_failed()


def test_a_waiver_may_use_globs_and_several_kinds(waivers: Write) -> None:
    waivers({"check": '"split.gradients.*"', "verdict": '["error", "missing"]'})
    assert statuses(judged(ERROR, MISSING, RIGHT)) == {
        ERROR: "waived", MISSING: "waived", RIGHT: "unexpectedly_passed",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ('{ adapter = "torch" }', True),
        ('{ adapter = "megatron*" }', False),
        (f'{{ torch = ">={RELEASE},<{RELEASE}.99" }}', True),
        (f'{{ torch = "<{RELEASE}" }}', False),
        ('{ device = "c*", dtype = "float32" }', True),
        ('{ device = "cuda*" }', False),
        ('{ dtype = "bfloat16" }', False),
    ],
)
def test_an_entry_applies_only_under_its_conditions(waivers: Write, when: str, *, holds: bool) -> None:
    waivers({"when": when})
    report = judged(ERROR)
    assert statuses(report) == {ERROR: "waived" if holds else "failed"}
    assert report.waivers is not None
    assert report.waivers["elsewhere"] == ([] if holds else [0])


def test_an_entry_waives_only_its_own_dtype(waivers: Write) -> None:
    waivers({"when": '{ dtype = "float64" }'})
    report = judged(ERROR, dtype=("float32", "float64"))
    assert {result.dtype: result.status for result in report.results} == {"float32": "failed", "float64": "waived"}


@pytest.mark.parametrize("kind", ["environment", "adapter", "kit"])
def test_an_error_cannot_be_waived_as_a_failure(kind: str) -> None:
    given = Waiver(check="*", verdict=verdicts(), reason="r", issue="i", owner="o", expires=LAST_DAY)
    error = Result(check="a.b", level="MUST", device="cpu", dtype="float32", status="error", kind=kind, requirement="r")
    applied = Waivers(file="f", sha256="0", entries=(given,))
    assert applied.apply(error) == error
    for status in ("unsupported", "not_run"):
        assert applied.apply(replace(error, status=status)) == replace(error, status=status)  # type: ignore[arg-type] # each is one that mypy knows
    lost = replace(error, status="failed", kind="device_lost")
    assert applied.apply(lost).status == "waived"
    only = Waivers(file="f", sha256="0", entries=(replace(given, verdict=("mismatch",)),))
    assert only.apply(lost).status == "failed"
    assert applied.apply(applied.apply(lost)) == applied.apply(lost)


def test_waivers_accept_kinds_of_findings_and_failures_without_a_finding() -> None:
    assert set(verdicts()) - set(finding.Kind.__args__) == {"refused", "crash", "hang", "memory", "device_lost"}


def test_waivers_are_read_back_from_a_report(waivers: Write) -> None:
    path = waivers({"when": '{ torch = ">=2" }'}, {"verdict": '["error", "missing"]'})
    read = read_waivers(path)
    assert Waivers.from_record(json.loads(json.dumps(read.record()))) == read
    assert read.entries[0].when == Scope(torch=">=2")


WRONG: list[tuple[dict[str, str | None], str]] = [
    ({"reason": None}, "reason: expected some text, got nothing"),
    ({"owner": '" "'}, "owner: expected some text, got ' '"),
    ({"issue": "7"}, "issue: expected some text, got 7"),
    ({"verdict": '"wrong"'}, "verdict: expected one or several of mismatch, "),
    ({"verdict": "[]"}, "; got []"),
    ({"expires": '"2027-01-31"'}, "without quotes; got '2027-01-31'"),
    ({"expires": "2027-01-31T10:00:00"}, "without quotes; got datetime.datetime("),
    ({"expires": "2020-02-01"}, "expired on 2020-02-01, "),
    ({"when": '"cpu"'}, "when: expected a table of adapter, torch, device, dtype; got 'cpu'"),
    ({"when": "{ machine = 'x' }"}, "when: expected a table of adapter, torch, device, dtype; got {'machine': 'x'}"),
    ({"when": "{ torch = '2.x' }"}, "when.torch: expected a range of versions such as '>=2.13,<2.14', got '2.x'"),
    ({"when": "{ device = 1 }"}, "when.device: expected a name or a glob, got 1"),
    ({"colour": "1"}, "unknown name colour; expected check, reason, issue, owner, verdict, expires, when"),
    ({"check": '"split.gradients.mpl"'}, "check does not exist; nearest: split.gradients.mlp"),
]


@pytest.mark.parametrize(
    ("entry", "told"), WRONG, ids=[f"{number}-{next(iter(one[0]))}" for number, one in enumerate(WRONG)]
)
def test_an_invalid_entry_is_refused_before_the_run(
    waivers: Write, entry: dict[str, str | None], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    waivers({}, entry)
    assert main(["run", "torch", "--checks", ERROR]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "gradconform-waivers.toml: entry 2 (" in err
    assert told in err


def test_an_invalid_waiver_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "waivers.toml"
    told = []
    for content in (None, b"[[waiver", b"\xff", b"[waiver]\n", b"reason = 'x'\n"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(WaiverError) as refused:
            read_waivers(path)
        told.append(
            re.sub("is not valid TOML: .*;", "is not valid TOML: ...;", str(refused.value).replace(str(tmp_path), ""))
        )
    assert_expected_inline(
        "\n".join(told),
        """\
/waivers.toml: cannot read the file: No such file or directory; expected a TOML file of [[waiver]] entries
/waivers.toml: is not valid TOML: ...; expected [[waiver]] entries
/waivers.toml: is not valid TOML: ...; expected [[waiver]] entries
/waivers.toml: expected only [[waiver]] entries, got a waiver that is not a [[waiver]] table
/waivers.toml: expected only [[waiver]] entries, got reason""",
    )


def test_an_entry_is_valid_on_its_last_day_and_not_on_the_next(waivers: Write) -> None:
    path = waivers({"expires": "2027-01-31"})
    assert read_waivers(path, today=dt.date(2027, 1, 31)).entries
    with pytest.raises(WaiverError, match="expired on 2027-01-31, 1 day ago"):
        read_waivers(path, today=dt.date(2027, 2, 1))


@pytest.mark.slow
def test_the_command_uses_and_reports_the_file_in_the_current_folder(
    waivers: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    waivers({}, {"when": '{ device = "cuda*" }'})
    run = ("run", "torch", "--checks", ERROR)
    assert main(run) == 5
    assert_expected_inline(
        "\n".join(line for line in capsys.readouterr().out.splitlines() if "aive" in line),
        """\
waivers   gradconform-waivers.toml: 2 entries, 1 of them for other adapters, versions of torch,
split     1 of 1    1 waived
================================ waived: 1 result, expected to fail ================================""",
    )
    assert main([*run, "--no-waivers"]) == 1
    (Path.cwd() / "gradconform-waivers.toml").rename("mine.toml")
    assert main(run) == 1
    assert main([*run, "--waivers", "mine.toml"]) == 5
    assert main([*run, "--waivers", "none.toml"]) == 2
    assert "none.toml: cannot read the file: No such file or directory" in capsys.readouterr().err


@pytest.fixture
def full(real: Report) -> Report:
    """A report that counts as a whole run of profile full, of the checks of the real one."""
    entry = Waiver(check="hooks.*", verdict=("hooks",), reason="r", issue="i", owner="o", expires=LAST_DAY)
    entries = (entry, replace(entry, check="nothing.*"), replace(entry, check="here.not"))
    applied = Waivers(file="w.toml", sha256="0" * 64, entries=entries, inapplicable=(2,))
    results = [applied.apply(result) for result in real.results if result.check.startswith("hooks.")]
    return replace(
        real, profile="full", manifest=len(results), planned=len(results), results=results, waivers=applied.record()
    )


def test_an_unused_entry_in_a_full_run_is_an_error(full: Report) -> None:
    assert (full.verdict, full.unused_waivers, full.exit_code) == ("conforms", [1], 2)
    assert replace(full, profile="standard").unused_waivers == []
    assert replace(full, profile="standard").exit_code == 0
    assert replace(full, manifest=full.manifest + 1).unused_waivers == []


def test_one_command_writes_a_complete_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["run", "torch", "--checks", f"{ERROR},{MISSING}", "--json", "run.json"])
    says = {"owner": "ada", "reason": 'W "loses" it', "issue": "https://example.org/7"}
    options = [word for name, value in says.items() for word in (f"--{name}", value)]
    before = dt.datetime.now(dt.timezone.utc).date()
    assert main(["waivers", "add", "--from", "run.json", *options]) == 0
    entries = read_waivers("gradconform-waivers.toml").entries
    days = {dt.date.fromisoformat(entry.expires) for entry in entries}
    assert days <= {before + dt.timedelta(days=90), before + dt.timedelta(days=91)}
    told = {(entry.check, entry.owner, entry.reason, entry.issue) for entry in entries}
    assert told == {(check, *says.values()) for check in (ERROR, MISSING)}
    assert f"2 added; waived until {days.pop()}" in capsys.readouterr().out
    assert main(["run", "torch", "--checks", f"{ERROR},{MISSING}"]) == 5
    assert " 2 waived" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--owner", " ", "expected some text, got ' '"),
        ("--expires", "2001-02-03", "or a later day, got 2001-02-03"),
        ("--expires", "soon", "expected a date such as "),
    ],
)
def test_an_invalid_entry_value_is_refused(
    option: str, value: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["waivers", "add", "--from", "run.json", option, value]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_an_entry_whose_check_failed_differently_is_not_unused(full: Report) -> None:
    failed = next(result for result in full.results if result.status == "waived")
    others = [replace(result, status="passed", waiver=None) for result in full.results if result is not failed]
    met = replace(full, results=[*others, replace(failed, status="failed", waiver=None)])
    assert met.unused_waivers == [1]
    assert replace(full, results=[*others, replace(failed, status="unsupported", waiver=None)]).unused_waivers == [0, 1]


def test_add_writes_fields_to_fill_in_and_no_duplicate(waivers: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = waivers({})
    path.write_text("# ours\n" + path.read_text(), encoding="utf-8")
    main(["run", "torch", "--checks", f"{ERROR},{MISSING},{RIGHT}", "--json", "run.json", "--no-waivers"])
    capsys.readouterr()
    assert main(["waivers", "add", "--from", "run.json"]) == 0
    assert capsys.readouterr().out == "gradconform-waivers.toml: 1 added; fill in reason, issue, owner\n"
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ours\n[[waiver]]")
    assert_expected_inline(
        re.sub(r"expires = \d{4}-\d\d-\d\d$", "expires = DAY", text.partition("2999-12-31\n")[2], flags=re.MULTILINE),
        """\

# I MUST return plain autograd's input gradients, and W accumulate its parameter gradients, on stage embedding
# (an Embedding with an integer input).
# 0.weight, after W0: expected a tensor of shape (5, 11) with largest element 1.42, got None; likely cause:
# never accumulated
[[waiver]]
check = "split.gradients.embedding"
verdict = "missing"
reason = ""
issue = ""
owner = ""
expires = DAY
when = { adapter = "torch" }
""",
    )
    assert main(["run", "torch"]) == 2
    assert "entry 2 (split.gradients.embedding): reason: expected some text, got ''" in capsys.readouterr().err
    assert main(["waivers", "add", "--from", "run.json"]) == 0
    assert "0 added; every failure of the run has a waiver" in capsys.readouterr().out
    for name in ("reason", "issue", "owner"):
        text = text.replace(f'{name} = ""', f'{name} = "x"')
    path.write_text(text, encoding="utf-8")
    assert main(["run", "torch", "--checks", f"{ERROR},{MISSING}"]) == 5
    assert " 2 waived" in capsys.readouterr().out
    assert main(["waivers", "add", "--from", "run.json", "--waivers", "no/folder.toml"]) == 2
    assert "does not exist; create it first" in capsys.readouterr().err


def test_prune_removes_only_entries_that_the_run_showed_to_be_unneeded(
    waivers: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = waivers(
        {"check": f'"{RIGHT}"'},
        {},
        {"check": '"split.gradients.*"'},
        {"check": '"full.gradients.mlp"'},
        {"check": f'"{RIGHT}"', "when": '{ device = "cuda" }'},
    )
    blocks = path.read_text(encoding="utf-8").split("[[waiver]]")[1:]
    noted = [f"# about {number}\n[[waiver]]{block}\n" for number, block in enumerate(blocks)]
    path.write_text("# the file's own comment\n\n" + "".join(noted), encoding="utf-8")
    main(["run", "torch", "--checks", f"{ERROR},{RIGHT}", "--json", "run.json"])
    capsys.readouterr()
    assert main(["waivers", "prune", "--from", "run.json"]) == 0
    assert_expected_inline(
        capsys.readouterr().out,
        """\
removed entry 1: split.gradients.mlp (known)
gradconform-waivers.toml: 1 removed
""",
    )
    assert path.read_text(encoding="utf-8") == "# the file's own comment\n\n" + "".join(noted[1:])


def test_prune_refuses_a_file_whose_entries_it_cannot_separate(
    waivers: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = waivers({"check": f'"{RIGHT}"', "reason": "'''\n[[waiver]]\n'''"})
    before = path.read_text(encoding="utf-8")
    main(["run", "torch", "--checks", RIGHT, "--json", "run.json"])
    assert main(["waivers", "prune", "--from", "run.json"]) == 2
    assert "cannot find where each entry begins" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == before


def beside(pytester: pytest.Pytester, path: Path) -> None:
    """Put the waiver file where the inner pytest runs."""
    (pytester.path / path.name).write_bytes(path.read_bytes())


@pytest.mark.slow
def test_pytest_reports_waived_results_as_xfailed_and_xpassed_with_any_workers(
    waivers: Write, pytester: pytest.Pytester
) -> None:
    beside(pytester, waivers({}, {"check": f'"{RIGHT}"'}))
    checks = [f"--gradconform-checks={check}" for check in (ERROR, RIGHT, MISSING)]
    reports = []
    for processes in ("-n0", "-n2"):
        options = (*checks, processes, "--junitxml=junit.xml", "--gradconform-json=report.json", "-rxX")
        result = pytester.runpytest("--gradconform=torch", *options)
        result.assert_outcomes(failed=1, xfailed=1, xpassed=1)
        result.stdout.fnmatch_lines(["waivers   *: 2 entries", "XFAIL *waived: known (#7, ada, until 2999-12-31)*"])
        values = json.loads((pytester.path / "report.json").read_text())
        reports.append({**values, "made": "", "results": [{**one, "duration_s": 0} for one in values["results"]]})
        cases = ET.parse(pytester.path / "junit.xml").getroot().iter("testcase")  # noqa: S314 (pytest has written it)
        told = [{one.get("name"): one.get("value") for one in case.iter("property")} for case in cases]
        assert {one["check"]: one.get("waiver") for one in told} == {ERROR: "#7", RIGHT: "#7", MISSING: None}
        assert {one["check"]: one["status"] for one in told} == statuses(judged(ERROR, RIGHT, MISSING))
    assert reports[0] == reports[1]


@pytest.mark.parametrize("strict", ["--gradconform-strict", "-ostrict_xfail=true"])
def test_if_the_run_or_pytest_is_strict_an_unexpected_pass_fails_its_test(
    waivers: Write, pytester: pytest.Pytester, strict: str
) -> None:
    beside(pytester, waivers({"check": f'"{RIGHT}"'}))
    result = pytester.runpytest("--gradconform=torch", f"--gradconform-checks={RIGHT}", strict)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*XPASS(strict)* waived: known (#7, ada, until 2999-12-31)*"])


def test_pytest_refuses_a_bad_waiver_file_and_an_empty_name_means_none(
    waivers: Write, pytester: pytest.Pytester
) -> None:
    beside(pytester, waivers({"expires": "2020-02-01"}))
    run = ("--gradconform=torch", f"--gradconform-checks={ERROR}")
    result = pytester.runpytest(*run)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*entry 1 (split.gradients.output-view): expired on 2020-02-01, *"])
    pytester.runpytest(*run, "--gradconform-waivers=").assert_outcomes(failed=1)
