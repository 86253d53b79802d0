"""The driver: what programs do to parameters and gradients, what a process is set to, and that all is put back."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec
from gradconform.drive import stage_changes
from gradconform.drive.driver import drive
from gradconform.drive.kept_process import KeptProcess
from gradconform.drive.observation import Observation
from gradconform.drive.process_state import settings
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages import ZOO
from gradconform.fixtures.stages.case import StageCase
from gradconform.reference.autograd import AutogradAdapter, AutogradSession
from gradconform.torch_releases.settings import hooks_on_saved_tensors
from gradconform.trial.materials import Materials
from gradconform.trial.modes import MODES
from gradconform.trial.program import ProgramError
from gradconform.trial.trial import Trial

CPU = torch.device("cpu")
LINEAR = StageCase("linear", "one Linear", lambda: nn.Linear(5, 3), (Normal((7, 5)),))


def of(program: str, *names: str, **options: Any) -> Trial:
    return Trial(stages=tuple(ZOO[name] for name in names or ("mlp",)), program=program, **options)


def seen(trial: Trial) -> Observation:
    found = drive(AutogradAdapter(), Materials(trial, dtype=torch.float32, device=CPU, seed=20))
    assert found.raised is None
    return found


def spying(trial: Trial, look: Any) -> dict[str, Any]:
    """Return what ``look`` finds inside F, B, I and W."""
    found: dict[str, Any] = {}

    class Session(AutogradSession):
        def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
            found["F"] = look()
            return super().forward(mb, args, target)

        def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
            found["B"] = look()
            return super().backward(mb, output_grads)

        def backward_input(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
            found["I"] = look()
            return super().backward_input(mb, output_grads)

        def backward_weight(self, mb: int) -> None:
            found["W"] = look()
            super().backward_weight(mb)

    class Adapter(AutogradAdapter):
        def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
            return Session(stage, spec)

    drive(Adapter(), Materials(trial, dtype=torch.float32, device=CPU, seed=20))
    return found


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_restored_after_the_program(mode: str) -> None:
    before = settings(CPU)
    seen(of("F0 B0 F1 I1 W1", modes=frozenset({mode})))
    assert settings(CPU) == before


@pytest.mark.parametrize(
    ("mode", "look", "expected"),
    [
        ("autocast", lambda: torch.is_autocast_enabled("cpu"), {"F": True, "B": False, "I": False, "W": False}),
        ("no_grad", torch.is_grad_enabled, {"F": True, "B": False, "I": False, "W": False}),
        (
            "thread",
            lambda: threading.current_thread() is threading.main_thread(),
            {"F": True, "B": False, "I": False, "W": False},
        ),
        (
            "forward_thread",
            lambda: threading.current_thread() is threading.main_thread(),
            {"F": False, "B": True, "I": True, "W": True},
        ),
        ("deterministic", torch.are_deterministic_algorithms_enabled, dict.fromkeys("FBIW", True)),
        ("default_dtype", lambda: torch.get_default_dtype() is torch.float64, dict.fromkeys("FBIW", True)),
    ],
)
def test_a_mode_is_active_while_a_session_is_called(mode: str, look: Any, expected: dict[str, bool]) -> None:
    assert spying(of("F0 B0 F1 I1 W1", modes=frozenset({mode})), look) == expected


def test_settings_are_restored_for_a_device_without_autocast() -> None:
    with KeptProcess(torch.device("lazy")):
        torch.autograd.set_detect_anomaly(mode=True)
    assert not torch.is_anomaly_enabled()


def test_settings_changed_by_an_implementation_are_recorded_and_restored() -> None:
    class Session(AutogradSession):
        def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
            found = super().backward(mb, output_grads)
            torch.set_default_dtype(torch.float64)
            torch.set_num_threads(1 + before["the number of threads"])
            torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor).__enter__()
            return found

    class Adapter(AutogradAdapter):
        def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
            return Session(stage, spec)

    before = settings(CPU)
    trial = of("F0 B0", watch=frozenset({"state"}))
    found = drive(Adapter(), Materials(trial, dtype=torch.float32, device=CPU, seed=20))
    process = [step.state.process for step in found.steps if step.state is not None]
    changed = {name for name, value in process[1].items() if value != process[0][name]}
    assert changed == {"the default dtype", "the number of threads", "default hooks on saved tensors"}
    assert settings(CPU) == before
    assert not hooks_on_saved_tensors()


@pytest.mark.parametrize("word", ["step", "replace", "rebind"])
def test_parameter_changes_match_reference64(word: str) -> None:
    stage = nn.Linear(5, 3)
    before, held = stage.weight.detach().clone(), stage.weight
    memory = held.data_ptr()
    stage_changes.CHANGES[word](stage)
    assert torch.equal(stage.weight, before * stage_changes.FACTOR)
    assert (stage.weight is held, stage.weight.data_ptr() == memory) == {
        "step": (True, True),
        "replace": (True, False),
        "rebind": (False, False),
    }[word]


def test_rebinding_keeps_a_tied_parameter_tied() -> None:
    stage = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    stage[1].weight = stage[0].weight
    stage_changes.rebind_parameters(stage)
    assert stage[1].weight is stage[0].weight


def test_parameter_gradients_get_other_strides_or_share_one_bucket() -> None:
    stage = nn.Linear(5, 3)
    stage.weight.grad = torch.arange(15.0).reshape(3, 5)
    stage_changes.restride_grads(stage)
    assert stage.weight.grad is not None
    assert stage.weight.grad.stride() == (1, 3)
    assert torch.equal(stage.weight.grad, torch.arange(15.0).reshape(3, 5))
    stage_changes.into_bucket(stage)
    assert stage.weight.grad is not None
    assert stage.bias.grad is not None
    assert stage.weight.grad.untyped_storage().data_ptr() == stage.bias.grad.untyped_storage().data_ptr()
    assert torch.equal(stage.weight.grad, torch.arange(15.0).reshape(3, 5))
    assert not stage.bias.grad.any()


def test_two_sessions_share_the_gradients_of_one_module_or_of_tied_parameters() -> None:
    one = seen(of("F0 1F0 B0 1B0", "mlp", "mlp", one_module=True)).steps
    assert all(step.param_grads["0.weight"] is not None for step in one[2:4])
    assert not torch.equal(one[2].param_grads["2.bias"], one[3].param_grads["2.bias"])  # type: ignore[arg-type] # as asserted
    tied = seen(of("F0 1F0 B0 1F1", "mlp", "mlp", tied=("0.weight",))).steps[3]
    assert {name for name, grad in tied.param_grads.items() if grad is not None} == {"0.weight"}


@pytest.mark.parametrize(
    ("program", "names", "options", "expected"),
    [
        ("F0 replace B0", ("mlp",), {}, "replace runs while micro-batches [0] are in flight"),
        ("F0 B0", ("mlp",), {"modes": frozenset({"evil"})}, "unknown modes ['evil']"),
        ("F0 B0", ("mlp",), {"modes": frozenset({"autocast"}), "loss": True}, "expected output gradients"),
        ("F0 1F0", ("mlp", "residual"), {"one_module": True}, "one module cannot be 2 stages"),
        ("F0 B0 step", ("mlp", "mlp"), {"tied": ("0.weight",)}, "tied=('0.weight',) goes with neither"),
        ("F0 B0 zero_none", ("mlp",), {"altering": "move"}, "altering='move' goes with no word"),
        ("F0 1F0", ("mlp", "mlp"), {"chain": True, "one_module": True}, "a chain is a plain pipeline"),
    ],
)
def test_an_impossible_trial_is_refused(program: str, names: tuple[str, ...], options: Any, expected: str) -> None:
    with pytest.raises(ProgramError) as raised:
        of(program, *names, **options)
    assert expected in str(raised.value)


def test_a_weight_pass_is_not_called_if_its_input_pass_raised() -> None:
    found = seen(of("F0 I0! W0! F1 I1 W1", "raising-hook", raising=(0,)))
    assert [str(step.action) for step in found.steps] == ["F0", "I0!", "F1", "I1", "W1", "finish"]
    assert found.steps[1].raised is not None
    assert found.steps[1].raised.type == "StageRaisedError"
