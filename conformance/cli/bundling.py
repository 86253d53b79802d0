"""The commands ``gradconform bundle`` and ``gradconform verify``."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradconform.cli.console import refuse, write_text
from gradconform.cli.output_file import check_writable, hand_over
from gradconform.cli.parsing import EXIT_CODES
from gradconform.results import EXIT_CONFORMS, EXIT_DOES_NOT, Report

if TYPE_CHECKING:
    from gradconform.bundle.claim import Sources


class BundleError(ValueError):
    """What a claim rests on is not there, or not what it was when the run was made."""


def add_bundle_commands(found: Any) -> None:
    """Add the two commands to the parsers that ``found`` makes."""
    one = found.add_parser(
        "bundle",
        help="put a report and all it rests on into a claim that others can verify",
        description=(
            "Put the report of a whole run of profile full, its environment, waivers and records, and the hashes of "
            "kit and target, into one file that 'gradconform verify' checks without a network. Refused with each "
            "reason where the claim would not hold."
        ),
        epilog=EXIT_CODES,
    )
    one.set_defaults(command=bundle, parser=one)
    one.add_argument("report", metavar="RUN.json", help="the report")
    one.add_argument("-o", "--output", metavar="CLAIM.zip", required=True, help="where the claim is written")
    one.add_argument("--ndjson", metavar="FILE", help="the records of the same run, to be put in as well")
    one.add_argument(
        "--waivers", metavar="FILE", help="the waivers of the run (default: the file that the report names)"
    )
    two = found.add_parser(
        "verify",
        help="say whether a claim holds, or each reason why not",
        description=(
            "Say whether the claim in a file holds: VALID, or each reason why not. Nothing in it is run, nothing is "
            "unpacked to disk but its waivers and records, and no network is asked. Exit code 1 where it does not hold."
        ),
        epilog=EXIT_CODES,
    )
    two.set_defaults(command=verify, parser=two)
    two.add_argument("claim", metavar="CLAIM.zip", help="a file that 'gradconform bundle' has written")
    two.add_argument("--target", metavar="FILE", help="the code that you have: is it what was judged?")


def bundle(arguments: argparse.Namespace) -> int:
    """Write a claim; return 1 with each reason where it would not hold."""
    from gradconform.bundle.archive import packed  # noqa: PLC0415 (only this command needs it)
    from gradconform.bundle.claim import claim_files  # noqa: PLC0415 (as above)
    from gradconform.bundle.verifying import reasons_against  # noqa: PLC0415 (as above)

    try:
        path = check_writable(arguments.output, option="--output")
        files = claim_files(_sources(arguments))
    except ValueError as error:
        return refuse(error)
    except OSError as error:
        return refuse(f"{error.filename}: cannot be read: {error.strerror}; expected a file of the run")
    reasons = reasons_against(files)
    if reasons:
        _tell_reasons(f"{arguments.report} supports no claim", reasons)
        return EXIT_DOES_NOT
    code = hand_over(path, packed(files), code=EXIT_CONFORMS, what="claim")
    if code == EXIT_CONFORMS:
        write_text(f"{path}: {_statement(files)}")
    return code


def _sources(arguments: argparse.Namespace) -> Sources:
    from gradconform.bundle.claim import Sources  # noqa: PLC0415 (only this command needs it)

    report = Report.from_json(arguments.report)
    file, judged = report.target.get("file"), report.target.get("sha256")
    if file and judged and Path(file).is_file() and _sha256(Path(file)) != judged:
        msg = f"{file} was changed since the run: its SHA-256 is not the report's; expected the code that was judged"
        raise BundleError(msg)
    named = arguments.waivers or (None if report.waivers is None else report.waivers["file"])
    if named is not None and not Path(named).is_file():
        msg = f"{named}: there is no such file; expected the waivers of the run, name them by --waivers"
        raise BundleError(msg)
    paths = (None if name is None else Path(name) for name in (arguments.ndjson, named))
    return Sources(Path(arguments.report), *paths)


def verify(arguments: argparse.Namespace) -> int:
    """Say whether a claim holds; return 1 with each reason where it does not."""
    from gradconform.bundle.archive import ArchiveError, unpacked  # noqa: PLC0415 (only this command needs it)
    from gradconform.bundle.verifying import reasons_against  # noqa: PLC0415 (as above)

    try:
        files = unpacked(arguments.claim)
        reasons = reasons_against(files)
        if arguments.target is not None and not reasons:
            reasons = _of_target(files, Path(arguments.target))
    except ArchiveError as error:
        return refuse(error)
    except OSError as error:
        return refuse(
            f"--target {arguments.target}: cannot be read: {error.strerror}; expected the file that was judged"
        )
    if reasons:
        _tell_reasons("NOT VALID", reasons)
        return EXIT_DOES_NOT
    write_text(f"VALID: {_statement(files)}")
    return EXIT_CONFORMS


def _of_target(files: dict[str, bytes], path: Path) -> list[str]:
    judged = Report.from_json(files["report.json"]).target["sha256"]
    found = _sha256(path)
    return [] if found == judged else [f"{path} is not what was judged: its SHA-256 is {found}"]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _statement(files: dict[str, bytes]) -> str:
    from gradconform.bundle.claim import statement  # noqa: PLC0415 (only this command needs it)

    return statement(Report.from_json(files["report.json"]))


def _tell_reasons(head: str, reasons: list[str]) -> None:
    write_text("\n".join([f"{head}: {len(reasons)} {'reason' if len(reasons) == 1 else 'reasons'}", *_listed(reasons)]))


def _listed(reasons: list[str]) -> list[str]:
    return [f"  - {reason}" for reason in reasons]
