"""The commands ``gradconform bundle`` and ``gradconform verify``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from gradconform.bundle.archive import ArchiveError, Sources, archive_content, bundle_files, packed, statement, unpacked
from gradconform.bundle.signing import NotSignedError, is_signed, signature, signature_path, signer
from gradconform.bundle.verifying import reasons_against
from gradconform.exits import EXIT_CONFORMS, EXIT_DOES_NOT, EXIT_ENVIRONMENT, UsageError
from gradconform.files.user_files import is_file, sha256
from gradconform.reading.report import read_report
from gradconform.report.lines import Line
from gradconform.results import Report

from .console import hand_over_all, refuse_unwritable, write


class BundleError(UsageError):
    """The evidence of a bundle is missing, or has changed since the run."""


class StaleSignatureError(UsageError):
    """A signature of another bundle has the same name, and is kept."""

    exit_code = EXIT_ENVIRONMENT


def bundle(arguments: argparse.Namespace) -> int:
    """Write a bundle and its signature; return 1 with each reason if its statement would not hold."""
    if arguments.sign is not None:
        refuse_unwritable(signature_path(arguments.output), "--sign")
    try:
        files = bundle_files(_sources(arguments))
    except OSError as error:
        msg = f"cannot read {error.filename}: {error.strerror}; expected a file of the run"
        raise BundleError(msg) from error
    reasons = reasons_against(files)
    if reasons:
        return _print_reasons(f"{arguments.report} does not support a statement", reasons)
    written = {arguments.output: packed(files)}
    if arguments.sign is not None:
        written[signature_path(arguments.output)] = signature(written[arguments.output], arguments.sign)
    before = _content_before(arguments.output)
    code = hand_over_all(written, code=EXIT_CONFORMS, what="bundle")
    if code == EXIT_CONFORMS:
        write([Line(f"{' and '.join(written)}: {_statement(files)}")])
        if arguments.sign is None and before != written[arguments.output]:
            _remove_signature(arguments.output)
    return code


def _content_before(path: str) -> bytes | None:
    """Return the existing file before a bundle is written; None if there is none or it is no bundle."""
    try:
        return archive_content(path)
    except ArchiveError:
        return None


def _remove_signature(bundle: str) -> None:
    """Remove the signature of an earlier bundle under this name: for the new, unsigned one it would look forged."""
    if is_signed(bundle):
        path = signature_path(bundle)
        try:
            Path(path).unlink()
        except OSError as error:
            msg = f"cannot remove {path}: {error.strerror}; it signs the earlier {bundle}, not this one; remove it"
            raise StaleSignatureError(msg) from error
        write([Line(f"removed {path}: it signed the earlier {bundle}; --sign KEY signs this bundle", "warning")])


def _sources(arguments: argparse.Namespace) -> Sources:
    report = read_report(arguments.report)
    file, judged = report.target.get("file"), report.target.get("sha256")
    if file and judged and is_file(file) and sha256(file) != judged:
        msg = f"{file} has changed since the run: its SHA-256 differs from the report's; restore it, or run again"
        raise BundleError(msg)
    named = arguments.waivers or (None if report.waivers is None else report.waivers["file"])
    if named is not None and not is_file(named):
        msg = f"{named} does not exist; name the waiver file of the run with --waivers"
        raise BundleError(msg)
    paths = (None if name is None else Path(name) for name in (arguments.ndjson, named))
    return Sources(Path(arguments.report), *paths)


def verify(arguments: argparse.Namespace) -> int:
    """Print whether a bundle's statement holds; return 1 with each reason if it does not."""
    held = archive_content(arguments.bundle)
    files = unpacked(arguments.bundle, held)
    reasons = reasons_against(files)
    if arguments.target is not None and not reasons:
        reasons = _of_target(files, Path(arguments.target))
    try:
        signed = _signed(held, arguments)
    except NotSignedError as error:
        reasons.append(str(error))
    if reasons:
        return _print_reasons("NOT VALID", reasons)
    report = read_report(files["report.json"])
    write([Line(f"VALID, {signed}: {statement(report)}"), *_left_open(report)])
    return EXIT_CONFORMS


def _signed(held: bytes, arguments: argparse.Namespace) -> str:
    """Return the signer of a bundle in words. Raises ``NotSignedError`` if it is not one of the required signers."""
    if arguments.signers is not None:
        return f"signed by {signer(held, arguments.bundle, arguments.signers)}"
    if is_signed(arguments.bundle):
        return "signed, but the signature was not checked (--signers FILE checks it)"
    return "unsigned (its author is unknown)"


def _left_open(report: Report) -> Iterator[Line]:
    """Yield a line for each limit of the conformance: features that were not claimed, and failed SHOULD checks."""
    for claim, count in (report.coverage.withheld if report.coverage is not None else {}).items():
        yield Line(f"  - withheld: {claim}, which {count} of the checks that were not judged need")
    for result in report.failures:
        yield Line(f"  - failed SHOULD: {result.place.name}")


def _of_target(files: dict[str, bytes], path: Path) -> list[str]:
    judged = read_report(files["report.json"]).target["sha256"]
    try:
        found = sha256(path)
    except OSError as error:
        msg = f"--target {path}: cannot read the file: {error.strerror}; expected the file that was judged"
        raise BundleError(msg) from error
    return [] if found == judged else [f"{path} is not the judged file: expected SHA-256 {judged}, got {found}"]


def _statement(files: dict[str, bytes]) -> str:
    return statement(read_report(files["report.json"]))


def _print_reasons(head: str, reasons: list[str]) -> int:
    count = f"{head}: {len(reasons)} {'reason' if len(reasons) == 1 else 'reasons'}"
    write([Line(count), *(Line(f"  - {reason}") for reason in reasons)])
    return EXIT_DOES_NOT
