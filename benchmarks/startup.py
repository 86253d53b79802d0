"""What the installed but unused plugin costs at pytest's start: python benchmarks/startup.py [--rounds N].

Takes the processor time of `pytest --collect-only` in a folder with one empty test, where the kit is installed as a
user has it (a wheel beside pytest, and nothing else), where it is not, and where it is with `-p no:gradconform`, in
turn, and prints the median differences of the rounds; goal 5 ms. Switched off the plugin is not imported, and what is
left is pytest's: it reads the list of all files of whatever holds a plugin.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePath

from figures import ENVIRONMENT, Figure
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
GOAL_MS = 5.0
PYTEST = (sys.executable, "-S", "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")


def needed(name: str) -> dict[str, Distribution]:
    """Return a distribution and all that it needs, by name."""
    found, left = {}, [name]
    while left:
        name = left.pop()
        found[name] = distribution(name)
        needs = map(Requirement, found[name].requires or ())
        left += [one.name for one in needs if one.name not in found and (one.marker is None or one.marker.evaluate())]
    return found


def link_pytest(folder: Path) -> None:
    """Make a folder in which pytest is, and what it needs."""
    folder.mkdir()
    for one in needed("pytest").values():
        for name in {PurePath(file).parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            (folder / name).symlink_to(Path(str(one.locate_file(name))))


def install_kit(folder: Path) -> None:
    """Install the checkout into a folder, as pip installs a wheel."""
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check")
    subprocess.run([*pip, "--target", folder, ROOT], check=True, capture_output=True)


def milliseconds(folder: Path, path: tuple[Path, ...], *options: str) -> float:
    """Return the processor time of one pytest run: other processes do not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(str, path))}
    subprocess.run([*PYTEST, *options], cwd=folder, check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(rounds: int = 31) -> Figure:
    """Start pytest with the plugin, with the plugin switched off, and without the kit, in turn."""
    with tempfile.TemporaryDirectory() as name:
        tests, pytest, kit = (Path(name, part) for part in ("tests", "pytest", "kit"))
        tests.mkdir()
        (tests / "test_nothing.py").write_text("def test_nothing():\n    pass\n", encoding="utf-8")
        (tests / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        link_pytest(pytest)
        install_kit(kit)
        ways = {"with": ((pytest, kit),), "off": ((pytest, kit), "-p", "no:gradconform"), "without": ((pytest,),)}
        for way in ways.values():
            milliseconds(tests, *way)
        took = []
        for number in range(rounds):
            order = list(ways)[:: 1 if number % 2 else -1]
            took.append({way: milliseconds(tests, *ways[way]) for way in order})
    more = [one["with"] - one["without"] for one in took]
    listed = statistics.median(one["off"] - one["without"] for one in took)
    spread = statistics.quantiles(more, n=4)
    value = (
        f"{statistics.median(more):.1f} ms (quartiles {spread[0]:.1f} to {spread[2]:.1f}) of "
        f"{statistics.median(one['with'] for one in took):.0f} ms; {listed:.1f} ms of them where it is switched off"
    )
    return Figure("what the unused plugin adds to pytest's start", value, f"{GOAL_MS:.0f} ms", "startup.py")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    print(measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
