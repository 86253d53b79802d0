"""Bundles: what supports a statement is verified, all that speaks against it is told, and no archive harms."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import random
import stat
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gradconform.bundle.archive import NAMES, ArchiveError, Sources, bundle_files, packed, unpacked
from gradconform.bundle.verifying import reasons_against
from gradconform.cli import main
from gradconform.files import kit_files
from gradconform.files.records import as_line, finished, header_of
from gradconform.results import Report
from gradconform.waivers.waiver import read_waivers

from .conftest import FEW, SHOULD, WAIVED

Files = dict[str, bytes]
ENTRY = f"""
[[waiver]]
check = "{WAIVED}"
verdict = "mismatch"
reason = "known"
issue = "#7"
owner = "ada"
expires = 2999-12-31
"""


@pytest.fixture
def waived(whole: Report, folder: Path) -> Report:
    """The same with one failure, which the file waivers.toml expects."""
    path = folder / "waivers.toml"
    path.write_text(ENTRY, encoding="utf-8")
    cells = [("cpu", "float32")]
    applied = read_waivers("waivers.toml").within(adapter="mine", torch=torch.__version__, cells=cells)
    failed = [replace(r, status="failed", kind="mismatch") if r.check == WAIVED else r for r in whole.results]
    return replace(whole, results=[applied.apply(result) for result in failed], waivers=applied.record())


def files_of(report: Report, **sources: Any) -> Files:
    Path("report.json").write_text(report.to_json(), encoding="utf-8")
    return bundle_files(Sources(Path("report.json"), **sources))


def records_of(report: Report) -> bytes:
    places = tuple(result.place for result in report.results)
    lines = [header_of(replace(report, results=[]), places, {}, {}).to_record(), *map(finished, report.results)]
    return b"".join(map(as_line, [*lines, {"record": "end", "verdict": report.verdict}]))


def test_a_valid_bundle_has_no_reasons_against_it_and_is_reproducible(whole: Report) -> None:
    files = files_of(whole)
    assert reasons_against(files) == []
    assert packed(files) == packed(files_of(whole))
    Path("bundle.zip").write_bytes(packed(files))
    assert unpacked("bundle.zip") == files


def test_a_bundle_with_waivers_and_records_is_valid_and_states_them(waived: Report) -> None:
    Path("records.ndjson").write_bytes(records_of(waived))
    files = files_of(waived, waivers=Path("waivers.toml"), records=Path("records.ndjson"))
    assert reasons_against(files) == []
    statement = json.loads(files["statement.json"])["statement"]
    where = f"on cpu float32, with torch {torch.__version__}"
    assert f"conforms with waivers: contract 1.3, profile full, {where}: " in statement
    assert statement.endswith(f"{len(FEW) - 1} of {len(FEW)} checks passed, 1 waived")


def without_one(report: Report) -> Report:
    return replace(report, results=report.results[1:])


def with_status(status: Any, kind: str | None = None) -> Callable[[Report], Report]:
    return lambda report: replace(
        report, results=[replace(report.results[0], status=status, kind=kind), *report.results[1:]]
    )


STANDARD = [check for check in FEW.values() if check.profile != "full"]


def as_standard(report: Report) -> Report:
    kept = {check.id for check in STANDARD}
    results = [result for result in report.results if result.check in kept]
    return replace(report, profile="standard", results=results, manifest=len(kept), planned=len(kept))


SHARD = {"index": 1, "count": 1, "selected": len(FEW), "sha256": "0" * 64, "positions": list(range(len(FEW)))}
PROBE = {"device": "npu:0", "reason": None, "unknown": False, "dtypes": {}, "preflight": [], "facts": {}}
HELD = {"requirement": "A copy MUST be bitwise.", "held": True, "message": ""}
BROKEN = {**HELD, "held": False, "message": "it is not"}


def on_device(**told: Any) -> Callable[[Report], Report]:
    devices = {"probes": [{**PROBE, **told}], "skipped": [], "indices": {}}
    return lambda report: replace(report, devices=devices)


AGAINST: list[tuple[str, Callable[[Report], Report], str]] = [
    ("profile", as_standard, "the profile is standard; only full supports a statement of conformance"),
    ("incomplete", without_one, f"run is not complete: {len(FEW) - 1} of {len(FEW)} checks have a verdict"),
    ("failed", with_status("failed", "mismatch"), "the verdict is 'does not conform'"),
    ("error", with_status("error", "kit"), "the verdict is 'incomplete'"),
    ("shard", lambda report: replace(report, shard=SHARD), "the report covers one shard; merge the shards first"),
    (
        "target",
        lambda report: replace(report, target={**report.target, "sha256": None}),
        "the report has no hash of the target's file",
    ),
    (
        "tolerances",
        lambda report: replace(report, environment={**report.environment, "tolerances_changed": {"float32": 9.0}}),
        "the run changed the tolerances",
    ),
    (
        "a device's tolerance",
        on_device(facts={"tolerance": {"float32": 9.0}}),
        "npu:0 was judged with the tolerance of its device object",
    ),
    ("a device's pre-flight", on_device(preflight=[HELD, BROKEN]), "npu:0 failed 1 of 2 lines of its pre-flight"),
    ("kit", lambda report: replace(report, kit="0.0.1"), "gradconform 0.0.1 made the run, but this is "),
    (
        "kit files",
        lambda report: replace(report, environment={**report.environment, "kit_sha256": "0" * 64}),
        "kit.json does not list the files that ran: the report has a different hash of the kit",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "told"), [one[1:] for one in AGAINST], ids=[one[0] for one in AGAINST])
def test_a_report_without_a_statement_is_refused_with_the_reason(
    whole: Report, change: Callable[[Report], Report], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert any(told in reason for reason in reasons_against(files_of(change(whole))))
    assert main(["bundle", "report.json", "-o", "bundle.zip"]) == 1
    assert told in capsys.readouterr().out
    assert not Path("bundle.zip").exists()


def test_all_reasons_are_reported(whole: Report) -> None:
    report = without_one(replace(as_standard(whole), kit="0.0.1"))
    assert len(reasons_against(files_of(report))) == 3


def tampered(files: Files, name: str, change: Callable[[bytes], bytes]) -> Files:
    """Change a file, and the hash of it that the statement lists."""
    content = change(files[name])
    stated = json.loads(files["statement.json"])
    stated["files"][name] = hashlib.sha256(content).hexdigest()
    return {**files, name: content, "statement.json": json.dumps(stated).encode()}


def edited(field: str, value: Any) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({**json.loads(content), field: value}).encode()


@pytest.mark.parametrize("name", ["report.json", "environment.json", "kit.json", "waivers.toml", "records.ndjson"])
def test_a_file_that_differs_from_its_listed_hash_is_named(waived: Report, name: str) -> None:
    Path("records.ndjson").write_bytes(records_of(waived))
    files = files_of(waived, waivers=Path("waivers.toml"), records=Path("records.ndjson"))
    other = {**files, name: files[name].rstrip() + b"\n\n"}
    assert f"{name} differs from the file that the statement lists" in reasons_against(other)[0]
    gone = {kept: content for kept, content in files.items() if kept != name}
    if name in {"waivers.toml", "records.ndjson"}:
        assert f"{name} is listed in the statement but missing" in reasons_against(gone)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("report.json", edited("verdict", "failed"), "report.json: verdict: expected "),
        ("report.json", lambda content: content[:900], "so the file may be truncated"),
        ("environment.json", edited("torch", "9"), "the environment differs from the report's"),
        ("environment.json", lambda _: b"[]", "environment.json: expected a JSON object, got list"),
        ("kit.json", edited("gradconform/run/runner.py", "0"), "kit.json does not list the files that ran"),
        ("kit.json", lambda _: b"{", "kit.json is not valid JSON"),
        ("waivers.toml", lambda content: content.replace(b"ada", b"eve"), "waivers.toml is not the file that the"),
        ("waivers.toml", lambda _: b"", "waivers.toml does not list the waivers of 1 check: "),
        ("waivers.toml", lambda content: content.replace(b"2999", b"2020"), "entry 1 (split.gradients.gru): expired"),
        ("waivers.toml", lambda _: b"[[", "waivers.toml: is not valid TOML"),
        ("records.ndjson", lambda content: content[: len(content) // 2], "contains an unfinished run"),
        ("records.ndjson", lambda content: content.replace(b'"waived"', b'"failed"'), "differ in 1 result: split.gra"),
        ("records.ndjson", lambda _: b"{}\n", "cannot read records.ndjson: "),
    ],
)  # fmt: skip
def test_a_changed_file_is_reported_even_with_new_hashes(
    waived: Report, name: str, change: Callable[[bytes], bytes], told: str
) -> None:
    Path("records.ndjson").write_bytes(records_of(waived))
    files = files_of(waived, waivers=Path("waivers.toml"), records=Path("records.ndjson"))
    assert reasons_against(files) == []
    assert any(told in reason for reason in reasons_against(tampered(files, name, change)))


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        (
            "schema_version",
            2,
            "statement.json: expected schema 'gradconform-statement' version 1, got 'gradconform-statement' version 2",
        ),
        ("files", [], "statement.json: wrong or unknown field files; expected exactly schema, "),
        ("more", 1, "statement.json: wrong or unknown field more; expected exactly schema, "),
    ],
)
def test_a_statement_of_another_schema_is_reported(whole: Report, field: str, value: Any, told: str) -> None:
    files = files_of(whole)
    (reason,) = reasons_against({**files, "statement.json": edited(field, value)(files["statement.json"])})
    assert told in reason


def test_a_statement_that_differs_from_the_report_is_reported(whole: Report) -> None:
    files = files_of(whole)
    stated = edited("statement", "mine conforms to all there is")(files["statement.json"])
    assert reasons_against({**files, "statement.json": stated}) == ["the statement differs from the report's"]


def test_a_bundle_contains_waivers_exactly_if_the_run_used_them(waived: Report, whole: Report) -> None:
    assert reasons_against(files_of(waived)) == ["the run used waivers, but waivers.toml is missing"]
    assert reasons_against(files_of(whole, waivers=Path("waivers.toml"))) == [
        "the bundle contains waivers.toml, but the run used no waivers"
    ]


def test_a_waiver_that_expired_after_the_run_is_reported(waived: Report) -> None:
    files = files_of(waived, waivers=Path("waivers.toml"))
    assert reasons_against(files, today=dt.date(2999, 12, 31)) == []
    (reason,) = reasons_against(files, today=dt.date(3000, 1, 1))
    assert reason == (
        "waivers.toml: entry 1 (split.gradients.gru): expired on 2999-12-31, 1 day ago; fix the failure, or "
        "set a later date"
    )


def test_a_kit_that_differs_from_the_one_of_the_run_is_reported(whole: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(whole)
    other = {**kit_files.kit_files(), "gradconform/run/runner.py": "0" * 64}
    monkeypatch.setattr("gradconform.bundle.verifying.kit_files", lambda: other)
    (reason,) = reasons_against(files)
    assert reason.startswith("the kit that ran differs from gradconform ")
    assert reason.endswith(" here in 1 file: gradconform/run/runner.py")
    monkeypatch.setattr("gradconform.bundle.verifying.kit_files", kit_files.kit_files)
    monkeypatch.setattr(
        "gradconform.bundle.verifying.altered_since_installation", lambda: ["gradconform/run/runner.py"]
    )
    assert reasons_against(files) == ["this gradconform was changed after its installation: gradconform/run/runner.py"]


def test_a_valid_bundle_states_judged_failed_and_unsupported_checks(
    whole: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    withheld = "accumulate.stage.two-outputs"
    changes = {
        SHOULD: {"status": "failed", "kind": "changed"},
        withheld: {"status": "unsupported", "unclaimed": ("multi_output",), "error_ratio": None, "bit_equal": None},
    }
    results = [replace(result, **changes.get(result.check, {})) for result in whole]
    Path("bundle.zip").write_bytes(packed(files_of(replace(whole, results=results))))
    assert main(["verify", "bundle.zip"]) == 0
    out = capsys.readouterr().out.replace(whole.target["sha256"], "0f").replace(torch.__version__, "2.0")
    count = len(whole.results)
    assert out == (
        "VALID, unsigned (its author is unknown): mine 1.0 (SHA-256 0f) conforms in part: contract 1.3, profile "
        f"full, on cpu float32, with torch 2.0: {count - 2} of {count} checks passed; not claimed: multi_output"
        "; 1 SHOULD failed\n"
        "  - withheld: multi_output, which 1 of the checks that were not judged need\n"
        f"  - failed SHOULD: {SHOULD}[cpu-float32]\n"
    )


def test_bundle_and_verify_work_as_commands(waived: Report, capsys: pytest.CaptureFixture[str]) -> None:
    Path("report.json").write_text(waived.to_json(), encoding="utf-8")
    assert main(["bundle", "report.json", "-o", "bundle.zip"]) == 0
    assert capsys.readouterr().out.startswith("bundle.zip: mine 1.0 (SHA-256 ")
    assert main(["verify", "bundle.zip"]) == 0
    assert capsys.readouterr().out.startswith("VALID, unsigned (its author is unknown): mine 1.0 (SHA-256 ")
    assert main(["verify", "bundle.zip", "--target", "backward.py"]) == 0
    assert main(["verify", "bundle.zip", "--target", "report.json"]) == 1
    assert "NOT VALID: 1 reason\n  - report.json is not the judged file: expected SHA-256 " in capsys.readouterr().out
    assert main(["verify", "bundle.zip", "--target", "none.py"]) == 2
    assert "none.py: cannot read the file: No such file" in capsys.readouterr().err
    with Path("backward.py").open("a") as target:
        target.write("# changed\n")
    assert main(["bundle", "report.json", "-o", "bundle.zip"]) == 2
    assert "backward.py has changed since the run" in capsys.readouterr().err
    Path("backward.py").unlink()
    Path("waivers.toml").unlink()
    assert main(["bundle", "report.json", "-o", "bundle.zip"]) == 2
    assert "waivers.toml does not exist; name the waiver file of the run with --waivers" in capsys.readouterr().err
    for arguments in (["none.json", "-o", "bundle.zip"], ["report.json", "-o", "no/bundle.zip"]):
        assert main(["bundle", *arguments]) == 2


def zipped(*entries: tuple[Any, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return out.getvalue()


def link(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


RIGHT = tuple((name, b"{}") for name in NAMES[:4])
HOSTILE: list[tuple[str, bytes, str]] = [
    ("empty", b"", "not a readable zip archive"),
    ("text", b"VALID", "not a readable zip archive"),
    ("cut", zipped(*RIGHT)[:-30], "not a readable zip archive"),
    ("slip", zipped(*RIGHT, ("../../etc/passwd", b"x")), "contains '../../etc/passwd', which does not belong in"),
    ("absolute", zipped(*RIGHT, ("/etc/x", b"x")), "contains '/etc/x', which does not belong in a bundle"),
    ("backslash", zipped(*RIGHT, ("..\\x", b"x")), "which does not belong in a bundle"),
    ("folder", zipped(*RIGHT, ("statement.json/", b"")), "which does not belong in a bundle"),
    ("foreign", zipped(*RIGHT, ("run.sh", b"x")), "contains 'run.sh', which does not belong in a bundle"),
    ("missing", zipped(*RIGHT[:3]), "does not contain kit.json"),
    ("link", zipped(*RIGHT[:3], (link("kit.json"), b"/etc/passwd")), "'kit.json' is a link"),
    ("comment", zipped(*RIGHT)[:-2] + b"\1\0x", "does not end as a bundle does"),
    ("large", zipped(*RIGHT)[:-22] + b"PK\x06\x07" + bytes(16) + zipped(*RIGHT)[-22:], "does not end as a bundle does"),
    ("list", zipped(*RIGHT, *((f"{number}", b"") for number in range(99))), "expected a list of files of at most "),
    ("bomb", zipped(*RIGHT[:3], ("kit.json", bytes(2 * 10**7))), " bytes to 20000000, more than a bundle does"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "told"), [one[1:] for one in HOSTILE], ids=[one[0] for one in HOSTILE])
def test_a_file_that_is_not_a_bundle_is_refused_and_nothing_is_written(
    folder: Path, content: bytes, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "bundle.zip"
    path.write_bytes(content)
    assert main(["verify", "bundle.zip"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert "; expected a file that 'gradconform bundle' wrote" in err
    assert list(folder.iterdir()) == [path]


def test_a_duplicate_name_in_an_archive_is_refused(folder: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        content = zipped(*RIGHT, RIGHT[0])
    (folder / "bundle.zip").write_bytes(content)
    with pytest.raises(ArchiveError, match=r"contains 'statement\.json' twice"):
        unpacked("bundle.zip")


def test_a_false_size_in_an_archive_is_refused(folder: Path) -> None:
    content = zipped(*RIGHT[:3], ("kit.json", b"x" * 5000))
    entry = zipfile.ZipFile(io.BytesIO(content)).infolist()[-1]
    size = (5000).to_bytes(4, "little")
    assert content.count(size) == 2, "in the header of the file and in the directory"
    (folder / "bundle.zip").write_bytes(content.replace(size, (40).to_bytes(4, "little")))
    with pytest.raises(ArchiveError, match=r"not a readable zip archive| differs in size from its header"):
        unpacked("bundle.zip")
    assert entry.file_size == 5000


def test_an_archive_with_a_password_is_refused(folder: Path) -> None:
    content = bytearray(zipped(*RIGHT))
    at = content.index(b"PK\x01\x02")
    content[at + 8] |= 1
    (folder / "bundle.zip").write_bytes(bytes(content))
    with pytest.raises(ArchiveError, match=r"'statement\.json' is encrypted or uses another compression than a bundle"):
        unpacked("bundle.zip")


def test_a_corrupted_archive_is_refused_or_not_valid_and_never_crashes(whole: Report, folder: Path) -> None:
    content = packed(files_of(whole))
    for seed in range(100):
        chance = random.Random(seed)  # noqa: S311 (no secret)
        noisy = bytearray(content)
        for _ in range(chance.randrange(1, 5)):
            noisy[chance.randrange(len(noisy))] ^= 1 << chance.randrange(8)
        (folder / "bundle.zip").write_bytes(bytes(noisy))
        try:
            files = unpacked("bundle.zip")
        except ArchiveError:
            continue
        assert files == unpacked_as_written(whole) or reasons_against(files)


def unpacked_as_written(whole: Report) -> Files:
    """What the archive holds: noise in a date or a comment changes none of it."""
    return files_of(whole)
