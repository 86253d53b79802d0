"""What ends or hangs a worker process is the result of one check, and the run goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Judged = Callable[..., Any]
Target = Callable[[str], str]

#: Which checks have outputs that a target can tell apart.
CONV, LINEAR, PAIR, RESIDUAL = (f"full.gradients.{name}" for name in ("conv2d", "linear-3d", "two-outputs", "residual"))
MLP, LOSS = "full.gradients.mlp", "full.loss.mlp"


def checks(*ids: str) -> tuple[str, str]:
    return "--checks", ",".join(ids)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]


@pytest.mark.slow
def test_a_check_that_ends_the_process_fails_and_the_rest_is_judged(judged: Judged, target: Target) -> None:
    name = target(
        """
        def stuck():
            ctypes.PyDLL(None).sleep(1000)  # it keeps the interpreter to itself

        def trouble(outputs):
            if len(outputs) == 2:
                os._exit(0)
            if outputs[0].dim() == 4:
                print("last words", file=sys.stderr)
                os.abort()
            if outputs[0].dim() == 3:
                stuck()
            if outputs[0].dim() == 0:
                raise MemoryError("no more")
            if outputs[0].shape == (7, 5):
                os.kill(os.getpid(), signal.SIGKILL)
            print('{"record": "result"}')
            os.system("echo from a process of its own")
        """
    )
    run = judged(name, *checks(CONV, LINEAR, PAIR, RESIDUAL, MLP, LOSS), "--check-timeout", "10", "-v")
    assert run.verdicts == {
        CONV: ("failed", "crash"),
        LINEAR: ("failed", "hang"),
        PAIR: ("failed", "crash"),
        RESIDUAL: ("failed", "memory"),
        LOSS: ("failed", "error"),
        MLP: ("passed", None),
    }
    assert (run.code, run.report["summary"]["not_run"]) == (1, 0)
    messages = {check: result["message"] for check, result in run.results.items()}
    assert messages[CONV].startswith(
        "the process was killed by SIGABRT; this does not happen with plain autograd\nlast words"
    )
    assert "Fatal Python error: Aborted" in messages[CONV]
    assert "in trouble" in messages[CONV]
    assert messages[LINEAR].startswith("the check did not end within 10 s; this does not happen with plain autograd")
    assert "in stuck" in messages[LINEAR]
    assert "in listen_to_parent" not in messages[LINEAR]
    assert messages[PAIR].startswith("the process ended during the check, with exit code 0; this does not happen")
    assert messages[RESIDUAL].startswith("the process was killed by SIGKILL, as the system does if memory runs out")
    assert "MemoryError: no more" in messages[LOSS]
    assert '{"record": "result"}\nfrom a process of its own\n' in run.out
    assert "last words" in run.err
    assert f"{CONV}: " in run.out


def test_a_crash_that_plain_autograd_repeats_is_an_environment_error(judged: Judged, target: Target) -> None:
    name = target(
        """
        backward = torch.autograd.backward

        def aborts(outputs, *others, **named):
            if not torch.is_tensor(outputs) and outputs[0].dim() == 4:
                os.abort()
            return backward(outputs, *others, **named)

        torch.autograd.backward = aborts

        def trouble(outputs):
            pass
        """
    )
    run = judged(name, *checks(CONV, MLP))
    assert run.verdicts == {CONV: ("error", "environment"), MLP: ("passed", None)}
    assert run.code == 4
    assert run.results[CONV]["message"].startswith(
        "the process was killed by SIGABRT; the same happens with plain autograd"
    )


def test_an_abort_that_does_not_repeat_is_an_environment_error(judged: Judged, target: Target) -> None:
    name = target(
        """
        def trouble(outputs):
            if calls == 5:
                os.abort()
        """
    )
    run = judged(name, *checks(CONV, LINEAR, MLP, RESIDUAL))  # two calls each
    assert run.verdicts == {
        CONV: ("passed", None), LINEAR: ("passed", None), MLP: ("error", "environment"), RESIDUAL: ("passed", None),
    }  # fmt: skip
    told = "the process was killed by SIGABRT; run again alone, the check passed"
    assert run.results[MLP]["message"].startswith(told)


def test_no_worker_one_worker_and_two_workers_give_the_same_report(judged: Judged, tmp_path: Path) -> None:
    runs = [
        judged("torch", "--profile", "quick", *how)
        for how in (("--no-isolation",), (), ("--workers", "2", "--ndjson", "run.ndjson"))
    ]
    for run in runs:
        run.report["made"] = ""
        for result in run.report["results"]:
            result["duration_s"] = 0.0
    assert runs[0].report == runs[1].report == runs[2].report
    assert [run.code for run in runs] == [1, 1, 1]
    assert runs[0].out == runs[1].out
    assert len(runs[0].results) > 100
    kept = [json.loads(line) for line in (tmp_path / "run.ndjson").read_bytes().splitlines()]
    assert [record["record"] for record in kept].count("result") == len(runs[0].results)
    assert (kept[0]["record"], kept[-1]["record"]) == ("run", "end")


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("import no_such_module", 2, "could not be loaded: ModuleNotFoundError"),
        ("import os; os.kill(os.getpid(), 6)", 4, "ended before their first check: the process was killed by SIGABRT"),
    ],
)
def test_a_target_that_cannot_be_imported_is_reported_with_the_reason(
    tmp_path: Path, judged: Judged, source: str, code: int, said: str
) -> None:
    (tmp_path / "target.py").write_text(source, encoding="utf-8")
    run = judged("target.py", *checks(MLP), "--ndjson", "run.ndjson")
    assert (run.code, run.out, run.report) == (code, "", {})
    assert said in run.err
    assert not (tmp_path / "run.ndjson").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="children are looked up in /proc")
def test_no_worker_outlives_a_killed_run(tmp_path: Path, target: Target, command: list[str]) -> None:
    name = target(
        """
        def trouble(outputs):
            ctypes.PyDLL(None).sleep(1000)
        """
    )
    kept = tmp_path / "run.ndjson"
    with subprocess.Popen(
        [*command, "run", name, *checks(MLP), "--ndjson", str(kept)], cwd=tmp_path, stdout=subprocess.DEVNULL
    ) as run:
        while not (kept.exists() and b'"started"' in kept.read_bytes()):
            time.sleep(0.02)
        (server,) = children_of(run.pid)
        (worker,) = children_of(server)
        again = subprocess.run(
            [*command, "run", name, "--ndjson", str(kept)], capture_output=True, text=True, check=False
        )
        run.kill()
    assert again.returncode == 2
    assert "another run is writing to" in again.stderr
    until = time.monotonic() + 250
    ended = [f"/proc/{process}/exe" for process in (server, worker)]
    while any(map(os.path.exists, ended)) and time.monotonic() < until:  # links that lead nowhere
        time.sleep(0.05)
    assert not any(map(os.path.exists, ended))


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="children are looked up in /proc")
@pytest.mark.parametrize("first", [0, 10])
def test_workers_killed_at_20_moments_lose_no_other_result(tmp_path: Path, command: list[str], first: int) -> None:
    """The last kill of each ten ends the process from which the workers are forked."""
    kept, report = tmp_path / "run.ndjson", tmp_path / "report.json"
    words = ["run", "reference-split", *checks("full.*", "split.*"), "--ndjson", str(kept), "--json", str(report)]
    kills = 0
    with subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL) as run:
        seen = 0
        while run.poll() is None:
            size = kept.stat().st_size if kept.exists() else 0
            if kills < 10 and size > seen:  # a worker is at work
                time.sleep(((first + kills) * 37 % 20) / 200)
                (server,) = children_of(run.pid)
                for child in children_of(server) if kills < 9 else [server]:
                    os.kill(child, signal.SIGKILL)
                kills += 1
                seen = kept.stat().st_size
            time.sleep(0.01)
    written = json.loads(report.read_text(encoding="utf-8"))
    results = written["results"]
    assert kills == 10
    assert len({result["check"] for result in results}) == len(results) == written["summary"]["planned"]
    struck = [result for result in results if result["status"] == "error"]
    assert len(struck) <= kills
    assert {result["kind"] for result in struck} <= {"environment"}
    assert all("SIGKILL" in result["message"] for result in struck)
    assert {result["status"] for result in results} - {"unsupported"} == {"passed", "error"}


def test_a_target_that_changes_during_the_run_stops_the_run(judged: Judged, target: Target) -> None:
    name = target(
        """
        def trouble(outputs):
            if calls == 3:
                with open(__file__, "a") as file:
                    file.write("# changed")
                os.abort()
        """
    )
    run = judged(name, *checks(CONV, LINEAR, MLP))
    assert run.verdicts == {CONV: ("passed", None)}
    assert (run.code, run.report["verdict"], run.report["summary"]["not_run"]) == (4, "incomplete", 2)
    assert "The run was stopped: a new worker could not continue the run: target changed during the" in run.out
