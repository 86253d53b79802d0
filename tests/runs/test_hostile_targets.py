"""What a target does to the run: it is told of the check at hand, and does nothing to any other."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="it is about processes as Unix has them")

Judged = Callable[..., Any]

HOSTILE = Path(__file__).with_name("hostile.py")
MLP, LOSS = "full.gradients.mlp", "full.loss.mlp"
TWO = ("--checks", f"{MLP},{LOSS}")

#: In processes of their own, and in this one.
EITHER = pytest.mark.parametrize("how", [(), ("--no-isolation",)], ids=["workers", "one process"])


@EITHER
def test_a_fork_that_returns_in_the_child_fails_its_check_and_runs_nothing_twice(
    judged: Judged, how: tuple[str, ...]
) -> None:
    run = judged(f"{HOSTILE}:comes_back_twice", *TWO, *how)
    assert run.verdicts == {MLP: ("failed", "error"), LOSS: ("failed", "error")}, run.err
    assert (run.code, len(run.report["results"])) == (1, 2)
    told = "the implementation forked, and its call came back in the child as well; the child was ended"
    assert told in run.results[MLP]["message"]


@EITHER
def test_a_fork_whose_child_ends_passes(judged: Judged, how: tuple[str, ...]) -> None:
    run = judged(f"{HOSTILE}:forks_for_work", *TWO, *how)
    assert run.verdicts == {MLP: ("passed", None), LOSS: ("passed", None)}, run.err


@EITHER
@pytest.mark.parametrize(
    ("name", "kind"), [("interrupts", "KeyboardInterrupt"), ("exits", "SystemExit"), ("closes", "GeneratorExit")]
)
def test_any_exception_of_a_target_fails_its_check(judged: Judged, how: tuple[str, ...], name: str, kind: str) -> None:
    run = judged(f"{HOSTILE}:{name}", *TWO, *how)
    assert run.verdicts == {MLP: ("failed", "error"), LOSS: ("failed", "error")}, run.err
    assert run.code == 1
    assert f"raised {kind}" in run.results[MLP]["message"]


def test_writes_to_256_file_descriptors_hit_no_file_of_the_kit(judged: Judged) -> None:
    run = judged(f"{HOSTILE}:writes_to_256_files", *TWO)
    assert run.verdicts == {MLP: ("passed", None), LOSS: ("passed", None)}, run.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("writes_to_all_files", "the kit stopped the process during the check, because it read b'hello' on the pipe"),
        ("closes_all_files", "the process ended during the check, with exit code "),
    ],
)
def test_damage_to_the_pipes_of_a_process_fails_the_current_check(judged: Judged, name: str, told: str) -> None:
    run = judged(f"{HOSTILE}:{name}", *TWO)
    assert run.verdicts == {MLP: ("failed", "crash"), LOSS: ("failed", "crash")}, run.err
    assert (run.code, run.report["summary"]["not_run"]) == (1, 0)
    assert run.results[MLP]["message"].startswith(told)


def running_with(word: str) -> list[str]:
    """Return the command lines of the processes that have a word among their arguments."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = file.read_bytes().decode(errors="replace").split("\0")
            found += [" ".join(words)] if word in words else []
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere what leaves its group is lost")
@pytest.mark.parametrize(
    ("name", "told"), [("leaves_daemons", ("passed", None)), ("leaves_daemons_and_crashes", ("failed", "crash"))]
)
def test_no_process_started_by_a_target_outlives_the_run(
    judged: Judged, tmp_path: Path, name: str, told: tuple[str, str | None]
) -> None:
    run = judged(f"{HOSTILE}:{name}", *TWO, HOSTILE_MARK=str(tmp_path))
    assert run.verdicts == {MLP: told, LOSS: told}, run.err
    assert running_with(str(tmp_path)) == []


#: A module that leaves the processes of hostile.py where it is imported.
IMPORTED = """
import importlib.util
import os

spec = importlib.util.spec_from_file_location("hostile", {path!r})
hostile = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hostile)
hostile._leave_daemons()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere what leaves its group is lost")
@pytest.mark.parametrize(
    "words",
    [
        ("run", "autograd", "--device", "leaving", "--device-plugin", "leaving"),
        ("pipeline", "leaving.py", "--checks", "step.plain"),
        ("doctor", "--device-plugin", "leaving"),
    ],
    ids=["a device", "a target of pipelines", "doctor"],
)
def test_no_process_outlives_a_command_that_queries_devices_or_targets(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "leaving.py").write_text(IMPORTED.format(path=str(HOSTILE)), encoding="utf-8")
    environment = {**os.environ, "HOSTILE_MARK": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "gradconform", *words],
        cwd=tmp_path, env=environment, capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert running_with(str(tmp_path)) == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is inherited")
def test_processes_started_by_other_threads_are_not_ended() -> None:
    code = """
import subprocess, sys
from gradconform.process.orphans import Orphans, start_own

words = [sys.executable, "-S", "-c", "import time; time.sleep(1000)"]
before = subprocess.Popen(words, start_new_session=True)
orphans = Orphans()
ours, other = subprocess.Popen(words), subprocess.Popen(words, start_new_session=True)
known = start_own(lambda: subprocess.Popen(words, start_new_session=True))
orphans.close()
print(before.poll(), ours.poll(), known.poll(), other.wait(60) is None)
for process in (before, ours, known):
    process.kill()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.stdout.split() == ["None", "None", "None", "False"], done.stderr
