"""The commands of benchmarks/soak.py, and which exit codes are right after a fault, with the reason."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from soak_space import Kind

from gradconform.exits import EXIT_CONFORMS, EXIT_DOES_NOT, EXIT_ENVIRONMENT, EXIT_INCOMPLETE, EXIT_USAGE

#: The checks that are run, in the order of the plan; outputs of the first have four dimensions, of the second three.
CHECKS = tuple(f"full.gradients.{name}" for name in ("conv2d", "linear-3d", "mlp", "residual"))
_ON_DEVICE = CHECKS[1:]
#: The number of results that a whole run has.
RESULTS = {"run": len(CHECKS), "pytest": len(CHECKS), "pipeline": 2, "device": len(_ON_DEVICE), "bundle": 0}

#: What a check, and what a start, may take in seconds: a busy machine takes some.
CHECK_TIMEOUT, START_TIMEOUT, PIPELINE_TIMEOUT = 15, 40, 60

_KIT = (sys.executable, "-m", "gradconform")
_LIMITS = ("--check-timeout", str(CHECK_TIMEOUT), "--start-timeout", str(START_TIMEOUT))


def words(command: str, files: Mapping[str, Path]) -> list[str]:
    """Return a command; ``files`` are where its files go, by name."""
    if command == "bundle":
        return [*_KIT, "bundle", "whole.json", "-o", str(files["bundle.zip"])]
    kept, report = str(files.get("run.ndjson")), str(files["report.json"])
    if command == "pipeline":
        few = ("--schedule", "GPipe", "--checks", "*.two-steps,*.tied", "--timeout", str(PIPELINE_TIMEOUT))
        return [*_KIT, "pipeline", "target.py", *few, "--json", report]
    if command == "pytest":
        plugins = ("-p", "no:cacheprovider", "-n", "2")
        options = {"": "target.py", "-json": report, "-ndjson": kept}
        return [
            *(sys.executable, "-m", "pytest", *plugins),
            *(f"--gradconform{name}={value}" for name, value in options.items()),
            *(f"--gradconform-checks={check}" for check in CHECKS),
        ]
    if command == "device":
        device = ("--device", "simpy", "--device-plugin", "faulty_device", "--checks", ",".join(_ON_DEVICE))
        return [*_KIT, "run", "target.py", *device, *_LIMITS, "--ndjson", kept, "--json", report]
    checks = ("--checks", ",".join(CHECKS), *_LIMITS)
    return [*_KIT, "run", "target.py", *checks, "--ndjson", kept, "--json", report]


def undisturbed(command: str) -> int:
    """Return the exit code without a fault: a few checks alone are no verdict, pytest's tests all pass."""
    return EXIT_CONFORMS if command in {"bundle", "pytest"} else EXIT_INCOMPLETE


def expected(kind: Kind) -> tuple[set[int], str]:
    """Return the exit codes that are right after a fault, and why."""
    usual = undisturbed(kind.command)
    if kind.fault == "full disk":
        codes = {EXIT_ENVIRONMENT} if kind.command != "pytest" else {1, 3}
        return {usual, *codes}, "the environment failed, where the room was too little"
    if kind.who == "command" and not kind.inside:
        return _of_command(kind, usual)
    if kind.command == "pytest":
        return _of_pytest(kind, usual)
    if kind.fault in {"kill", "stop"} or kind.how == "prlimit":
        return _from_outside(kind, usual)
    return _of_target(kind, usual)


def _of_command(kind: Kind, usual: int) -> tuple[set[int], str]:
    if kind.fault == "kill":
        return {-signal.Signals[kind.how]}, "the signal ended the command"
    if kind.fault == "stop":
        return {usual}, "the command goes on"
    # Python itself ends with 1 where its memory does not last until the command begins.
    return {usual, EXIT_ENVIRONMENT, 1, *({3} if kind.command == "pytest" else ())}, "memory enough, or too little"


def _of_pytest(kind: Kind, usual: int) -> tuple[set[int], str]:
    if kind.how in {"daemons", "for a while"}:
        return {usual}, "the tests pass"
    if kind.moment == "amid" and kind.fault not in {"hang", "hang locked", "stop"}:
        return {1, *({usual} if kind.how == "prlimit" else ())}, "the test fails"
    if kind.moment == "amid" or (kind.inside and kind.fault in {"hang", "hang locked"}):
        return {2, -signal.SIGINT}, "pytest has no limit of time: ctrl-C ended it"
    if kind.moment == "import" and kind.how != "for good":
        nothing_ran = set() if kind.once else {EXIT_INCOMPLETE}
        return {usual, 1, 2, 3, *nothing_ran}, "pytest-xdist lost a worker before its tests"
    return {usual, 1, 2, 3, -signal.SIGINT}, "a test fails where the worker was at one, or ctrl-C ended it"


def _from_outside(kind: Kind, usual: int) -> tuple[set[int], str]:
    if kind.how == "for a while":
        return {usual}, "the process goes on in time"
    if kind.moment == "amid" and kind.who in {"worker", "launcher"} and kind.how != "prlimit":
        return {EXIT_ENVIRONMENT}, "the check is an error of the environment"
    if kind.command == "pipeline":
        return {usual, EXIT_DOES_NOT, EXIT_ENVIRONMENT}, "charged to the target where a rank was in it"
    return {usual, EXIT_ENVIRONMENT}, "the check is an error of the environment, where it was at one"


def _of_target(kind: Kind, usual: int) -> tuple[set[int], str]:
    if kind.how == "daemons":
        return {usual}, "that harms nobody"
    if kind.moment == "import":
        return _of_import(kind, usual)
    if kind.how in {"comes back", "SystemExit"} or kind.command == "pipeline" or not kind.once:
        return {EXIT_DOES_NOT}, "the target fails its check"
    return {EXIT_ENVIRONMENT}, "run once more the check passes: an error of the environment"


def _of_import(kind: Kind, usual: int) -> tuple[set[int], str]:
    codes = {EXIT_USAGE, EXIT_ENVIRONMENT, *({EXIT_DOES_NOT} if kind.who == "rank" else ())}
    if kind.how == "comes back":
        return {usual, *codes}, "the child is ended, or the target refused"
    lasts = kind.fault in {"hang", "hang locked"} or kind.how == "SystemExit"
    if (kind.once and not lasts) or (kind.fault == "closed" and kind.who == "command"):
        codes.add(usual)
    return codes, "the target cannot be imported; another process may have more luck"
