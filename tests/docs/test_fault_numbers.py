"""One table has the numbers of known faults: that of docs/limits.md, which a command writes."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
#: A table that a command writes, and what a command printed.
WRITTEN = re.compile(r"^<!-- measured: .*?^<!-- end -->$|^```.*?^```$", re.DOTALL | re.MULTILINE)


def test_no_sentence_has_a_number_of_known_faults() -> None:
    found = {
        page.name: re.findall(
            r"\d{3} (?:known faults|deliberately wrong|faults (?:are )?killed)", WRITTEN.sub("", text)
        )
        for page in DOCS.glob("*.md")
        if page.name != "torch-versions.md"  # its command writes all of it
        for text in (page.read_text(encoding="utf-8"),)
    }
    assert {page: numbers for page, numbers in found.items() if numbers} == {}
