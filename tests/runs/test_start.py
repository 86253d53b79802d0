"""A process that begins no check: the command waits for it no longer than it is told to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from gradconform.devices.choice import choose
from gradconform.exits import EXIT_ENVIRONMENT, RunStoppedError
from gradconform.files.records import differing
from gradconform.run.options import RunOptions
from gradconform.workers.isolated_run import IsolatedRun

Judged = Callable[..., Any]
Target = Callable[[str], str]


@pytest.mark.parametrize("trouble", ["time.sleep(1000)", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_a_target_that_hangs_on_import_ends_the_command(judged: Judged, target: Target, trouble: str) -> None:
    run = judged(target(trouble), "--start-timeout", "1")
    assert (run.code, run.report) == (EXIT_ENVIRONMENT, {})
    assert "a worker began no check within 1 s: it was importing the target or preparing the device or" in run.err
    assert "--start-timeout allows more" in run.err


def test_a_stopped_worker_ends_the_run_and_keeps_the_results(
    target: Target, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = target("def trouble(outputs):\n    pass")
    options = RunOptions.of(name, checks="full.gradients.mlp").to_json()
    choice = choose(["cpu"], ["float32"]).to_dict()
    with closing(
        IsolatedRun({"options": options, "choice": choice}, workers=1, check_timeout=60, start_timeout=300)
    ) as run:
        (worker,) = run._workers
        os.kill(worker.process.process, signal.SIGSTOP)
        worker.start_limit = 0.1
        with pytest.raises(RunStoppedError, match=r"began no check within 0\.1 s") as caught:
            run.run(lambda _: None, on_start=lambda _: None, places=run.header.places)
        assert caught.value.exit_code == EXIT_ENVIRONMENT
        with pytest.raises(ProcessLookupError):
            os.kill(worker.process.process, 0)


def test_a_changed_run_reports_only_the_changed_values() -> None:
    before = {"kit_sha256": "a", "torch": "2.13.0", "variables": {"OMP_NUM_THREADS": "1"}}
    now = {**before, "kit_sha256": "b", "variables": {}}
    assert differing({"environment": before}, {"environment": now}) == {
        "environment.kit_sha256": ("a", "b"),
        "environment.variables.OMP_NUM_THREADS": ("1", None),
    }
