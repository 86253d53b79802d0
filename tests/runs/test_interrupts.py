"""A person's ctrl-C ends what runs while it is pressed, and nothing that runs afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from gradconform.process.interrupts import endings_interrupt, interrupted, interrupts_seen, pass_on_an_interrupt


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A shell's background job ignores ctrl-C, and ``nohup`` ignores SIGHUP: not so here."""
    acts = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, act) for number, act in acts.items()}
    yield
    for number, act in before.items():
        signal.signal(number, act)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def pressed_once() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_seen():
        press()


def fails() -> None:
    """Run what raises, as a judge of somebody's code does."""
    with interrupts_seen():
        msg = "of its own"
        error = KeyboardInterrupt(msg)
    pass_on_an_interrupt(error)


def keeps_it() -> None:
    with interrupts_seen(), contextlib.suppress(KeyboardInterrupt):
        press()


def test_an_interrupt_is_raised_again_even_if_the_target_caught_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        keeps_it()
    assert interrupted()
    with pytest.raises(KeyboardInterrupt):
        pass_on_an_interrupt(ValueError())


@pytest.mark.parametrize("acts", [signal.default_int_handler, signal.SIG_IGN, signal.SIG_DFL], ids=repr)
def test_a_handled_interrupt_does_not_end_later_work(acts: Callable[..., object] | signal.Handlers) -> None:
    pressed_once()
    signal.signal(signal.SIGINT, acts)  # as of a job that a shell runs in the background
    fails()
    assert not interrupted()


def test_a_handled_interrupt_does_not_end_a_later_thread() -> None:
    pressed_once()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            fails()
        except BaseException as error:  # noqa: BLE001 (a thread keeps what it raises to itself)
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert raised == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=repr)
def test_a_termination_signal_interrupts_once_and_is_named(number: signal.Signals) -> None:
    with endings_interrupt() as ended:
        with pytest.raises(KeyboardInterrupt), interrupts_seen():
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # while the report is written
    assert ended.number == number
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with endings_interrupt() as ended:
            os.kill(os.getpid(), signal.SIGHUP)
            assert ended.number is None
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_process_is_ended_by_the_signal() -> None:
    reader, writer = os.pipe()
    with endings_interrupt():
        child = os.fork()
        if child == 0:
            os.write(writer, b".")
            while True:
                signal.pause()
        os.read(reader, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
