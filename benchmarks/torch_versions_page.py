"""Lay out docs/torch-versions.md from the results of torch_versions.py on each release."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from docstrings import docstring, first_sentence

ROOT = Path(__file__).parents[1]
SCRIPTS = [
    path
    for folder in (
        "quality/torch_releases", "quality/torch_2_13", "quality/torch_2_15", "schedule_text/torch_2_13",
        "pipeline/torch_2_13",
    )
    for path in sorted((ROOT / "tests" / folder).glob("*.py"))
]  # fmt: skip
EXIT_ENVIRONMENT, EXIT_INCOMPLETE = 4, 5
#: Commands that judge torch: they work if they end with 0, or report defects of torch and end with 1.
OF_TORCH = frozenset({
    "contract", "pipeline", "stage objects", "schedule text", "replay", "split in schedules", "split in steps",
})  # fmt: skip
SHOWN = "×"
NOT_RUN = "not run"
#: How a command counts the checks that a release cannot run.
_UNJUDGED = re.compile(r"(\d+) checks? could not be judged")
_NONE_RAN = re.compile(r": 0 of \d+ checks ran")
_PASSED = re.compile(r"(\d+) of (\d+) checks passed")
_FIGURE = re.compile(
    r"\d+ of \d+ (?:extra )?checks \w+(?:, \w+ by torch's runtime itself)?|"
    r"\d+ MUST(?: and \d+ SHOULD)? failed|\d+ passed|\d+ trials|"
    r"\d+ of \d+ faults killed, \d+ of \d+ right variants clean"
)
#: Faults of another dtype than float32, and those that need a missing feature of the release.
_UNTRIED = re.compile(r"\d+ faults? not tried")
#: The parts of an error that say nothing about the release: what was imported, and how to go on.
_AROUND = re.compile(r"^gradconform: |^device '\w+' cannot be used: .* raised UnavailableError: |; usable here: .*$")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: exit code, last line, seconds, its words, and whether Python told an error of its own.

    ``apart`` is how many checks the release cannot do, and ``why`` the reasons of most of them, with how many each;
    ``failed`` are the checks that failed, of a command that leaves a report. ``contract`` is the version of the
    contract that it says it judged, empty where it says none.
    """

    code: int
    line: str
    seconds: int
    words: str
    raised: bool = False
    apart: int = 0
    why: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    contract: str = ""


@dataclass(slots=True)
class Found:
    """What was found: how each command and each script ended, and the Python, by release."""

    commands: dict[str, dict[str, Ended]] = field(default_factory=dict)
    scripts: dict[str, dict[str, Ended]] = field(default_factory=dict)
    pythons: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Found:
        """Return what a file keeps, nothing where it is not there."""
        if not path.exists():
            return cls()
        kept = json.loads(path.read_text(encoding="utf-8"))
        return cls(ended_by_release(kept["commands"]), ended_by_release(kept["scripts"]), kept["pythons"])

    def write(self, path: Path) -> None:
        """Keep all of it in a file."""
        path.write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def add(self, release: str, group: str, name: str, outcome: Ended) -> None:
        """Add how a command or a script ended."""
        groups = {"commands": self.commands, "scripts": self.scripts}
        groups[group].setdefault(release, {})[name] = outcome


def ended_by_release(kept: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Ended]]:
    """Return what a file keeps of commands, or of scripts."""
    return {one: {name: Ended(**how) for name, how in ended.items()} for one, ended in kept.items()}


def cell(name: str, outcome: Ended | None) -> str:
    """Return what the table says of a command: works, unavailable, or what it ended with."""
    if outcome is None:
        return NOT_RUN
    unjudged = _UNJUDGED.search(outcome.line)
    none_ran = outcome.code == EXIT_INCOMPLETE and _NONE_RAN.search(outcome.line) is not None
    if none_ran or (outcome.code == EXIT_ENVIRONMENT and unjudged is None):
        return "unavailable"
    found = f": {parts}" if (parts := ", ".join(figures(name, outcome))) else ""
    if outcome.contract:
        found += f" (contract {outcome.contract})"
    if "--faults" in outcome.words:
        found = f"{found} with `{outcome.words[outcome.words.index('--faults') :]}`"
    right = outcome.code in (0, EXIT_ENVIRONMENT) or (outcome.code == 1 and name in OF_TORCH and not outcome.raised)
    return f"works{found}" if right else f"exit code {outcome.code}{found}"


def figures(name: str, outcome: Ended) -> Iterator[str]:
    """Yield the figures of a command: what its last line says, what failed without deciding it, what is unavailable."""
    figure = _FIGURE.search(outcome.line)
    if figure:
        yield figure[0]
    untried = _UNTRIED.search(outcome.line)
    if untried:
        yield untried[0]
    passed = _PASSED.search(outcome.line)
    if passed and name in OF_TORCH and (failed := int(passed[2]) - int(passed[1]) - outcome.apart):
        yield f"{failed} SHOULD failed"
    unjudged = _UNJUDGED.search(outcome.line)
    unavailable = int(unjudged[1]) if unjudged else outcome.apart
    if unavailable:
        yield f"{unavailable} unavailable"


def defect(outcome: Ended | None) -> str:
    """Return whether a release shows a defect: its script ends with 1, having said what it expected."""
    if outcome is None:
        return NOT_RUN
    if outcome.code < 0:
        return "crashes"
    if outcome.raised:
        return "raises"
    return {0: "", 1: SHOWN}.get(outcome.code, f"exit code {outcome.code}")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in Markdown."""
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]


def minor(release: str) -> str:
    """Return a release as a table's head has it: 2.6.0 as 2.6."""
    return release.rpartition(".")[0]


def spans(cells: Sequence[str], releases: Sequence[str]) -> tuple[str, str]:
    """Return in which release a defect appeared, and in which it was gone, for each time that it did, where it ran.

    What was not run on any release before may be older.
    """
    appeared, gone, before = [], [], NOT_RUN
    for one, now in zip(releases, cells, strict=True):
        if now == NOT_RUN:
            continue
        if now == SHOWN and before != SHOWN:
            appeared.append(f"{minor(one)} or before" if before == NOT_RUN else minor(one))
        if now != SHOWN and before == SHOWN:
            gone.append(minor(one))
        before = now
    return ", ".join(appeared), ", ".join(gone)


def described_by(path: Path) -> tuple[str, str]:
    """Return the first line of a script's docstring, and links to the issues that the docstring names."""
    numbers = dict.fromkeys(re.findall(r"#(\d{5,6})", docstring(path)))
    links = ", ".join(f"[#{number}](https://github.com/pytorch/pytorch/issues/{number})" for number in numbers)
    return first_sentence(path), links


def ranges(some: Collection[str], releases: Sequence[str]) -> str:
    """Return some of the releases in words, such as "2.6 to 2.8, 2.13"."""
    runs: list[list[str]] = []
    for one, before in zip(releases, ["", *releases], strict=False):
        if one in some and runs and before in some:
            runs[-1][1] = one
        elif one in some:
            runs.append([one, one])
    return ", ".join(" to ".join(map(minor, dict.fromkeys(run))) for run in runs)


def command_rows(found: Found, releases: Sequence[str], commands: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield a row per command and result: the command, the releases with this result, and the result."""
    for name, words in commands.items():
        cells = {one: cell(name, found.commands.get(one, {}).get(name)) for one in releases}
        for first, result in enumerate(dict.fromkeys(cells.values())):
            same = [one for one, of_one in cells.items() if of_one == result]
            yield ["" if first else f"`{' '.join(words)}`", ranges(same, releases), result]


def script_rows(found: Found, releases: Sequence[str]) -> Iterator[list[str]]:
    """Yield a row per script that was run: what it shows, from when to when, issues, and how else it ended where."""
    for path in SCRIPTS:
        cells = [defect(found.scripts.get(one, {}).get(path.stem)) for one in releases]
        if set(cells) == {NOT_RUN}:
            continue
        sentence, links = described_by(path)
        link = f"[{sentence.rstrip('.')}](../{path.relative_to(ROOT).as_posix()})"
        ends = {how: {r for r, of_one in zip(releases, cells, strict=True) if of_one == how} for how in cells}
        otherwise = [f"{how} on {ranges(some, releases)}" for how, some in ends.items() if how not in ("", SHOWN)]
        yield [link, *spans(cells, releases), links, ", ".join(otherwise)]


def reason_rows(found: Found, releases: Sequence[str], commands: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield a row per command and reason why checks are unavailable: releases, number of checks, and the reason."""
    for name, words in commands.items():
        by_reason: dict[tuple[str, str], list[str]] = {}
        for one in releases:
            outcome = found.commands.get(one, {}).get(name)
            for count, reason in reasons_of(outcome, one) if outcome else ():
                by_reason.setdefault((count, reason), []).append(one)
        for first, ((count, reason), some) in enumerate(by_reason.items()):
            yield ["" if first else f"`{' '.join(words)}`", ranges(some, releases), count, reason]


def reasons_of(outcome: Ended, release: str) -> Iterator[tuple[str, str]]:
    """Yield how many checks of a command are unavailable, and why; the release is not named in the reason."""
    if outcome.code == EXIT_ENVIRONMENT or _UNJUDGED.search(outcome.line):
        counted = re.search(r"\[1\] (\d+) checks?: (.*)", outcome.line)
        reasons = [(counted[1], counted[2])] if counted else [("all", outcome.line)]
    else:
        reasons = [(count, reason) for count, _, reason in (one.partition(" ") for one in outcome.why)]
    of_release = re.compile(rf"torch {re.escape(release)}(?:\+\w+)?(?=\W)")
    for count, reason in reasons:
        yield count, of_release.sub("torch", _AROUND.sub("", _AROUND.sub("", reason))).removeprefix("unavailable: ")


def page(found: Found, releases: Sequence[str], commands: Mapping[str, Sequence[str]]) -> str:
    """Return the page of what was found."""
    known = [one for one in releases if one in found.pythons]
    missing = [one for one in releases if one not in found.pythons]
    pythons = ", ".join(dict.fromkeys(found.pythons[one] for one in known))
    return "\n".join([
        "# What works on which release of torch, and what each gets wrong", "",
        "This page is for users of a certain release of torch. It shows which commands work there, and which defects",
        f"torch has. The releases are {', '.join(known)}:",
        f"the wheels of PyPI with Python {pythons}, on Linux and a CPU.",
        "`python benchmarks/torch_versions.py` writes it.",
        *([f"Not run: torch {', '.join(missing)}."] if missing else []), "",
        "## Commands", "",
        "A command *works* if it ends as expected. Commands that judge torch report torch's defects, not the kit's.",
        "Failures *by torch's runtime itself* also appear with plain autograd instead of [the right",
        "split](right-split.md). A result that names no contract is of an older one. The self-test tries only faults",
        "of float32. Its row is older than the others: more faults came later. In torch 2.8 and before, a gradient",
        "edge keeps no graph alive. There it also tries no fault that receives an edge instead of an output.",
        "CONTRIBUTING.md has the command that runs the kit's own tests on another release.",
        "",
        *table(["command", "torch", "result"], [*command_rows(found, known, commands)]), "",
        "*Unavailable* checks need what a release lacks or cannot do:",
        "",
        *table(["command", "torch", "checks", "reason"], [*reason_rows(found, known, commands)]), "",
        "## Defects of torch's stage backward, and of the code around it", "",
        "Each row is a script that uses only torch. It shows its defect from the release in *appeared in* until the",
        "one in *gone in*. *Raises* means that another error ends the script before it can show its defect. *Crashes*",
        "means that its process died. After a release that raises, a defect may be older than its *appeared in*.",
        "",
        "These scripts explain each check of the contract that fails on a release;",
        "[checks.toml](../tests/quality/torch_releases/checks.toml) and explained.toml in the other folders say which.",
        "",
        *table(["defect", "appeared in", "gone in", "issues", "otherwise"], [*script_rows(found, known)]), "",
    ])  # fmt: skip
