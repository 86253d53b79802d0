"""gradconform fuzz: what it prints, what it returns, what it refuses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradconform.adapter import Capabilities
from gradconform.fixtures.random_stages import SeededChoices
from gradconform.fuzz.hunt import Defect
from gradconform.judge.finding import Finding
from gradconform.report.fuzzing import defect_lines
from gradconform.trial.random_trials import draw_trial
from gradconform.trial.trial import RECEIVED, WEIGHTS

OVERWRITES = """
import torch

def stage_backward(stage_output, output_grads, input_values):
    outputs = stage_output if isinstance(stage_output, (tuple, list)) else [stage_output]
    pairs = [(o, g) for o, g in zip(outputs, output_grads or [None] * len(outputs)) if o.requires_grad]
    torch.autograd.backward([o for o, _ in pairs], [None if g is None else g * 2 for _, g in pairs])
    return tuple(getattr(value, "grad", None) for value in input_values)

gradconform_capabilities = {"nested_output": False, "parameter_input": False}
"""


def test_fuzzing_a_right_target_finds_no_failure(command: Callable[..., Any]) -> None:
    done = command("fuzz", "autograd", "--max-examples", "60", "--dtype", "float64")
    assert done.code == 0
    assert re.fullmatch(r"\d+ trials, 0 failures; \d+\.\d s", done.last)
    assert "gradconform 1.0.0 fuzzes autograd" in done.out


def test_a_defect_is_reported_with_stage_program_and_reproduce_command(
    command: Callable[..., Any], target_file: Callable[..., Path]
) -> None:
    target_file(OVERWRITES)
    done = command("fuzz", "backward.py", "--max-examples", "2")
    assert done.code == 1
    assert "[1] MUST: a value is wrong:" in done.out
    assert "arguments x0:" in done.out
    assert "        return " in done.out
    assert "likely cause: 2.0 × micro-batch 0: counted twice" in done.out.replace("\n      ", " ")
    again = done.out.partition("reproduce: ")[2].partition("\n\n")[0]
    assert "--reproduce" in again
    repeated = command(*shlex.split(again.replace("\\\n", ""))[1:])
    assert repeated.code == 1
    assert "1 trial, 1 failure of 1 distinct defect: 1 MUST and 0 SHOULD" in repeated.last


def test_the_same_seed_prints_the_same_output(command: Callable[..., Any], target_file: Callable[..., Path]) -> None:
    target_file(OVERWRITES)
    first, second = (command("fuzz", "backward.py", "--max-examples", "2", "--seed", "7").out for _ in range(2))
    assert first.rpartition(";")[0] == second.rpartition(";")[0]


def test_an_exhausted_time_budget_is_reported(command: Callable[..., Any]) -> None:
    done = command("fuzz", "autograd", "--max-examples", "100000", "--time-budget", "1")
    trials = int(done.last.split()[0])
    assert done.code == (0 if trials else 5)  # a slow machine may run none in a second
    assert "out of time after" in done.last
    assert "of 100000 examples" in done.last


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere",), "nowhere"),
        (("autograd", "--dtype", "float8"), "float8"),
        (("autograd", "--reproduce", "nonsense"), "expected a whole BLOB"),
        (("autograd", "--max-examples", "0"), "got '0'"),
        (("autograd", "--time-budget", "soon"), "got 'soon'"),
    ],
)
def test_invalid_fuzz_arguments_are_refused(command: Callable[..., Any], arguments: tuple[str, ...], said: str) -> None:
    done = command("fuzz", *arguments)
    assert done.code == 2
    assert said in done.err


def test_a_defect_report_describes_unusual_tensors_and_lists_of_the_caller() -> None:
    drawn = (draw_trial(SeededChoices(seed), Capabilities(lists=True)) for seed in range(2000))
    trial = next(trial for trial in drawn if trial.received == "inputs" and trial.weights == "reversed")
    lines = defect_lines(1, Defect("a key", trial, (Finding("missing", "p0", "W0", "nothing"),)), 80, "fuzz again")
    told = " ".join(" ".join(str(line) for line in lines).split())
    assert f"{RECEIVED['inputs']}; " in told
    assert WEIGHTS["reversed"] in told
