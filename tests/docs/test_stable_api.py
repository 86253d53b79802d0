"""The page on what stays the same lists what there is, and the page of the library has every public name."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import get_args

import pytest

import gradconform
from gradconform.devices.names import DTYPE_NAMES
from gradconform.plugins.pytest import fixtures, hookspec
from gradconform.results import STATUSES
from gradconform.user_input.values import PROFILES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "stable-api.md").read_text(encoding="utf-8")


def listed(start: str) -> set[str]:
    """Return the names in the row of the first table that begins with a word."""
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {start}"))
    return set(re.findall(r"`([\w.]+)`", row.split("|")[1]))


def test_the_page_lists_exactly_the_existing_fixtures_markers_hooks_and_entry_points(
    pytestconfig: pytest.Config,
) -> None:
    prefixes = ("gradconform_", "assert_")
    assert listed("fixtures") == {name for name in vars(fixtures) if name.startswith(prefixes)}
    markers = {line.partition(":")[0].partition("(")[0] for line in pytestconfig.getini("markers")}
    ours = {name for name in markers if name.startswith("gradconform")}
    assert listed("markers") == ours
    assert listed("hooks") == {name for name in vars(hookspec) if name.startswith("pytest_gradconform_")}
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    assert listed("entry points") <= set(groups)


def test_every_public_name_is_documented() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8") + PAGE
    assert [name for name in gradconform.__all__ if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Profile", PROFILES),
        ("DtypeName", DTYPE_NAMES),
        ("Status", STATUSES),
        ("Verdict", ("conforms", "conforms in part", "does not conform", "incomplete", "passed", "failed")),
    ],
)
def test_a_type_has_the_values_that_the_page_lists(name: str, values: tuple[str, ...]) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `gradconform.{name}`"))
    assert set(re.findall(r'`"([^"]+)"`', row)) - {" with waivers"} == set(values)
    with_waivers = {f"{value} with waivers" for value in values[:2]} if name == "Verdict" else set()
    assert set(get_args(getattr(gradconform, name))) == set(values) | with_waivers
