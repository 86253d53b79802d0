"""Devices that raise, crash, hang or lie when they are asked: each is answered by what it did, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gradconform.devices.probe import Probe, Request, probe_all, probe_in_process
from gradconform.user_input.values import SelectionError

#: A type that torch knows and no build here has a backend for, so that its object alone answers.
ODD = "fpga"

#: What a device does when it is asked how many there are, and what has to be told of it.
ODDITIES = {
    "raises": ("raise LookupError('no driver\\nat all')", "raised LookupError: no driver"),
    "ends": ("raise SystemExit(0)", "raised SystemExit: 0"),
    "exits": ("import os; os._exit(0)", "ended the process with exit code 0"),
    "aborts": ("import os; os.abort()", "ended the process by SIGABRT"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "ended the process by SIGSEGV"),
    "none": ("return 0", f"torch.ones(2, device='{ODD}', requires_grad=True) raised NotImplementedError: "),
}


def plugin(folder: Path, name: str, statement: str) -> str:
    code = f"""
from gradconform.devices import register_device

class Odd:
    def device_count(self):
        {statement}

register_device({ODD!r}, Odd())
"""
    (folder / f"odd_{name}.py").write_text(code, encoding="utf-8")
    return f"odd_{name}"


def test_every_error_of_a_probed_device_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    requests = [
        Request(type=ODD, plugins=(plugin(tmp_path, name, statement),)) for name, (statement, _) in ODDITIES.items()
    ]
    found = [probed.probes for probed in probe_all(requests)]
    assert [len(probes) for probes in found] == [1] * len(requests)
    for (_, expected), (probe,) in zip(ODDITIES.values(), found, strict=True):
        assert probe.reason is not None
        assert expected in probe.reason
        assert f"device_count() of {ODD}" in probe.reason or "torch.ones" in probe.reason
        assert "\n" not in probe.reason


def test_a_device_that_hangs_while_probed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hour_passes_when_there_is: Callable[[Path], None]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GRADCONFORM_PROBE_SECONDS", "600")
    asked = tmp_path / "asked"
    hanging = plugin(tmp_path, "hangs", f"import pathlib, time; pathlib.Path({str(asked)!r}).touch(); time.sleep(1e6)")
    hour_passes_when_there_is(asked)
    (probe,) = probe_in_process(Request(type=ODD, plugins=(hanging,))).probes
    limit = "did not return within 600 s (GRADCONFORM_PROBE_SECONDS sets the limit)"
    assert probe.reason == f"device_count() of {ODD} {limit}"


def test_a_plugin_that_crashes_or_cannot_be_imported_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "crashing.py").write_text("import os; os.abort()", encoding="utf-8")
    found = probe_all(Request(type="npu", plugins=(name,)) for name in ("no_such_module", "crashing"))
    missing, crashing = (probed.probes for probed in found)
    assert missing[0].reason == "import no_such_module raised ModuleNotFoundError: No module named 'no_such_module'"
    assert str(crashing[0].reason).startswith("import crashing ended the process by SIGABRT")


def test_a_dtype_that_kills_the_process_is_skipped_and_the_others_are_probed(
    abacus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(abacus)
    (abacus / "fragile.py").write_text(
        """
import os, abacus, torch

to_host = abacus.to_host

def fragile(x):
    if x.dtype == torch.float16:
        os.abort()
    if x.dtype == torch.bfloat16:
        raise RuntimeError("no kernel for bfloat16")
    return to_host(x)

abacus.to_host = fragile
""",
        encoding="utf-8",
    )
    (probe,) = probe_in_process(Request(type="abacus", plugins=("fragile",))).probes
    assert probe.reason is None
    assert {name for name, problem in probe.dtypes.items() if not problem} == {
        "float64", "float32", "complex64", "complex128",
    }  # fmt: skip
    assert probe.dtypes["float16"].startswith("float16 on abacus:0 ended the process by SIGABRT")
    assert probe.dtypes["bfloat16"] == "bfloat16 on abacus:0 raised RuntimeError: no kernel for bfloat16"
    assert [line.held for line in probe.preflight] == [True] * 12
    assert Probe.from_dict(probe.to_dict()) == probe


@pytest.mark.parametrize("limit", ["soon", "0", "-1", "inf"])
def test_an_invalid_time_limit_is_refused(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCONFORM_PROBE_SECONDS", limit)
    with pytest.raises(SelectionError, match=": expected seconds, such as "):
        probe_in_process(Request(type="npu"))


#: How a device ends the process when a fact is read, the number of processes that its probe needs, and what it hides.
#: An error that is raised in a backward has ended one process before.
ENDS = {
    "the last fact": ("torch.Tensor.data_ptr = lambda _: os.abort()", 2, ("address",)),
    "an earlier one": ("torch.Tensor._version = property(lambda _: os.abort())", 3, ("version",)),
}


@pytest.mark.parametrize("ends", ENDS)
def test_a_fact_that_kills_the_process_is_hidden_and_open_probes_use_a_new_process(
    ends: str, abacus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement, processes, hidden = ENDS[ends]
    monkeypatch.syspath_prepend(abacus)
    started = abacus / "started"
    code = f"import os, abacus, torch\nopen({str(started)!r}, 'a').write('.')\n{statement}\n"
    (abacus / "ending.py").write_text(code, encoding="utf-8")
    (probe,) = probe_in_process(Request(type="abacus", plugins=("ending",))).probes
    assert (probe.reason, probe.hides) == (None, hidden)
    assert probe.ends_where_a_backward_raises
    assert started.read_text(encoding="utf-8") == "." * processes
