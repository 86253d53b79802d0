"""Every text of a report, a bundle and a file of waivers, shown by every command that reads one."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradconform.cli import arguments, main
from gradconform.cli.parsing import COMMANDS
from gradconform.reading.report import read_report
from gradconform.report.terminal import closing, opening
from gradconform.results import NonConformingError, Report

from .conftest import ATTACK, alive_in_html, alive_in_markdown, commands, unseen

Command = Callable[..., str]
READ = "base.json", "new.json"

#: What shows a report, by what it prints.
SHOWN: dict[str, tuple[str, ...]] = {
    "compare": ("compare", *READ),
    "compare json": ("compare", "--format", "json", *READ),
    "compare markdown": ("compare", "--format", "markdown", *READ),
    "report markdown": ("report", "--markdown", "-", READ[0]),
    "report html": ("report", "--html", "-", READ[0]),
    "report junit": ("report", "--junit", "-", READ[0]),
    "runs markdown": ("report", "--markdown", "-", *READ),
    "runs html": ("report", "--html", "-", *READ),
    "badge": ("badge", READ[0]),
    "merge": ("merge", "shard.json"),
    "bundle": ("bundle", READ[0], "-o", "out.zip", "--waivers", READ[1]),
    "verify": ("verify", "bundle.zip"),
    "report text": ("report", READ[0]),
    "report text, all": ("report", READ[0], "-vv"),
    "report concise": ("report", READ[0], "--output-format", "concise"),
    "waivers add": ("waivers", "add", "--from", READ[0], "--waivers", "new.toml"),
    "waivers prune": ("waivers", "prune", "--from", READ[0], "--waivers", "waivers.toml"),
}
#: What reads no report; a target's texts are in test_targets.py.
OTHER = {
    "list", "explain", "contract", "run", "init", "replay", "fuzz", "selftest", "bench", "upstream", "doctor",
    "pipeline", "sharded", "schedule-text", "stage-objects", "device",
}  # fmt: skip


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return all that a command prints, run in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        capsys.readouterr()
        main(words)
        return "".join(capsys.readouterr())

    return run


@pytest.fixture
def files(hostile: Report, printed: Command) -> Report:  # noqa: ARG001 (it chooses the folder)
    """Write what the commands read; the report is one that is accepted."""
    Path(READ[0]).write_text(hostile.to_json(), encoding="utf-8")
    assert read_report(READ[0]).to_dict() == hostile.to_dict()
    changed = replace(hostile, seed=2, results=[replace(hostile.results[0], status="failed"), *hostile.results[1:]])
    Path(READ[1]).write_text(changed.to_json(), encoding="utf-8")
    positions = list(range(hostile.planned))
    shard = {"index": 1, "count": 1, "selected": hostile.manifest, "sha256": "0" * 64, "positions": positions}
    Path("shard.json").write_text(replace(hostile, shard=shard).to_json(), encoding="utf-8")
    entry = {"check": "a.b", "verdict": "error", "expires": "2999-12-31", "reason": "r", "issue": "i", "owner": ATTACK}
    lines = [f"{name} = {json.dumps(value)}" for name, value in entry.items()]
    Path("waivers.toml").write_text("\n".join(["[[waiver]]", *lines]).replace(r"\udb40\udc41", ""), encoding="utf-8")
    _pack(Path(READ[0]).read_bytes(), ATTACK)
    return hostile


def _pack(content: bytes, name: str) -> None:
    stated = {
        "schema": "gradconform-statement", "schema_version": 1, "statement": ATTACK, "made": ATTACK, "kit": ATTACK,
        "contract": ATTACK, "target": {name: ATTACK},
        "files": {"report.json": hashlib.sha256(content).hexdigest(), name: ATTACK},
    }  # fmt: skip
    with zipfile.ZipFile("bundle.zip", "w") as archive:
        archive.writestr("statement.json", json.dumps(stated))
        archive.writestr("report.json", content)
        archive.writestr("environment.json", json.dumps({name: ATTACK}))
        archive.writestr("kit.json", json.dumps({name: ATTACK}))


def test_every_command_that_reads_a_report_is_tested() -> None:
    assert arguments.parser() is not None
    assert {words[0] for words in SHOWN.values()} | OTHER == set(COMMANDS)


@pytest.mark.parametrize("sink", SHOWN)
def test_report_text_has_no_effect_in_any_output(files: Report, printed: Command, sink: str) -> None:
    out = printed(*SHOWN[sink])
    assert "--help" not in out
    assert unseen(out) == set()
    assert commands(out) == []
    if "html" in sink:
        assert alive_in_html(out) == []
    if "markdown" in sink:
        assert list(alive_in_markdown(out)) == []
    if "json" in sink:
        assert json.loads(out)["new"]["target"] == dict(files.target)


def test_fields_of_a_report_are_shown_in_the_outputs(files: Report, printed: Command) -> None:
    assert files.extra
    out = "".join(printed(*words) for words in SHOWN.values() if "html" not in words[1])
    assert len(set(re.findall(r"field\d+q", out))) > 200


def test_a_target_name_cannot_start_a_new_line(files: Report, printed: Command) -> None:
    report = replace(files, results=[])
    lines = [*opening(report, [(ATTACK, ATTACK)], 100), *closing(report, 100, ATTACK)]
    assert len(lines) < 100
    out = printed(*SHOWN["compare"])
    assert [line for line in out.splitlines() if line.startswith(("VALID", "owned", "# VALID"))] == []


def test_an_exception_raised_by_the_library_is_safe_to_print(files: Report) -> None:
    with pytest.raises(NonConformingError) as caught:
        files.raise_if_failed()
    assert (unseen(str(caught.value)), commands(str(caught.value))) == (set(), [])


def changed(values: Any) -> Iterator[Any]:
    """Yield the values with each text, number and key in them, one at a time, in the attack's place."""
    if isinstance(values, dict):
        yield {**values, ATTACK: ATTACK}
        for name, value in values.items():
            yield {**{other: one for other, one in values.items() if other != name}, ATTACK: value}
            yield from ({**values, name: other} for other in changed(value))
    elif isinstance(values, list):
        for position, value in enumerate(values):
            yield from ([*values[:position], other, *values[position + 1 :]] for other in changed(value))
    else:
        yield ATTACK


def test_errors_in_a_report_are_reported_without_any_effect(hostile: Report, printed: Command) -> None:
    small = replace(hostile, results=[next(result for result in hostile.results if result.status == "waived")])
    values = json.loads(small.to_json())
    values["results"][0]["findings"] = values["results"][0]["findings"][:1]
    wrong = 0
    for number, other in enumerate(changed(values)):
        Path("report.json").write_text(json.dumps(other), encoding="utf-8")
        out = printed("report", "--markdown", "-", "report.json")
        assert (unseen(out), commands(out)) == (set(), []), number
        wrong += "gradconform:" in out
    assert wrong > 200
