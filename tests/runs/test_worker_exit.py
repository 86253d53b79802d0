"""What follows from the end of a worker: who is accused, and of what."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradconform.contract.space.checks import ROWS
from gradconform.devices.choice import choose
from gradconform.devices.prepared import WORKER_VARIABLE
from gradconform.exits import RunStoppedError
from gradconform.process.worker import Exit
from gradconform.results import Place, Result
from gradconform.run.options import RunOptions
from gradconform.workers import isolated_run
from gradconform.workers.isolated_run import IsolatedRun
from gradconform.workers.serving import exhaustion, places_to_run, serve
from gradconform.workers.worker_exit import Ending, charged

BEGUN = Result(
    check="full.gradients.mlp",
    level="SHOULD",
    device="cpu",
    dtype="float32",
    status="not_run",
    requirement="It SHOULD.",
)
CRASH = Ending(kind="crash", text="the process was ended by SIGSEGV", details=("last words",))
HANG = Ending.of(Exit(code=None, limit=120.0))
KILLED = Ending(kind="killed", text="the process was ended by SIGKILL")


def result(status: Any, **values: Any) -> Result:
    return Result.from_dict({**BEGUN.to_dict(), "findings": (), "status": status, **values})


WRONG = result("failed", kind="error", findings=({"kind": "error", "text": "raised MemoryError: no more"},))


@pytest.mark.parametrize(
    ("again", "oracle", "status", "kind"),
    [
        (CRASH, result("passed"), "failed", "crash"),
        (KILLED, result("passed"), "failed", "memory"),
        (CRASH, result("failed"), "failed", "crash"),
        (HANG, result("passed", duration_s=9.0), "failed", "hang"),
        (HANG, result("passed", duration_s=95.0), "error", "environment"),
        (HANG, HANG, "error", "environment"),
        (CRASH, CRASH, "error", "environment"),
        (CRASH, result("unsupported"), "error", "environment"),
        (CRASH, result("error", kind="kit"), "error", "environment"),
        (result("passed"), None, "error", "environment"),
        (result("unexpectedly_passed"), None, "error", "environment"),
        (result("unsupported"), None, "unsupported", None),
        (WRONG, None, "failed", "error"),
        (Ending(kind="memory", text="memory ran out", result=WRONG), result("passed"), "failed", "error"),
        (Ending(kind="memory", text="memory ran out", result=WRONG), CRASH, "error", "environment"),
        (
            Ending(kind="device_lost", text="lost", result=result("unsupported")),
            result("passed"),
            "failed",
            "device_lost",
        ),
    ],
)
def test_only_a_repeated_crash_that_plain_autograd_avoids_is_charged_to_the_target(
    again: Ending | Result, oracle: Ending | Result | None, status: str, kind: str | None
) -> None:
    found = charged(BEGUN, CRASH, again, oracle)
    assert (found.status, found.kind) == (status, kind)
    assert (found.check, found.level, found.requirement) == ("full.gradients.mlp", "SHOULD", "It SHOULD.")


def test_a_check_that_is_slow_with_plain_autograd_too_names_the_timeout_option() -> None:
    found = charged(BEGUN, HANG, HANG, result("passed", duration_s=95.0))
    assert found.message == (
        "the check did not end within 120 s; plain autograd took 95.0 s; --check-timeout allows more"
    )


def test_the_message_has_the_cause_then_the_last_output_then_stacks() -> None:
    stacks = (
        "Fatal Python error: Aborted\n\n"
        'Thread 0x1 (most recent call first):\n  File "worker.py", line 1 in listen_to_parent\n\n'
        "Thread 0x2 (most recent call first):\n  <no Python frame>\n\n"
        'Current thread 0x3 (most recent call first):\n  File "ours.py", line 3 in stuck\n'
        f'  File "{Path(isolated_run.__file__).parent}/worker.py", line 9 in main\n\nExtension modules: a, b\n'
    )
    ending = Ending.of(Exit(code=-signal.SIGABRT, complaints="one\ntwo\n", stacks=stacks))
    assert charged(BEGUN, ending, ending, result("passed")).message.splitlines() == [
        "the process was killed by SIGABRT; this does not happen with plain autograd",
        "one",
        "two",
        "Fatal Python error: Aborted",
        "Current thread 0x3 (most recent call last):",
        '  File "ours.py", line 3 in stuck',
    ]


@pytest.mark.parametrize(
    ("found", "gone"),
    [
        (result("passed", message="MemoryError"), None),
        (result("waived", exhausted="MemoryError: no more"), None),
        (result("failed", message="raised MemoryError: of another's making"), None),
        (result("failed", exhausted="MemoryError: no more"), ("memory", "MemoryError: no more")),
        (result("error", kind="kit", device="meta"), "device"),
    ],
)
def test_out_of_memory_and_a_lost_device_are_recognized_in_a_result(found: Result, gone: Any) -> None:
    told = exhaustion(found)
    assert told == gone if not isinstance(gone, str) else told is not None and told[0] == gone


def test_a_crash_can_be_waived_and_max_crashes_stops_the_run(
    tmp_path: Path, target: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = target("def trouble(outputs):\n    os._exit(7)")
    (tmp_path / "waivers.toml").write_text(
        '[[waiver]]\ncheck = "full.gradients.conv2d"\nverdict = "crash"\nreason = "it does"\n'
        'issue = "https://example.org/1"\nowner = "ada"\nexpires = 2999-01-01\n',
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    options = RunOptions.of(name, checks="full.gradients.*", waivers="waivers.toml", max_crashes=2).to_json()
    choice = choose(["cpu"], ["float32"]).to_dict()
    run = IsolatedRun({"options": options, "choice": choice}, workers=1, check_timeout=60, start_timeout=60)
    places = [place for place in run.header.places if place.check.endswith((".conv2d", ".linear-3d", ".mlp"))]
    seen: list[Result] = []
    with pytest.raises(RunStoppedError, match=r"2 checks ended their process and took \d+ s, the last was full\.grad"):
        run.run(seen.append, on_start=lambda *_: None, places=places)
    assert [(found.status, found.ended) for found in seen] == [("waived", "crash"), ("failed", "crash")]
    report = run.header.report_of(dict(zip(places, seen, strict=False)))
    assert (report.verdict, report.summary["not_run"] > 0) == ("does not conform", True)


def test_needed_values_are_searched_until_a_check_ends_its_process(
    target: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = target(
        """
        import threading

        def trouble(outputs):
            if threading.current_thread() is not threading.main_thread():
                raise ValueError("not in this thread")
        """
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv(WORKER_VARIABLE, "0")
    plain = {"start": "gradients", "count": "two-mb", "inputs": "one-input", "mode": "thread"}
    row = next(check for check, (way, row) in ROWS.items() if way == "full" and plain.items() <= row.items())
    options = RunOptions.of(name, checks=row).to_json()
    first = {"options": options, "choice": choose(["cpu"], ["float32"]).to_dict(), "worker": 0}
    place = Place(row, "cpu", "float32")
    for again, needs in ((False, {"mode": "thread"}), (True, None)):
        told: list[Any] = []
        serve(iter([first, places_to_run([place], again=again)]), told.append)
        assert [finding["needs"] for finding in told[-1]["findings"]] == [needs]
