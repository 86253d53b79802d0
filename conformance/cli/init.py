"""The command ``gradconform init``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gradconform.cli.console import complain, refuse, write_text
from gradconform.cli.current_folder import current_folder_first
from gradconform.cli.parsing import EXIT_CODES
from gradconform.results import EXIT_CONFORMS, EXIT_ENVIRONMENT


def add_init(found: Any) -> None:
    """Add the command to the parsers that ``found`` makes."""
    one = found.add_parser(
        "init",
        help="write a test file, a waiver file and a CI workflow into the current folder",
        description=(
            "Write into the current folder what a repository needs to be judged from now on: a pytest file, a file "
            "for failures that are expected, and a workflow of GitHub Actions that runs the contract and posts what "
            "failed as the summary of the job. A file that is there already is left as it is."
        ),
        epilog=EXIT_CODES,
    )
    one.set_defaults(command=init, parser=one)
    one.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="what is judged, as for 'gradconform run' (default: the one file here that defines stage_backward)",
    )


def init(arguments: argparse.Namespace) -> int:
    """Write the files that are not there yet, and say of each whether it was written."""
    from gradconform.cli.starter import StarterError, only_target, starter_files  # noqa: PLC0415 (only needed here)
    from gradconform.targets import TargetError, TargetNotInstalledError, resolve  # noqa: PLC0415 (it imports torch)

    folder = Path.cwd()
    try:
        target = arguments.target or only_target(folder)
        with current_folder_first():
            resolve(target)
    except TargetNotInstalledError as error:
        complain(f"{error}; the files are written all the same")
    except (StarterError, TargetError) as error:
        return refuse(error)
    try:
        written = [_write_new(folder, path, text) for path, text in starter_files(folder, target).items()]
    except OSError as error:
        complain(f"{error.filename}: cannot be written: {error.strerror}")
        return EXIT_ENVIRONMENT
    if any(written):
        write_text("\n".join(_next_steps(folder, target)))
    return EXIT_CONFORMS


def _write_new(folder: Path, name: str, text: str) -> bool:
    """Write a file that is not there; return False, and change nothing, where it is."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError:
        write_text(f"kept  {name}: it is there already")
        return False
    try:
        with file:
            file.write(text)
    except BaseException:
        path.unlink()  # half a file would be kept the next time
        raise
    write_text(f"wrote {name}")
    return True


def _next_steps(folder: Path, target: str) -> list[str]:
    from gradconform.cli.starter import installed_from_disk, kit_requirement  # noqa: PLC0415 (as above)

    lines = ["", f"target {target}; try it: python -m pytest tests/test_stage_backward.py"]
    if installed_from_disk():
        lines.append(
            f"gradconform was installed from this disk: the workflow asks pip for {kit_requirement()!r}; "
            "put there what CI can install"
        )
    root = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)
    if root != folder:
        lines.append(f"GitHub reads workflows only from the root of a repository: move .github to {root}")
    return lines
