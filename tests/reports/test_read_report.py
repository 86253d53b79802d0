"""``read_report``: what the kit wrote is read, and all else is refused with what, where and what was expected."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from expecttest import assert_expected_inline

from gradconform import ReportError
from gradconform.reading.report import read_report
from gradconform.results import Report

Values = dict[str, Any]
#: The places of a report's values, and what stands there.
Leaf = tuple[Any, Any]


def refusal(given: Any) -> str:
    with pytest.raises(ReportError) as refused:
        read_report(given)
    return str(refused.value)


def test_a_path_text_and_bytes_are_read_the_same_way(real: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(real.to_json(), encoding="utf-8")
    for given in (path, str(path), real.to_json(), real.to_json().encode(), b"\xef\xbb\xbf" + real.to_json().encode()):
        assert read_report(given).to_dict() == real.to_dict()


def test_a_report_of_another_kit_version_keeps_that_version(values: Values) -> None:
    read = read_report(json.dumps({**values, "kit": "9.9.9"}))
    assert read.to_dict()["kit"] == "9.9.9"


@pytest.mark.parametrize("cause", [{}, {"elements": 35}], ids=["earlier", "now"])
@pytest.mark.parametrize("kind", ["unexpected", "unknown_name"], ids=["earlier", "now"])
def test_fields_and_kinds_of_earlier_reports_are_accepted(values: Values, kind: str, cause: dict[str, int]) -> None:
    result = next(one for one in values["results"] if one["findings"])
    finding = result["findings"][0]
    wrong = {"kind": "operation_wrong", "names": ["aten::mul", "float32 (5, 7)", "…"], "text": "aten::mul is wrong"}
    finding |= {"kind": kind, "cause": {**wrong, **cause}}
    read = read_report(json.dumps(values))
    assert any(finding in one.findings for one in read)


def edited(values: Values, *place: Any, to: Any) -> str:
    within: Any = values
    for part in place[:-1]:
        within = within[part]
    within[place[-1]] = to
    return json.dumps(values)


EDITS: list[tuple[tuple[Any, ...], Any, str]] = [
    (("schema",), "junit", "schema: expected 'gradconform-report', as in every report; got 'junit'"),
    (("schema_version",), 2, "schema_version: this kit expected 1, got 2; install the version of"),
    (("schema_version",), True, "schema_version: this kit expected 1, got True"),
    (("seed",), "20", "seed: expected integer, got '20'"),
    (("seed",), -1, "seed: expected a number of at least 0, got -1"),
    (("seed",), 10**19, "seed: expected a number of at most 9223372036854775807, got 10000000000000000000"),
    (("seed",), 10**30, "expected numbers of at most 20 digits, got 1000000000000000000000000000000 of 31 digits"),
    (("profile",), "whole", "profile: expected one of 'quick', 'standard', 'full', got 'whole'"),
    (("colour",), "red", "the report has the unknown name 'colour'; expected only schema, "),
    (("results",), {}, "results: expected array, got an object of 0 names"),
    (("results", 0, "status"), "fine", "results[0].status: expected one of 'passed', "),
    (("results", 0, "headroom"), -1, "results[0].headroom: expected a number of at least 0, got -1"),
    (("results", 0, "check"), "full", "results[0].check: expected text of the form "),
    (("results", 0, "check"), "full.gradients.mpl", "results[0].check: contract 1.3 has no 'full.gradients.mpl'"),
    (("results", 0, "waiver"), {}, "results[0].waiver: expected the name 'check', "),
    (("results", 0, "status"), "error", "(full.gradients.activation-hook[cpu-float32]) is error and has no kind"),
    (("results", 0, "requirement"), "B MAY be right.", "results[0] does not match the requirement of full"),
    (("results", 1), None, "results[1]: expected object, got null"),
    (("summary", "passed"), 700, "summary.passed: expected "),
    (("summary", "planned"), 700, "summary.not_run: expected "),
    (("summary", "manifest"), 700, "devices and dtypes, got 700"),
    (("summary", "manifest"), 1, "planned checks and a manifest of 1"),
    (("verdict",), "conforms", "verdict: expected 'does not conform' from the results, got 'conforms'"),
    (("conforms",), True, "conforms: expected False from the results, got True"),
    (("environment", "torch"), None, "environment.torch: expected string, got null"),
    (("target", "sha256"), "abc", "target.sha256: expected text of the form ^[0-9a-f]{64}$, got 'abc'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "to", "told"),
    EDITS,
    ids=[f"{number}-{edit[0][-1]}" for number, edit in enumerate(EDITS)],
)
def test_an_invalid_edit_is_reported_with_place_and_expected_value(
    values: Values, place: tuple[Any, ...], to: Any, told: str
) -> None:
    assert told in refusal(edited(values, *place, to=to))


def test_a_duplicate_check_is_refused(values: Values) -> None:
    values["results"][3] = copy.deepcopy(values["results"][0])
    assert "results[0] and results[3] are both for full.gradients.activation-hook[cpu-float32]" in refusal(
        json.dumps(values)
    )


def test_a_passed_result_with_an_error_above_its_bound_is_refused(values: Values) -> None:
    position = next(n for n, one in enumerate(values["results"]) if one["status"] == "passed")
    told = refusal(edited(values, "results", position, "headroom", to=2.5))
    assert f"results[{position}] ({values['results'][position]['check']}[cpu-float32]) is passed: " in told
    assert "expected error/bound of at most 1, got 2.5" in told


def test_a_waived_result_names_its_waiver(values: Values) -> None:
    failed = next(result for result in values["results"] if result["status"] == "failed")
    failed["status"] = "waived"
    assert "is waived and names no waiver" in refusal(json.dumps(values))


def test_a_waiver_of_a_result_must_be_listed_in_the_report(values: Values) -> None:
    waiver = {"check": "*", "verdict": ["error"], "reason": "r", "issue": "i", "owner": "o", "expires": "2999-12-31"}
    failed = next(result for result in values["results"] if result["status"] == "failed")
    failed.update(status="waived", waiver={**waiver, "when": {}})
    assert "names a waiver that the report does not list" in refusal(json.dumps(values))


@pytest.mark.parametrize(
    ("shard", "told"),
    [
        ({"index": 3}, "shard.index is 3 of 2 shards"),
        ({"positions": [0, 0]}, "shard.positions: expected "),
        ({"selected": 10**6}, "shard.selected is 1000000 of a manifest of "),
        ({"selected": 1}, "shard.selected is 1 of a manifest of "),
    ],
)
def test_an_inconsistent_shard_is_refused(values: Values, shard: dict[str, Any], told: str) -> None:
    planned = values["summary"]["planned"]
    right = {"index": 1, "count": 2, "selected": planned, "sha256": "0" * 64, "positions": list(range(planned))}
    assert told in refusal(json.dumps({**values, "shard": {**right, **shard}}))


def test_error_messages_are_complete(real: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(real.to_json().encode()[:-4000])
    cut = refusal(path).replace(str(tmp_path), "")
    assert cut.startswith("/report.json: line ")
    assert cut.endswith("; the text ends there, so the file may be truncated; expected JSON")
    path.write_bytes(b'{"schema": "\xff"}')
    deep = "{" + '"a":{' * 100_000
    given = (
        path,
        tmp_path / "none",
        b"[1]",
        '{"schema": NaN}',
        '{"schema": 1e999}',
        '{"schema": 1, "schema": 2}',
        deep,
    )
    assert_expected_inline(
        "\n".join(map(refusal, given)).replace(str(tmp_path), ""),
        """\
/report.json: byte 12: expected text in UTF-8, got b'\\xff'
/none: cannot read the file: No such file or directory; expected a report from gradconform run --json
the report: expected an object with a schema, a summary and results; got an array of 1 entry
the report: expected a number or null, got NaN, which is not JSON
the report: expected numbers that fit in a float, got 1e999
the report: expected each name once in an object, got 'schema' twice
the report: is nested too deep; expected a report from gradconform run --json""",
    )


@pytest.mark.parametrize("cut", ['{"seed": 2', '{"headroom": 0.', '{"strict": tru', '{"kit": "0.', '{"seed": 20,', "{"])
def test_a_truncated_text_is_reported_as_truncated(cut: str) -> None:
    assert refusal(cut).endswith("; the text ends there, so the file may be truncated; expected JSON")


def test_a_folder_an_empty_file_and_an_impossible_path_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert "Is a directory" in refusal(tmp_path)
    assert "line 1, column 1: Expecting value; the text ends there" in refusal(tmp_path / "empty")
    assert "cannot read the file" in refusal("\0")


def leaves(values: Any, place: tuple[Any, ...] = ()) -> Iterator[Leaf]:
    inner = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in inner:
        yield (*place, key), value
        yield from leaves(value, (*place, key))


def truncated(text: str, chance: random.Random) -> bytes:
    return text.rstrip().encode()[: chance.randrange(1, len(text.rstrip()))]


def with_a_wrong_type(text: str, chance: random.Random) -> bytes:
    values = json.loads(text)
    place, _ = chance.choice(list(leaves(values)))
    return edited(values, *place, to={"a": [1]}).encode()


def with_a_huge_number(text: str, chance: random.Random) -> bytes:
    values = json.loads(text)
    numbers = [place for place, value in leaves(values) if isinstance(value, (int, float))]
    huge = chance.choice(["1e400", "9" * 5000, "-1e999", "1" + "0" * 40])
    return edited(values, *chance.choice(numbers), to="HUGE").replace('"HUGE"', huge).encode()


def with_bad_utf8(text: str, chance: random.Random) -> bytes:
    content, at = text.encode(), chance.randrange(len(text))
    return content[:at] + chance.choice([b"\xff", b"\xc3(", b"\xe2\x82", b"\xf0\x28\x8c\x28"]) + content[at:]


def with_a_name_lost(text: str, chance: random.Random) -> bytes:
    values = json.loads(text)
    named = [place for place, _ in leaves(values) if isinstance(place[-1], str)]
    place = chance.choice([place for place in named if not {"variables", "backends"} & {*place[:-1]}])
    within: Any = values
    for part in place[:-1]:
        within = within[part]
    del within[place[-1]]
    return json.dumps(values).encode()


def with_a_result_lost(text: str, chance: random.Random) -> bytes:
    values = json.loads(text)
    del values["results"][chance.randrange(len(values["results"]))]
    return json.dumps(values).encode()


def with_a_count_edited(text: str, chance: random.Random) -> bytes:
    values = json.loads(text)
    name = chance.choice(list(values["summary"]))
    values["summary"][name] += chance.randrange(1, 9)
    return json.dumps(values).encode()


def with_lines_exchanged_for_noise(text: str, chance: random.Random) -> bytes:
    lines = text.splitlines()
    lines[chance.randrange(len(lines))] = "".join(chance.choices('{}[]",:0e', k=20))
    return "\n".join(lines).encode()


CORRUPTIONS: tuple[Callable[[str, random.Random], bytes], ...] = (
    truncated, with_a_wrong_type, with_a_huge_number, with_bad_utf8, with_a_name_lost, with_a_result_lost,
    with_a_count_edited, with_lines_exchanged_for_noise,
)  # fmt: skip


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda corrupt: corrupt.__name__)
def test_200_corrupted_reports_each_give_a_clear_error(
    corrupt: Callable[[str, random.Random], bytes], real: Report, tmp_path: Path
) -> None:
    path, text = tmp_path / "report.json", real.to_json()
    for seed in range(25):
        path.write_bytes(corrupt(text, random.Random(f"{corrupt.__name__} {seed}")))  # noqa: S311 (no secret)
        told = refusal(path)
        assert told.startswith(f"{path}: ")
        assert "xpected" in told
        assert len(told) < len(str(path)) + 1200, told
        assert "\n" not in told
