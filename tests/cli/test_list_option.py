from __future__ import annotations

from collections.abc import Callable
from typing import Any

from expecttest import assert_expected_inline

Command = Callable[..., Any]


def test_list_option_prints_the_selected_checks_and_runs_nothing(command: Command, target_file: Command) -> None:
    target_file("def stage_backward(a, b, c):\n    raise SystemExit\n")
    done = command("run", "backward.py", "--list", "--checks", "*.gradients.mlp,*.loss.mlp", "--dtype", "float64")
    assert (done.code, done.err) == (0, "")
    told, _, total = done.out.partition("\n4 of ")
    assert_expected_inline(
        told,
        """\
full.gradients.mlp[cpu-float64]  MUST
full.loss.mlp[cpu-float64]  MUST
split.gradients.mlp[cpu-float64]  MUST  not claimed: split
split.loss.mlp[cpu-float64]  MUST  not claimed: split""",
    )
    assert "would run; 2 ask for what\nbackward.py does not claim" in total


def test_list_option_refuses_wrong_arguments_as_a_run_does(command: Command) -> None:
    assert command("run", "trch", "--list").code == 2
    assert command("run", "torch", "--list", "--checks", "no.such").code == 2


def test_list_option_with_json_is_refused(command: Command) -> None:
    done = command("run", "torch", "--list", "--json", "report.json")
    assert done.code == 2
    assert "argument --json: not allowed with argument --list" in done.err
