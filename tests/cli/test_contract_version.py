"""``--contract VERSION``: an older version is run, and all that is made of its report knows of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gradconform
from gradconform.contract import areas
from gradconform.user_input.values import SelectionError

Command = Callable[..., Any]

STAYS, LEFT, NEW = "full.gradients.mlp", "full.gradients.lstm", "full.gradients.conv2d"
OLD = ("--contract", "0.9", "--profile", "full")
CHECKS = (
    replace(areas.CHECKS[STAYS], since="0.9"), replace(areas.CHECKS[LEFT], since="0.9", until="1.3"), areas.CHECKS[NEW],
)  # fmt: skip


@pytest.fixture(autouse=True)
def _two_versions(contract_of: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 0.9 has a check that contract 1.3 has no more, and contract 1.3 has one of its own."""
    contract_of(CHECKS)
    monkeypatch.chdir(tmp_path)


def report_of(command: Command, *options: str, target: str = "autograd") -> dict[str, Any]:
    done = command("run", target, *options, "--json", "report.json")
    assert (done.code, done.err) == (0, "")
    found: dict[str, Any] = json.loads(Path("report.json").read_text(encoding="utf-8"))
    return found


def test_run_uses_the_checks_of_the_requested_version(command: Command) -> None:
    done = command("run", "autograd", *OLD, "--json", "report.json")
    assert done.code == 0
    assert "2 of 2 checks of contract 0.9, profile full" in done.out
    report = gradconform.read_report("report.json")
    assert (report.contract, report.options["contract"], report.conforms) == ("0.9", "0.9", True)
    assert sorted(result.check for result in report) == [LEFT, STAYS]


def test_the_default_is_the_newest_version(command: Command) -> None:
    report = report_of(command, "--profile", "full")
    assert report["contract"] == report["options"]["contract"] == "1.3"
    assert sorted(result["check"] for result in report["results"]) == [NEW, STAYS]


def test_an_unknown_version_is_refused_before_work_starts(command: Command) -> None:
    done = command("run", "no.such.target", "--contract", "0.8")
    assert (done.code, done.out) == (2, "")
    assert "argument --contract: unknown contract version '0.8'; expected one of 0.9, 1.3" in done.err
    with pytest.raises(SelectionError, match=r"unknown contract version '0.8'; expected one of 0.9, 1.3"):
        gradconform.check_stage_backward("no.such.target", contract="0.8")


def test_the_library_runs_the_requested_version(command: Command) -> None:
    del command
    report = gradconform.check_stage_backward("autograd", contract="0.9", profile="full")
    assert (report.contract, len(report.results), report.conforms) == ("0.9", 2, True)


def test_pytest_runs_the_requested_version(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--gradconform=autograd", "--gradconform-contract=0.9", "--gradconform-profile=full")
    result.stdout.fnmatch_lines(["2 of 2 checks of contract 0.9, profile full, ran*"])
    refused = pytester.runpytest("--gradconform=autograd", "--gradconform-contract=0.8")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*unknown contract version '0.8'; expected one of 0.9, 1.3*"])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"requirement": "B MUST be right."}, f"does not match the requirement of {STAYS} in contract 0.9"),
        ({"check": NEW}, f"check: contract 0.9 has no {NEW!r}"),
    ],
    ids=["requirement", "check of another version"],
)
def test_a_report_is_compared_with_the_contract_version_it_names(
    command: Command, changes: dict[str, str], told: str
) -> None:
    report = report_of(command, *OLD)
    (result,) = (result for result in report["results"] if result["check"] == STAYS)
    result.update(changes)
    with pytest.raises(gradconform.ReportError, match=told):
        gradconform.read_report(json.dumps(report))


def test_a_report_of_an_unknown_contract_version_is_checked_only_for_consistency(command: Command) -> None:
    report = report_of(command, *OLD)
    for result in report["results"]:
        result["requirement"] = "It MUST be otherwise."
    assert gradconform.read_report(json.dumps({**report, "contract": "7.0"})).contract == "7.0"


def test_a_resumed_run_keeps_its_contract_version(command: Command) -> None:
    command("run", "autograd", *OLD, "--ndjson", "run.ndjson")
    lines = Path("run.ndjson").read_text(encoding="utf-8").splitlines(keepends=True)
    results = [number for number, line in enumerate(lines) if json.loads(line)["record"] == "result"]
    Path("run.ndjson").write_text("".join(lines[: results[0] + 1]), encoding="utf-8")
    done = command("run", "--resume", "run.ndjson", "--json", "report.json")
    assert done.code == 0
    assert "2 of 2 checks of contract 0.9, profile full" in done.out
    assert gradconform.read_report("report.json").contract == "0.9"


def test_a_removed_check_is_replayed_in_the_version_that_has_it(command: Command) -> None:
    report_of(command, *OLD)
    assert command("replay", f"report.json#{LEFT}").last.startswith(f"{LEFT}: passed")
    assert command("replay", LEFT, "autograd", "--contract", "0.9").last.startswith(f"{LEFT}: passed")
    done = command("replay", LEFT, "autograd")
    assert (done.code, done.out) == (2, "")
    assert f"contract 1.3 has no check {LEFT!r}" in done.err


def test_compare_refuses_two_versions_unless_intersection_is_set(command: Command) -> None:
    report_of(command, *OLD)
    Path("report.json").rename("old.json")
    report_of(command, "--profile", "full")
    done = command("compare", "old.json", "report.json")
    assert done.code == 2
    assert ".json: the reports use different contracts, BASE 0.9 and NEW 1.3" in done.err
    assert command("compare", "old.json", "report.json", "--intersection").code == 0


def test_merge_keeps_the_contract_version_of_the_shards(command: Command) -> None:
    for shard in ("1", "2"):
        command("run", "autograd", *OLD, "--shard", f"{shard}/2", "--json", f"{shard}.json")
    assert command("merge", "1.json", "2.json", "--json", "whole.json").code == 0
    whole = gradconform.read_report("whole.json")
    assert (whole.contract, whole.conforms) == ("0.9", True)


def test_a_waiver_for_a_check_outside_the_version_is_refused(command: Command) -> None:
    entry = {"reason": "known", "issue": "#7", "owner": "ada"}
    words = "\n".join(f'{name} = "{value}"' for name, value in entry.items())
    text = f'[[waiver]]\ncheck = "{NEW}"\nverdict = "mismatch"\nexpires = 2999-12-31\n{words}\n'
    Path("waivers.toml").write_text(text, encoding="utf-8")
    done = command("run", "autograd", *OLD, "--waivers", "waivers.toml")
    assert done.code == 2
    assert f"entry 1 ({NEW}): check does not exist" in done.err


def test_a_bundle_names_its_version_and_is_verified_with_it(command: Command) -> None:
    text = "from gradconform.reference.autograd import AutogradAdapter\n\n\nclass Mine(AutogradAdapter):\n    pass\n"
    Path("mine.py").write_text(text, encoding="utf-8")
    report_of(command, *OLD, target="mine.py:Mine")
    assert command("bundle", "report.json", "-o", "bundle.zip").code == 0
    done = command("verify", "bundle.zip")
    assert (done.code, done.err) == (0, "")
    assert "contract 0.9, profile full" in done.out
