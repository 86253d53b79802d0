"""How much a command tells of a report, and in which form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecttest import assert_expected_inline

from gradconform import check_stage_backward
from gradconform.report.concise import github_annotations
from gradconform.report.detail import Detail
from gradconform.report.terminal import closing
from gradconform.results import Report, Result
from tests.halved import HALVED

Command = Callable[..., Any]

#: Seven that fail for one reason, and nothing else.
CHECKS = ("--checks", "full.loss.[l-m]*")


@pytest.fixture
def halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "halved.py").write_text(HALVED, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(text: str) -> str:
    """Return what stands behind the areas, without the numbers of a processor."""
    return re.sub(r"worst at .*?error/bound \S+", "worst at ...", text[text.index("===") :], flags=re.DOTALL)


@pytest.mark.usefixtures("halved")
def test_a_cause_is_reported_with_its_smallest_check(command: Command) -> None:
    assert_expected_inline(
        told(command("run", "halved.py", *CHECKS).out),
        """\
======================== failed MUST: 4 checks, 1 cause ========================

[1] 4 checks: after B, an input gradient has a wrong value
    likely cause: scaled by 0.5
    full.loss.mlp: program F0 B0 F1 B1
      - input 0, after B0: worst at ...
    and 3 more checks
    reproduce: gradconform replay full.loss.mlp halved.py
causes verified on 3 of 4 explained failures; the others fail alike
4 of 1300 checks of contract 1.3, profile standard, ran; 1296 not selected
halved.py does NOT conform: 4 MUST failed; the contract was not run in full
""",
    )


@pytest.mark.usefixtures("halved")
def test_v_names_every_failed_check_without_more_detail(command: Command) -> None:
    shown = command("run", "halved.py", *CHECKS, "-v").out
    report = json.loads(command("run", "halved.py", *CHECKS, "--output-format", "json").out)
    failed = [result["check"] for result in report["results"] if result["status"] == "failed"]
    assert len(failed) > 3
    assert [check for check in failed if f"{check}: " not in shown] == []
    assert shown.count("worst at") == 1
    assert command("run", "halved.py", *CHECKS, "-v", "--failures", "3").out.count("worst at") == 3
    assert command("run", "halved.py", *CHECKS, "-vv").out.count("worst at") >= len(failed)


@pytest.mark.usefixtures("halved")
def test_failures_sets_the_number_of_failures_shown_per_cause(command: Command) -> None:
    three = told(command("run", "halved.py", *CHECKS, "--failures", "3").out)
    assert three.count("worst at") == 3


@pytest.mark.usefixtures("halved")
def test_q_prints_one_line_per_cause_and_how_to_see_the_first_in_full_and_qq_only_the_verdict(command: Command) -> None:
    quiet = command("run", "halved.py", *CHECKS, "-q")
    assert_expected_inline(
        quiet.out,
        """\
=============================== summary: 1 cause ===============================
[1]      4  scaled by 0.5: after B, an input gradient has a wrong value
reproduce [1]: gradconform replay full.loss.mlp halved.py

4 of 1300 checks of contract 1.3, profile standard, ran; 1296 not selected
halved.py does NOT conform: 4 MUST failed; the contract was not run in full
""",
    )
    alone = command("run", "halved.py", *CHECKS, "-qq")
    assert alone.out.splitlines() == [quiet.last]


@pytest.mark.usefixtures("halved")
def test_concise_prints_one_line_per_failure_and_the_verdict(command: Command) -> None:
    done = command("run", "halved.py", "--checks", "full.loss.mlp,full.loss.conv2d", "--output-format", "concise")
    assert_expected_inline(
        done.out,
        """\
halved.py:full.loss.conv2d: failed MUST: after B, an input gradient has a wrong value; likely cause: scaled by 0.5
halved.py:full.loss.mlp: failed MUST: after B, an input gradient has a wrong value; likely cause: scaled by 0.5
halved.py does NOT conform: 2 MUST failed; the contract was not run in full
""",
    )
    elsewhere = command("run", "torch", "--checks", "split.gradients.tied-apart", "--output-format", "concise")
    assert elsewhere.out.splitlines()[0].partition(":split.gradients.tied-apart: failed MUST: ")[1]


def test_a_run_writes_the_html_page_and_the_junit_file(command: Command, halved: Path) -> None:
    files = ("--json", "out.json", "--html", "out.html", "--junit", "out.xml")
    done = command("run", "halved.py", *CHECKS, *files)
    assert [line for line in done.out.splitlines() if line.endswith(("out.json", "out.html", "out.xml"))] == [
        "report as JSON: out.json", "page: out.html", "tests in the form of JUnit: out.xml",
    ]  # fmt: skip
    for form, name in (("--html", "out.html"), ("--junit", "out.xml")):
        assert command("report", "out.json", form, "-").out == (halved / name).read_text(encoding="utf-8")


def test_an_unwritable_page_is_refused_before_anything_runs(command: Command, halved: Path) -> None:
    assert "--html 'nowhere/out.html'" in command("run", "halved.py", "--html", "nowhere/out.html").err
    (halved / "gradconform.toml").write_text('junit = "nowhere/out.xml"\n', encoding="utf-8")
    done = command("run", "halved.py", "--json", "out.json")
    assert (done.code, done.out.count("checks"), (halved / "out.json").exists()) == (2, 0, False)
    assert "--junit 'nowhere/out.xml'" in done.err


def test_a_run_refuses_to_write_its_page_to_standard_output(command: Command) -> None:
    done = command("run", "halved.py", "--html", "-")
    assert (done.code, done.out) == (2, "")
    assert "expected a file, got '-'" in done.err


def test_json_output_prints_only_the_report(command: Command, halved: Path) -> None:
    printed = command("run", "halved.py", *CHECKS, "--output-format", "json", "--json", "out.json")
    values = json.loads(printed.out)
    assert values == json.loads((halved / "out.json").read_text(encoding="utf-8"))
    assert values["verdict"] == "does not conform"
    assert json.loads(command("run", "halved.py", *CHECKS, "--json", "-").out)["summary"] == values["summary"]
    assert not (halved / "-").exists()


@pytest.mark.usefixtures("halved")
def test_github_output_has_one_annotation_per_cause_and_one_for_the_verdict(command: Command) -> None:
    first, last = command("run", "halved.py", *CHECKS, "--output-format", "github").out.splitlines()
    line = HALVED.splitlines().index(next(one for one in HALVED.splitlines() if one.startswith("def stage_backward(")))
    assert first.startswith(f"::error file=halved.py,line={line + 1},title=gradconform full.loss.")
    assert "%0Areproduce: gradconform replay full.loss." in first
    assert last.startswith("::error title=gradconform::halved.py does NOT conform: ")


def hostile() -> Report:
    text = "a\n::error::b % c\r\x1b[2J"
    seen = {"kind": "mismatch", "where": text, "action": "B0", "text": text, "cause": None, "raised": None}
    finding = {**seen, "sort": "thing", "needs": None}
    result = Result(
        check="a.b.c", level="MUST", device="cpu", dtype="float32", status="failed", requirement=text, kind="mismatch",
        findings=(finding,), message=text,
    )  # fmt: skip
    target = {"text": text, "name": text, "version": None, "file": "/srv/a,b:c\n.py"}
    return Report(
        profile="quick", target=target, environment={}, seed=20, manifest=1, planned=1, results=[result],
    )  # fmt: skip


def test_foreign_text_cannot_end_or_start_an_annotation() -> None:
    lines = list(github_annotations(hostile(), Path("/home")))
    assert [line.count("\n") + line.count("\r") + line.count("\x1b") for line in lines] == [0, 0]
    assert [line.partition(" ")[0] for line in lines] == ["::error", "::error"]
    properties = lines[0].partition("::error ")[2].partition("::")[0]
    assert properties.split(",") == ["file=/srv/a%2Cb%3Ac%0A.py", "title=gradconform a.b.c"]


def test_a_failed_should_is_a_warning_unless_strict_is_set(command: Command) -> None:
    given = ("run", "torch", "--checks", "hooks.post_accumulate.mlp-split", "--output-format", "github")
    assert [line.partition(" ")[0] for line in command(*given).out.splitlines()] == ["::warning", "::error"]
    assert command(*given, "--strict").out.startswith("::error")


@pytest.mark.parametrize(("given", "ran"), [(("-x",), 1), (("--maxfail", "2"), 2)])
def test_a_run_stops_at_maxfail(command: Command, halved: Path, given: tuple[str, ...], ran: int) -> None:
    done = command("run", "halved.py", *CHECKS, *given, "--json", "out.json")
    report = json.loads((halved / "out.json").read_text(encoding="utf-8"))
    assert (done.code, report["verdict"], report["summary"]["failed"]) == (1, "does not conform", ran)
    assert f"The run was stopped: --maxfail {ran} is reached" in done.out
    assert "report as JSON: out.json" in done.out


@pytest.mark.usefixtures("halved")
def test_maxfail_reached_by_the_last_check_does_not_stop_the_run(command: Command) -> None:
    done = command("run", "halved.py", "--checks", "full.loss.mlp", "-x")
    assert "stopped" not in done.out


@pytest.mark.usefixtures("halved")
def test_a_stopped_run_prints_the_resume_command(command: Command) -> None:
    done = command("run", "halved.py", *CHECKS, "-x", "--ndjson", "run.ndjson")
    assert "continue with gradconform run --resume run.ndjson" in " ".join(done.out.split())


def test_lf_runs_the_last_failures_again(command: Command, halved: Path) -> None:
    assert (
        "no failed check of halved.py is recorded for this folder" in command("run", "halved.py", *CHECKS, "--lf").err
    )
    again = json.loads(command("run", "halved.py", "--lf", "--json", "-").out)
    assert {result["status"] for result in again["results"]} == {"failed"}
    some = json.loads(command("run", "halved.py", "--lf", "--checks", "*.mlp", "--json", "-").out)
    assert [result["check"] for result in some["results"]] == ["full.loss.mlp"]
    (halved / "halved.py").write_text(HALVED.replace(" * 0.5", ""), encoding="utf-8")
    assert "conform" not in command("run", "halved.py", "--lf", "--checks", "full.loss.mlp", "-q").err
    left = json.loads(command("run", "halved.py", "--lf", "--json", "-").out)
    assert "full.loss.mlp" not in {result["check"] for result in left["results"]}


def test_only_the_verdict_line_is_wider_than_80_columns() -> None:
    report = check_stage_backward("torch", profile="quick")
    for detail in (Detail(), Detail(1), Detail(2), Detail(-1)):
        *lines, _ = closing(report, 80, detail=detail)
        wide = [line.text for line in lines if len(line.text) > 80 and len(line.text.split()) > 1]
        assert wide == []


@pytest.mark.usefixtures("halved")
def test_written_files_are_listed_unless_the_output_goes_to_stdout(command: Command) -> None:
    command("run", "halved.py", *CHECKS, "--json", "run.json")
    done = command("report", "run.json", "--html", "run.html", "--markdown", "run.md", "--junit", "run.xml")
    assert (done.code, done.out.splitlines()) == (
        0, ["page: run.html", "report as Markdown: run.md", "tests in the form of JUnit: run.xml"],
    )  # fmt: skip
    done = command("report", "run.json", "--html", "run.html", "--markdown", "-")
    assert done.out.startswith("## halved.py")
    assert "page:" not in done.out


@pytest.mark.parametrize("words", [("--json", "-"), ("--output-format", "json")])
def test_output_of_a_target_is_not_part_of_the_printed_report(
    command: Command, halved: Path, words: tuple[str, ...]
) -> None:
    (halved / "loud.py").write_text(
        HALVED.replace("    outputs =", "    print('computing')\n    outputs =", 1) + "print('loaded')\n",
        encoding="utf-8",
    )
    done = command("run", "loud.py", *CHECKS, *words)
    assert json.loads(done.out)["target"]["text"] == "loud.py"
    assert done.err.startswith("loaded\ncomputing\n")
    assert command("run", "loud.py", *CHECKS).out.startswith("loaded\n")


def test_an_output_format_from_the_settings_file_also_reserves_stdout(command: Command, halved: Path) -> None:
    (halved / "gradconform.toml").write_text('output-format = "concise"\n', encoding="utf-8")
    (halved / "loud.py").write_text(HALVED + "print('loaded')\n", encoding="utf-8")
    done = command("run", "loud.py", *CHECKS)
    assert done.err == "loaded\n"
    assert done.out.startswith("loud.py:full.loss.")


@pytest.mark.usefixtures("halved")
def test_lf_ignores_failures_outside_the_profile(command: Command) -> None:
    only = ("--profile", "quick", "--checks", "full.loss.m*", "--lf", "--json", "-")
    command("run", "halved.py", "--checks", "full.loss.m*", "-q")
    found = json.loads(command("run", "halved.py", *only).out)
    assert {result["check"] for result in found["results"]} == {"full.loss.mlp"}
