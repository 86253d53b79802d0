"""What works on which release of torch, and which defect of torch's stage backward is in which: docs/torch-versions.md.

Makes an environment per release, runs every command there, every script that tells a defect of torch (in
tests/quality/torch_releases and all folders torch_2_13 and torch_2_15), and deletes it: about 5 GB and a quarter of an
hour each. Each thing is kept as it is found in torch_versions.json, so that releases, and commands of a release, can be
run one by one:

    python benchmarks/torch_versions.py 2.15.0 --only pipeline --only scripts --write docs/torch-versions.md

Where no release is named, the page is written of what was found before; `all` runs all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from torch_versions_page import ROOT, SCRIPTS, Ended, Found, page

#: How much is kept of a line.
_LINE = 400
#: Where a rank stood: its number, a stage, a chunk, an action, an address.
_PLACE = re.compile(
    r" \(\[[\d.]+\]:.*?\)|rank \d+ |\[\d+\] (?:for chunk \d+ )?|,? (?:to stage \d+ )?"
    r"at (?:\d+[BIWF]\d+|the start of the case)"
)
#: What begins the reasons why checks are unsupported, and what ends them where a command tells but some.
_UNSUPPORTED, _MORE = re.compile(r"=+ unsupported: (\d+) check"), re.compile(r"and \d+ more reasons?; -v shows them")
#: How many reasons are kept why checks are unsupported, and how much of each.
_REASONS, _REASON = 8, 240
#: The version of the contract that a run says it judged.
_CONTRACT = re.compile(r"checks of contract (\d+\.\d+)")
#: What judges torch's runtime: there, what is unsupported is what the release lacks, not what a target does not claim.
_OF_RUNTIMES = frozenset({"gradconform pipeline", "gradconform stage-objects", "gradconform schedule-text"})
FOUND = Path(__file__).with_suffix(".json")
RELEASES = ("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
#: What no command of the kit takes, and no script.
LIMIT_S = 1800
#: Where a command that is asked to leaves its report.
REPORT = "report.json"

COMMANDS: dict[str, tuple[str, ...]] = {
    "contract": ("gradconform", "run", "torch", "--json", REPORT),
    "plugin": ("python", "-m", "pytest", "-q", "--gradconform", "reference-split", "--gradconform-profile", "quick"),
    "pipeline": ("gradconform", "pipeline", "torch", "--schedule", "all", "--ranks", "2"),
    "stage objects": ("gradconform", "stage-objects", "torch"),
    "schedule text": ("gradconform", "schedule-text", "torch"),
    "fuzz": ("gradconform", "fuzz", "reference-split", "--max-examples", "200"),
    "selftest": ("gradconform", "selftest", "--device", "cpu", "--dtype", "float32"),
    "lazy": ("gradconform", "run", "reference-split", "--device", "lazy", "--profile", "quick"),
    "simx": ("gradconform", "run", "reference-split", "--device", "simx", "--profile", "quick"),
    "simpy": ("gradconform", "run", "reference-split", "--device", "simpy", "--profile", "quick"),
    "replay": ("gradconform", "replay", "split.gradients.tied-apart", "torch"),
    "split in torch": ("python", "-m", "pytest", "-q", "tests/reference/test_in_torch.py"),
    "split in schedules": ("gradconform", "pipeline", "torch", "--fixed", "--schedule", "all", "--ranks", "2"),
    "split in steps": ("gradconform", "pipeline", "torch", "--fixed"),
}


def made(release: str, folder: Path) -> Path:
    """Make an environment with a release of torch, or take what is there, and install the kit; return its commands.

    The release is named whatever is there: an environment that was left half made would get the newest instead.
    """
    scripts = folder / "bin"
    pip = [str(scripts / "pip"), "install", "-q", "--no-cache-dir"]
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([*pip, "-c", "constraints.txt", f"torch=={release}", "pytest", "."], check=True, cwd=ROOT)
    return scripts


def ended(scripts: Path, words: Sequence[str], log: Path) -> Ended:
    """Run a command of an environment in a folder of its own, its output into ``log``; return how it ended."""
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "COLUMNS": "200"}
    command = [scripts / words[0], *(ROOT / word if word.startswith("tests/") else word for word in words[1:])]
    if " ".join(words[:2]) in _OF_RUNTIMES:
        command.append("-v")  # all reasons
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, log.open("w", encoding="utf-8") as output:
        try:
            code = subprocess.run(
                command, cwd=folder, env=variables, check=False, timeout=LIMIT_S, stdout=output,
                stderr=subprocess.STDOUT,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return Ended(124, f"took longer than {LIMIT_S} s", LIMIT_S, " ".join(words))
        if Path(folder, REPORT).exists():
            shutil.copy(Path(folder, REPORT), log.with_suffix(".json"))
    failed = failed_in(log.with_suffix(".json"))
    return replace(ended_in(log, code, round(time.monotonic() - begun), words), failed=failed)


def failed_in(report: Path) -> tuple[str, ...]:
    """Return the checks that failed by a report, none where there is no report."""
    results = json.loads(report.read_text(encoding="utf-8"))["results"] if report.exists() else []
    return tuple(sorted({result["check"] for result in results if result["status"] == "failed"}))


def ended_in(log: Path, code: int, seconds: int, words: Sequence[str]) -> Ended:
    """Return how something ended, with what it wrote last."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    raised = any(line.startswith("Traceback (most recent call last)") for line in lines)
    last = [*lines[-1:], *unjudged_in(lines)]
    unavailable, why = unsupported_in(lines) if " ".join(words[:2]) in _OF_RUNTIMES else (0, ())
    judged = next((found[1] for line in lines if (found := _CONTRACT.search(line))), "")
    return Ended(code, "; ".join(last)[:_LINE], seconds, " ".join(words), raised, unavailable, why, contract=judged)


def unjudged_in(lines: Sequence[str]) -> Iterator[str]:
    """Yield the causes for which checks could not be judged, with how many each."""
    within = False
    for line in lines:
        within = "could not be judged: " in line if line.startswith("=====") else within
        if within and re.match(r"\[\d+\] \d+ checks?: ", line):
            yield line


def unsupported_in(lines: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """Return how many checks a command tells to be unsupported, and the reasons of most of them, with how many each.

    What differs from process to process in a reason (ports, stages, micro-batches) is left out of it.
    """
    heads = [
        (place, int(found_head[1])) for place, line in enumerate(lines) if (found_head := _UNSUPPORTED.match(line))
    ]
    found: list[list[str]] = []
    for line in lines[heads[0][0] + 1 :] if heads else []:
        if _MORE.fullmatch(line.strip()):
            break
        if re.match(r" {1,4}\d+  \S", line):
            found.append(line.split(maxsplit=1))
        elif found and line.startswith("       "):
            found[-1][1] += f" {line.strip()}"
        else:
            break
    counts: Counter[str] = Counter()
    for count, reason in found:
        counts[_PLACE.sub("", reason)[:_REASON]] += int(count)
    number = heads[0][1] if heads else 0
    most = counts.most_common(_REASONS)
    rest = number - sum(count for _, count in most)
    others = (f"{rest} for other reasons",) if rest else ()
    return number, (*(f"{count} {reason}" for reason, count in most), *others)


def scripts_ended(scripts: Path, paths: Sequence[Path], logs: Path) -> Iterator[tuple[str, Ended]]:
    """Yield how each of the scripts ended, by its name."""
    log = logs / "scripts.txt"
    ended(scripts, ("python", str(Path(__file__).with_name("torch_scripts.py")), str(logs), *map(str, paths)), log)
    for line in log.read_text(encoding="utf-8").splitlines():
        if line.startswith("{"):
            outcome = json.loads(line)
            name = outcome["name"]
            yield name, ended_in(logs / f"{name}.txt", outcome["code"], outcome["seconds"], ("python", f"{name}.py"))


def outcomes(scripts: Path, options: argparse.Namespace, logs: Path) -> Iterator[tuple[str, str, Ended]]:
    """Yield what each command and each script comes to in an environment: its group, its name, and how it ended."""
    for name, words in COMMANDS.items():
        more = ("--faults", options.faults) if name == "selftest" and options.faults else ()
        if not options.only or name in options.only:
            yield "commands", name, ended(scripts, (*words, *more), logs / f"{name.replace(' ', '-')}.txt")
    chosen = [path for path in SCRIPTS if not options.only or {path.stem, "scripts"} & set(options.only)]
    for name, outcome in scripts_ended(scripts, chosen, logs) if chosen else ():
        yield "scripts", name, outcome


def python_of(scripts: Path, log: Path) -> str:
    """Return the version of Python of an environment."""
    return ended(scripts, ("python", "-c", "import platform; print(platform.python_version())"), log).line


def run(release: str, options: argparse.Namespace) -> None:
    """Run a release, and keep each thing as it is found beside what was found before."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.environments or Path(temporary)
        logs = folder / f"logs-{release}"
        logs.mkdir(parents=True, exist_ok=True)
        scripts = made(release, folder / release)
        for group, name, outcome in outcomes(scripts, options, logs):
            found = Found.read(options.found)
            found.add(release, group, name, outcome)
            found.pythons[release] = python_of(scripts, logs / "python.txt")
            found.write(options.found)
            print(f"torch {release}, {name}: {asdict(outcome)}", flush=True)


def main() -> None:
    """Run the releases that are named, keep what was found, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", help="releases of torch, or all")
    parser.add_argument("--found", type=Path, default=FOUND, help="the file that keeps what was found")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a command, a script, or scripts")
    parser.add_argument("--faults", metavar="GLOB", help="of the self-test, these alone, which the page says")
    parser.add_argument("--environments", type=Path, help="a folder that keeps the environments, and takes those there")
    parser.add_argument("--write", type=Path, help="the page")
    options = parser.parse_args()
    known = {*COMMANDS, *(path.stem for path in SCRIPTS), "scripts"}
    if unknown := sorted(set(options.only) - known):
        parser.error(f"--only {', '.join(unknown)}: no command and no script; a script is named without .py")
    for release in RELEASES if options.releases == ["all"] else options.releases:
        run(release, options)
    if options.write:
        options.write.write_text(page(Found.read(options.found), RELEASES, COMMANDS), encoding="utf-8")


if __name__ == "__main__":
    main()
