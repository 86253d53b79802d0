"""Judges one check: the one place that times it, catches what it raises, and builds its result."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch

from gradconform.contract.check import Check
from gradconform.coverage import MISCOPIED
from gradconform.devices.copies import WrongCopyError
from gradconform.devices.device import device_of
from gradconform.drive.kept_process import ProcessState
from gradconform.drive.observation import Raised
from gradconform.process.interrupts import interrupts_seen, pass_on_an_interrupt
from gradconform.results import Result
from gradconform.text.escaping import shortened
from gradconform.tolerance import tolerances_of

from .measurements import Measurements


class Engine(Protocol):
    """Judges the checks of a source on one device, in one dtype."""

    device: torch.device
    dtype: torch.dtype

    def values(self, check: Any, measured: Measurements) -> Mapping[str, Any]:
        """Return the verdict on a check, as fields of its result; ``measured`` receives its measurements."""

    def verdict_on(self, check: Any, error: BaseException) -> Mapping[str, Any] | None:
        """Return the verdict on a check that raised ``error``; None for an error that only the kit can explain."""

    @property
    def answers(self) -> bool:
        """Whether the device still computes."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread, so that sums have one order on every machine and worker; restored afterwards."""
    threads = torch.get_num_threads()
    if threads == 1:  # setting it takes longer than a small check
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def judged(engine: Engine, check: Check) -> Result:
    """Return the result of one check. Nothing is raised but a person's ctrl-C: an error is a result."""
    started = time.perf_counter()
    measured = Measurements()
    with interrupts_seen():
        before = ProcessState(engine.device)
        try:
            with one_thread(), tolerances_of(device_of(engine.device).tolerances):
                values = engine.values(check, measured)
        except BaseException as error:  # noqa: BLE001 (a crash of the kit has its own verdict, never a pass)
            pass_on_an_interrupt(error)
            values = _miscopied(error) or engine.verdict_on(check, error) or _crashed(engine, error)
        if changed := before.restore():
            values = _left_changed(values, changed)
        values = {**exhausted(*(finding.raised for finding in values.get("findings", ()))), **values}
    if "message" in values:
        values["message"] = shortened(values["message"])
    taken = round(time.perf_counter() - started, 6)
    dtype = str(engine.dtype).removeprefix("torch.")
    return check.result(str(engine.device), dtype, duration_s=taken, **measured.values(), **values)


def _left_changed(values: Mapping[str, Any], changed: list[str]) -> Mapping[str, Any]:
    """Return the verdict on a check after which the process was not as before; a failure stays one.

    Everything that runs a target restores the process, so the kit's own code changed it, or a thread did.
    """
    if values.get("findings") or values.get("status") in {"failed", "error"}:
        return values
    text = (
        f"{', '.join(changed)}: expected as before this check, got changed, after every run of the target had restored "
        "the process; a thread of the target may still run, else report a defect of the kit"
    )
    return {"status": "error", "kind": "kit", "message": text}


def _miscopied(error: BaseException) -> dict[str, Any] | None:
    """Return the verdict if a value is known only through copies that the device makes wrong, else None."""
    if not isinstance(error, WrongCopyError):
        return None
    return {"status": "unsupported", "kind": MISCOPIED, "message": f"not judged: {error}"}


def _crashed(engine: Engine, error: BaseException) -> dict[str, Any]:
    """Return the verdict on an error that nothing explains: the device's if it no longer computes, else the kit's."""
    text = "".join(traceback.format_exception(error)[-3:]).strip()
    lost = not engine.answers
    return {
        "status": "error",
        "kind": "environment" if lost else "kit",
        "message": f"{engine.device} failed: {error}" if lost else f"the kit failed: {text}",
        **exhausted(Raised.of(error)),
    }


def exhausted(*raised: Raised | None) -> dict[str, str]:
    """Return the result field for exhausted memory, if one of ``raised`` reports it."""
    return next(({"exhausted": str(one)} for one in raised if one is not None and one.memory), {})
