"""docs/limits.md shows measured figures, and one command measures them all anew."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from gradconform.contract.space.dimensions import DIMENSIONS

ROOT = Path(__file__).parents[2]
LIMITS = ROOT / "docs" / "limits.md"
#: What benchmarks/tables.py writes; the figures of the soak are another command's.
BLOCK = re.compile(r"^<!-- measured: (?!soak )([a-z-]+) -->\n(.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE)
PARTS = {"sensitivity", "runs", "false-alarms", "cost", "selftest", "dimensions", "withheld"}
MEASURED = (
    r"Measured on 20\d\d-\d\d-\d\d with torch \d+\.\d+\.\d+\S* on \d+ cores? of a CPU \(\S+, \S+\) by "
    r"`python benchmarks/tables\.py --only "
)


def blocks(path: Path) -> dict[str, str]:
    found = BLOCK.findall(path.read_text(encoding="utf-8"))
    assert len({part for part, _ in found}) == len(found)
    return dict(found)


def rows(block: str) -> list[list[str]]:
    lines = [line for line in block.splitlines() if line.startswith("|")]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines[2:]]


def run_tables(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "tables.py"), *arguments]
    return subprocess.run(command, capture_output=True, check=False, text=True)


@pytest.mark.parametrize("part", sorted(PARTS - {"runs"}))  # which is measured in part, and says so
def test_a_table_was_measured_in_full_with_date_and_machine(part: str) -> None:
    block = blocks(LIMITS)[part]
    assert re.search(f"{MEASURED}{part}`", block)
    dtypes = ["float64", "float32", "bfloat16", "float16"]
    if part in {"sensitivity", "selftest"}:
        assert [row[0] for row in rows(block)] == dtypes
    if part == "selftest":
        assert all(re.fullmatch(r"(\d+) of \1", row[1]) for row in rows(block))  # every fault that was tried


def test_none_of_twenty_thousand_right_trials_fails_in_any_dtype() -> None:
    found = blocks(LIMITS)
    assert {(row[0], row[1]) for row in rows(found["false-alarms"])} == {
        (target, dtype)
        for target in ("autograd", "reference-split")
        for dtype in ("float64", "float32", "bfloat16", "float16")
    }
    assert {tuple(row[2:4]) for row in rows(found["false-alarms"])} == {("20,000", "0")}


def test_every_value_has_a_fault_that_only_rows_with_its_values_show() -> None:
    found = rows(blocks(LIMITS)["dimensions"])
    assert [row[0] for row in found] == [dimension.name for dimension in DIMENSIONS["split"]]
    assert all(row[1] and row[3] == "none" and row[4] == "0" for row in found)


def test_the_verdicts_page_has_the_measured_self_test_numbers() -> None:
    (row,) = [row for row in rows(blocks(LIMITS)["selftest"]) if row[0] == "float32"]
    told = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    assert f"{row[1]} faults killed, {row[3]} right variants clean" in told
    assert f"{row[5]} faults of values" in told


def test_the_tolerances_cite_the_measured_errors() -> None:
    comments = (ROOT / "conformance" / "tolerances.toml").read_text(encoding="utf-8")
    assert "benchmarks/tables.py --only sensitivity" in comments
    for dtype, _, uniform, _ in rows(blocks(LIMITS)["sensitivity"]):
        assert f"{uniform} in {dtype}" in " ".join(comments.replace("#", "").split())


def test_the_plot_exists_and_shows_every_dtype() -> None:
    assert "](sensitivity.svg)" in blocks(LIMITS)["sensitivity"]
    text = " ".join(ET.parse(LIMITS.with_name("sensitivity.svg")).getroot().itertext())  # noqa: S314 (of this repository)
    assert all(dtype in text for dtype in ("float64", "float32", "bfloat16", "float16"))


def test_the_soak_table_reports_no_remaining_process_or_file_and_counts_its_faults() -> None:
    text = LIMITS.read_text(encoding="utf-8")
    (block,) = re.findall(r"^<!-- measured: soak -->\n(.*?)^<!-- end -->$", text, re.DOTALL | re.MULTILINE)
    told = rows(block)
    assert {row[0] for row in told} <= {"run", "pytest", "pipeline", "device", "bundle"}
    assert {row[5] for row in told} == {"0"}
    count = sum(int(row[2]) for row in told)
    assert f"{count} faults, 0 of which left a process or a file, or ended wrongly." in block
    assert f"by `python benchmarks/soak.py --faults {count} --seed " in block


@pytest.mark.nightly
def test_one_command_measures_every_table_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib, which --group dev brings")
    copy = tmp_path / "limits.md"
    copy.write_text(BLOCK.sub(r"<!-- measured: \1 -->\n<!-- end -->", LIMITS.read_text(encoding="utf-8")))
    done = run_tables("--fast", "--write", str(copy))
    assert (done.returncode, done.stderr.strip()) == (0, "")
    found = blocks(copy)
    assert set(found) == PARTS
    for part, block in found.items():
        assert re.search(f"{MEASURED}{part} --fast`", block), part
        assert len(rows(block)) >= 2
        assert all(re.search(r"\d", "".join(row[1:])) for row in rows(block))
    assert [row[2:4] for row in rows(found["false-alarms"])] == [["5", "0"]] * 4
    assert [row[1] for row in rows(found["selftest"])] == ["1 of 1"] * 2
    assert BLOCK.sub("", copy.read_text(encoding="utf-8")) == BLOCK.sub("", LIMITS.read_text(encoding="utf-8"))
    assert ET.parse(tmp_path / "sensitivity.svg").getroot().tag.endswith("svg")  # noqa: S314 (written a line above)


@pytest.mark.slow
def test_a_document_without_the_comments_is_refused_before_measuring(tmp_path: Path) -> None:
    document = tmp_path / "other.md"
    document.write_text("<!-- measured: cost -->\n", encoding="utf-8")
    done = run_tables("--write", str(document), "--only", "cost")
    assert done.returncode == 2
    assert "expected <!-- measured: cost --> on a line of its own, once, and <!-- end --> behind it" in done.stderr
    missing = run_tables("--write", str(tmp_path / "nowhere.md"))
    assert missing.returncode == 2
    assert "there is no such file" in missing.stderr
