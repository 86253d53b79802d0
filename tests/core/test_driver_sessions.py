"""The driver: what it hands to an adapter and a session, and what a caller of a stage holds."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec
from gradconform.drive.driver import drive
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages.case import StageCase
from gradconform.reference.autograd import AutogradAdapter, AutogradSession
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial

LINEAR = StageCase("linear", "one Linear", lambda: nn.Linear(5, 3), (Normal((7, 5)),))


def materials(trial: Trial, dtype: torch.dtype = torch.float32) -> Materials:
    return Materials(trial, dtype=dtype, device=torch.device("cpu"), seed=20)


def test_dropping_a_micro_batch_frees_the_tensors_of_the_caller() -> None:
    outputs: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []

    class Keeps(AutogradAdapter):
        def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
            class Session(AutogradSession):
                def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
                    found = super().forward(mb, args, target)
                    outputs.append(weakref.ref(found))
                    return found

                def finish(self) -> None:
                    alive.extend(reference() is not None for reference in outputs)

            return Session(stage, spec)

    for program in ("F0 B0 finish", "F0 B0 drop0 finish"):
        drive(Keeps(), materials(Trial(stages=(LINEAR,), program=program)))
        outputs.clear()
    assert alive == [True, False]


@pytest.mark.parametrize(("program", "counts"), [("F0 B0", 1), ("F0 F1 F2 B0", 3)])
def test_the_spec_describes_the_coming_micro_batches(program: str, counts: int) -> None:
    specs: list[StageSpec] = []

    class Keeps(AutogradAdapter):
        def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
            specs.append(spec)
            return super().open(stage, spec)

    drive(Keeps(), materials(Trial(stages=(LINEAR,), program=program)))
    (spec,) = specs
    assert spec.n_microbatches == counts
    assert spec.args_require_grad == (True,)
    assert [tuple(arg.shape) for arg in spec.example_args] == [(7, 5)]
    assert spec.example_outputs.shape == (7, 3)
    assert spec.loss_fn is None
    assert not spec.is_last
    assert not spec.repeats_weight


def test_the_oracle_loss_can_be_scaled_for_targets_that_divide_it() -> None:
    trial = Trial(stages=(LINEAR,), program="F0 B0", loss=True)
    whole, half = (drive(AutogradAdapter(), materials(trial, torch.float64), loss_scale=scale) for scale in (1.0, 0.5))
    for name, grad in whole.steps[1].param_grads.items():
        assert torch.equal(grad * 0.5, half.steps[1].param_grads[name])  # type: ignore[operator,arg-type] # None would fail the test


def test_with_same_args_every_micro_batch_gets_the_same_objects() -> None:
    seen: list[int] = []

    class Ids(AutogradAdapter):
        def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
            class Session(AutogradSession):
                def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
                    seen.append(id(args[0]))
                    return super().forward(mb, args, target)

            return Session(stage, spec)

    trial = Trial(stages=(LINEAR,), program="F0 F1 B0 B1", same_args=True)
    drive(Ids(), materials(trial))
    assert len(set(seen)) == 1


def test_an_error_in_param_grads_is_an_observation() -> None:
    class Broken(AutogradAdapter):
        def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
            class Session(AutogradSession):
                def param_grads(self) -> dict[str, Tensor | None]:
                    msg = "no gradients here"
                    raise RuntimeError(msg)

            return Session(stage, spec)

    trial = Trial(stages=(LINEAR,), program="F0 B0")
    observation = drive(Broken(), materials(trial))
    assert str(observation.steps[0].raised) == "RuntimeError: no gradients here"
    assert [str(step.action) for step in observation.steps] == ["F0"]
