from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gradconform.cli import selftest
from gradconform.contract.plan import Item
from gradconform.drive.reference64 import OracleCache
from gradconform.fuzz import campaign
from gradconform.results import Result
from gradconform.run.run import Run
from gradconform.sources.faults.outcome import Outcome
from gradconform.sources.faults.subject import SelftestOptions, judge
from tests.command_process import COMMAND_OF_A_WORKER

Command = Callable[..., Any]

#: Three checks of one stage each.
CHECKS = ("--profile", "full", "--checks", "full.*.mlp*")

#: The third call of its stage_backward is ctrl-C.
INTERRUPTS = """
import os, signal, torch

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
calls = 0

def stage_backward(stage_output, output_grads, input_values):
    global calls
    calls += 1
    if calls == 3:
        os.kill(os.getpid(), signal.SIGINT)
    torch.autograd.backward([stage_output] if isinstance(stage_output, torch.Tensor) else stage_output, output_grads)
    return tuple(value.grad for value in input_values)
"""


@pytest.mark.parametrize("how", [(), ("--no-isolation",)], ids=["workers", "one process"])
def test_ctrl_c_gives_130_and_reports_the_checks_that_ran(
    process: Command, target_file: Command, tmp_path: Path, how: tuple[str, ...]
) -> None:
    target_file(INTERRUPTS)
    done = process("run", "backward.py", *CHECKS, "--json", "report.json", *how)
    assert (done.code, done.err) == (130, "")
    assert "The run was stopped: interrupted in full.gradients.mlp" in done.out
    assert "incomplete, no verdict: 1 of" in done.last
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (report["verdict"], report["conforms"]) == ("incomplete", False)
    assert report["summary"]["ran"] == 1
    assert report["summary"]["not_run"] > 0


#: The third call of its stage_backward sends the command's process a signal, and then takes long.
ENDS = """
import os, signal, time, torch

calls = 0

{command_of_a_worker}

def stage_backward(stage_output, output_grads, input_values):
    global calls
    calls += 1
    if calls == 3:
        os.kill(command_of_this_worker() if {workers} else os.getpid(), signal.{name})
        time.sleep(600)
    torch.autograd.backward([stage_output] if isinstance(stage_output, torch.Tensor) else stage_output, output_grads)
    return tuple(value.grad for value in input_values)
"""


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"])
def shell(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a shell hands down: a command in the background ignores ctrl-C, and neither ignores what asks it to end."""
    acts = {signal.SIGINT: request.param, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, act) for number, act in acts.items()}
    yield
    for number, act in before.items():
        signal.signal(number, act)


@pytest.mark.usefixtures("shell")
@pytest.mark.parametrize(
    ("sent", "how"),
    [(signal.SIGTERM, ()), (signal.SIGTERM, ("--no-isolation",)), (signal.SIGHUP, ())],
    ids=["SIGTERM, workers", "SIGTERM, one process", "SIGHUP, workers"],
)
def test_a_termination_signal_gives_its_exit_code_and_reports_the_checks_that_ran(
    process: Command, target_file: Command, tmp_path: Path, how: tuple[str, ...], sent: signal.Signals
) -> None:
    target_file(ENDS.format(name=sent.name, workers=not how, command_of_a_worker=COMMAND_OF_A_WORKER))
    done = process("run", "backward.py", *CHECKS, "--json", "report.json", *how)
    assert (done.code, done.err) == (128 + sent, "")
    assert "The run was stopped: interrupted in full.gradients.mlp" in done.out
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["verdict"] == "incomplete"
    ran = report["summary"]["ran"]
    assert ran == 1 if how else ran in {0, 1}  # a worker's first result may still be on its way
    assert f"incomplete, no verdict: {ran} of" in done.last


def interrupted_device(
    command: Command, monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[], object], **first: Any
) -> Any:
    """Judge a device by one operation, interrupt its second check, and change fields of the first one's result."""
    run_item = Run.run_item

    def until_the_second(run: Run, item: Item) -> Result:
        if item.check.id != "ops.full.sin":
            interrupt()
        return replace(run_item(run, item), **first)

    monkeypatch.setattr(Run, "run_item", until_the_second)
    return command("device", "cpu", "--dtype", "float32", "--operation", "sin", "--no-isolation")


def test_ctrl_c_on_a_wrong_device_gives_the_exit_code_of_the_interruption(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctrl_c = Mock(side_effect=KeyboardInterrupt)
    done = interrupted_device(command, monkeypatch, ctrl_c, status="error", kind="device")
    assert done.code == 130
    assert done.last.startswith("cpu is WRONG in 1 check of 1 in float32")


@pytest.mark.usefixtures("shell")
def test_a_termination_signal_to_the_device_command_gives_its_exit_code(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = interrupted_device(command, monkeypatch, partial(os.kill, os.getpid(), signal.SIGTERM))
    assert done.code == 128 + signal.SIGTERM
    assert "The run was stopped: interrupted in " in done.out


def test_failures_before_ctrl_c_are_reported(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    run_item = Run.run_item

    def until_the_view(run: Run, item: Item) -> Result:
        if item.check.id == "split.gradients.output-view":
            raise KeyboardInterrupt
        return run_item(run, item)

    monkeypatch.setattr(Run, "run_item", until_the_view)
    done = command("run", "torch", "--checks", "split.gradients.output-transposed,split.gradients.output-view")
    assert done.code == 130
    assert "split.gradients.output-transposed: " in done.out
    assert "The run was stopped: interrupted in split.gradients.output-view[cpu-float32]" in done.out
    assert "does NOT conform: 1 MUST failed; the contract was not run in full" in done.last


def test_ctrl_c_before_the_first_check_is_reported_without_a_traceback(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "__init__", interrupt)
    done = command("run", "torch")
    assert (done.code, done.out) == (130, "")
    assert done.err == "gradconform: interrupted; no check was judged\n"


def test_an_interrupted_fuzz_run_reports_its_trials(
    command: Command, target_file: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    target_file("def stage_backward(a, b, c):\n    return tuple(None for _ in c)\n")
    whole_round = campaign._round
    rounds = 0

    def one(*given: Any, **more: Any) -> None:
        nonlocal rounds
        rounds += 1
        if rounds > 1:
            raise KeyboardInterrupt
        whole_round(*given, **more)

    monkeypatch.setattr(campaign, "_round", one)
    done = command("fuzz", "backward.py", "--max-examples", "500")
    assert done.code == 130
    assert "[1] MUST: " in done.out
    assert "interrupted; a run with the same --seed tries the same examples again" in done.out
    assert " of 1 distinct defect: 1 MUST" in done.last or " distinct defects: " in done.last


def test_an_interrupted_self_test_reports_the_judged_faults(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def until_the_second(
        options: SelftestOptions, subjects: Any, *, on_outcome: Callable[[Outcome], None], **_: Any
    ) -> list[Outcome]:
        role, name = subjects[0]
        on_outcome(judge(options, (role, name), OracleCache()))
        raise KeyboardInterrupt

    monkeypatch.setattr(selftest, "judge_all", until_the_second)
    path = tmp_path / "selftest.json"
    done = command("selftest", "--profile", "quick", "--faults", "doubled*", "--json", str(path))
    assert done.code == 130
    assert "The self-test was interrupted: " in done.out
    assert done.last.startswith("No verdict: 1 of ")
    told = json.loads(path.read_text(encoding="utf-8"))
    assert (told["schema"], told["complete"], len(told["outcomes"])) == ("gradconform-selftest", False, 1)
    assert told["outcomes"][0]["verdict"] == "killed"
