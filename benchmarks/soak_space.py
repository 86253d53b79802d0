"""The faults of benchmarks/soak.py: command, fault, how, whom it meets, when; drawn from a seed.

Each pair of command and fault comes once before any comes again, and each time the way, the victim and the moment of it
are those that were met least so far.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, product

#: What a fault from outside meets, by command; the first is where a target is judged, or a device tried.
VICTIMS = {
    "run": ("worker", "command"),
    "pytest": ("worker", "command"),
    "pipeline": ("rank", "launcher", "command"),
    "device": ("probe", "worker", "command"),
    "bundle": ("command",),
}
#: The files that a command writes and that a disk can be too full for.
FILES = {
    "run": ("run.ndjson", "report.json", "TMPDIR", "stdout"),
    "pytest": ("run.ndjson", "report.json", "TMPDIR", "stdout"),
    "pipeline": ("report.json", "TMPDIR", "stdout"),
    "device": ("run.ndjson", "report.json", "TMPDIR", "stdout"),
    "bundle": ("bundle.zip", "TMPDIR", "stdout"),
}
#: What a target does to the process that it is in, by fault.
INSIDE = {
    "exit": ("exit 0", "exit 7", "abort", "SystemExit", "SIGKILL"),
    "fork": ("comes back", "daemons"),
    "hang": ("sleeps",),
    "hang locked": ("locked",),
    "memory": ("RLIMIT_AS",),
    "closed": ("closes all",),
}
#: What comes from outside. A command that is stopped goes on after a while: nothing else can end its stop.
OUTSIDE = {"kill": ("SIGKILL", "SIGTERM"), "stop": ("for good", "for a while"), "memory": ("prlimit",)}

#: Where a target or device meets its own fault. The command itself imports the target of a pipeline.
_PLACES = {
    "run": ("worker",),
    "pytest": ("worker",),
    "pipeline": ("rank", "command"),
    "device": ("probe", "worker"),
    "bundle": (),
}
_MOMENTS = ("import", "amid", "between", "end", "random")


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """What happens, to whom and when; ``once``: never again, in no other process either."""

    command: str
    fault: str
    how: str
    who: str
    moment: str
    once: bool = True

    @property
    def pair(self) -> tuple[str, str]:
        """Command and fault."""
        return self.command, self.fault

    @property
    def inside(self) -> bool:
        """Whether the target does it itself."""
        return self.how in INSIDE.get(self.fault, ())

    @property
    def name(self) -> str:
        """What ``--only`` is held against."""
        return f"{self.command}/{self.fault}"

    def values(self) -> Iterator[object]:
        """Yield what is to be met as often as all else: each pair of values of this one."""
        fields = (self.command, self.fault, self.how, self.who, self.moment, self.once)
        yield from ((i, fields[i], j, fields[j]) for i in range(len(fields)) for j in range(i))
        yield from [(self.command, self.how)] * len(fields)  # each way comes in each command first of all


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a soak, repeated by its number and the seed. ``seed`` is what its other values are drawn from."""

    number: int
    kind: Kind
    seed: str


def kinds() -> list[Kind]:
    """Return all that can happen."""
    return sorted({*_inside(), *_outside(), *_full()})


def _inside() -> Iterator[Kind]:
    for command, places in _PLACES.items():
        for (fault, ways), place, moment, once in product(INSIDE.items(), places, ("import", "amid"), (True, False)):
            if moment == "import" or place not in {"probe", "command"}:  # which judge nothing
                # What is started in the command's own process stays, which docs/limits.md says.
                kept = (how for how in ways if (place, how) != ("command", "daemons"))
                yield from (Kind(command, fault, how, place, moment, once) for how in kept)


def _outside() -> Iterator[Kind]:
    for command, victims in VICTIMS.items():
        moments = ("random",) if command == "bundle" else _MOMENTS
        for (fault, ways), who, moment in product(OUTSIDE.items(), victims, moments):
            if who == "probe" and moment not in {"import", "random"}:  # it is gone by then
                continue
            yield from (Kind(command, fault, how, who, moment) for how in ways if (how, who) != ("for good", "command"))


def _full() -> Iterator[Kind]:
    for command, files in FILES.items():
        yield from (Kind(command, "full disk", "tmpfs", file, "random") for file in files if file != "stdout")
        yield Kind(command, "full disk", "/dev/full", "stdout", "random")


def drawn(seed: int) -> Iterator[Fault]:
    """Yield faults without end; the same for the same seed."""
    draw = random.Random(seed)  # noqa: S311 (moments, no secrets)
    met: Counter[object] = Counter()
    left: dict[tuple[str, str], list[Kind]] = {}
    numbers = count(1)
    while True:
        pairs = sorted({kind.pair for kind in kinds()})
        draw.shuffle(pairs)
        for pair in pairs:
            if not left.get(pair):
                left[pair] = [kind for kind in kinds() if kind.pair == pair]
                draw.shuffle(left[pair])
            kind = min(left[pair], key=lambda one: sum(met[value] for value in one.values()))
            left[pair].remove(kind)
            met.update(kind.values())
            number = next(numbers)
            yield Fault(number, kind, f"{seed}/{number}")
