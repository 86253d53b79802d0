"""What takes more than a few seconds is reported: what is waited for, for how long, and how long it may take."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gradconform.process.wait_notices import FIRST_LINE_VARIABLE, Waits, first_line_after, print_to_stderr, waiting


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FIRST_LINE_VARIABLE, "0.05")


class Lines(list[str]):
    """Lines that were said; ``wait`` returns once there are so many."""

    def __init__(self) -> None:
        """Begin without any."""
        super().__init__()
        self._more = threading.Condition()

    def say(self, line: str) -> None:
        """Take a line."""
        with self._more:
            self.append(line)
            self._more.notify_all()

    def wait(self, count: int) -> None:
        """Wait until there are ``count`` lines."""
        with self._more:
            assert self._more.wait_for(lambda: len(self) >= count, timeout=60)


def test_a_long_wait_is_reported_repeatedly_until_it_ends() -> None:
    lines = Lines()
    with waiting("probing the device", 3.0, say=lines.say):
        lines.wait(3)
    said = list(lines)
    assert all(re.fullmatch(r"still probing the device after \d+ s \(limit 3 s\)", line) for line in said)
    time.sleep(0.2)
    assert lines == said  # nothing once it is over


def test_a_short_wait_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FIRST_LINE_VARIABLE, "60")
    lines = Lines()
    with waiting("the device", say=lines.say):
        pass
    assert lines == []


def test_only_the_longest_running_wait_is_reported() -> None:
    lines = Lines()
    waits = Waits(lines.say)
    for name in ("first", "second", "third"):
        waits.begin(name)
    waits.end("first")
    waits.end("never begun")
    lines.wait(1)
    waits.close()
    assert lines[0] == "still second after 0 s"
    assert not [line for line in lines if "first" in line]


def test_a_wait_that_raises_leaves_no_thread() -> None:
    def fail() -> None:
        with waiting("nothing"):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert "gradconform-waits" not in {thread.name for thread in threading.enumerate()}


def test_control_characters_in_a_name_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_to_stderr("waiting for \x1b[2J::error::x\nnext")
    assert capsys.readouterr().err == "gradconform: waiting for \\x1b[2J::error::x\\nnext\n"


@pytest.mark.parametrize(("given", "seconds"), [("0.5", 0.5), ("soon", 5.0), ("0", 5.0), ("-1", 5.0)])
def test_the_environment_variable_sets_the_time(monkeypatch: pytest.MonkeyPatch, given: str, seconds: float) -> None:
    monkeypatch.setenv(FIRST_LINE_VARIABLE, given)
    assert first_line_after() == seconds


def test_a_piped_run_reports_its_start_and_each_slow_check(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "from gradconform.reference.autograd import AutogradAdapter\n"
        "class Slow(AutogradAdapter):\n"
        "    def open(self, stage, spec):\n"
        "        time.sleep(0.4)\n"
        "        return super().open(stage, spec)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "gradconform", "run", "slow.py:Slow", "--checks", "full.gradients.mlp"],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5  # nothing failed, and fewer checks ran than the profile has
    start = r"gradconform: still loading the target, the devices and the plan after "
    assert re.search(start + r"\d+ s \(limit 600 s\)", done.stderr)
    assert re.search(r"gradconform: still running full\.gradients\.mlp\[cpu-float32\] after \d+ s", done.stderr)
    assert "still " not in done.stdout
