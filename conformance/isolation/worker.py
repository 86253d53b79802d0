"""A worker process: resolves the target, makes the plan, runs what it is told to, and says what came of it.

Its first record is the run's header, or ``refused`` with a message and an exit code. It ends when the orders do.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import queue
import signal
import sys
import threading
from typing import Any

from gradconform.isolation.channel import Receiver, Sender
from gradconform.records import Place, Record, finished, started
from gradconform.refusal import refusal
from gradconform.results import Result

#: What a parent sends to a worker that is stuck, to be told where.
STACK_SIGNAL = signal.SIGUSR1

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Work until there are no more orders. The file descriptors are arguments: orders, records, stacks."""
    orders, records, stacks = map(int, sys.argv[1:4])
    for file in (orders, records, stacks):
        os.set_inheritable(file, False)  # noqa: FBT003 (its own way) a process that the target starts must not keep them open
    del sys.argv[1:]
    _die_with_the_parent()
    faulthandler.enable(stacks)
    faulthandler.register(STACK_SIGNAL, stacks)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # it is the interpreter's own
    waiting: queue.SimpleQueue[Record] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(Receiver(orders), waiting), daemon=True).start()
    sender = Sender(records)
    try:
        _serve(waiting, sender)
    except KeyboardInterrupt:
        sender.send({"record": "interrupted"})
    except Exception as error:  # noqa: BLE001 (told to the parent: each has an exit code of its own)
        sender.send(_refusal(error))
    _leave()


def _die_with_the_parent() -> None:
    """Ask Linux to end this process with its parent, even while the target holds the interpreter."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _listen(orders: Receiver, waiting: queue.SimpleQueue[Record]) -> None:
    """Pass orders on; when they end, so does this process, whatever it is at."""
    while orders.open:
        for order in orders.receive():
            waiting.put(order)
    _leave()


def _leave() -> None:
    """End this process at once: what backends do at exit may abort, and must not be taken for a check's doing."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(0)


def _serve(waiting: queue.SimpleQueue[Record], sender: Sender) -> None:
    """Make the session that the first message asks for, and run what the later ones do."""
    from gradconform.devices.choice import Choice  # noqa: PLC0415 (only a worker that serves needs it)
    from gradconform.devices.naming import ready  # noqa: PLC0415 (it imports torch)
    from gradconform.devices.sharing import WORKER_VARIABLE  # noqa: PLC0415 (as Choice)
    from gradconform.numeric_flags import flags_named  # noqa: PLC0415 (as Choice)
    from gradconform.reference.autograd import AutogradAdapter  # noqa: PLC0415 (it imports torch)
    from gradconform.session import Session  # noqa: PLC0415 (it imports torch)

    options = dict(waiting.get())
    os.environ[WORKER_VARIABLE] = str(options.pop("worker"))
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 (after torch's import: nothing in the folder can stand for it)
    choice = Choice.from_dict(options.pop("choice"))
    ready(choice, flags_named(options["flags"]))
    session = Session(**options, choice=choice)
    sender.send(session.header(options).to_record())
    oracle: Session | None = None
    while True:
        order = waiting.get()
        if order["oracle"] and oracle is None:
            oracle = Session(**{**options, "target": AutogradAdapter(), "waivers": None}, choice=choice)
        asked = oracle if order["oracle"] and oracle is not None else session
        asked.run(
            lambda result: _tell(result, sender),
            on_start=lambda *begun: sender.send(started(*begun)),
            places=[Place(*place) for place in order["places"]],
        )
        sender.send({"record": "done"})


def _tell(result: Result, sender: Sender) -> None:
    """Send a result; where it shows that memory or device are gone, so is this process: what follows would fail too."""
    from gradconform.isolation.exhaustion import exhaustion  # noqa: PLC0415 (it imports torch)

    sys.stdout.flush()
    sys.stderr.flush()
    gone = exhaustion(result)
    if gone is None:
        sender.send(finished(result))
        return
    kind, text = gone
    sender.send({"record": "gone", "kind": kind, "text": text, "result": result.to_dict()})
    _leave()


def _refusal(error: Exception) -> dict[str, Any]:
    """Return the record that says why nothing runs, or no more, and with which exit code."""
    message, code = refusal(error)
    return {"record": "refused", "message": message, "exit_code": code}
