from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from expecttest import assert_expected_inline

from gradconform import contract
from gradconform.contract import areas, frozen
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
    assert sorted(listed) == sorted((check.id, check.level) for check in contract.checks_of().values())


def test_every_row_of_the_seed_suite_has_a_check(command: Command) -> None:
    page = command("contract").out
    for test in SEED_SUITE:
        (row,) = re.findall(rf"^\| `{test}` \|.*$", page, re.MULTILINE)
        named = re.findall(r"`([\w-]+\.[\w.-]+)`", row)
        assert named, row
        assert set(named) <= set(contract.checks_of())


def test_every_seed_of_a_check_is_a_row_of_the_seed_suite() -> None:
    named = {test for check in contract.checks_of().values() if check.seed for test in re.split(r"[,\s]+", check.seed)}
    assert named == set(SEED_SUITE)


def test_each_row_of_a_table_has_the_same_number_of_cells(command: Command) -> None:
    for table in re.findall(r"(?:^\|.*\n)+", command("contract").out, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table


@pytest.fixture
def two(contract_of: Callable[..., None]) -> None:
    """A contract of two checks, one of which is not in its file yet."""
    first, second = (areas.CHECKS[name] for name in ("full.gradients.mlp", "split.gradients.lstm"))
    contract_of([first])
    areas.CHECKS[second.id] = second
    contract.checks_of.cache_clear()


@pytest.mark.usefixtures("two")
def test_freeze_writes_the_file_and_prints_the_changes(command: Command) -> None:
    done = command("contract", "--freeze")
    assert (done.code, done.err) == (0, "")
    path = frozen.file_of("1.3")
    assert_expected_inline(
        done.out.replace(str(path), "1.3.json"),
        """\
added: split.gradients.lstm
added: the stage lstm
1.3.json: contract 1.3, 2 checks on 2 stages; 2 added, 0 gone, 0 changed
""",
    )
    assert command("contract", "--freeze").last.endswith("; 0 added, 0 gone, 0 changed")


@pytest.mark.usefixtures("two")
def test_a_released_version_does_not_change(command: Command) -> None:
    done = command("contract", "--freeze", "2027-01-10")
    assert done.last.endswith("; released on 2027-01-10, it changes no more")
    areas.CHECKS.pop("full.gradients.mlp")
    contract.checks_of.cache_clear()
    refused = command("contract", "--freeze")
    assert (refused.code, refused.out) == (2, "")
    assert "contract 1.3 was released on 2027-01-10 and changes no more" in refused.err
    assert "gone: full.gradients.mlp" in refused.err


def test_an_invalid_date_and_an_unknown_version_are_refused(command: Command) -> None:
    done = command("contract", "--freeze", "soon")
    assert (done.code, done.out) == (2, "")
    assert "expected a date such as 2027-01-10, got 'soon'" in done.err
    for words in (("contract",), ("list",), ("explain", "full.loss.mlp")):
        done = command(*words, "--contract", "0.7")
        assert (done.code, done.out) == (2, "")
        assert "argument --contract: unknown contract version '0.7'; expected one of 1.0, 1.1, 1.2" in done.err


def test_list_and_explain_use_the_checks_of_the_requested_version(
    command: Command, contract_of: Callable[..., None]
) -> None:
    mlp, lstm = (areas.CHECKS[name] for name in ("full.gradients.mlp", "full.gradients.lstm"))
    contract_of([replace(mlp, since="0.9"), lstm])
    assert len(command("list").out.splitlines()) == 2
    assert command("list", "--contract", "0.9").out.startswith("full.gradients.mlp\t")
    assert len(command("list", "--contract", "0.9").out.splitlines()) == 1
    assert '"contract": "0.9"' in command("list", "--contract", "0.9", "--json").out
    assert "since contract 0.9" in command("explain", mlp.id).out
    assert "no check has the id 'full.gradients.lstm'" in command("explain", lstm.id, "--contract", "0.9").err
    assert command("contract", "--contract", "0.9").out.startswith("# The contract, version 0.9\n")


def test_the_overview_names_the_subject_of_each_area(command: Command) -> None:
    overview = command("contract").out.partition("## Overview")[2].partition("## How")[0]
    rows = re.findall(r"^\| \[(\w+)\]\(#(\w+)\) \| ([^|]{20,120}) \|", overview, re.MULTILINE)
    assert [area for area, _, _ in rows] == sorted({check.area for check in contract.checks_of().values()})
    assert all(area == link and not subject.rstrip().endswith(".") for area, link, subject in rows)
