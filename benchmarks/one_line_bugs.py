"""How ten one-line bugs are reported: python benchmarks/one_line_bugs.py.

Each bug is a right split (`reference/walked_twice.py`) with one line changed, judged by
`gradconform run backward.py` in an empty folder.
The table has the checks that fail, the causes before and after the largest mistake is undone, and the lines printed.
It exits with 1 if a bug prints more than 40 lines.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from gradconform.reading.report import read_report
from gradconform.reference import walked_twice
from gradconform.report.sections import sections
from gradconform.report.terminal import closing
from gradconform.results import Report

#: What a run with one bug prints at most.
MOST = 40

_RUN = "torch.autograd.backward(edges, grads, inputs=trainable, retain_graph=retain_graph)"
_TRAINABLE = "trainable = [parameter for parameter in dict.fromkeys(parameters) if parameter.requires_grad]"
_RETURNED = "    return found, [group]\n"


@dataclass(frozen=True, slots=True)
class Bug:
    """A line of the right split, and what takes its place."""

    name: str
    what: str
    line: str
    wrong: str

    def source(self) -> str:
        """Return the module with the bug; raise ``ValueError`` if the line is not there once."""
        right = Path(walked_twice.__file__).read_text(encoding="utf-8").replace("from .", "from gradconform.reference.")
        return self.into(right)

    def into(self, source: str) -> str:
        """Return a module with the bug as well; raise ``ValueError`` if the line is not there once."""
        if source.count(self.line) != 1:
            msg = f"{self.name}: {self.line!r} is there {source.count(self.line)} times; expected once"
            raise ValueError(msg)
        return source.replace(self.line, self.wrong)


BUGS = (
    Bug(
        "keeps-first",
        "W adds nothing where a gradient is",
        "        if starts and trainable:\n",
        "        if starts and (trainable := [one for one in trainable if one.grad is None]):\n",
    ),
    Bug(
        "overwrites",
        "W clears what was there",
        "        if starts and trainable:\n",
        "        if starts and [setattr(one, 'grad', None) for one in trainable]:\n",
    ),
    Bug("doubles-w", "W adds twice the gradient", _RUN, _RUN.replace("grads,", "[2 * one for one in grads],")),
    Bug(
        "drops-last",
        "W leaves out the last parameter",
        _TRAINABLE,
        _TRAINABLE.replace("dict.fromkeys(parameters)", "list(dict.fromkeys(parameters))[:-1]"),
    ),
    Bug(
        "drops-vectors",
        "W leaves out parameters of one dimension",
        _TRAINABLE,
        f"{_TRAINABLE[:-1]} and parameter.dim() != 1]",
    ),
    Bug(
        "reverses-inputs",
        "I returns the input gradients in reverse order",
        _RETURNED,
        "    return found[::-1], [group]\n",
    ),
    Bug(
        "first-output",
        "only the first output counts in I and W",
        "roots, grads = match(list(stage_outputs_or_loss), output_grads)",
        "roots, grads = (some[:1] for some in match(list(stage_outputs_or_loss), output_grads))",
    ),
    Bug(
        "zeros-for-none",
        "I returns zeros instead of None",
        _RETURNED,
        "    return tuple(torch.zeros_like(v) if g is None and isinstance(v, Tensor) else g "
        "for g, v in zip(found, input_values)), [group]\n",
    ),
    Bug(
        "rounds",
        "W rounds through bfloat16",
        _RUN,
        _RUN.replace("grads,", "[one if one.is_complex() else one.bfloat16().to(one.dtype) for one in grads],"),
    ),
    Bug(
        "doubles-i",
        "I starts from twice the output gradients",
        "found, _ = input_grads(roots, grads, input_values)",
        "found, _ = input_grads(roots, [None if one is None else 2 * one for one in grads], input_values)",
    ),
)


@dataclass(frozen=True, slots=True)
class Reported:
    """How a bug is reported: the checks that fail, causes and lines, before and after the largest mistake is undone."""

    bug: Bug
    failed: int
    causes: tuple[int, int]
    lines: tuple[int, int]

    @property
    def row(self) -> str:
        """The row of the table."""
        causes, lines = (" | ".join(map(str, pair)) for pair in (self.causes, self.lines))
        return f"| {self.bug.what} | {self.failed} | {causes} | {lines} |"


def measure(pattern: str = "*", checks: Sequence[str] = ()) -> Iterator[Reported]:
    """Yield how each bug whose name matches is reported, of all checks of profile standard or of some."""
    for bug in BUGS:
        if fnmatchcase(bug.name, pattern):
            with tempfile.TemporaryDirectory() as folder:
                yield _reported(bug, Path(folder), checks)


def _reported(bug: Bug, folder: Path, checks: Sequence[str]) -> Reported:
    (folder / "backward.py").write_text(bug.source(), encoding="utf-8")
    command = [sys.executable, "-m", "gradconform", "run", "backward.py", "--json", "report.json"]
    command += [word for glob in checks for word in ("--checks", glob)]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode != 1:
        msg = f"{bug.name}: the run ended with {done.returncode}; expected 1:\n{done.stdout}{done.stderr}"
        raise RuntimeError(msg)
    report = read_report(folder / "report.json")
    before = replace(report, results=[replace(result, undone=()) for result in report])
    printed = len(done.stdout.splitlines())
    more = len(closing(before, 80)) - len(closing(report, 80))
    failed = sum(result.status == "failed" for result in report)
    return Reported(bug, failed, (_causes(before), _causes(report)), (printed + more, printed))


def _causes(report: Report) -> int:
    return sum(len(section.causes) for section in sections(report) if section.heading.startswith("failed"))


def main() -> int:
    """Print the table; return 1 if a bug prints too much."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="*", metavar="GLOB", help="only the bugs whose name matches")
    parser.add_argument(
        "--checks", action="append", default=[], metavar="GLOB", help="only the checks whose id matches"
    )
    options = parser.parse_args()
    print("| one wrong line | checks that fail | causes before | causes after | lines before | lines after |")
    print("|---|---:|---:|---:|---:|---:|")
    too_long = False
    for one in measure(options.only, options.checks):
        print(one.row, flush=True)
        too_long |= one.lines[1] > MOST
    return int(too_long)


if __name__ == "__main__":
    sys.exit(main())
