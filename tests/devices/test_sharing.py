"""Workers of pytest-xdist share the two indices of simx, and find what one process finds."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .agreement import differences

Process = Callable[..., "subprocess.CompletedProcess[str]"]

#: Each worker leaves the name of its index: both get some of so many tests at the start.
PLACES = """
import pathlib
import pytest

@pytest.mark.parametrize("number", range(40))
def test_place(number, gradconform_device, worker_id):
    pathlib.Path(f"place-{worker_id}-{gradconform_device}").touch()
"""


@pytest.mark.slow
def test_results_on_two_shared_indices_are_the_same_in_one_process_and_in_workers(
    tmp_path: Path, process: Process
) -> None:
    (tmp_path / "test_place.py").write_text(PLACES, encoding="utf-8")
    seen: list[list[Any]] = []
    rest: list[Any] = []
    places: list[set[str]] = []
    for count in ("0", "2"):
        done = process(
            "pytest", "-q", "-p", "no:cacheprovider", "-n", count, "--gradconform", "reference-split",
            "--gradconform-device", "simx", "--gradconform-profile", "quick",
            "--gradconform-checks", "full.gradients.*", "--gradconform-json", "out.json",
            XDG_CACHE_HOME=str(tmp_path / f"caches {count}"),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
        assert report["devices"]["indices"] == {"simx": ["simx:0", "simx:1"]}
        del report["environment"], report["made"]
        seen.append([{**result, "duration_s": 0} for result in report.pop("results")])
        rest.append(report)
        places.append({path.name.removeprefix("place-") for path in tmp_path.glob("place-*")})
        for path in tmp_path.glob("place-*"):
            path.unlink()
    assert len(seen[0]) > 10
    assert {result["device"] for result in seen[0]} == {"simx"}
    assert [found for pair in zip(*seen, strict=True) if (found := differences(*pair))] == []
    assert rest[0] == rest[1]
    assert places == [{"master-simx:0"}, {"gw0-simx:0", "gw1-simx:1"}]
