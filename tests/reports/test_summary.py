"""The summary of a CI job: the verdict, the first causes with their places in the code, and never past 40 lines."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradconform import check_stage_backward
from gradconform.cli import main
from gradconform.report.code_places import CodePlace, code_place
from gradconform.report.page.summary import MOST_LINES, report_summary
from gradconform.results import Report, Result
from tests.halved import HALVED


def failed(check: str, text: str, *, status: str = "failed", level: str = "MUST", **others: Any) -> Result:
    """Return a result of a check with one finding."""
    finding = {"kind": "error", "where": "the action", "action": "I0", "text": text, "cause": None, "raised": text}
    return Result(
        check=check, level=level, device="cpu", dtype="float32", status=status, requirement="It MUST.", message=text,
        kind="error", findings=({**finding, "sort": "thing", "needs": None, **others},),
    )  # fmt: skip


def letters(number: int) -> str:
    """Return a word for a number: causes that differ only in numbers are one."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def report(results: list[Result], file: str | None = "/srv/repo/backward.py", **lines: int) -> Report:
    target = {"text": "backward.py", "name": "backward.py", "version": None, "file": file, "lines": lines}
    return Report(
        profile="quick", target=target, environment={}, seed=20, manifest=len(results), planned=len(results),
        results=results,
    )  # fmt: skip


def test_a_summary_has_the_verdict_the_causes_and_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(HALVED, encoding="utf-8")
    found = report_summary(check_stage_backward("wrong.py", checks=["full.loss.m*", "split.loss.mlp"]), tmp_path)
    assert found.startswith("## wrong.py does NOT conform: ")
    assert re.search(
        r"^\| \d+ \| MUST \| after B, .* scaled by 0\.5 \| wrong\.py:4 \| full\.loss\.", found, re.MULTILINE
    )
    assert "gradconform replay full.loss.mlp wrong.py" in found
    assert "- unsupported: 1 check, neither passed nor failed" in found


@pytest.mark.parametrize("must", [0, 15, 16, 17, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 400))])
@pytest.mark.parametrize("should", [0, 4, 5, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 400))])
@pytest.mark.parametrize("others", [0, 400])
def test_a_summary_never_exceeds_its_lines_and_counts_what_it_leaves_out(
    must: int, should: int, others: int, tmp_path: Path
) -> None:
    results = [failed(f"split.a.x{n}", f"raised {letters(n)}") for n in range(must)]
    results += [failed(f"split.b.x{n}", f"raised {letters(n)}", level="SHOULD") for n in range(should)]
    results += [failed(f"split.c.x{n}", f"raised {letters(n)}", status="error") for n in range(others)]
    results += [failed(f"split.d.x{n}", letters(n), status="unsupported") for n in range(others)]
    found = report_summary(report(results), tmp_path)
    assert len(found.splitlines()) <= MOST_LINES
    rows = len(re.findall(r"^\| \d+ \|", found, re.MULTILINE))
    causes = must + should + others
    left = re.search(r"^and (\d+) more causes?$", found, re.MULTILINE)
    assert rows + int(left[1] if left else 0) == causes
    assert rows >= min(causes, 4)


def test_text_of_a_target_adds_no_line_and_no_cell(tmp_path: Path) -> None:
    plain = report_summary(report([failed("split.a.x", "raised a")]), tmp_path)
    hostile = report_summary(report([failed("split.a.x", "raised | a\n\n# b\r\n::error::c")]), tmp_path)
    assert len(hostile.splitlines()) == len(plain.splitlines())
    assert "\\|" in hostile


@pytest.mark.parametrize(
    ("places", "lines", "expected"),
    [
        ([("/srv/repo/a.py", 3), ("/srv/repo/b.py", 7)], {"I": 2}, CodePlace("b.py", 7)),
        ([("/srv/repo/a.py", 3), ("/usr/lib/b.py", 7)], {"I": 2}, CodePlace("a.py", 3)),
        ([("/srv/repo/.venv/lib/site-packages/b.py", 7)], {"I": 2}, CodePlace("backward.py", 2)),
        ([], {"I": 2}, CodePlace("backward.py", 2)),
        ([], {"W": 2}, CodePlace("backward.py")),
        ([], {}, CodePlace("backward.py")),
    ],
    ids=["innermost", "own", "installed", "action", "other-action", "unknown"],
)
def test_the_place_is_the_innermost_own_frame_or_the_actions_definition(
    places: list[tuple[str, int]], lines: dict[str, int], expected: CodePlace
) -> None:
    result = failed("split.a.x", "raised", places=[{"file": file, "line": line} for file, line in places])
    assert code_place(report([result], **lines), result, Path("/srv/repo")) == expected


def test_an_installed_package_of_the_folder_has_its_place_there(tmp_path: Path) -> None:
    installed = "/venv/lib/python3.11/site-packages/mypackage/backward.py"
    result = failed("split.a.x", "raised", places=[{"file": installed, "line": 7}])
    assert code_place(report([result], file=installed, I=2), result, tmp_path) == CodePlace(installed, 2)
    (tmp_path / "src" / "mypackage").mkdir(parents=True)
    (tmp_path / "src" / "mypackage" / "backward.py").touch()
    assert code_place(report([result], file=installed), result, tmp_path) == CodePlace("src/mypackage/backward.py", 7)


def test_a_target_without_a_file_has_no_place() -> None:
    result = failed("split.a.x", "raised")
    assert code_place(report([result], file=None), result, Path("/srv")) is None
    without = report([result])
    without = replace(without, target={name: value for name, value in without.target.items() if name != "lines"})
    assert code_place(without, result, Path("/srv")) == CodePlace("repo/backward.py"), "as of an older kit"


def test_the_command_writes_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(HALVED, encoding="utf-8")
    judged = check_stage_backward("wrong.py", checks=["full.loss.mlp"])
    (tmp_path / "run.json").write_text(judged.to_json(), encoding="utf-8")
    assert judged.target["lines"] == {"B": 4}
    assert main(["report", "run.json", "--summary", "summary.md"]) == 0
    assert capsys.readouterr().out == "summary as Markdown: summary.md\n"
    assert main(["report", "run.json", "--summary", "-"]) == 0
    assert capsys.readouterr().out == (tmp_path / "summary.md").read_text(encoding="utf-8")
