"""Each record of the bench is whole, and docs/bench.md has what the records have."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from gradconform.bench import DEFECTS, TARGET
from gradconform.bench.records import by_id
from gradconform.cli.arguments import parser
from gradconform.diagnosis.cause import Mistake
from gradconform.judge.finding import Kind

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
KINDS = {*get_args(Kind), *(one.name.lower() for one in Mistake)}


def test_the_bench_has_at_least_forty_records() -> None:
    assert len(DEFECTS) >= 40


def test_at_least_twenty_records_are_of_stages_over_ranks() -> None:
    assert sum(defect.command[0] == "sharded" for defect in DEFECTS.values()) >= 20


def test_two_records_of_one_name_are_refused() -> None:
    one = next(iter(DEFECTS.values()))
    with pytest.raises(ValueError, match=f"two records are named '{one.id}'; give each a part"):
        by_id([one, one])


# One test for all records: eighty tests that take a millisecond each take a second of pytest's own.
def test_a_record_has_link_area_versions_and_full_sentences() -> None:
    for name, defect in DEFECTS.items():
        assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+", defect.link), name
        assert all((defect.area, defect.had, defect.fixed_in)), name
        for sentence in filter(None, (defect.seen, defect.fault, defect.missed, defect.otherwise)):
            assert sentence == sentence.strip(), name
            assert sentence.endswith("."), name


def test_each_record_command_is_a_kit_command_with_one_target() -> None:
    words = parser()
    for name, defect in DEFECTS.items():
        assert defect.command.count(TARGET) == 1, name
        words.parse_args(defect.words(defect.broken))


def test_each_record_cause_is_a_known_cause_or_kind_of_finding() -> None:
    for name, defect in DEFECTS.items():
        assert defect.causes, name
        assert set(defect.causes) <= KINDS, name


def test_a_missed_record_has_no_alternative_cause() -> None:
    assert [name for name, defect in DEFECTS.items() if defect.missed and defect.otherwise] == []


def test_the_two_targets_of_a_record_exist_and_differ() -> None:
    for name, defect in DEFECTS.items():
        found = [target_of(target) for target in (defect.broken, defect.fixed)]
        assert found[0] is not found[1], name
        assert defect.broken != defect.fixed, name


def target_of(target: str) -> Any:
    """Return what a target names; a registered name as it is."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name) if name else target


def test_rebuilt_defects_use_code_of_the_bench() -> None:
    rebuilt = [defect.broken for defect in DEFECTS.values() if not defect.real]
    assert rebuilt
    assert [target for target in rebuilt if not target.startswith("gradconform.bench.code.")] == []


def test_the_page_has_every_record() -> None:
    rows = re.findall(r"^\| \[([\w.-]+)\]\((\S+)\) \|", PAGE, re.MULTILINE)
    assert rows == [(name, defect.link) for name, defect in DEFECTS.items()]
    said = " ".join(PAGE.split())
    assert [n for n, one in DEFECTS.items() if f"{one.seen} {one.fault}" not in said] == []


def test_the_page_has_every_miss_with_the_reason() -> None:
    missed = PAGE.partition("## Misses")[2].partition("\n## ")[0]
    named = re.findall(r"^- \*\*([\w.-]+)\*\*", missed, re.MULTILINE)
    assert sorted(named) == sorted(name for name, one in DEFECTS.items() if one.missed or one.otherwise)
    assert [n for n, one in DEFECTS.items() if (one.missed or one.otherwise) not in missed] == []


def test_the_page_counts_match_the_records() -> None:
    found = sum(not defect.missed for defect in DEFECTS.values())
    assert f"| defects found (recall) | {found} of {len(DEFECTS)} " in PAGE
    right = sum(not (defect.missed or defect.otherwise) for defect in DEFECTS.values())
    assert f"| of these with the right cause | {right} of {found} " in PAGE
    assert f"| fixed versions accused | 0 of {len(DEFECTS)} |" in PAGE


def test_every_miss_is_listed_in_limits_or_escapes() -> None:
    pages = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("limits.md", "escapes.md"))
    assert [name for name, defect in DEFECTS.items() if defect.missed and defect.link not in pages] == []
