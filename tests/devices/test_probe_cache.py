"""Probes kept between runs: read as long as nothing has changed that they depend on."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradconform.devices import probe_cache
from gradconform.devices.probe import Line, Probe, Probed, Request
from gradconform.devices.probe_cache import cached_probes
from gradconform.reading.report import read_report

Process = Callable[..., "subprocess.CompletedProcess[str]"]

REQUEST = Request(type="npu")
GOOD = Probe(device="npu:0", dtypes={"float32": ""}, preflight=(Line(requirement="it adds", held=True),))

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").is_file(), reason="this system does not list mapped files")


class Prober:
    """Stands for the processes that probe: counts the requests, and finds ``probe`` with the file ``backend``."""

    def __init__(self, backend: Path) -> None:
        self.probe, self.backend, self.asked = GOOD, backend, 0

    def __call__(self, requests: Sequence[Request]) -> list[Probed]:
        """Probe."""
        self.asked += len(requests)
        found = self.backend.stat()
        return [Probed((self.probe,), ((str(self.backend), found.st_size, found.st_mtime_ns),)) for _ in requests]

    def probed(self, request: Request = REQUEST, *, fresh: bool = False) -> bool:
        """Return whether a run probes the device, and does not read what an earlier one kept."""
        before = self.asked
        ((found,),) = cached_probes([request], fresh=fresh)
        read = "cached_at" in found.facts
        assert read is (self.asked == before)
        assert replace(found, facts={}) == replace(self.probe, facts={})
        return not read


@pytest.fixture
def prober(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prober:
    backend = tmp_path / "backend.so"
    backend.write_bytes(b"one")
    made = Prober(backend)
    monkeypatch.setattr(probe_cache, "probe_all", made)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return made


def test_a_second_run_reads_the_cached_probe_and_fresh_probes_again(prober: Prober) -> None:
    assert [prober.probed(), prober.probed(), prober.probed(fresh=True), prober.probed()] == [True, False, True, False]


def rebuilt(prober: Prober, _: pytest.MonkeyPatch) -> None:
    prober.backend.write_bytes(b"two, rebuilt")


def removed(prober: Prober, monkeypatch: pytest.MonkeyPatch) -> None:
    other = prober.backend.with_name("other.so")
    prober.backend.rename(other)
    monkeypatch.setattr(prober, "backend", other)


def another_variable(_: Prober, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CPU")


def another_folder(prober: Prober, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prober.backend.parent)


def another_path(_: Prober, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("/nowhere")


def rebooted(prober: Prober, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = prober.backend.with_name("boot_id")
    boot.write_text("another", encoding="ascii")
    monkeypatch.setattr(probe_cache, "_BOOT", boot)


def another_gpu(_: Prober, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_cache, "_nodes", lambda: ["nvidia0", "nvidia1"])


def a_day_later(_: Prober, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 24 * 3600.0 + 1)


def damaged(prober: Prober, _: pytest.MonkeyPatch) -> None:
    (file,) = (prober.backend.parent / "caches" / "gradconform" / "probes").iterdir()
    file.write_text(file.read_text(encoding="utf-8")[:-9], encoding="utf-8")


@pytest.mark.parametrize(
    "change",
    [rebuilt, removed, another_variable, another_folder, another_path, rebooted, another_gpu, a_day_later, damaged],
)
def test_a_probe_is_repeated_if_something_relevant_changed(
    change: Callable[[Prober, pytest.MonkeyPatch], None], prober: Prober, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prober.probed()
    change(prober, monkeypatch)
    assert [prober.probed(), prober.probed()] == [True, False]


def test_another_request_is_probed(prober: Prober) -> None:
    assert prober.probed()
    assert prober.probed(replace(REQUEST, flags=(("tf32", "off"),)))
    assert prober.probed(replace(REQUEST, plugins=("backend",)))


def test_an_unusable_device_is_probed_each_time(prober: Prober) -> None:
    prober.probe = replace(GOOD, reason="no driver")
    assert [prober.probed(), prober.probed()] == [True, True]


def test_a_failed_pre_flight_is_cached_until_the_backend_changes(prober: Prober) -> None:
    prober.probe = replace(GOOD, preflight=(Line(requirement="it adds", held=False),))
    assert [prober.probed(), prober.probed()] == [True, False]
    prober.probe = GOOD
    prober.backend.write_bytes(b"two, fixed")
    assert prober.probed()


def test_without_a_writable_cache_every_run_probes(prober: Prober, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(prober.backend))
    assert [prober.probed(), prober.probed()] == [True, True]


def test_a_run_reports_a_cached_probe_and_counts_the_plugin_as_its_file(tmp_path: Path, process: Process) -> None:
    pytest.importorskip("torch._C._acc", reason="a device in Python alone needs a newer torch")
    plugin = shutil.copy(Path(__file__).with_name("pebble.py"), tmp_path)
    caches = {"XDG_CACHE_HOME": str(tmp_path / "caches")}

    def run() -> dict[str, Any]:
        words = ("run", "reference-split", "--device", "pebble", "--device-plugin", "pebble", "--json", "out.json")
        done = process("gradconform", *words, "--checks", "full.gradients.mlp", **caches)
        report = read_report(tmp_path / "out.json")
        assert report.devices is not None
        (probe,) = report.devices["probes"]
        assert ("probe     pebble:0: an earlier run, 20" in done.stdout) is ("cached_at" in probe["facts"])
        return dict(probe["facts"])

    first, second = run(), run()
    assert first == {name: value for name, value in second.items() if name != "cached_at"} != second
    Path(plugin).write_text(f"{Path(plugin).read_text(encoding='utf-8')}\n", encoding="utf-8")
    assert "cached_at" not in run()
