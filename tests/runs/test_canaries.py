"""A target that patches the kit or torch in the process that judges it ends without green, and no other is accused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from gradconform.process.pipes import Sender
from gradconform.reference.canaries import EDITS
from gradconform.results import Result
from gradconform.run import guard
from gradconform.run.canaries import BACKWARDS, SILENT, UNCHANGED, disbelief
from gradconform.run.guard import Guard
from gradconform.run.options import RunOptions
from gradconform.run.run import Run

MLP, LINEAR = "full.gradients.mlp", "full.gradients.linear-3d"
CHECKS = ("--checks", f"{MLP},{LINEAR}")

#: A backward that gives zeros for what it returns.
ZEROS = """
import torch

def stage_backward(stage_output, output_grads, input_values):
    outputs = [stage_output] if torch.is_tensor(stage_output) else list(stage_output)
    torch.autograd.backward(outputs, output_grads)
    return tuple(torch.zeros_like(value.grad) for value in input_values)
"""

RIGHT = ZEROS.replace("torch.zeros_like(value.grad)", "value.grad")

UNSEEN = "a backward that returns zeros as the gradient of a weight is not failed, but passed"

#: By what is patched: the code of a wrong target that patches it when it is imported, and what is told of that.
CHEATS = {
    "the judge": (
        """
import gradconform.judge.values
gradconform.judge.values.compare.__code__ = (lambda *_, **__: iter(())).__code__
""",
        "gradconform.judge.values.compare changed when the target was imported",
    ),
    "a result": (
        """
from gradconform.requirements.clause import Clause
result = Clause.result
Clause.result = lambda self, device, dtype, findings=(), **_: result(self, device, dtype)
""",
        UNSEEN,
    ),
    "a result, but of no canary": (
        """
from gradconform.requirements.clause import Clause
result = Clause.result
def passed(self, *where, **values):
    return result(self, *where, **(values if "canary" in self.id else {**values, "findings": (), "status": "passed"}))
Clause.result = passed
""",
        "gradconform.requirements.clause.Clause.result changed when the target was imported",
    ),
    "the sender": (
        """
from gradconform.process.pipes import Sender
def send(self, message):
    line = self._key + json.dumps({**message, "status": "passed"}).encode() + b"\\n"
    "canary" in str(message) or os.write(self._file, line)
Sender.send.__code__ = send.__code__
""",
        SILENT,
    ),
    "what is sent": (
        """
import json
dumps = json.dumps
json.dumps = lambda *values, **how: dumps(*values, **how).replace('"failed"', '"passed"')
""",
        UNSEEN.replace("passed", "error"),  # no result passes with such an error
    ),
    "the tolerances": (
        "import gradconform.tolerance; gradconform.tolerance.override({'float32': 1e9})",
        "importing the target changed the tolerances that hooks have set from {} to {'float32': 1000000000.0}",
    ),
    "torch.equal": ("torch.equal = lambda *_: True", UNSEEN),
    "torch.autograd.grad": (
        """
grad = torch.autograd.grad
torch.autograd.grad = lambda *what, **how: tuple(None if g is None else g * 0 for g in grad(*what, **how))
""",
        UNSEEN,
    ),
    "all of torch.autograd": (
        """
grad = torch.autograd.grad
torch.autograd.grad = lambda *what, **how: tuple(None if g is None else g * 0 for g in grad(*what, **how))
backward = torch.autograd.backward
torch.autograd.backward = lambda roots, grads=None, **how: backward(roots, [g * 0 for g in grads], **how)
""",
        "a backward that is right does not pass",
    ),
    "the default dtype": (
        "torch.set_default_dtype(torch.float64)",
        "importing the target changed torch's default dtype from torch.float32 to torch.float64",
    ),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_results_of_a_target_that_patches_its_judge_do_not_count(
    judged: Callable[..., Any], tmp_path: Path, cheat: str
) -> None:
    source, reason = CHEATS[cheat]
    (tmp_path / "target.py").write_text(ZEROS + source, encoding="utf-8")
    run = judged("target.py", *CHECKS)
    assert run.verdicts == {MLP: ("error", "environment"), LINEAR: ("error", "environment")}
    assert all(reason in result["message"] for result in run.results.values())
    assert run.code == 4


def test_patching_the_comparison_functions_of_torch_hides_no_failure(
    judged: Callable[..., Any], tmp_path: Path
) -> None:
    patch = "torch.Tensor.__eq__ = lambda self, other: torch.ones_like(self, dtype=torch.bool)"
    (tmp_path / "target.py").write_text(f"{ZEROS}\n{patch}\ntorch.allclose = lambda *a, **k: True", encoding="utf-8")
    assert judged("target.py", *CHECKS).code in {1, 4}


def test_a_right_library_that_wraps_modules_passes(judged: Callable[..., Any], tmp_path: Path) -> None:
    patch = (
        "call = torch.nn.Module.__call__\n"
        "torch.nn.Module.__call__ = lambda self, *a, **k: call(self, *a, **k)\n"
        "torch.nn.modules.module.register_module_forward_hook(lambda *_: None)\n"
        "own = torch.library.Library('a_library_that_registers', 'DEF')\n"
        "own.define('twice(Tensor x) -> Tensor')\n"
    )
    (tmp_path / "target.py").write_text(RIGHT + patch, encoding="utf-8")
    run = judged("target.py", *CHECKS)
    assert run.verdicts == {MLP: ("passed", None), LINEAR: ("passed", None)}


class PatchesLate:
    """Is right, and from its second call on the kit takes all tensors for equal."""

    calls = 0

    def __init__(self, patch: Callable[[], None]) -> None:
        self._patch = patch

    def stage_backward(self, stage_output: Any, output_grads: Any, input_values: Any) -> tuple[Any, ...]:
        self.calls += 1
        if self.calls == 2:
            self._patch()
        outputs = [stage_output] if torch.is_tensor(stage_output) else list(stage_output)
        torch.autograd.backward(outputs, output_grads)
        return tuple(value.grad for value in input_values)


@pytest.mark.parametrize("every", [1, 250])
def test_earlier_results_are_withdrawn_when_a_patch_is_found(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    monkeypatch.setattr(guard, "EVERY", every)
    late = PatchesLate(lambda: monkeypatch.setattr(torch, "equal", lambda *_: True))
    told: list[Result] = []
    report = Run(RunOptions.of(late, checks=[MLP, LINEAR])).run(told.append)
    assert [result.status for result in told[-2:]] == ["error", "error"]
    assert {(result.status, result.kind) for result in report} == {("error", "environment")}
    assert report.exit_code == 4
    assert all("a backward that returns zeros" in result.message for result in report)


def test_under_pytest_the_last_check_reports_the_patch_and_no_result_counts(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        target="""
        import torch

        equal, calls = torch.equal, 0

        def stage_backward(stage_output, output_grads, input_values):
            global calls
            calls += 1
            if calls == 3:
                torch.equal = lambda *_: True
            outputs = [stage_output] if torch.is_tensor(stage_output) else list(stage_output)
            torch.autograd.backward(outputs, output_grads)
            return tuple(value.grad for value in input_values)
        """
    )
    checks = [f"--gradconform-checks={check}" for check in (MLP, LINEAR)]
    done = pytester.runpytest_subprocess("-p", "no:xdist", "--gradconform=target.py", *checks)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*no result of the process that judged this counts: with the target imported*"])
    done.stdout.fnmatch_lines(["*error: environment: 2 checks could not be judged*"])


def test_every_canary_has_its_known_result(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Result] = []
    watching = Guard()
    watching.report_result = told.append
    assert watching.look() is None
    assert [result.check for result in told] == [UNCHANGED, *BACKWARDS]
    assert [name.partition(".")[2] for name in BACKWARDS] == list(EDITS)
    assert {result.check: result.status for result in told[1:]} == {n: c.status for n, c in BACKWARDS.items()}
    monkeypatch.setattr(Sender, "send", lambda *_: None)
    assert watching.look() == "gradconform.process.pipes.Sender.send changed when the target was imported"


@pytest.mark.parametrize("name", BACKWARDS)
def test_one_wrong_canary_is_enough_to_reject_the_results(name: str) -> None:
    of: Mapping[str, Any] = {"check": name, "level": "MUST", "device": "cpu", "dtype": "float32", "requirement": ""}
    for status in ("passed", "failed", "error", "unsupported"):
        reason = disbelief(Result(**of, status=status))
        assert (reason is None) == (status == BACKWARDS[name].status)
        assert reason is None or BACKWARDS[name].does in reason
