"""The oracle: plain autograd on the device of a run, driven in the same way as implementations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gradconform import trees
from gradconform.devices import tensor_facts
from gradconform.devices.copies import WrongCopyError
from gradconform.devices.device import denormals_as, device_of
from gradconform.reference.autograd import AutogradAdapter
from gradconform.trial.materials import Materials
from gradconform.trial.program import undeferred

from . import driver, holders, kept_process, lane, operation_log, process_state, streams, watches
from .adapter_mistake import REFERENCE
from .observation import Observation, Raised, Step
from .operation_log import drive_logged, drive_unlogged, is_logged
from .reference64 import Computed, OracleCache, References

#: The modules in which the kit watches and copies a device's results. No program needs these operations.
WATCHING = (driver, holders, kept_process, lane, operation_log, process_state, streams, tensor_facts, trees, watches)

_WATCHING_FILES = frozenset(Path(str(module.__file__)) for module in WATCHING)

#: What torch raises where a device has no kernel for an operation.
_LACKING = NotImplementedError.__name__

#: The bytes of the micro-batches' gradients that are kept for other trials.
_KEPT_BYTES = 2**24


class UnjudgedError(Exception):
    """Nothing can be judged here; ``raised`` is the error, if any."""

    def __init__(self, message: str, raised: Raised | None = None) -> None:
        """Create the error with its message and the observed exception."""
        super().__init__(message)
        self.raised = raised


class OracleError(UnjudgedError):
    """Plain autograd raised: the device or dtype does not support the trial."""


class DeviceLostError(UnjudgedError):
    """The device's behaviour changes over time, or it no longer answers: none of its results can be judged."""


class WatchError(UnjudgedError):
    """The kit's own code raised while it drove plain autograd: neither the device nor the target is at fault."""


class Oracle:
    """Plain autograd on one device and dtype, run by the same driver as implementations."""

    def __init__(self, device: torch.device, cache: OracleCache | None = None) -> None:
        """Create an oracle; ``cache`` holds known results, which apply to every target."""
        self.device, self._cache = device, cache
        self._microbatches = Computed(_KEPT_BYTES)
        #: Whether plain autograd is right here by definition; any other device is a third party.
        self.trusted = device.type == "cpu"
        self._adapter = AutogradAdapter()

    def references(self, materials: Materials, loss_scale: float) -> References:
        """Return the right gradients of a trial; unknown ones are computed at their first use."""
        if self._cache is None:
            return References(materials, loss_scale, self._microbatches)
        return self._cache.references(materials, loss_scale)

    def known(self, references: References, what: str, make: Callable[[], Any]) -> Any:
        """Return the known value of a trial named ``what``; ``make`` creates a missing one."""
        if self._cache is None:
            return make()
        return self._cache.of_trial(references.materials, references.loss_scale, what, make)

    def observe(self, references: References) -> Observation:
        """Return plain autograd's observation; its operations are logged only if nothing else measures its memory.

        Raises :class:`WatchError` if the kit's own code raised, else :class:`OracleError` or :class:`DeviceLostError`.
        """
        found: Observation = self.known(
            references, "first", lambda: self._first(references, logged=not self._counts_memory)
        )
        return found

    def observe_logged(self, references: References) -> Observation:
        """Return plain autograd's observation with a log, if the trial has one; raises as :meth:`observe` does."""
        if not self._counts_memory:
            return self.observe(references)
        found: Observation = self.known(references, "logged", lambda: self._first(references, logged=True))
        return found

    def observe_unlogged(self, references: References) -> Observation:
        """Return plain autograd's observation without an operation log, since a log may change a device's results."""
        if self._counts_memory:
            return self.observe(references)
        found: Observation = self.known(references, "unlogged", lambda: self._drive(references, logged=False))
        return found

    def observe_again(self, references: References, first: Observation, *, anew: bool = False) -> Observation:
        """Return the observation of a run after the implementation's; ``anew`` ignores known ones.

        It is logged if the ``first`` was. Raises :class:`DeviceLostError` if plain autograd raises.
        """
        logged = first.executed is not None
        if anew:
            return self._again(references, logged=logged)
        found: Observation = self.known(references, "again", lambda: self._again(references, logged=logged))
        return found

    def observe_on_cpu(self, references: References) -> Observation:
        """Return plain autograd's observation of the trial on the CPU, with denormal numbers as on this device."""
        materials = replaced(references.materials, torch.device("cpu"))
        with denormals_as(device_of(self.device).flushes_denormals):
            found: Observation = self.known(references, "cpu", lambda: self._drive(references, materials))
        return found

    def undeferred_peak(self, references: References) -> int | None:
        """Return the memory of plain autograd with B in place of I and W, None if that is not a program."""
        materials = references.materials
        program = undeferred(materials.trial.actions)
        if program is None or not is_logged(materials):
            return None
        peak: int | None = self.known(references, "undeferred", lambda: self._peak_of(references, program))
        return peak

    def _peak_of(self, references: References, program: str) -> int | None:
        materials = replaced(references.materials, self.device, program=program, watch=frozenset())
        found = self._drive(references, materials, logged=not self._counts_memory)
        return None if found.raised is not None else found.peak

    @cached_property
    def _counts_memory(self) -> bool:
        """Whether the device counts its memory; else a log of operations weighs their tensors."""
        return device_of(self.device).counts_memory

    def _first(self, references: References, *, logged: bool) -> Observation:
        found = self._drive(references, logged=logged)
        stopped = found.raised or (None if self.trusted else self._refused(references, found))
        if stopped is None:
            return found
        own = stopped.raised
        problem = f"{own} at {stopped.action}"
        if own is not None and own.type == WrongCopyError.__name__:
            raise WrongCopyError(own.message)
        if own is not None and _of_a_watch(own):
            msg = f"the kit's own code raised {problem} under plain autograd on {self.device} ({own.file}:{own.line})"
            raise WatchError(msg, own)
        if not self.trusted:
            self._raise_if_lost(problem, own)
            found = self._drive(references, logged=logged)
            if found.raised is None and self._refused(references, found) is None:
                msg = f"plain autograd raised {problem}, and when it was run again it did not"
                raise DeviceLostError(msg, own)
        raise OracleError(problem, own)

    def _refused(self, references: References, found: Observation) -> Step | None:
        """Return the misuse that raised here because the device lacks an operation, None if there is none.

        A misuse may raise; but on the CPU such a one does not, or raises something else.
        """
        refused = [step for step in found.steps if step.action.misuse and step.raised is not None]
        if not refused:
            return None
        there = {step.position: step.raised for step in self.observe_on_cpu(references).steps}
        for step in refused:
            here, allowed = step.raised, there[step.position]
            if allowed is None or (here is not None and here.type == _LACKING != allowed.type):
                return step
        return None

    def _again(self, references: References, *, logged: bool) -> Observation:
        found = self._drive(references, logged=logged)
        if found.raised is not None and not self.trusted:
            msg = f"plain autograd ran, and after the implementation it raised {found.raised.raised}"
            raise DeviceLostError(msg, found.raised.raised)
        return found

    def _drive(self, references: References, materials: Materials | None = None, *, logged: bool = True) -> Observation:
        way = drive_logged if logged else drive_unlogged
        try:
            return way(self._adapter, materials or references.materials, loss_scale=references.loss_scale)
        except NotImplementedError as error:
            raise OracleError(str(error)) from error

    def _raise_if_lost(self, problem: str, raised: Raised | None) -> None:
        """Raise :class:`DeviceLostError` if the device is out of memory, or cannot even add two numbers."""
        if (raised is not None and raised.broken) or not self.answers:
            msg = f"plain autograd raised {problem}"
            raise DeviceLostError(msg, raised)

    @property
    def answers(self) -> bool:
        """Whether the device still adds 1 and 1."""
        try:
            return bool((torch.ones(2).to(self.device) + 1.0).cpu().tolist() == [2.0, 2.0])
        except RuntimeError:
            return False


def replaced(materials: Materials, device: torch.device, **of_trial: Any) -> Materials:
    """Return the materials on another device, or of a trial that differs in ``of_trial``."""
    trial = replace(materials.trial, **of_trial) if of_trial else materials.trial
    return materials.on(device, trial)


def _of_a_watch(raised: Raised) -> bool:
    """Return whether the kit's own code raised this while it drove plain autograd, and no operation of the stage.

    Errors of a device that is out of memory or lost reach any caller, so they do not count. Neither do errors that
    autograd's engine raises when plain autograd calls it.
    """
    if raised.memory or raised.broken or not raised.file:
        return False
    file = Path(raised.file)
    if file.parent == REFERENCE:
        return not raised.engine
    return file in _WATCHING_FILES
