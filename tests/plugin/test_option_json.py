"""``--gradconform-json PATH``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

#: See conftest.py.
IN_TWO = True

Judge = Callable[..., pytest.RunResult]


def test_the_report_is_written_in_the_order_of_the_plan(
    judge: Judge, pytester: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    result = judge("--gradconform-json=report.json", *processes)
    report = json.loads((pytester.path / "report.json").read_text())
    assert [found["check"] for found in report["results"]] == ["full.gradients.mlp", "split.gradients.mlp"]
    assert report["schema"] == "gradconform-report"
    assert (report["verdict"], report["conforms"]) == ("incomplete", False)
    result.stdout.fnmatch_lines(["gradconform: JSON report in *report.json"])


def test_the_ini_file_and_the_environment_can_set_the_option(
    judge: Judge, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCONFORM_JSON", "variable.json")
    judge()
    assert (pytester.path / "variable.json").exists()
    pytester.makeini("[pytest]\ngradconform_json = ini.json")
    monkeypatch.chdir(pytester.mkdir("below"))
    judge()
    assert (pytester.path / "ini.json").exists()


def test_an_unwritable_path_is_refused_before_anything_runs(judge: Judge, processes: tuple[str, ...]) -> None:
    result = judge("--gradconform-json=nowhere/report.json", *processes)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*cannot write *nowhere*report.json': No such file or directory; name a file in *"])


def test_a_refused_run_leaves_no_file(judge: Judge, pytester: pytest.Pytester) -> None:
    judge("--gradconform-json=report.json", "--gradconform-dtype=float31")
    assert not (pytester.path / "report.json").exists()


def test_each_decorated_test_writes_its_own_report(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import gradconform

        @gradconform.parametrize_checks("autograd")
        def test_one(check):
            check()

        @gradconform.parametrize_checks("torch")
        def test_two(check):
            check()
        """
    )
    judge("--gradconform-json=report.json")
    names = ["report.json", "report-2.json", "report-3.json"]
    targets = [json.loads((pytester.path / name).read_text())["target"]["name"] for name in names]
    assert targets == ["reference-split", "autograd", "torch"]


def test_a_failed_report_write_is_reported_and_keeps_the_old_report(
    judge: Judge, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pytester.path / "report.json").write_text("before", encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    result = judge("--gradconform-json=report.json")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(["*a file could not be written: *No space left on device"])
    assert (pytester.path / "report.json").read_text(encoding="utf-8") == "before"
    assert [path.name for path in pytester.path.iterdir() if path.name.startswith(".report")] == []
