"""What a target leaves changed in the process is restored after everything that runs it, so no later check sees it."""

from __future__ import annotations

import contextlib
import gc
import locale
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gradconform.adapter import StageSpec
from gradconform.drive.driver import drive
from gradconform.drive.kept_process import KeptProcess, ProcessState
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages.case import StageCase
from gradconform.reference import split
from gradconform.reference.autograd import AutogradAdapter, AutogradSession
from gradconform.results import Result
from gradconform.run import runner
from gradconform.run.options import RunOptions
from gradconform.run.run import Run
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial

CPU = torch.device("cpu")
LINEAR = StageCase("linear", "one Linear", lambda: nn.Linear(5, 3), (Normal((7, 5)),))

#: Contexts that a target enters and never leaves: they would end when freed.
LEFT: list[Any] = []


def enters(context: Any) -> None:
    LEFT.append(context)
    context.__enter__()


#: How a target leaves each part of the state, by the name of the part.
LEAVES: dict[str, Callable[[], object]] = {
    "inference mode": lambda: enters(torch.inference_mode()),
    "grad mode": lambda: torch.set_grad_enabled(False),
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the default device": lambda: torch.set_default_device("meta"),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(mode=True, warn_only=True),
    "autocast on cpu": lambda: torch.set_autocast_enabled("cpu", True),  # noqa: FBT003 (torch's own)
    "the dtype of autocast on cpu": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "the cache of autocast": lambda: torch.set_autocast_cache_enabled(False),
    "the nesting of autocast": torch.autocast_increment_nesting,
    "anomaly mode": lambda: torch.set_anomaly_enabled(True),
    "the search of anomaly mode for NaN": partial(torch.autograd.set_detect_anomaly, mode=False, check_nan=False),
    "the number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "default hooks on saved tensors": lambda: enters(
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    ),
    "the precision of matrix products": lambda: torch.set_float32_matmul_precision("medium"),
    "the precision of float32": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "Python's random numbers": random.random,
    "NumPy's random numbers": lambda: np.random.seed(7),  # noqa: NPY002 (the global one)
    "warning filters": lambda: warnings.simplefilter("always"),
    "environment variables": lambda: os.environ.update(GRADCONFORM_LEFT="1"),
    "the working directory": lambda: os.chdir("/"),
    "signal handlers": lambda: signal.signal(signal.SIGUSR1, lambda *_: None),
    "sys.path": lambda: sys.path.insert(0, "left"),
    "the recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
    "hooks on exceptions": lambda: setattr(threading, "excepthook", lambda _: None),
    "the locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8" if locale.setlocale(locale.LC_ALL) == "C" else "C"),
    "the garbage collector": gc.disable,
}

#: The parts that contract 1.0 judges: a check of ``state.process`` fails.
JUDGED = {
    "default hooks on saved tensors", "grad mode", "the default dtype", "deterministic algorithms", "autocast on cpu",
    "anomaly mode", "the number of threads", "Python's random numbers", "NumPy's random numbers", "warning filters",
    "environment variables",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = ProcessState(CPU)
    yield
    LEFT.clear()
    before.restore()


@pytest.mark.parametrize("name", LEAVES)
def test_a_change_is_named_and_restored(name: str) -> None:
    before = ProcessState(CPU)
    LEAVES[name]()
    assert name in before.changed()
    assert name in before.restore()
    assert before.changed() == []
    assert torch.backends.cudnn.allow_tf32  # this raises if newer settings disagree with older ones
    assert torch.get_float32_matmul_precision() == "highest"


def test_every_part_of_the_state_has_a_test() -> None:
    assert list(LEAVES) == [setting.name for setting in ProcessState(CPU)._settings]


METHODS = ("forward", "backward", "backward_input", "backward_weight", "finish", "close", "param_grads")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LEAVES)
def test_the_driver_restores_what_a_session_leaves(name: str, method: str) -> None:
    class Session(AutogradSession):
        def __getattribute__(self, wanted: str) -> Any:
            found = super().__getattribute__(wanted)
            return self._leaving(found) if wanted == method else found

        def _leaving(self, call: Any) -> Any:
            def left(*args: Any) -> Any:
                with contextlib.suppress(RuntimeError):  # some changes make later calls fail
                    return call(*args)
                return None

            def and_leaves(*args: Any) -> Any:
                found = left(*args)
                LEAVES[name]()
                return found

            return and_leaves

    class Adapter(AutogradAdapter):
        def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
            return Session(stage, spec)

    before = ProcessState(CPU)
    trial = Trial(stages=(LINEAR,), program="F0 B0 F1 I1 W1 close")
    drive(Adapter(), Materials(trial, dtype=torch.float32, device=CPU, seed=20))
    assert before.changed() == []


def functions(leaves: Callable[[], object], left_by: str) -> SimpleNamespace:
    """Return the right split, one function of which leaves a change."""

    def leaving(*args: Any) -> Any:
        found = vars(split)[left_by](*args)
        leaves()
        return found

    names = ("stage_backward", "stage_backward_input", "stage_backward_weight")
    return SimpleNamespace(**{name: leaving if name == left_by else vars(split)[name] for name in names})


#: The first of them has to test claims: it runs the target outside a program.
CLAIMS = ("edges.absent.full", "state.weight_result.mlp")

#: The check that judges what a function leaves.
WAYS = {"stage_backward": "state.process.mlp-full", "stage_backward_weight": "state.process.mlp-split"}


def judged(target: object, *checks: str) -> dict[str, Result]:
    run = Run(RunOptions.of(target, checks=checks), guarded=False, diagnose=False)
    return {result.check: result for result in run.run()}


@pytest.mark.parametrize("name", sorted(JUDGED))
def test_a_change_fails_its_check_after_other_checks_as_it_does_alone(name: str) -> None:
    for function, check in WAYS.items():
        for checks in ((check,), (*CLAIMS, check)):
            found = judged(functions(LEAVES[name], function), *checks)
            assert set(found) == set(checks)
            assert found[check].status == "failed"
            assert f"{name.removesuffix(' on cpu')}, after" in found[check].message


@pytest.mark.parametrize("name", LEAVES)
def test_the_test_of_claims_leaves_the_process_as_it_was(name: str) -> None:
    before = ProcessState(CPU)
    found = judged(functions(LEAVES[name], "stage_backward_weight"), *CLAIMS)
    assert before.changed() == []
    assert all(result.kind != "kit" for result in found.values())


def test_a_change_outside_a_run_of_the_target_is_an_error_of_the_kit(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(RunOptions.of("autograd", checks=["full.gradients.mlp", "full.gradients.linear-3d"]), guarded=False)
    values = runner.Runner.values

    def and_leaves(self: Any, *given: Any) -> Any:
        found = values(self, *given)
        torch.set_default_dtype(torch.bfloat16)
        return found

    monkeypatch.setattr(runner.Runner, "values", and_leaves)
    results = run.run().results
    assert {(result.status, result.kind) for result in results} == {("error", "kit")}
    assert all(result.message.startswith("the default dtype: expected as before this check, got") for result in results)
    assert torch.get_default_dtype() is torch.float32


def test_a_context_restores_after_an_error() -> None:
    with pytest.raises(ValueError, match="raised"), KeptProcess(CPU):  # noqa: PT012 (both lines belong to it)
        torch.set_default_dtype(torch.float64)
        msg = "raised"
        raise ValueError(msg)
    assert torch.get_default_dtype() is torch.float32


def test_a_normal_number_that_waits_in_numpy_is_seen_and_restored() -> None:
    np.random.seed(1)  # noqa: NPY002 (the global one)
    np.random.randn()  # noqa: NPY002 (as above); its pair's second number waits
    with KeptProcess(CPU):
        taken = np.random.randn()  # noqa: NPY002 (as above)
    state = ProcessState(CPU)
    assert np.random.randn() == taken  # noqa: NPY002 (as above)
    assert state.changed() == ["NumPy's random numbers"]
    assert state.restore() == ["NumPy's random numbers"]
    assert np.random.randn() == taken  # noqa: NPY002 (as above)
