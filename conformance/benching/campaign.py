"""Runs the commands of the bench, and reports each defect when its two commands have ended."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from gradconform.bench import Defect
from gradconform.process.orphans import Orphans
from gradconform.process.pipes import Message
from gradconform.process.worker import Exit, Worker

from .command_report import CommandReport, report_of_command
from .commands import OUTPUT, REPORT
from .outcome import Outcome

#: What one command may take, in seconds: the longest takes a tenth of it on a free machine.
LONGEST = 600.0

Words = tuple[str, ...]


def judge_bench(
    defects: Sequence[Defect],
    command: str,
    *,
    workers: int,
    imports: Sequence[str] = (),
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> None:
    """Judge each defect and its fixed version by its command, ``workers`` commands at a time.

    ``command``, ``module:function``, runs a command from its words, and ``imports`` are modules that it needs. Outcomes
    are reported when they are ready. Two defects with the same fixed version and command share its run. An interrupt or
    an error ends running commands.
    """
    reported: dict[Words, CommandReport] = {}
    left = list(defects)
    commands = list(dict.fromkeys(words for defect in defects for words in _both(defect)))
    with closing(_reports(commands, command, workers, imports)) as telling:
        for one in telling:
            reported[one.command] = one
            for defect in [defect for defect in left if reported.keys() >= {*_both(defect)}]:
                left.remove(defect)
                on_outcome(Outcome(defect, *(reported[words] for words in _both(defect))))


def _both(defect: Defect) -> tuple[Words, Words]:
    return defect.words(defect.broken), defect.words(defect.fixed)


def _reports(
    commands: Sequence[Words], command: str, workers: int, imports: Sequence[str]
) -> Generator[CommandReport, None, None]:
    """Yield the results of commands in the order of their ends."""
    with tempfile.TemporaryDirectory(prefix="gradconform-bench-") as folder, closing(Orphans()):
        given = {"command": command, "imports": imports, "commands": commands, "at_once": workers}
        given |= {"within": folder, "longest": LONGEST}
        left = dict(enumerate(commands))
        with closing(Worker("gradconform.benching.commands:run_commands", given, quiet=True)) as worker:
            for message in worker.messages():
                if isinstance(message, Exit):
                    lost = (f"the process that runs commands ended with {message.words}: {message.last_line}",)
                    yield from (
                        CommandReport(command=words, exit_code=-1, seconds=0.0, errors=lost) for words in left.values()
                    )
                else:
                    yield _read(left.pop(message["number"]), Path(folder, str(message["number"])), message)


def _read(command: Words, own: Path, message: Message) -> CommandReport:
    """Return a command's result from its folder."""
    output = (own / OUTPUT).read_text(encoding="utf-8", errors="replace") if (own / OUTPUT).exists() else ""
    reported = report_of_command(command, message["code"], message["seconds"], own / REPORT, output)
    return replace(reported, processor=message["busy"])
