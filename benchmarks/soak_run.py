"""One fault of benchmarks/soak.py: a command is begun in a folder of its own, struck, and looked after."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from soak_commands import RESULTS, expected, undisturbed, words
from soak_processes import end, left_after, of_folder, shared_memory, strike
from soak_space import VICTIMS, Fault

from gradconform.files.records import RecordsError
from gradconform.reading.record_file import read_run
from gradconform.reading.report import ReportError, read_report

HERE = Path(__file__).parent
#: How long a command may take, a session of pytest that hangs until it is interrupted, and what is to end, in seconds.
_NO_END, _HANGS, _GONE = 600.0, 30.0, 20.0
#: How long a command that is stopped stays so, at most; a worker that goes on in time stays so for less than a check.
_STOPPED = 3.0
#: How long a random moment may be off, in seconds, by command.
_LONGEST = {"run": 8.0, "pytest": 8.0, "pipeline": 14.0, "device": 12.0, "bundle": 1.5}
_LOOK = 0.02


@dataclass(slots=True)
class Outcome:
    """What came of a fault.

    ``struck`` is false where the command had ended before. ``kept`` says what there was to go on with, ``problems``
    what was not as it has to be.
    """

    fault: Fault
    code: int | None = None
    struck: bool = False
    codes: set[int] = field(default_factory=set)
    why: str = ""
    kept: str = ""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


class Struck:
    """A command that a fault meets, in ``folder``; ``whole`` is a report that a bundle can be made of."""

    def __init__(self, fault: Fault, folder: Path, whole: Path | None) -> None:
        """Lay out the folder."""
        self.fault, self.kind, self.folder = fault, fault.kind, folder
        self.draw = random.Random(fault.seed)  # noqa: S311 (moments, no secrets)
        self.seen: set[int] = set()
        self.work, self.temporary = folder / "work", folder / "tmp"
        self.files = {name: self.work / name for name in ("run.ndjson", "report.json", "bundle.zip")}
        for made in (self.work, self.temporary):
            made.mkdir(parents=True)
        self.mounted: Path | None = None
        self.limited = 0
        if whole is not None:
            shutil.copy(whole, self.work / "whole.json")
        shutil.copy(HERE / "soak_target.py", self.work / "target.py")
        source = "import gradconform.plugins.devices.simpy\nimport target\n"
        (self.work / "faulty_device.py").write_text(source, encoding="utf-8")
        self._write_target_fault()
        if self.kind.fault == "full disk":
            self._fill()

    def _write_target_fault(self) -> None:
        place = self.kind.who if self.kind.inside else VICTIMS[self.kind.command][0]
        waits = self.kind.inside or self.kind.moment in {"import", "amid"}
        given = {
            **asdict(self.kind),
            "inside": self.kind.inside,
            "moment": self.kind.moment if waits and self.kind.fault != "full disk" else "none",
            "place": place if self.kind.moment == "import" or place != "probe" else "worker",
            "dim": self.draw.choice((3, 4)) if self.kind.command in {"run", "pytest"} else 3,
            "call": self.draw.randint(2, 9) if self.kind.command == "pipeline" else 0,
            "rank": str(self.draw.randrange(2)),
        }
        (self.folder / "fault.json").write_text(json.dumps(given), encoding="utf-8")

    def _fill(self) -> None:
        """Let one of the files stand on a disk that is nearly full; where none can be mounted, limit all files."""
        if self.kind.how != "tmpfs":
            return
        pages = self.draw.randint(1, 12)
        place = self.temporary if self.kind.who == "TMPDIR" else self.folder / "full"
        place.mkdir(exist_ok=True)
        given = ["mount", "-t", "tmpfs", "-o", f"size={4 * pages}k", "tmpfs", str(place)]
        done = subprocess.run(given, check=False, capture_output=True)
        if done.returncode:
            self.limited = 4096 * pages
            return
        self.mounted = place
        if self.kind.who != "TMPDIR":
            self.files[self.kind.who] = place / self.kind.who

    def unmount(self) -> None:
        """Take the small disk away."""
        if self.mounted is not None:
            subprocess.run(["umount", "-l", str(self.mounted)], check=True)  # noqa: S607 (the system's own umount)

    def environment(self) -> dict[str, str]:
        """Return the environment of the command."""
        own = {"GRADCONFORM_SOAK": str(self.folder), "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **own, "CI": "1"}

    def begin(self, out: IO[bytes] | int, *given: str) -> subprocess.Popen[bytes]:
        """Begin a command."""
        limit = self.limited

        def limits() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it
            if limit:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        return subprocess.Popen(
            given, cwd=self.work, env=self.environment(), stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT if out != subprocess.DEVNULL else out,
            preexec_fn=limits,  # noqa: PLW1509 (limits of the child alone; it takes no lock)
        )  # fmt: skip

    def judge(self) -> Outcome:
        """Run the command to its end, whatever meets it, and look after it."""
        outcome = Outcome(self.fault)
        started = time.monotonic()
        try:
            self._meet(outcome)
            self._look_after(outcome)
        finally:
            end(of_folder(self.folder))
            self.unmount()
        outcome.seconds = time.monotonic() - started
        return outcome

    def _meet(self, outcome: Outcome) -> None:
        given = words(self.kind.command, self.files)
        with (self.folder / "out.txt").open("wb") as out, Path("/dev/full").open("wb", buffering=0) as full:
            process = self.begin(full if self.kind.who == "stdout" else out, *given)
            outside = not self.kind.inside and self.kind.fault != "full disk"
            if outside:
                outcome.struck = self._strike(process)
            (self.folder / "go").touch()
            outcome.code = self._wait(process, outcome)
        if not outside:
            outcome.struck = self.kind.fault == "full disk" or (self.folder / "struck").exists()
        outcome.codes, outcome.why = expected(self.kind)
        if not outcome.struck:
            outcome.codes, outcome.why = {undisturbed(self.kind.command)}, "it had ended before"
        if outcome.code not in outcome.codes:
            outcome.problems.append(f"exit code {outcome.code}, expected {sorted(outcome.codes)}: {outcome.why}")

    def _strike(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for the moment, and strike; return whether there was somebody to be struck."""
        begun = time.monotonic()
        delay = self.draw.uniform(0, _LONGEST[self.kind.command] if self.kind.moment == "random" else 0.3)
        while not self._is_time(begun, delay):
            if process.poll() is not None:
                return False
            self.seen |= set(of_folder(self.folder))
            time.sleep(_LOOK)
        if self.kind.moment != "random":
            time.sleep(delay)
        victim = None
        while victim is None:
            if process.poll() is not None:
                return False
            found = of_folder(self.folder)
            self.seen |= set(found)
            victims = sorted(number for number, role in found.items() if role == self.kind.who)
            if self.kind.who == "command":
                victims = [process.pid]
            elif (waits := self._waits()) in victims:
                victims = [waits]
            victim = self.draw.choice(victims) if victims else None
            if victim is None and (self.folder / "struck").exists():
                (self.folder / "go").touch()  # the command itself is where it was to be struck
        return self._strike_one(victim)

    def _waits(self) -> int | None:
        """Return the process that waits for the fault, if one does."""
        try:
            return int((self.folder / "struck").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def _strike_one(self, victim: int) -> bool:
        stopped = self.draw.uniform(0.5, _STOPPED)
        try:
            strike(victim, self.kind.how)
            if self.kind.how == "for a while":
                (self.folder / "go").touch()
                time.sleep(stopped)
                os.kill(victim, signal.SIGCONT)
        except (ProcessLookupError, FileNotFoundError):
            return False
        return True

    def _is_time(self, begun: float, delay: float) -> bool:
        if self.kind.moment == "random":
            return time.monotonic() - begun >= delay
        if self.kind.moment in {"import", "amid"}:
            return (self.folder / "struck").exists()
        wanted = RESULTS[self.kind.command]
        return self._results() >= (wanted if self.kind.moment == "end" else 1)

    def _results(self) -> int:
        """Return how many results have been written down so far."""
        if self.kind.command == "pipeline":
            files = list(self.temporary.rglob("rank-0.ndjson"))
        else:
            files = [self.files["run.ndjson"]]
        found = 0
        for file in files:
            with suppress(OSError):
                held = file.read_bytes()
                found += held.count(b"\n") if self.kind.command == "pipeline" else held.count(b'{"record":"result"')
        return found

    def _wait(self, process: subprocess.Popen[bytes], outcome: Outcome) -> int | None:
        """Wait for the end; a session of pytest that hangs is interrupted, as by a person."""
        may_hang = self.kind.command == "pytest" and self.kind.fault in {"stop", "hang", "hang locked", "fork"}
        until, interrupt = time.monotonic() + _NO_END, math.inf
        while process.poll() is None and time.monotonic() < until:
            self.seen |= set(of_folder(self.folder))
            if may_hang and (outcome.struck or (self.folder / "struck").exists()):
                may_hang, interrupt = False, time.monotonic() + _HANGS
            if time.monotonic() > interrupt:
                process.send_signal(signal.SIGINT)
                interrupt = math.inf
            time.sleep(0.1)
        if process.poll() is None:
            outcome.problems.append(f"no end within {_NO_END:.0f} s")
            end(of_folder(self.folder))
        return process.wait()

    def _look_after(self, outcome: Outcome) -> None:
        # What a target starts in a process of pytest's stays, as docs/limits.md says.
        stays = self.kind.command == "pytest" and self.kind.how == "daemons"
        left = left_after(self.folder, _GONE)
        if left and not stays:
            outcome.problems.append(f"processes left: {', '.join(sorted(left.values()))}")
        end(left)
        names = {file.name for file in self.work.iterdir()} | {file.name for file in (self.folder / "full").glob("*")}
        strange = names - {"whole.json", "target.py", "faulty_device.py", "__pycache__", *self.files}
        of_pytest = "pytest-of-" if self.kind.command == "pytest" else "/"  # pytest-xdist keeps an empty folder there
        strange |= {f"TMPDIR/{file.name}" for file in self.temporary.iterdir() if not file.name.startswith(of_pytest)}
        strange |= set(shared_memory(self.seen))
        if strange:
            outcome.problems.append(f"files left: {', '.join(sorted(strange))}")
        try:
            outcome.kept = self._kept(outcome)
        except (ReportError, RecordsError, AssertionError) as error:
            outcome.problems.append(f"not to be gone on with: {error}")

    def _kept(self, outcome: Outcome) -> str:
        """Return what is left to go on with, after having gone on with it."""
        if self.kind.command == "bundle":
            return self._bundled(outcome)
        report, kept = self.files["report.json"], self.files["run.ndjson"]
        if report.exists():
            found = read_report(str(report))
            places = [result.place for result in found.results]
            _hold(len(set(places)) == len(places), "a result is there twice")
            if len(places) == found.planned:
                return "whole report"
            _hold(outcome.code != undisturbed(self.kind.command), "a report that is not whole, and the usual exit code")
        if self.kind.command == "pipeline":
            return "part of a report" if report.exists() else "nothing"
        if not kept.exists():
            return "nothing begun"
        self.unmount_for_more()
        return self._gone_on_with(self.files["run.ndjson"])

    def unmount_for_more(self) -> None:
        """Make room: what stands on the small disk is moved away."""
        (self.folder / "fault.json").write_text(
            json.dumps({**json.loads((self.folder / "fault.json").read_text()), "moment": "none"}), encoding="utf-8"
        )
        self.limited = 0
        if self.mounted is None:
            return
        if self.kind.who != "TMPDIR":
            for name, path in self.files.items():
                if path.exists() and path.parent == self.mounted:
                    self.files[name] = Path(shutil.move(str(path), self.work / name))
        self.unmount()
        self.mounted = None

    def _gone_on_with(self, kept: Path) -> str:
        """Go on with the record; nothing is lost, and nothing is there twice."""
        empty = kept.stat().st_size == 0
        before: Mapping[Any, Any] = {} if empty else read_run(str(kept)).results
        resumed = self.work / "resumed.json"
        how = words(self.kind.command, {**self.files, "report.json": resumed})
        if not empty:
            how = [*words("run", self.files)[:3], "run", "--resume", str(kept), "--json", str(resumed)]
        with (self.folder / "resumed.txt").open("wb") as out:
            code = self.begin(out, *how).wait()
        output = (self.folder / "resumed.txt").read_text(errors="replace")[-300:]
        _hold(resumed.exists(), f"--resume gave exit code {code} and no report: {output}")
        report = read_report(str(resumed))
        twice = [place for place, times in Counter(result.place for result in report.results).items() if times > 1]
        _hold(not twice, "a result is there twice")
        _hold(len(report.results) == RESULTS[self.kind.command], f"{len(report.results)} results after --resume")
        _hold({*before} <= {result.place for result in report.results}, "a result was lost")
        records = [json.loads(line) for line in kept.read_bytes().splitlines()]
        written = Counter(record["check"] for record in records if record["record"] == "result")
        _hold(set(written.values()) == {1}, "a result was recorded twice")
        return "begun anew" if empty else "resumed"

    def _bundled(self, outcome: Outcome) -> str:
        path = self.files["bundle.zip"]
        if not path.exists():
            _hold(outcome.code != 0, "no bundle, and exit code 0")
            return "nothing"
        self.unmount_for_more()
        with (self.folder / "verified.txt").open("wb") as out:
            code = self.begin(out, *words("run", self.files)[:3], "verify", str(self.files["bundle.zip"])).wait()
        _hold(code == 0, f"verify gave exit code {code}")
        return "whole bundle"


def _hold(holds: bool, problem: str) -> None:  # noqa: FBT001 (it reads as an assertion, which python -O takes away)
    if not holds:
        raise AssertionError(problem)


def remove(folder: Path) -> None:
    """Remove the folder of a fault that left nothing behind."""
    shutil.rmtree(folder, ignore_errors=True)


def whole_report(folder: Path) -> Path:
    """Make the report of a whole run of profile full, of plain autograd, which a bundle can be made of."""
    path = folder / "whole.json"
    given = [*words("run", {"report.json": path})[:3], "run", "autograd", "--profile", "full", "--json", str(path)]
    done = subprocess.run(
        given, cwd=folder, capture_output=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        msg = f"autograd does not conform here, exit code {done.returncode}: {done.stderr.decode()[-500:]}"
        raise RuntimeError(msg)
    return path
