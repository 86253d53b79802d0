"""Prints how many lines the scripts of failing checks have.

`python script_lines.py [TARGET] [--profile PROFILE]` runs a target, writes the script of every check that it fails, and
prints the shares. Without a target, it runs the split adapter of docs/write-an-adapter.md, whose engine then counts the
weights twice if there are several. `--each` also prints the lines of each check, the shortest first. With `--every N`,
only each N-th check is written.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

from gradconform.replay.script import Replayed, ScriptError, failing_trial
from gradconform.run.options import RunOptions
from gradconform.run.run import Run

PAGE = Path(__file__).parents[1] / "docs" / "write-an-adapter.md"
LIMIT = 120


def faulty(folder: Path) -> str:
    """Write the split adapter of the page with a fault of one line; return the target."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    right = "self.waiting[mb] = list(self.left)"
    wrong = blocks[2].replace(right, f"{right} * (2 if len(self.left) > 1 else 1)")
    if wrong == blocks[2]:
        msg = f"{PAGE} has no line {right!r}"
        raise SystemExit(msg)
    (folder / "zero_bubble.py").write_text(wrong, encoding="utf-8")
    (folder / "split_adapter.py").write_text(blocks[3], encoding="utf-8")
    return f"{folder / 'split_adapter.py'}:Adapter"


def lines_of(target: str, profile: str, every: int) -> dict[str, int | None]:
    """Return the lines of each failing check's script, None if it has none."""
    run = Run(RunOptions(target=target, profile=profile))
    failed = {result.check for result in run.run().results if result.status == "failed"}
    found: dict[str, int | None] = {}
    for item in [item for item in run.plan.items if item.check.id in failed][::every]:
        script = Replayed(failing_trial(run, item), run.target, item.dtype, item.device, run.options.seed)
        try:
            found[item.check.id] = len(script.shortest().splitlines())
        except ScriptError:
            found[item.check.id] = None
    return found


def main() -> None:
    """Print the shares of a target's scripts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?")
    parser.add_argument("--profile", default="standard")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--each", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = lines_of(given.target or faulty(Path(folder)), given.profile, given.every)
    written = sorted(lines for lines in found.values() if lines is not None)
    if given.each:
        for check, lines in sorted(found.items(), key=lambda one: (one[1] or 0, one[0])):
            print(f"{lines or 'none':>6} {check}")
    short = sum(lines <= LIMIT for lines in written)
    print(f"{len(found)} failing checks, {len(written)} scripts, {short} of at most {LIMIT} lines")
    if written:
        print(f"lines: shortest {written[0]}, median {written[len(written) // 2]}, longest {written[-1]}")


if __name__ == "__main__":
    main()
