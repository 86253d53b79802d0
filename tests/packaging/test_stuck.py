"""A session of the kit's own tests ends where it is stuck, and not where it is slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="needs /proc, as Linux has it")

WATCHED = """
import subprocess, sys, time
from stuck import Watch

watch = Watch(1.0, 0.25)
watch.at_work = True
watch.start()
"""
BUSY = "end = time.process_time() + 2.5\nwhile time.process_time() < end: pass\n"


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("time.sleep(600)", 1, "stuck: nothing has used a processor for 1 s"),
        (BUSY, 0, ""),
        (f"subprocess.run([sys.executable, '-c', {'import time' + chr(10) + BUSY!r}], check=True)", 0, ""),
        ("import threading\nthreading.Event().wait(600)", 1, "in wait"),
    ],
    ids=["asleep", "busy", "waiting for a busy child", "waiting for nobody"],
)
def test_a_process_that_uses_no_cpu_time_is_ended_with_its_stacks(what: str, code: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED + what], cwd=TESTS, capture_output=True, text=True, check=False, timeout=500
    )
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
