"""Every link of README.md, of docs/ and of the house's own pages leads to a file, or has the form of an address."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FENCED = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(page: Path) -> list[str]:
    """Return where the links and pictures of a page lead."""
    return LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """Return GitHub's anchors of a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_points_to_an_existing_file_and_heading(page: Path) -> None:
    wrong = []
    for link in links(page):
        file, _, anchor = link.partition("#")
        there = page.parent / file if file else page
        if "://" not in link and not (there.exists() and (not anchor or anchor in anchors(there))):
            wrong.append(link)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_web_link_has_a_valid_https_address(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            parts = urlsplit(link)
            assert (parts.scheme, "." in parts.netloc) == ("https", True), link


def test_every_page_of_the_site_is_in_its_navigation() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    named = re.findall(
        r"^(?:.*<)?([a-z-]+)>?$", "\n".join(re.findall(r"(?s)```\{toctree\}(.*?)```", index)), re.MULTILINE
    )
    assert sorted(named) == sorted({page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"})
