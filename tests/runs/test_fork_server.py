"""Workers are forked from one process that has imported torch, and are as if each had imported it itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradconform.exits import RunRefusedError
from gradconform.process import fork_server
from gradconform.process.fork_server import VARIABLE
from gradconform.process.imports import imports_shared
from gradconform.process.worker import Worker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the fork server")

#: Appends the id of each process that imports torch, or the module ``slow``, to a file. Python imports it at the start.
COUNTS = """
import os, sys

class Counter:
    def find_spec(self, name, path=None, target=None):
        if name in {"torch", "slow"} and "IMPORTS_OF_TORCH" in os.environ:
            with open(os.environ["IMPORTS_OF_TORCH"], "a") as file:
                file.write(f"{os.getpid()}\\n")

sys.meta_path.insert(0, Counter())
"""

#: A module of a library, and one with works.
SLOW = """
import os, sys
print("imported", file=sys.stderr)
seed = int.from_bytes(os.urandom(4))
"""

WORK = """
import gc, os, random, resource, signal, sys, threading, time, warnings
import slow

def describe(orders, tell):
    named = {one: signal.Signals(one).name for one in signal.valid_signals() if one in set(signal.Signals)}
    for order in orders:
        tell({
            "own": [os.getpid(), os.getpgid(0), os.getsid(0)], "random": [random.random(), slow.seed],
            "like a new interpreter": {
                "folder": os.getcwd(), "path": sys.path, "words": sys.argv,
                "main": sorted(vars(sys.modules["__main__"])),
                "variables": {name: value for name, value in os.environ.items() if name != "GRADCONFORM_FORK_SERVER"},
                "threads": sorted(thread.name for thread in threading.enumerate()), "warnings": str(warnings.filters),
                "handlers": {name: str(signal.getsignal(one)).partition(" at ")[0] for one, name in named.items()},
                "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "wakeup": signal.set_wakeup_fd(-1),
                "files": [file for file in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{file}")],
                "stdin": os.readlink("/proc/self/fd/0"), "frozen": gc.get_freeze_count(), "collects": gc.isenabled(),
                "limits": resource.getrlimit(resource.RLIMIT_NOFILE), "mask": os.umask(0), "nice": os.nice(0),
            },
        })

def echo(orders, tell):
    for order in orders:
        tell(order)

def leaves(orders, tell):
    print("last words", file=sys.stderr)
    os._exit(3)

def exits(orders, tell):
    sys.exit(5)

def aborts(orders, tell):
    os.abort()

def sleeps(orders, tell):
    time.sleep(600)

def is_stopped(orders, tell):
    os.kill(os.getpid(), signal.SIGSTOP)

def refuses(orders, tell):
    error = ValueError("not with me")
    error.exit_code = 2
    raise error

def kills_its_parent(orders, tell):
    tell({"pid": os.getpid()})
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Worker]]:
    """Start a process on one of the works above, which needs ``slow``, in a context that shares imports.

    No other test's process may run: with it, the server of other variables lives on, and there is no second one.
    """
    server = fork_server._Current.server
    left = [] if server is None else [(process._beginning.work, process.pid()) for process in server.processes]
    assert not left, "an earlier test has left these processes"
    (tmp_path / "user").mkdir()
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "slow.py").write_text(SLOW, encoding="utf-8")
    (tmp_path / "user" / "odd_work.py").write_text(WORK, encoding="utf-8")
    (tmp_path / "sitecustomize.py").write_text(COUNTS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "libraries")
    monkeypatch.chdir(tmp_path / "user")
    monkeypatch.syspath_prepend(tmp_path / "user")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("IMPORTS_OF_TORCH", str(tmp_path / "imports"))

    def begin(work: str, limit: float | None = 300.0, imports: tuple[str, ...] = ("slow",)) -> Worker:
        worker = Worker(f"odd_work:{work}", {"first": 1}, quiet=True, imports=imports)
        worker.expect(limit)
        return worker

    with imports_shared():
        yield begin


def imports(folder: Path) -> int:
    return len((folder / "imports").read_text(encoding="ascii").splitlines())


def end_of(worker: Worker) -> Any:
    with closing(worker):
        *_, end = worker.messages()
    return end


def lives(process: int) -> bool:
    """Return whether a process has not ended; one that is not yet waited for has."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 100
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    assert condition()


def answer(worker: Worker) -> Any:
    with closing(worker):
        return next(worker.messages())


def test_a_fork_is_as_a_new_interpreter(start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    forked, other = answer(start("describe")), answer(start("describe"))
    monkeypatch.setenv(VARIABLE, "0")
    fresh = answer(start("describe"))
    like = "like a new interpreter"
    assert forked[like] == other[like] == fresh[like]
    assert len(set(forked["own"])) == 1
    assert forked["random"][0] != other["random"][0]
    assert (forked["random"][1] == other["random"][1], forked["random"][1] == fresh["random"][1]) == (True, False)


def test_forks_import_nothing_again_and_repeat_what_the_import_printed(
    start: Callable[..., Worker], tmp_path: Path
) -> None:
    ends = [end_of(start(work)) for work in ("aborts", "leaves", "exits", "aborts")]
    assert [end.code for end in ends] == [-signal.SIGABRT, 3, 5, -signal.SIGABRT]
    assert all(end.complaints.startswith("imported\n") for end in ends)
    assert imports(tmp_path) == 1


@pytest.mark.parametrize("work", ["leaves", "exits", "aborts", "sleeps", "is_stopped"])
def test_a_fork_ends_as_a_new_interpreter_does(
    start: Callable[..., Worker], work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 2.0 if work in {"sleeps", "is_stopped"} else None
    forked = end_of(start(work, limit))
    monkeypatch.setenv(VARIABLE, "0")
    fresh = end_of(start(work, limit))
    assert (forked.code, forked.limit, forked.last_line) == (fresh.code, fresh.limit, fresh.last_line)
    assert (f"in {work}" in forked.stacks) == (f"in {work}" in fresh.stacks) == (work in {"aborts", "sleeps"})


def test_a_refusal_in_a_fork_keeps_its_exit_code(start: Callable[..., Worker]) -> None:
    with pytest.raises(RunRefusedError, match="not with me") as raised:
        end_of(start("refuses"))
    assert raised.value.exit_code == 2


def test_without_its_server_a_fork_ends_and_later_processes_start_without_it(
    start: Callable[..., Worker], tmp_path: Path
) -> None:
    with closing(start("echo")) as other:
        told = other.messages()
        assert next(told) == {"first": 1}
        with closing(start("kills_its_parent")) as worker:
            first, end = worker.messages()
        assert (end.code, end.words) == (-signal.SIGKILL, "SIGKILL")
        wait_until(lambda: not lives(first["pid"]))  # the system ends a fork after its parent, and reports no end of it
        assert next(told).code == -signal.SIGKILL
    assert (answer(start("echo")), imports(tmp_path)) == ({"first": 1}, 2)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", None),
        ("import os; os._exit(7)", 7),
        ("import os; os.abort()", -signal.SIGABRT),
    ],
    ids=["thread", "exit", "abort"],
)
def test_an_import_that_forbids_a_fork_is_left_to_each_process(
    start: Callable[..., Worker], tmp_path: Path, source: str, code: int | None
) -> None:
    (tmp_path / "libraries" / "slow.py").write_text(source, encoding="utf-8")
    for _ in range(2):
        with closing(start("echo")) as worker:
            heard = next(worker.messages())
        assert heard == {"first": 1} if code is None else heard.code == code
    assert imports(tmp_path) == 3


def test_an_import_that_fails_fails_in_the_process(start: Callable[..., Worker], tmp_path: Path) -> None:
    (tmp_path / "libraries" / "slow.py").write_text("raise ValueError('broken')", encoding="utf-8")
    with pytest.raises(RunRefusedError, match="broken"):
        end_of(start("echo"))


def test_a_hanging_import_is_ended_with_its_stacks(start: Callable[..., Worker], tmp_path: Path) -> None:
    (tmp_path / "libraries" / "slow.py").write_text("import time\ntime.sleep(600)", encoding="utf-8")
    end = end_of(start("echo", 2.0))
    assert (end.code, end.limit, "slow.py" in end.stacks) == (None, 2.0, True)


def test_a_process_that_is_closed_during_the_import_never_works(start: Callable[..., Worker], tmp_path: Path) -> None:
    (tmp_path / "libraries" / "slow.py").write_text("import time\ntime.sleep(0.5)", encoding="utf-8")
    (tmp_path / "user" / "odd_work.py").write_text("open('began', 'w')", encoding="utf-8")
    start("echo").close()
    (tmp_path / "user" / "odd_work.py").write_text(WORK, encoding="utf-8")
    assert answer(start("echo")) == {"first": 1}
    assert (imports(tmp_path), (tmp_path / "user" / "began").exists()) == (1, False)


def test_no_file_of_the_current_folder_is_imported_by_the_server(start: Callable[..., Worker], tmp_path: Path) -> None:
    (tmp_path / "user" / "slow.py").write_text("open('began', 'w')", encoding="utf-8")
    assert answer(start("echo")) == {"first": 1}
    assert not (tmp_path / "user" / "began").exists()


def test_changed_variables_have_a_server_of_their_own(
    start: Callable[..., Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    for name, value in (("GRADCONFORM_WAIT_SECONDS", "7"), ("OMP_NUM_THREADS", "7"), ("OMP_NUM_THREADS", "7")):
        monkeypatch.setenv(name, value)
        assert answer(start("describe"))["like a new interpreter"]["variables"][name] == value
        counted.append(imports(tmp_path))
    assert counted == [1, 2, 2]


def test_without_fork_each_process_starts_in_a_new_interpreter(
    start: Callable[..., Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer(start("echo", imports=())) == {"first": 1}
    monkeypatch.setattr(fork_server, "sys", SimpleNamespace(platform="win32"))
    assert answer(start("echo")) == {"first": 1}
    assert imports(tmp_path) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_no_process_outlives_an_ended_command(
    target: Callable[[str], str], command: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    name = target("def trouble(outputs):\n    ctypes.PyDLL(None).sleep(1000)")
    words = [*command, "run", name, "--checks", "full.gradients.mlp", "--ndjson", "run.ndjson"]
    kept = tmp_path / "run.ndjson"
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        wait_until(lambda: kept.exists() and b'"started"' in kept.read_bytes())
        (server,) = children_of(run.pid)
        (worker,) = children_of(server)
        run.send_signal(number)
    wait_until(lambda: not (lives(server) or lives(worker)))
    assert [one for one in (server, worker) if lives(one)] == []


def test_checks_that_crash_and_several_workers_cost_one_import_of_torch(
    judged: Callable[..., Any], target: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(COUNTS, encoding="utf-8")
    name = target("def trouble(outputs):\n    if outputs[0].dim() in (3, 4):\n        os.abort()")
    ids = [f"full.gradients.{case}" for case in ("conv2d", "linear-3d", "mlp")]
    variables = {"PYTHONPATH": str(tmp_path), "IMPORTS_OF_TORCH": str(tmp_path / "imports")}
    run = judged(name, "--checks", ",".join(ids), "-n", "2", **variables)
    assert [run.verdicts[one] for one in ids] == [("failed", "crash"), ("failed", "crash"), ("passed", None)]
    assert imports(tmp_path) == 1


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
