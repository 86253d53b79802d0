"""Finds out about devices in processes of their own, with a time limit. Nothing here imports torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from gradconform.devices.asking import Answer, Asker, Probe
from gradconform.devices.questions import Request, probes
from gradconform.devices.selection import SelectionError
from gradconform.exit_words import exit_in_words

#: How long one process may take, in seconds: a first start of a driver, or a first build of a backend, takes its time.
TIME_LIMIT = 180.0
TIME_LIMIT_VARIABLE = "GRADCONFORM_PROBE_SECONDS"

#: How many questions of one type of device may end the process that asks them, before that is all that is said of it.
_LIVES = 8

# The current folder must not stand for what is imported first.
_START = "import sys; sys.path.pop(0); from gradconform.devices.probe_process import main; main(sys.argv[1])"


def probe_all(requests: Iterable[Request]) -> list[list[Probe]]:
    """Return the records for each request; the processes run side by side."""
    asked = list(requests)
    with ThreadPoolExecutor(max_workers=max(1, min(len(asked), os.cpu_count() or 1))) as pool:
        return list(pool.map(probe_apart, asked))


def probe_here(request: Request) -> list[Probe]:
    """Return the records for what only this process has made usable: asked in it, without a time limit."""
    return probes(request, Asker())


def probe_apart(request: Request) -> list[Probe]:
    """Return the records for one request. A question that kills the process, or hangs, has that for its answer."""
    known: dict[str, Answer] = {}
    for _ in range(_LIVES):
        found = _ask(request, known)
        if found is not None:
            return found
    said = [f"{question}: {answer.message}" for question, answer in known.items() if not answer.ok]
    reason = f"it ended {_LIVES} processes: {'; '.join(said)[-400:]}"
    return [Probe(device=request.type or "accelerator", reason=reason)]


def _ask(request: Request, known: dict[str, Answer]) -> list[Probe] | None:
    """Return the records, or None where the process ended over a question; ``known`` then has one answer more."""
    limit = time_limit()
    given = {**asdict(request), "path": sys.path, "known": {name: asdict(answer) for name, answer in known.items()}}
    with subprocess.Popen(  # noqa: S603 (this Python, and arguments of the kit's own)
        [sys.executable, "-c", _START, json.dumps(given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # so that a build it has started ends with it
    ) as process:
        try:
            told, complained = process.communicate(timeout=limit)
            code = process.returncode
            ended = f"ended the process {'with' if code >= 0 else 'by'} {exit_in_words(code)}"
        except subprocess.TimeoutExpired:
            _kill(process)
            told, complained = process.communicate()
            ended = f"did not return within {limit:g} s ({TIME_LIMIT_VARIABLE} sets the limit)"
    return _read(told, complained, ended, known)


def _read(told: str, complained: str, ended: str, known: dict[str, Answer]) -> list[Probe] | None:
    """Return the records in what the process told, or put into ``known`` what it was at."""
    at = "the start of a Python process"
    for line in told.splitlines():
        try:
            said: Mapping[str, Any] = json.loads(line)
        except ValueError:  # cut off in the middle
            continue
        if "probes" in said:
            return [Probe.from_dict(values) for values in said["probes"]]
        at = said.get("begin", at)
        if "answer" in said:
            known[said["end"]] = Answer(**said["answer"])
    if at in known:
        at = f"what comes after {at}"
    last = next((line.strip() for line in reversed(complained.splitlines()) if line.strip()), "")
    known[at] = Answer(ok=False, message=f"{at} {ended}{f': {last[:200]}' if last else ''}")
    return None


def _kill(process: subprocess.Popen[str]) -> None:
    """End the process, and what it has started where the system has process groups."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def time_limit() -> float:
    """Return the limit in seconds, from the environment where it says so."""
    given = os.environ.get(TIME_LIMIT_VARIABLE)
    if not given:
        return TIME_LIMIT
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        msg = f"{TIME_LIMIT_VARIABLE}={given!r} is no time limit; expected seconds, such as {TIME_LIMIT:g}"
        raise SelectionError(msg)
    return seconds
