"""Scripts of plain trials, action by action: they are short, fail for what is wrong, and pass for what is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradconform import contract
from gradconform.reference import split
from gradconform.replay.script import Replayed, failing_trial
from gradconform.replay.short_script import ShortScript
from gradconform.run.options import RunOptions
from gradconform.run.run import Run

from .conftest import RunWithoutKit

CHECKS = contract.checks_of()

#: What torch fails, by the number of lines that its script has at most.
SHORT = {
    "split.gradients.tied-apart": 85,
    "split.gradients.output-view": 85,
    "split.loss.tied-apart": 85,
    "split.loss.embedding": 80,
    "split.gradients.output-slice": 85,
    "property.mixed.03": 85,
}


def replayed(check: str, target: str = "torch") -> Replayed:
    run = Run(RunOptions(target=target, checks=check, profile="full"))
    (item,) = run.plan.items
    return Replayed(failing_trial(run, item), run.target, item.dtype, item.device, run.options.seed)


def straight(check: str, where: str) -> str | None:
    return ShortScript(CHECKS[check], where, ("It MUST.",), 20).text()


@pytest.mark.parametrize("check", SHORT)
def test_a_plain_trial_gives_a_short_script_without_the_kit(
    check: str, tmp_path: Path, run_without_kit: RunWithoutKit
) -> None:
    text = replayed(check).shortest()
    lines = text.splitlines()
    assert len(lines) <= SHORT[check]
    assert max(map(len, lines)) <= 120
    ((code, told),) = run_without_kit((text, ()), folder=tmp_path)
    assert code in {1, 99}, told  # 99: what the implementation raised
    assert check in text


def test_a_short_script_prints_numbers_and_no_tensors(tmp_path: Path, run_without_kit: RunWithoutKit) -> None:
    ((code, told),) = run_without_kit((replayed("property.mixed.03").shortest(), ()), folder=tmp_path)
    assert code == 1
    assert "the gradient of p0 at [" in told
    assert "tensor(" not in told
    assert told.splitlines()[-1] == "WRONG: 1 of 3 gradients differ from plain autograd"


def test_a_passing_trial_gives_no_short_script() -> None:
    assert straight("split.gradients.tied-apart", split.__name__) is None
    assert straight("full.gradients.mlp", "torch.distributed.pipelining._backward") is None


@pytest.mark.parametrize(
    "check", ["hooks.last_module.mlp-split", "full.loss.parameter-input", "state.receive_buffer.mlp"]
)
def test_a_trial_with_more_features_gets_a_full_script(check: str) -> None:
    assert straight(check, "torch.distributed.pipelining._backward") is None


def test_a_short_script_that_fails_a_right_implementation_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    where = "torch.distributed.pipelining._backward"
    assert straight("split.gradients.tied-apart", where) is not None
    monkeypatch.setattr("gradconform.replay.short_script.RIGHT", where)
    assert straight("split.gradients.tied-apart", where) is None


def test_the_right_split_can_replace_the_implementation_in_a_script(
    tmp_path: Path, run_without_kit: RunWithoutKit
) -> None:
    text = replayed("split.gradients.tied-apart").shortest()
    other = text.replace("torch.distributed.pipelining._backward", "right")
    (tmp_path / "right.py").write_text(
        "import torch\n"
        "def stage_backward_input(outputs, grads, inputs, weights):\n"
        "    gradients = torch.autograd.grad(outputs, inputs, grads, retain_graph=True)\n"
        "    return gradients, (outputs, grads)\n"
        "def stage_backward_weight(weights, context):\n"
        "    torch.autograd.backward(*context, inputs=list(weights))\n",
        encoding="utf-8",
    )
    ((code, told),) = run_without_kit((other, ()), folder=tmp_path)
    assert (code, told.splitlines()[-1]) == (0, "right: 0 of 7 gradients differ from plain autograd")
