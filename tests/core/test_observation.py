"""What is kept of an exception: its first cause, as text that compares between runs."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import weakref
from typing import Any

import pytest
import torch

from gradconform.drive.observation import Alive, Executed, HookCall, Observation, Raised, Step
from gradconform.trial.program import Action


class _Marker:
    pass


def chained(*errors: Exception) -> Exception:
    """Return the last of ``errors``, each caused by the one before it, as ``raise … from …`` leaves them."""
    for cause, error in itertools.pairwise(errors):
        error.__cause__ = cause
    return errors[-1]


def test_the_first_cause_is_recorded_instead_of_the_wrapper() -> None:
    raised = Raised.of(chained(KeyError("mb"), ValueError("inner"), RuntimeError("stage 0 failed")))
    assert (raised.type, raised.message) == ("KeyError", "'mb'")


def test_an_exception_context_without_from_is_not_a_cause() -> None:
    error = ValueError("clear")
    error.__context__ = KeyError("mb")
    assert Raised.of(error).type == "ValueError"


@pytest.mark.parametrize("length", [1, 2])
def test_reading_a_cycle_of_causes_ends(length: int) -> None:
    ring = [ValueError("one"), KeyError("two")][:length]
    for index, error in enumerate(ring):
        error.__cause__ = ring[(index + 1) % length]
    assert Raised.of(ring[0]).type in {"ValueError", "KeyError"}


def test_addresses_are_removed_so_that_two_runs_compare_equal() -> None:
    one, two = (Raised.of(ValueError(f"<Node object at {hex(id(_Marker()) + 4096 * k)}> of 0x1f")) for k in (0, 1))
    assert one == two
    assert one.message == "<Node object at 0x…> of 0x1f"


def test_a_recorded_error_keeps_no_frame_and_no_tensor_alive() -> None:
    def raises(marker: _Marker) -> None:
        raise ValueError(marker)

    def fail() -> tuple[Raised, weakref.ref[_Marker]]:
        marker = _Marker()
        try:
            raises(marker)
        except ValueError as error:
            return Raised.of(error), weakref.ref(marker)
        pytest.fail("nothing was raised")

    raised, reference = fail()
    gc.collect()
    assert reference() is None
    assert raised.type == "ValueError"


@pytest.mark.parametrize(
    ("message", "text"),
    [("", "ValueError"), ("a\n  b", "ValueError: a b"), ("x" * 400, "ValueError: " + "x" * 300 + " …")],
    ids=["empty", "lines", "long"],
)
def test_an_exception_is_reported_on_one_line(message: str, text: str) -> None:
    assert str(Raised.of(ValueError(message))) == text


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to"),
    ],
    ids=str,
)
def test_an_out_of_memory_exception_is_recognized(error: Exception) -> None:
    assert Raised.of(error).memory


@pytest.mark.parametrize("error", [RuntimeError("MemoryError"), ValueError("can't allocate memory")], ids=str)
def test_an_exception_that_only_mentions_memory_is_not_out_of_memory(error: Exception) -> None:
    assert not Raised.of(error).memory


class OutOfMemoryError(RuntimeError):
    """Named as torch's is, and another."""


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        (torch.OutOfMemoryError("simx out of memory"), True),
        (torch.AcceleratorError("device lost"), True),
        (type("DeviceLostError", (torch.AcceleratorError,), {})("a maker's own"), True),
        (OutOfMemoryError("in a pool of the implementation's own"), False),
        (MemoryError(), False),
        (RuntimeError("CUDA error: device lost"), False),
    ],
    ids=str,
)
def test_a_device_exception_is_recognized_by_type_not_by_name(error: Exception, *, broken: bool) -> None:
    assert Raised.of(error).broken == broken


def handled(*, cause: bool = False, hidden: bool = False) -> ValueError:
    """Return what is raised while a KeyError is handled: from it, not from it, or hiding it."""
    first = KeyError("first")
    other = ValueError("other")
    try:
        try:
            raise first
        except KeyError:
            if cause or hidden:
                raise other from (first if cause else None)
            raise other  # noqa: B904 (what is not said is the case)
    except ValueError as found:
        return found


@pytest.mark.parametrize(
    ("options", "chain"),
    [
        ({"cause": True}, {"ValueError", "KeyError"}),
        ({}, {"ValueError", "KeyError"}),
        ({"hidden": True}, {"ValueError"}),
    ],
    ids=["from it", "while it was handled", "hidden"],
)
def test_all_exception_types_of_a_traceback_are_recorded(options: dict[str, bool], chain: set[str]) -> None:
    assert Raised.of(handled(**options)).chain == chain


def test_reading_the_chain_of_a_cycle_of_causes_ends() -> None:
    error, other = ValueError("one"), KeyError("other")
    error.__cause__, other.__cause__ = other, error
    assert Raised.of(error).chain == {"ValueError", "KeyError"}


def test_the_first_raised_step_that_is_not_a_misuse_is_reported() -> None:
    error = Raised("ValueError", "")
    steps = (
        Step(Action("F")),
        Step(Action("W", misuse=True), raised=error),
        Step(Action("B", 1), raised=error),
        Step(Action("B", 2), raised=error),
    )
    assert Observation(steps).raised is steps[2]
    assert Observation(steps[:2]).raised is None


def test_a_step_is_found_by_position_even_if_an_earlier_action_did_not_run() -> None:
    first, third = Step(Action("F"), 0), Step(Action("W"), 2)
    observation = Observation((first, third))
    assert [observation.at(position) for position in (0, 2)] == [first, third]
    with pytest.raises(KeyError):
        observation.at(1)


@pytest.mark.parametrize(
    "value",
    [Observation(), Step(Action("F")), HookCall("tensor", "weight", None), Alive(0, 0, 0), Executed(), Raised("E", "")],
    ids=lambda value: type(value).__name__,
)
def test_observed_values_are_frozen(value: Any) -> None:
    for field in dataclasses.fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, None)
