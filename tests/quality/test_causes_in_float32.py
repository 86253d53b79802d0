"""A cause that the digits of a 16-bit dtype do not show is found in float32, where the same trial fails alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform.adapter import Capabilities, StageSpec
from gradconform.diagnosis.cause import Cause, Mistake, cause_from
from gradconform.judge.finding import Finding
from gradconform.reference.autograd import AutogradSession
from gradconform.reference.faults import FAULTS
from gradconform.results import Report
from gradconform.run.wider_dtype import CausesInFloat32

Judge = Callable[..., Report]


def causes(report: Report) -> set[str]:
    return {finding["cause"]["text"] for result in report for finding in result.findings if finding["cause"]}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("none-of-a-scalar-read-as-one", "None for the 0-d output 0 is treated as 1"),
        ("activation-hooks-never", "a hook multiplying it by 0.5 is never applied"),
    ],
)
def test_a_cause_is_that_of_float32(judge: Judge, name: str, cause: str, dtype: str) -> None:
    fault = FAULTS[name]
    found = causes(judge(fault.make(), checks=fault.named[:1], dtype=dtype))
    assert found & {cause, f"{cause} (found in float32)"}
    assert not found - {cause, f"{cause} (found in float32)"}


@dataclass
class Noisy:
    """Plain autograd with errors that no mistake explains in the ``wrong`` dtypes; counts sessions by dtype.

    A Linear alone is right: it is the stage of the pre-flight.
    """

    wrong: tuple[torch.dtype, ...]
    claimed: tuple[str, ...] | None = None
    opened: Counter[torch.dtype] = field(default_factory=Counter)

    def target(self) -> Any:
        def begin(stage: nn.Module, spec: StageSpec) -> AutogradSession:
            dtype = next(stage.parameters()).dtype
            self.opened[dtype] += 1
            noisy = dtype in self.wrong and not isinstance(stage, nn.Linear)
            return (NoisySession if noisy else AutogradSession)(stage, spec)

        claims = Capabilities(split=False, dtypes=self.claimed)
        return SimpleNamespace(name="noisy", capabilities=claims, open=begin)


def noise(like: Tensor) -> Tensor:
    """Return one number of no meaning for each element."""
    return (torch.arange(like.numel()).reshape(like.shape).sin() + 2).to(like.dtype)


class NoisySession(AutogradSession):
    """Multiplies each input gradient by numbers of no meaning."""

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        found = super().backward(mb, output_grads)
        return tuple(grad if grad is None else grad * noise(grad) for grad in found)


def test_float32_is_tried_for_wrong_values_alone(judge: Judge) -> None:
    right, own = Noisy(()), Noisy((torch.float32,))
    assert judge(right.target(), checks="full.gradients.mlp", dtype="bfloat16").results[0].status == "passed"
    assert judge(own.target(), checks="full.gradients.mlp", dtype="float32").results[0].status == "failed"
    assert (right.opened[torch.float32], own.opened[torch.bfloat16]) == (0, 0)


def test_a_dtype_that_is_not_claimed_is_not_tried(judge: Judge) -> None:
    for claimed, tried in ((("bfloat16",), False), (("bfloat16", "float32"), True)):
        noisy = Noisy((torch.bfloat16, torch.float32), claimed=claimed)
        report = judge(noisy.target(), checks="full.gradients.mlp", dtype="bfloat16")
        assert (report.results[0].status, noisy.opened[torch.float32] > 0) == ("failed", tried)


def test_what_float32_does_not_show_is_tried_three_times_for_findings_that_are_alike() -> None:
    tried: list[object] = []

    def in_float32(_: object, trial: object) -> list[Finding]:
        tried.append(trial)
        if trial == "raises":
            raise ValueError(trial)
        return [replace(own, cause=cause) for cause in (None, Cause(Mistake.DIAGNOSIS_FAILED, names=("so",)))]

    own, other = Finding("mismatch", "input 0", "B0", "off"), Finding("missing", "input 0", "B0", "gone")
    search: Any = CausesInFloat32(torch.bfloat16, in_float32)
    for trial in ("first", "raises", "third", "fourth"):
        assert search.annotate("check", trial, [own, replace(own, kind="alive")]) == [own, replace(own, kind="alive")]
    assert tried == ["first", "raises", "third"]
    assert search.annotate("check", "other", [other]) == [other]
    assert tried[3:] == ["other"]
    assert CausesInFloat32(torch.float32, in_float32).annotate(search, search, [other]) == [other]
    assert tried[4:] == []


def test_an_own_cause_of_the_same_kind_stays() -> None:
    missing, second = (Cause(Mistake.MISSING, microbatches=(mb,)) for mb in (1, 2))
    own, there = Finding("mismatch", "input 0", "B0", "off", cause=missing), Cause(Mistake.ZERO)
    for found, kept in ((second, missing), (there, replace(there, dtype="float32"))):
        search: Any = CausesInFloat32(torch.float16, lambda *_, found=found: [replace(own, cause=found)])
        (annotated,) = search.annotate("check", "trial", [own])
        assert annotated.cause == kept
        assert cause_from(kept.to_dict()) == kept
