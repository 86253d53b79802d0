"""What follows from the end of a worker: who is accused, and of what."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gradconform.devices.choice import choose
from gradconform.isolation import exhaustion, supervisor
from gradconform.isolation.crew import RunStoppedError
from gradconform.isolation.death import Death, judged
from gradconform.isolation.supervisor import IsolatedRun
from gradconform.results import Result

BEGUN = Result(
    check="full.gradients.mlp",
    level="SHOULD",
    device="cpu",
    dtype="float32",
    status="not_run",
    requirement="It SHOULD.",
)
CRASH = Death(kind="crash", text="the process was ended by SIGSEGV", details=("last words",))
KILLED = Death(kind="killed", text="the process was ended by SIGKILL")


def result(status: Any, **values: Any) -> Result:
    return Result(**{**BEGUN.to_dict(), "findings": (), "status": status, **values})


WRONG = result("failed", kind="error", findings=({"kind": "error", "text": "raised MemoryError: no more"},))


@pytest.mark.parametrize(
    ("again", "oracle", "status", "kind"),
    [
        (CRASH, result("passed"), "failed", "crash"),
        (KILLED, result("passed"), "failed", "memory"),
        (CRASH, result("failed"), "failed", "crash"),
        (CRASH, CRASH, "error", "environment"),
        (CRASH, result("unsupported"), "error", "environment"),
        (CRASH, result("error", kind="kit"), "error", "environment"),
        (result("passed"), None, "error", "environment"),
        (result("unexpectedly_passed"), None, "error", "environment"),
        (result("unsupported"), None, "unsupported", None),
        (WRONG, None, "failed", "error"),
        (Death(kind="memory", text="memory ran out", result=WRONG), result("passed"), "failed", "error"),
        (Death(kind="memory", text="memory ran out", result=WRONG), CRASH, "error", "environment"),
        (
            Death(kind="device_lost", text="lost", result=result("unsupported")),
            result("passed"),
            "failed",
            "device_lost",
        ),
    ],
)
def test_the_target_is_accused_of_what_happens_again_and_not_to_plain_autograd(
    again: Death | Result, oracle: Death | Result | None, status: str, kind: str | None
) -> None:
    found = judged(BEGUN, CRASH, again, oracle)
    assert (found.status, found.kind) == (status, kind)
    assert (found.check, found.level, found.requirement) == ("full.gradients.mlp", "SHOULD", "It SHOULD.")


def test_the_message_has_the_cause_first_then_last_words_and_stacks() -> None:
    stacks = (
        "Fatal Python error: Aborted\n\n"
        'Thread 0x1 (most recent call first):\n  File "worker.py", line 1 in _listen\n\n'
        "Thread 0x2 (most recent call first):\n  <no Python frame>\n\n"
        'Current thread 0x3 (most recent call first):\n  File "ours.py", line 3 in stuck\n'
        f'  File "{Path(supervisor.__file__).parent}/worker.py", line 9 in main\n\nExtension modules: a, b\n'
    )
    death = Death.of(-signal.SIGABRT, None, complaints="one\ntwo\n", stacks=stacks)
    assert judged(BEGUN, death, death, result("passed")).message.splitlines() == [
        "the process was ended by SIGABRT; plain autograd does not do that",
        "one",
        "two",
        "Fatal Python error: Aborted",
        "Current thread 0x3 (most recent call first):",
        '  File "ours.py", line 3 in stuck',
    ]


@pytest.mark.parametrize(
    ("found", "gone"),
    [
        (result("passed", message="MemoryError"), None),
        (result("failed", message="raised ValueError: a memory"), None),
        (WRONG, ("memory", "raised MemoryError: no more")),
        (result("unsupported", message="plain autograd on this device raised torch.OutOfMemoryError: CUDA"), "memory"),
        (result("failed", message="RuntimeError: DefaultCPUAllocator: can't allocate memory"), "memory"),
        (result("error", kind="kit", device="meta"), "device"),
    ],
)
def test_a_result_that_tells_of_memory_or_of_a_lost_device_is_known(found: Result, gone: Any) -> None:
    told = exhaustion.exhaustion(found)
    assert told == gone if not isinstance(gone, str) else told is not None and told[0] == gone


def test_a_crash_can_be_waived_and_a_run_of_crashes_is_given_up(
    tmp_path: Path, target: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = target("def trouble(outputs):\n    os._exit(7)")
    (tmp_path / "waivers.toml").write_text(
        '[[waiver]]\ncheck = "full.gradients.conv2d"\nverdict = "crash"\nreason = "it does"\n'
        'issue = "https://example.org/1"\nowner = "ada"\nexpires = 2999-01-01\n',
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervisor, "GIVEN_UP_AFTER", 2)
    options: Mapping[str, Any] = {
        "target": name,
        "checks": "full.gradients.*",
        "waivers": "waivers.toml",
        "flags": (),
        "choice": choose(["cpu"], ["float32"]).to_dict(),
    }
    run = IsolatedRun(options, workers=1, check_timeout=60)
    places = [place for place in run.header.places if place.check.endswith((".conv2d", ".linear-3d", ".mlp"))]
    seen: list[Result] = []
    with pytest.raises(RunStoppedError, match=r"2 checks in a row ended their process, the last of them full\.grad"):
        run.run(seen.append, on_start=lambda *_: None, places=places)
    assert [found.status for found in seen] == ["waived", "failed"]
    report = run.header.report_of(dict(zip(places, seen, strict=False)))
    assert (report.verdict, report.summary["not_run"] > 0) == ("does not conform", True)
