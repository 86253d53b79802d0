"""Verifies a bundle: yields every reason why its statement does not hold, without network and without running it."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from gradconform.files.kit_files import altered_since_installation, kit_files, kit_sha256
from gradconform.files.records import RecordsError
from gradconform.reading.record_file import read_run
from gradconform.reading.report import ReportError, read_report
from gradconform.results import Report
from gradconform.text.counts import count
from gradconform.version import KIT_VERSION
from gradconform.waivers.waiver import WaiverError, read_waivers

from .archive import ENVIRONMENT, KIT, RECORDS, REPORT, SCHEMA, SCHEMA_VERSION, STATEMENT, WAIVERS, on_disk, statement

#: How many names of files a reason lists.
_NAMED = 3

_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "schema": str, "schema_version": int, "statement": str, "made": str, "kit": str, "contract": str, "target": dict,
    "files": dict,
}  # fmt: skip


def reasons_against(files: Mapping[str, bytes], *, today: dt.date | None = None) -> list[str]:
    """Return each reason why the statement of the bundle ``files`` does not hold; none if it does."""
    try:
        stated, environment, kit = (_values(name, files[name]) for name in (STATEMENT, ENVIRONMENT, KIT))
        _refuse_other_schemas(stated)
        report = read_report(files[REPORT])
    except ReportError as error:
        return [str(error).replace("the report:", f"{REPORT}:", 1)]
    return [
        *_of_hashes(stated, files),
        *_of_scope(report),
        *_of_statement(stated, report, environment),
        *_of_waivers(report, files.get(WAIVERS), today),
        *_of_records(report, files.get(RECORDS)),
        *_of_kit(report, kit),
    ]


def _values(name: str, content: bytes) -> dict[str, Any]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        msg = f"{name} is not valid JSON: {error}"
        raise ReportError(msg) from error
    if not isinstance(values, dict):
        msg = f"{name}: expected a JSON object, got {type(values).__name__}"
        raise ReportError(msg)
    return values


def _refuse_other_schemas(stated: Mapping[str, Any]) -> None:
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(stated.get(name), kind)]
    if wrong or set(stated) - set(_FIELDS):
        found = ", ".join(wrong or sorted(set(stated) - set(_FIELDS)))[:80]
        msg = f"{STATEMENT}: wrong or unknown field {found}; expected exactly {', '.join(_FIELDS)}"
        raise ReportError(msg)
    if (stated["schema"], stated["schema_version"]) != (SCHEMA, SCHEMA_VERSION):
        found = f"{stated['schema']!r} version {stated['schema_version']}"
        msg = f"{STATEMENT}: expected schema {SCHEMA!r} version {SCHEMA_VERSION}, got {found[:80]}"
        raise ReportError(msg)


def _of_hashes(stated: Mapping[str, Any], files: Mapping[str, bytes]) -> Iterator[str]:
    given = {name: hashlib.sha256(content).hexdigest() for name, content in files.items() if name != STATEMENT}
    for name in sorted({**given, **stated["files"]}):
        if name not in given:
            yield f"{name[:80]} is listed in the statement but missing"
        elif stated["files"].get(name) != given[name]:
            yield f"{name} differs from the file that the statement lists: its SHA-256 is {given[name]}"


def _of_scope(report: Report) -> Iterator[str]:
    """Yield why a report supports no statement, independent of its results."""
    if report.extra:
        yield "the run judged extra checks, not the contract"
    if report.shard is not None:
        yield "the report covers one shard; merge the shards first"
    if report.profile != "full":
        yield f"the profile is {report.profile}; only full supports a statement of conformance"
    if not report.whole:
        counts = report.summary
        yield (
            f"the run is not complete: {counts['ran'] + counts['unsupported']} of {report.manifest} checks have a "
            "verdict"
        )
    elif not report.verdict.startswith("conforms"):
        yield f"the verdict is {report.verdict!r}"
        yield from map(str, report.lacks if report.verdict == "incomplete" else ())
    if not report.target.get("sha256"):
        yield "the report has no hash of the target's file, so the judged code is unknown"
    if report.environment.get("tolerances_changed"):
        yield "the run changed the tolerances"
    for probe in (report.devices or {}).get("probes", ()):
        yield from _of_device(probe)


def _of_device(probe: Mapping[str, Any]) -> Iterator[str]:
    if probe["facts"].get("tolerance"):
        yield f"{probe['device']} was judged with the tolerance of its device object, not with the contract's"
    faults = sum(not line["held"] for line in probe["preflight"])
    if faults:
        yield f"{probe['device']} failed {faults} of {len(probe['preflight'])} lines of its pre-flight"


def _of_statement(stated: Mapping[str, Any], report: Report, environment: Mapping[str, Any]) -> Iterator[str]:
    pairs = {
        "statement": (stated["statement"], statement(report)),
        "target": (stated["target"], dict(report.target)),
        "kit": (stated["kit"], report.kit),
        "contract": (stated["contract"], report.contract),
        "environment": (environment, dict(report.environment)),
    }
    for name, (claimed, reported) in pairs.items():
        if claimed != reported:
            yield f"the {name} differs from the report's"


def _of_waivers(report: Report, content: bytes | None, today: dt.date | None) -> Iterator[str]:
    """Yield waivers that are unlisted, expired or different from the run's."""
    if report.waivers is None:
        if content is not None:
            yield f"the bundle contains {WAIVERS}, but the run used no waivers"
        return
    if content is None:
        yield f"the run used waivers, but {WAIVERS} is missing"
        return
    if hashlib.sha256(content).hexdigest() != report.waivers["sha256"]:
        yield f"{WAIVERS} is not the file that the run used"
    with on_disk({WAIVERS: content}) as folder:
        try:
            listed = [waiver.to_dict() for waiver in read_waivers(folder / WAIVERS, today=today).entries]
        except WaiverError as error:
            yield from str(error).replace(f"{folder}/", "").splitlines()
            return
    if listed != report.waivers["entries"]:
        yield f"the waivers in the report differ from {WAIVERS}"
    unlisted = sorted({r.check for r in report.results if r.waiver is not None and r.waiver not in listed})
    if unlisted:
        yield f"{WAIVERS} does not list the waivers of {count(len(unlisted), 'check')}: {_few(unlisted)}"
    if report.unused_waivers:
        yield f"the report has {count(len(report.unused_waivers), 'unused waiver')}; remove these, and run again"


def _of_records(report: Report, content: bytes | None) -> Iterator[str]:
    if content is None:
        return
    with on_disk({RECORDS: content}) as folder:
        try:
            run = read_run(folder / RECORDS)
            recorded = {r.place: r.to_dict() for r in run.report().results}
        except (RecordsError, ReportError, TypeError, KeyError) as error:
            yield f"cannot read {RECORDS}: {str(error).replace(f'{folder}/', '')}"
            return
    if not run.ended:
        yield f"{RECORDS} contains an unfinished run"
    reported = {r.place: r.to_dict() for r in report.results}
    other = sorted(place.check for place in {**recorded, **reported} if recorded.get(place) != reported.get(place))
    if other:
        yield f"{RECORDS} and the report differ in {count(len(other), 'result')}: {_few(other)}"


def _of_kit(report: Report, kit: Mapping[str, Any]) -> Iterator[str]:
    """Yield problems of the kit that ran, and of the kit that verifies."""
    if report.environment.get("kit_sha256") != kit_sha256({str(name): str(digest) for name, digest in kit.items()}):
        yield f"{KIT} does not list the files that ran: the report has a different hash of the kit"
    altered = altered_since_installation()
    if altered:
        yield f"this gradconform was changed after its installation: {_few(altered)}"
    if report.kit != KIT_VERSION:
        yield f"gradconform {report.kit} made the run, but this is {KIT_VERSION}; verify with {report.kit}"
        return
    ours = kit_files()
    other = sorted(name for name in {**ours, **kit} if ours.get(name) != kit.get(name))
    if other:
        files = count(len(other), "file")
        yield f"the kit that ran differs from gradconform {KIT_VERSION} here in {files}: {_few(other)}"


def _few(names: list[str]) -> str:
    return ", ".join(name[:80] for name in names[:_NAMED]) + (" ..." if len(names) > _NAMED else "")
