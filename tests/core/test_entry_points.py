"""Entry points of the kit: found in every folder of the path, which is searched again only after it has changed."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import Any

import pytest

from gradconform.files.entry_points import entry_points

GROUP = "gradconform.adapters"


def install(folder: Path, name: str, adapter: str) -> None:
    """Install a distribution with an adapter, as pip does; the folder is newer afterwards."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{adapter} = {name}:Adapter\n", encoding="utf-8")
    later = folder.stat().st_mtime_ns + 10**9
    os.utime(folder, ns=(later, later))


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders, the first of the path."""
    found = tmp_path / "first", tmp_path / "second"
    for folder in reversed(found):
        folder.mkdir()
        monkeypatch.syspath_prepend(folder)
    return found


def adapters() -> dict[str, str]:
    return {entry.name: entry.value for entry in entry_points(GROUP)}


def test_the_entry_points_are_those_of_importlib() -> None:
    for group in (GROUP, "gradconform.devices", "gradconform.runtimes", "gradconform.pipeline.stage_objects"):
        found = entry_points(group)
        assert found
        assert sorted(found) == sorted(importlib.metadata.entry_points(group=group))


def test_a_distribution_installed_later_is_found(folders: tuple[Path, Path]) -> None:
    first, second = folders
    before = adapters()
    install(second, "later", "mine")
    assert adapters() == {**before, "mine": "later:Adapter"}
    install(first, "latest", "own")
    assert adapters() == {**before, "mine": "later:Adapter", "own": "latest:Adapter"}


def test_the_first_of_two_distributions_with_one_name_counts(folders: tuple[Path, Path]) -> None:
    first, second = folders
    before = adapters()
    install(second, "twice", "older")
    install(first, "twice", "newer")
    assert adapters() == {**before, "newer": "twice:Adapter"}


def test_an_unchanged_folder_is_searched_once(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    install(folders[0], "once", "mine")
    before = adapters()
    searched: list[Any] = []
    monkeypatch.setattr(importlib.metadata, "distributions", lambda **given: searched.append(given) or ())
    assert adapters() == before
    assert searched == []
