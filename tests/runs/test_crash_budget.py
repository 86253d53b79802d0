"""A target that ends or hangs its process over and over: what the run allows, and where it says that it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradconform.cli.progress import Crashes
from gradconform.reading.report import read_report
from gradconform.report.sentences import against_manifest
from gradconform.results import Report, Result
from gradconform.run.options import RunOptions
from gradconform.user_input.values import SelectionError

Judged = Callable[..., Any]
Target = Callable[[str], str]


def told(out: str) -> str:
    """Return what was printed as one line; how long anything took depends on the machine."""
    return re.sub(r" \(\d+ s lost\)|, \d+ s lost\b", "", " ".join(out.split()))


@pytest.mark.slow
def test_a_target_that_crashes_in_every_check_stops_at_max_crashes(
    tmp_path: Path, judged: Judged, target: Target
) -> None:
    name = target("def trouble(outputs):\n    os._exit(7)")
    run = judged(name, "--checks", "full.gradients.*", "--max-crashes", "3", "--ndjson", "run.ndjson")
    counts = run.report["summary"]
    assert (run.code, run.report["verdict"], run.report["options"]["max_crashes"]) == (1, "does not conform", 3)
    assert [(found["status"], found["kind"], found["ended"]) for found in run.report["results"]] == [
        ("failed", "crash", "crash")
    ] * 3
    assert counts["not_run"] == counts["planned"] - 3 > 0
    text = r"3 checks crashed \(the last: full\.gradients\.[\w-]+\); --max-crashes allows 3"
    assert re.search(rf"3 failed, {text} ", told(run.out))
    assert re.search(rf"{text}; {counts['not_run']} checks were not run", told(run.out))
    assert re.search(r"3 checks ended their process and took \d+ s, the last was full\.gradients\.", told(run.out))
    assert "--max-crashes allows 3" in told(run.out)
    report = read_report(tmp_path / "report.json")
    assert (report.crashes, report.options["max_crashes"]) == (3, 3)
    header = json.loads((tmp_path / "run.ndjson").read_bytes().splitlines()[0])
    assert header["report"]["options"]["max_crashes"] == 3


@pytest.mark.slow
def test_passing_checks_do_not_reset_the_crash_budget(judged: Judged, target: Target) -> None:
    name = target(
        """
        def trouble(outputs):
            if outputs[0].numel() % 2 == 0:
                os._exit(7)
        """
    )
    run = judged(name, "--checks", "full.gradients.*", "--max-crashes", "3", "--workers", "2")
    ended = [found["ended"] for found in run.report["results"]]
    assert (ended.count("crash"), run.report["summary"]["passed"] > 0, run.report["summary"]["not_run"] > 0) == (
        3,
        True,
        True,
    )


@pytest.mark.slow
def test_a_hang_counts_as_a_crash_and_in_the_last_check_skips_no_other(judged: Judged, target: Target) -> None:
    name = target("def trouble(outputs):\n    ctypes.PyDLL(None).sleep(1000)")
    words = ("--checks", "full.gradients.mlp,full.gradients.conv2d", "--check-timeout", "3")
    run = judged(name, *words, "--max-crashes", "1")
    assert [found["ended"] for found in run.report["results"]] == ["hang"]
    assert re.search(r"1 check hung \(full\.\S+\); --max-crashes allows 1; 1 check was not run", told(run.out))
    run = judged(name, "--checks", "full.gradients.mlp", "--check-timeout", "3", "--max-crashes", "1")
    assert "The run was stopped" not in run.out
    assert told(run.out).count("1 check hung (full.gradients.mlp)") == 2
    assert "were not run" not in run.out


def test_environment_crashes_count_too_and_the_run_is_incomplete(judged: Judged, target: Target) -> None:
    name = target("def trouble(outputs):\n    if calls == 3:\n        os.abort()")  # never the first of a process
    run = judged(name, "--checks", "full.gradients.*", "--max-crashes", "1")
    kinds = {(found["status"], found["kind"]) for found in run.report["results"] if found["ended"]}
    assert (run.code, run.report["verdict"], kinds) == (4, "incomplete", {("error", "environment")})


@pytest.mark.slow
def test_a_resumed_run_gets_a_new_crash_budget(judged: Judged, target: Target) -> None:
    name = target("def trouble(outputs):\n    os._exit(7)")
    words = ("--checks", "full.gradients.*", "--max-crashes", "1")
    assert judged(name, *words, "--ndjson", "run.ndjson").report["summary"]["failed"] == 1
    again = judged("--resume", "run.ndjson")
    assert again.report["summary"]["failed"] == 2
    assert re.search(r"2 checks crashed \(the last: \S+\); \d+ checks were not run", told(again.out))


@pytest.mark.slow
def test_the_lost_time_is_limited_for_the_whole_run(judged: Judged, target: Target) -> None:
    name = target("def trouble(outputs):\n    ctypes.PyDLL(None).sleep(1000)")
    run = judged(name, "--checks", "full.gradients.*", "--check-timeout", "5", "--max-lost-time", "2")
    (result,) = run.report["results"]
    left = run.report["summary"]["not_run"]
    assert (run.code, result["kind"], result["ended"]) == (1, "hang", "hang")
    assert result["duration_s"] >= 10, "it was tried again"
    assert left > 0
    out = " ".join(run.out.split())
    assert re.search(r"1 check ended its process and took \d+ s, the last was full\.gradients\.", out)
    assert "--max-lost-time allows 2 s" in out
    lost = f"1 check hung ({result['check']}), {result['duration_s']:.0f} s lost; --max-crashes allows 20"
    assert out.count(lost) == 2, "of its area, and with the verdict"
    assert f"{told(lost)}; {left} checks were not run" in told(run.out)


@pytest.mark.parametrize("given", [0, -1, True, 2.5, "3"])
def test_an_invalid_count_is_refused(given: Any) -> None:
    with pytest.raises(SelectionError, match=r"max_crashes: expected a whole number of at least 1, got "):
        RunOptions(max_crashes=given)


def result(**values: Any) -> Result:
    told = {"check": "a.b.c", "level": "MUST", "device": "cpu", "dtype": "float32", "requirement": "It MUST."}
    return Result(**{**told, "status": "passed", **values})


def test_without_a_crash_the_crash_text_is_empty() -> None:
    report = Report(profile="quick", target={}, environment={}, seed=20, manifest=2, planned=2, results=[result()])
    assert against_manifest(report).endswith("ran; 1 planned but not run")
    crashes = Crashes(20)
    crashes.add(result())
    assert crashes.text == ""
    crashes.add(result(ended="hang", duration_s=61.4))
    assert crashes.text == ", 1 check hung (a.b.c), 61 s lost; --max-crashes allows 20"
    crashes.add(result(check="a.b.d", ended="crash"))
    assert crashes.text == ", 2 checks crashed or hung (the last: a.b.d), 61 s lost; --max-crashes allows 20"
