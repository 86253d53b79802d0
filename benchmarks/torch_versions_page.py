"""The page that docs/torch-versions.md is, of what torch_versions.py found on each release."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
#: Those that judge torch, whose defects they tell: right where they end with 1 as well as with 0.
OF_TORCH = frozenset({
    "contract", "pipeline", "stage objects", "schedule text", "replay", "split in schedules", "split in steps",
})  # fmt: skip
SHOWN = "×"
NOT_RUN = "not run"
#: What a release lacks for a part of a command.
_APART = re.compile(r"(\d+) checks? could not be judged")
_NONE_RAN = re.compile(r": 0 of \d+ checks ran")
_PASSED = re.compile(r"(\d+) of (\d+) checks passed")
_FIGURE = re.compile(
    r"\d+ of \d+ (?:extra )?checks \w+(?:, \w+ by torch's runtime itself)?|"
    r"\d+ MUST(?: and \d+ SHOULD)? failed|\d+ passed|\d+ trials|"
    r"\d+ of \d+ faults killed, \d+ of \d+ right variants clean"
)
#: Faults of another dtype than float32, and those that ask for what a release lacks.
_UNTRIED = re.compile(r"\d+ faults? not tried")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: exit code, last line, seconds, its words, and whether Python told an error of its own.

    ``apart`` is how many checks the release cannot do, and ``why`` the reasons of most of them, with how many each;
    ``failed`` are the checks that failed, of a command that leaves a report.
    """

    code: int
    line: str
    seconds: int
    words: str
    raised: bool = False
    apart: int = 0
    why: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


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
    unjudged = _APART.search(outcome.line)
    none_ran = outcome.code == EXIT_INCOMPLETE and _NONE_RAN.search(outcome.line) is not None
    if none_ran or (outcome.code == EXIT_ENVIRONMENT and unjudged is None):
        return "unavailable"
    told = f" ({parts})" if (parts := ", ".join(figures(name, outcome))) else ""
    if "--faults" in outcome.words:
        told = f"{told} with `{outcome.words[outcome.words.index('--faults') :]}`"
    right = outcome.code in (0, EXIT_ENVIRONMENT) or (outcome.code == 1 and name in OF_TORCH and not outcome.raised)
    return f"works{told}" if right else f"exit code {outcome.code}{told}"


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
    unjudged = _APART.search(outcome.line)
    apart = int(unjudged[1]) if unjudged else outcome.apart
    if apart:
        yield f"{apart} unavailable"


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


def told_by(path: Path) -> tuple[str, str]:
    """Return the first line of a script's docstring, and links to the issues that the docstring names."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    numbers = dict.fromkeys(re.findall(r"#(\d{5,6})", text))
    links = ", ".join(f"[#{number}](https://github.com/pytorch/pytorch/issues/{number})" for number in numbers)
    return text.partition("\n")[0], links


def command_rows(found: Found, releases: Sequence[str], commands: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return a row per command: its words, and what it came to on each release."""
    ended = {one: found.commands.get(one, {}) for one in releases}
    return [
        [f"`{' '.join(words)}`", *(cell(name, ended[one].get(name)) for one in releases)]
        for name, words in commands.items()
    ]


def script_rows(found: Found, releases: Sequence[str]) -> list[list[str]]:
    """Return a row per script: what it shows, where it is, issues, from when to when, and each release."""
    rows = []
    for path in SCRIPTS:
        cells = [defect(found.scripts.get(one, {}).get(path.stem)) for one in releases]
        sentence, links = told_by(path)
        link = f"[{sentence.rstrip('.')}](../{path.relative_to(ROOT).as_posix()})"
        rows.append([link, *spans(cells, releases), links, *cells])
    return rows


def reasons(found: Found, releases: Sequence[str], commands: Sequence[str]) -> list[str]:
    """Return why a command, or a part of it, is unavailable, release by release."""
    return [
        f"- torch {one}, {name}: {reason}"
        for one in releases
        for name in commands
        if (outcome := found.commands.get(one, {}).get(name))
        for reason in reasons_of(outcome)
    ]


def reasons_of(outcome: Ended) -> list[str]:
    """Return why a command, or a part of it, is unavailable, nothing where all of it is there."""
    if outcome.code == EXIT_ENVIRONMENT or _APART.search(outcome.line):
        return [outcome.line.removeprefix("gradconform: ")]
    return [f"{outcome.apart} of its checks: {'; '.join(outcome.why)}"] if outcome.apart else []


def page(found: Found, releases: Sequence[str], commands: Mapping[str, Sequence[str]]) -> str:
    """Return the page of what was found."""
    known = [one for one in releases if one in found.pythons]
    missing = [one for one in releases if one not in found.pythons]
    pythons = ["Python", *(found.pythons[one] for one in known)]
    heads = ["defect", "appeared in", "gone in", "issues", *(minor(one) for one in known)]
    return "\n".join([
        "# What works on which release of torch, and what each gets wrong", "",
        "Written by `python benchmarks/torch_versions.py`, on Linux, with the wheels of PyPI, on a CPU.",
        *([f"Not run: torch {', '.join(missing)}."] if missing else []), "",
        "This page is for users of a certain release of torch. A command *works* if it ends as expected; commands",
        "that judge torch report the defects of torch, not of the kit. *Unavailable* counts what the release",
        "lacks or cannot do, with the reason below. The self-test tries only faults of float32. In torch 2.8 and",
        "before, a gradient edge keeps no graph alive, so it also tries no fault that receives an edge instead of",
        "an output. What fails *by torch's runtime itself* also fails with plain autograd instead of [the right",
        "split](right-split.md). CONTRIBUTING.md has the line that runs the kit's own tests on another release.",
        "",
        *table(["", *known], [pythons, *command_rows(found, known, commands)]), "",
        *reasons(found, known, list(commands)), "",
        "## Which defect of torch's stage backward, and of what is around it, is in which release", "",
        f"Each row is a script that uses only torch; {SHOWN} means that it shows its defect on that release.",
        "*Raises* means that the release ends it with another error before its defect can show, and *crashes*",
        "that its process died. After a release that raises, a defect may be older than its *appeared* says.",
        "Each check of the contract that fails on a release is explained by one of them, by",
        "[checks.toml](../tests/quality/torch_releases/checks.toml) and explained.toml in the other folders.",
        "",
        *table(heads, script_rows(found, known)), "",
    ])  # fmt: skip
