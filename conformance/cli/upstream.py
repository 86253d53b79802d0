"""The command ``gradconform upstream``: a report and a short test of each confirmed defect in other projects."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradconform.bench.upstream import Offer, offers
from gradconform.contract.extra_ids import ALL, chosen
from gradconform.exits import EXIT_CONFORMS, EXIT_ENVIRONMENT, UsageError
from gradconform.report.lines import Line
from gradconform.report.offers import offer_figures, offer_listing, offer_report, run_line

from .console import width, write, written


class ThereAlreadyError(UsageError):
    """An output file exists, and may hold a user's work."""


def upstream(arguments: argparse.Namespace) -> int:
    """List the defects, or write the report and the test of the named ones; nothing is sent anywhere."""
    known = offers()
    if not arguments.defects and not arguments.all:
        if arguments.into is not None or arguments.force:
            msg = "--into and --force require defects to write; name a defect, or add --all"
            raise UsageError(msg)
        every = list(known.values())
        write([*offer_listing(every, width()), Line(), *offer_figures(every, width())])
        return EXIT_CONFORMS
    if arguments.defects and arguments.all:
        msg = "--all writes every defect; omit the names"
        raise UsageError(msg)
    patterns = [ALL] if arguments.all else arguments.defects
    found = chosen(patterns, known, "{} matches no confirmed defect ('gradconform upstream' lists them)")
    folder = _folder(arguments.into)
    texts = _files(found, folder)
    there = [] if arguments.force else [str(path) for path in texts if path.exists()]
    if there:
        more = f" and {len(there) - 1} more" if there[1:] else ""
        msg = f"{there[0]!r}{more} already exists; add --force to overwrite, or name another folder with --into"
        raise ThereAlreadyError(msg)
    return _write(found, texts)


def _folder(into: str | None) -> Path:
    """Return the output folder; raise :class:`~gradconform.exits.UsageError` if it is no folder."""
    folder = Path(into or ".")
    if not folder.is_dir():
        msg = f"--into {into!r}: the folder does not exist; create it first"
        raise UsageError(msg)
    return folder


def _files(found: Sequence[Offer], folder: Path) -> dict[Path, str]:
    """Return the texts by their paths: several projects have separate folders, since their files share names."""
    several_projects = len({one.project for one in found}) > 1
    texts: dict[Path, str] = {}
    for one in found:
        home = folder / one.project if several_projects else folder
        texts[home / f"{one.stem}.md"] = offer_report(one)
        texts[home / f"test_{one.stem}.py"] = one.test
    return texts


def _write(found: Sequence[Offer], texts: Mapping[Path, str]) -> int:
    """Write all files or none, and print the next steps."""
    made = [path for path in dict.fromkeys(path.parent for path in texts) if not path.exists()]
    for path in made:
        path.mkdir()
    if not written({str(path): text for path, text in texts.items()}, what="report and the test"):
        for path in made:
            path.rmdir()
        return EXIT_ENVIRONMENT
    lines = [Line(f"wrote {path}") for path in texts]
    if len(found) == 1:
        home = next(iter(texts)).parent
        lines += [Line(), Line(f"run: {'' if home == Path() else f'cd {home} && '}{run_line(found[0])}")]
        lines.append(Line(f"on {found[0].project} {found[0].version} it fails; it passes once the defect is fixed"))
    else:
        lines += [Line(), *offer_figures(found, width())]
    write([*lines, Line("nothing was sent; you decide whether to report it")])
    return EXIT_CONFORMS
