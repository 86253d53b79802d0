"""What is kept of an exception: its first cause, as text that compares between runs."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest

from gradconform.observation import Observation, Raised, Step
from gradconform.program import Action


class _Marker:
    pass


def chained(*errors: Exception) -> Exception:
    """Return the last of ``errors``, each caused by the one before it, as ``raise … from …`` leaves them."""
    for cause, error in itertools.pairwise(errors):
        error.__cause__ = cause
    return errors[-1]


def test_the_first_cause_is_kept_and_not_the_wrapper() -> None:
    raised = Raised.of(chained(KeyError("mb"), ValueError("inner"), RuntimeError("stage 0 failed")))
    assert (raised.type, raised.message) == ("KeyError", "'mb'")


def test_a_context_without_from_is_no_cause() -> None:
    error = ValueError("clear")
    error.__context__ = KeyError("mb")
    assert Raised.of(error).type == "ValueError"


@pytest.mark.parametrize("length", [1, 2])
def test_causes_in_a_ring_end(length: int) -> None:
    ring = [ValueError("one"), KeyError("two")][:length]
    for index, error in enumerate(ring):
        error.__cause__ = ring[(index + 1) % length]
    assert Raised.of(ring[0]).type in {"ValueError", "KeyError"}


def test_addresses_are_left_out_so_that_two_runs_compare() -> None:
    one, two = (Raised.of(ValueError(f"<Node object at {hex(id(_Marker()) + 4096 * k)}> of 0x1f")) for k in (0, 1))
    assert one == two
    assert one.message == "<Node object at 0x…> of 0x1f"


def test_no_frame_and_with_it_no_tensor_is_kept_alive() -> None:
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
def test_an_exception_is_told_in_one_line(message: str, text: str) -> None:
    assert str(Raised.of(ValueError(message))) == text


def test_the_first_step_that_raised_and_is_no_misuse_is_the_one() -> None:
    error = Raised("ValueError", "")
    steps = [
        Step(Action("F")),
        Step(Action("W", misuse=True), raised=error),
        Step(Action("B", 1), raised=error),
        Step(Action("B", 2), raised=error),
    ]
    assert Observation(steps).raised is steps[2]
    assert Observation(steps[:2]).raised is None
