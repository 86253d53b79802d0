from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradconform.results import SCHEMA, SCHEMA_VERSION

Command = Callable[..., Any]

CHECK = ("--checks", "full.gradients.mlp")


def test_the_report_is_written_as_json(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = command("run", "torch", "--checks", "split.gradients.output-view", "--json", str(path))
    report = json.loads(path.read_text(encoding="utf-8"))
    assert (done.code, report["verdict"], report["conforms"]) == (1, "does not conform", False)
    assert (report["schema"], report["schema_version"], report["contract"]) == (SCHEMA, SCHEMA_VERSION, "1.3")
    assert report["profile"] == "standard"
    assert report["target"]["name"] == "torch"
    assert report["summary"]["planned"] == report["summary"]["failed"] == 1
    (result,) = report["results"]
    assert (result["check"], result["level"], result["status"]) == ("split.gradients.output-view", "MUST", "failed")


def test_the_old_report_is_replaced_and_no_temporary_file_remains(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old", encoding="utf-8")
    command("run", "autograd", *CHECK, "--json", str(path))
    assert [found.name for found in tmp_path.iterdir()] == ["report.json"]
    assert json.loads(path.read_text(encoding="utf-8"))["summary"]["passed"] == 1


def test_the_report_has_the_default_file_permissions(command: Command, tmp_path: Path) -> None:
    command("run", "autograd", *CHECK, "--json", str(tmp_path / "report.json"))
    (tmp_path / "usual").touch()
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("report.json", "usual")]
    assert modes[0] == modes[1]


def test_writing_a_report_to_a_symlink_keeps_the_link(command: Command, tmp_path: Path) -> None:
    link = tmp_path / "latest.json"
    link.symlink_to("report.json")
    command("run", "autograd", *CHECK, "--json", str(link))
    assert link.is_symlink()
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["summary"]["passed"] == 1


@pytest.mark.parametrize(
    ("path", "told"),
    [("missing/report.json", "missing' does not exist; create it first"), (".", "is a folder"), ("", "is a folder")],
)
def test_a_path_that_cannot_be_written_is_refused_before_the_run(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("run", "no-such-target", "--json", path)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert "no-such-target" not in done.err


def test_a_folder_that_is_not_writable_is_refused_before_the_run(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # a superuser may write anywhere
    done = command("run", "autograd", "--json", str(tmp_path / "report.json"))
    assert (done.code, done.out) == (2, "")
    assert "cannot be written; choose another path" in done.err


def test_a_failed_write_keeps_the_old_report_and_gives_4(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    path.write_text("old", encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    done = command("run", "autograd", *CHECK, "--json", str(path))
    assert done.code == 4
    assert "cannot write the report to" in done.err
    assert "No space left on device" in done.err
    assert "1 of" in done.last, "the verdict is told all the same"
    assert {found.name: found.read_text(encoding="utf-8") for found in tmp_path.iterdir()} == {"report.json": "old"}
