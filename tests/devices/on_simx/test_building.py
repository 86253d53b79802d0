"""The library of simx is built once, whoever asks for it, and what goes wrong is told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gradconform.plugins.devices.simx import SimxUnavailableError, library


def test_only_one_of_several_concurrent_callers_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = []

    def build(_folder: Path, built: Path) -> None:
        builds.append(built)
        time.sleep(0.2)
        built.touch()

    monkeypatch.setattr(library, "_build", build)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: library.library(), range(4)))
    assert builds == [found[0]]
    assert len(set(found)) == 1


def test_another_source_or_compiler_builds_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = library._fingerprint()
    monkeypatch.setenv("CXX", "another")
    compiler = library._fingerprint()
    (tmp_path / "simx.cpp").write_text("another", encoding="utf-8")
    monkeypatch.setattr(library, "SOURCES", tmp_path)
    assert len({before, compiler, library._fingerprint()}) == 3


def test_a_compiler_error_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "simx.cpp").write_text("#error this is no device", encoding="utf-8")
    monkeypatch.setattr(library, "SOURCES", sources)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with pytest.raises(
        SimxUnavailableError, match=r"cannot be built: simx\.cpp:1:2: error: .*this is no device; expected"
    ):
        library.library()
    assert list(tmp_path.glob("simx-*/simx.so")) == []


def test_a_build_does_not_deadlock_if_every_process_loads_the_device(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import gradconform.plugins.devices.simx\n", encoding="utf-8")
    variables = {
        "PYTHONPATH": str(tmp_path),
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "built"),
        "CC": "no-such-compiler",  # compiles with older setuptools, where CXX links alone
        "CXX": "no-such-compiler",
    }
    done = subprocess.run(
        [sys.executable, "-c", ""], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.stderr.count("building the device simx") == 1
    assert "SimxUnavailableError: the device simx cannot be built: " in done.stderr
    assert "no-such-compiler" in done.stderr


def test_an_unwritable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file"))
    with pytest.raises(SimxUnavailableError, match=r"file.*; TORCH_EXTENSIONS_DIR names the folder to build in"):
        library.library()
