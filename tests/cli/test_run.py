from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from expecttest import assert_expected_inline

from gradconform.contract import areas

Command = Callable[..., Any]


def test_a_conforming_target_gives_0_and_the_verdict_is_last(
    command: Command, contract_of: Callable[..., None]
) -> None:
    contract_of(areas.CHECKS[name] for name in ("full.gradients.mlp", "split.gradients.mlp"))
    done = command("run", "reference-split", "--profile", "quick")
    assert (done.code, done.err) == (0, "")
    count = re.fullmatch(r"(\d+) of \1 checks of contract 1\.3, profile quick, ran", done.out.splitlines()[-2])
    assert count is not None
    passed = f"{count[1]} of {count[1]} checks passed"
    assert done.last == f"reference-split 1.0.0 conforms to contract 1.3 in profile quick: {passed}"


def test_a_non_conforming_target_gives_1_and_every_failed_check_is_named(command: Command) -> None:
    checks = [
        f"split.gradients.{one}"
        for one in ("output-slice", "output-view", "tied-apart", "embedding", "duplicate-input")
    ]
    done = command("run", "torch", "--checks", ",".join(checks), "-v")
    assert done.code == 1
    assert re.fullmatch(rf"torch {re.escape(torch.__version__)} does NOT conform: \d+ MUST failed; .*", done.last)
    assert [check for check in checks if f"{check}: " not in done.out] == []


def test_every_failed_check_is_printed(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = command("run", "torch", "--checks", "split.*", "-v", "--json", str(path))
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    failed = [result["check"] for result in results if result["status"] == "failed"]
    assert len(failed) > 30
    assert [check for check in failed if f"{check}: " not in done.out] == []


def test_failures_with_one_cause_are_reported_together(command: Command) -> None:
    done = command("run", "torch", "--checks", "split.gradients.output-[tv]*,split.gradients.output-slice", "-vv")
    assert "[1] 3 checks: I raised RuntimeError: Can't detach views in-place." in done.out
    told = done.out[done.out.index("    program") : done.out.rindex("\n3 of")]
    assert_expected_inline(
        told.replace("…", "..."),
        """\
    program F0 I0 F1 I1 W0 W1, raised at I0
    I MUST return plain autograd's input gradients, and W accumulate its
    parameter gradients, on stage ...
      split.gradients.output-slice: output-slice (an output that is a slice)
      split.gradients.output-transposed: output-transposed (a transposed,
          non-contiguous output)
      split.gradients.output-view: output-view (an output that is a view)
    reproduce: gradconform replay split.gradients.output-view torch
""",
    )


def test_wrong_values_are_reported_with_numbers_and_further_ones_by_name(command: Command) -> None:
    done = command("run", "torch", "--checks", "split.*.embedding")
    assert re.search(r"- 0\.weight, after W0: expected a tensor of shape \(5, 11\) with largest\s+element", done.out)
    assert "- and 2.weight, 2.bias\n" in done.out


def test_the_target_and_contract_are_printed_before_anything_runs(command: Command) -> None:
    lines = command("run", "torch", "--checks", "full.gradients.mlp").out.splitlines()
    assert lines[0].startswith(f"gradconform 1.0.0 judges torch {torch.__version__}")
    assert re.fullmatch(r"file +\S+_backward\.py", lines[1])
    assert re.fullmatch(r"contract  1\.3, profile standard: 1 of \d+ checks on cpu float32, seed 20", lines[2])


def test_outside_a_terminal_there_is_one_uncoloured_line_per_area(command: Command) -> None:
    done = command("run", "reference-split", "--checks", "full.*.mlp,split.loss.mlp")
    assert re.findall(r"^(\w+) +(\d+) of (\d+) +(\d+) passed$", done.out, re.MULTILINE) == [
        ("full", "2", "2", "2"),
        ("split", "1", "1", "1"),
    ]
    assert "\x1b" not in done.out


def test_only_paths_and_the_verdict_are_wider_than_the_terminal(command: Command) -> None:
    done = command("run", "torch", "--checks", "split.*,hooks.*,state.*")
    assert [line for line in done.out.splitlines()[2:-1] if len(line) > 80] == []


def test_unclaimed_checks_are_counted_with_the_reason(command: Command, target_file: Command) -> None:
    target_file()
    done = command("run", "backward.py", "--profile", "quick", "--checks", "*.mlp")
    assert re.search(r"unsupported: \d+ checks, neither passed nor failed", done.out)
    assert re.search(r"^ +\d+  not claimed: split(; \w+ needs? only this)?$", done.out, re.MULTILINE)


def test_python_m_gradconform_is_the_command(process: Command) -> None:
    done = process("run", "reference-split", "--checks", "full.gradients.mlp")
    assert (done.code, done.err) == (5, "")
    assert "incomplete, no verdict: 1 of" in done.last


def test_characters_that_the_output_cannot_encode_are_escaped(process: Command, target_file: Command) -> None:
    target_file("def stage_backward(a, b, c):\n    raise ValueError('sm\\u00f8rrebr\\u00f8d')\n")
    done = process("run", "backward.py", "--checks", "full.gradients.mlp", PYTHONIOENCODING="ascii:strict")
    assert (done.code, done.err) == (1, "")
    assert "B raised ValueError: sm\\xf8rrebr\\xf8d" in done.out
