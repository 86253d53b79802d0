from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradconform.contract import CHECKS
from gradconform.report.contract_page import SEED_SUITE

Command = Callable[..., Any]

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"


def test_the_page_in_docs_is_current(command: Command) -> None:
    done = command("contract")
    assert (done.code, done.err) == (0, "")
    written = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    assert written == done.out, "run `gradconform contract > docs/contract.md`"


def test_every_check_is_in_a_table_once(command: Command) -> None:
    listed = re.findall(r"^\| `([\w.-]+)` \| (MUST|SHOULD) \|", command("contract").out, re.MULTILINE)
    assert sorted(listed) == sorted((check.id, check.level) for check in CHECKS.values())


def test_every_row_of_the_seed_suite_has_a_check(command: Command) -> None:
    page = command("contract").out
    for test in SEED_SUITE:
        (row,) = re.findall(rf"^\| `{test}` \|.*$", page, re.MULTILINE)
        named = re.findall(r"`([\w-]+\.[\w.-]+)`", row)
        assert named, row
        assert set(named) <= set(CHECKS)


def test_every_seed_of_a_check_is_a_row_of_the_seed_suite() -> None:
    named = {test for check in CHECKS.values() if check.seed for test in re.split(r"[,\s]+", check.seed)}
    assert named == set(SEED_SUITE)


def test_every_table_has_as_many_cells_in_each_row(command: Command) -> None:
    for table in re.findall(r"(?:^\|.*\n)+", command("contract").out, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
