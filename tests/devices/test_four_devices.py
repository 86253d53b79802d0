"""The kit on the four devices that need no hardware: one run, in one process and in two workers of pytest-xdist."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .agreement import agrees

Process = Callable[..., "subprocess.CompletedProcess[str]"]
Result = dict[str, Any]
Results = dict[tuple[str, str], Result]
Judged = Callable[..., Results]

FOUR = ("cpu", "lazy", "simx:0", "simx:1")

#: What a device cannot do, as docs/devices-reference.md says: messages of what has no verdict there, but on the CPU.
LIMITS = {
    "lazy": (
        "Input tensor is not a lazy tensor",  # no hidden state of nn.LSTM or nn.GRU
        "appears to be a view operator, but it has no implementation",  # as_strided, and view of what is not contiguous
        "was an as_strided() call",  # written to through a chain of views with one in it
        "mutating a non-functional tensor with a functional tensor",
        "unsupported autocast device_type 'lazy'",
        "module 'torch' has no attribute 'lazy'",  # torch.utils.checkpoint
        "_sparse_coo_tensor",
        "expected device lazy:0 but got cpu",  # zeros for unused parts of an output
        "expected device cpu but got lazy:0",
        "GetTensorList only supports lists of valid tensors",
        "but no single operation is",  # it adds to a gradient of strides 0
    ),
    "simx": ("_sparse_coo_tensor",),
}

#: torch's split goes twice through a node of several outputs, or once, by the order of a set of objects. An LSTM's
#: cell is such a node on simx, and a GRU's, not on the CPU. Plain autograd never fails there: torch is rightly accused.
TWICE = "Trying to backward through the graph a second time"


@pytest.fixture
def judged(tmp_path: Path, process: Process) -> Judged:
    """Judges a target by the pytest plugin; returns its results by check and device."""

    def run(target: str, workers: int, profile: str, devices: tuple[str, ...] = FOUR) -> Results:
        done = process(
            "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers), "--gradconform", target,
            "--gradconform-device", ",".join(devices), "--gradconform-profile", profile,
            "--gradconform-json", "out.json",
        )  # fmt: skip
        assert (tmp_path / "out.json").exists(), done.stdout + done.stderr
        report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
        assert report["summary"]["not_run"] == 0
        found = {(r["check"], r["device"]): {**r, "duration_s": 0.0} for r in report["results"]}
        assert len(found) == len(report["results"]) == report["summary"]["manifest"]
        return found

    return run


def verdict(result: Result) -> Any:
    """Return what is to be the same on every device: numbers in a message need not be."""
    told = [(finding["kind"], finding["where"], finding["action"]) for finding in result["findings"]]
    return result["status"], result["kind"], result["level"], told


def apart(one: Results, other: Results) -> list[tuple[Result, Result | None]]:
    """Return the results of ``one`` of which ``other`` does not say the same."""
    pairs = ((result, other.get(place)) for place, result in one.items())
    return [(result, beside) for result, beside in pairs if not agrees(result, beside)]


def explained(result: Result) -> bool:
    """Tell whether a limit of the device explains that a result is not the CPU's."""
    device = result["device"].partition(":")[0]
    if device == "lazy" and result["check"].startswith(("state.returned_layout.", "state.stored_layout.")):
        return True  # every tensor there is contiguous
    no_verdict = result["status"] == "unsupported" or (result["status"], result["kind"]) == ("error", "device")
    return no_verdict and any(limit in result["message"] for limit in LIMITS[device])


def unsteady(result: Result) -> bool:
    """Tell whether a check asks torch's split for what it does by the order of a set of objects."""
    recurrent = result["device"].startswith("simx") and result["check"].endswith((".lstm", ".gru"))
    return recurrent or result["check"].endswith(".merged-paths")


def unexplained(results: Results) -> Iterator[Result]:
    """Yield the results that are neither the CPU's nor explained by what the device cannot do."""
    for (check, device), result in results.items():
        if device != "cpu" and verdict(result) != verdict(results[check, "cpu"]) and not explained(result):
            yield result


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"headroom": 0.25, "bit_equal": False}, True),
        ({"memory": {"peak": 4400, "plain_autograd": 3212, "undeferred": 2872}}, True),
        ({"memory": {"peak": 4372, "plain_autograd": 1568, "undeferred": 2872}}, True),
        ({"message": "expected 0.25, got 0.5"}, True),
        ({"headroom": 7.5}, False),
        ({"headroom": None}, False),
        ({"memory": None}, False),
        ({"memory": {"peak": 8744, "plain_autograd": 3212, "undeferred": 2872}}, False),
        ({"message": "expected nothing, got 0.5"}, False),
        ({"status": "failed"}, False),
        ({"findings": [{"where": "input 0"}]}, False),
    ],
    ids=str,
)
def test_two_results_agree_up_to_the_last_bits(change: Result, *, same: bool) -> None:
    memory = {"peak": 4372, "plain_autograd": 3212, "undeferred": 2872}
    result = {
        "status": "passed",
        "message": "expected 0.26, got 0.5",
        "findings": [],
        "headroom": 0.0,
        "memory": memory,
    }
    assert agrees({**result, "bit_equal": True}, {**result, "bit_equal": True, **change}) == same


# CI asks the same of torch, of which more is told, and of the right split on each device by itself.
@pytest.mark.nightly
def test_the_right_split_passes_on_all_four_devices(judged: Judged) -> None:
    found = judged("reference-split", 2, "quick")
    assert list(unexplained(found)) == []
    assert {result["status"] for (_, device), result in found.items() if device == "cpu"} == {"passed"}
    assert len(found) == len(FOUR) * len({check for check, _ in found})


@pytest.mark.nightly
def test_the_right_split_passes_in_one_process_and_in_two(judged: Judged) -> None:
    alone, together = (judged("reference-split", workers, "quick") for workers in (0, 2))
    assert alone.keys() == together.keys()
    assert apart(alone, together) == []
    assert list(unexplained(alone)) == []
    assert {result["status"] for (_, device), result in alone.items() if device == "cpu"} == {"passed"}


def assert_the_cpus_verdicts(results: Results) -> None:
    """Refuse verdicts of torch on a device that are neither the CPU's nor explained, or that do not differ at all."""
    other = list(unexplained(results))
    assert {result["check"] for result in other} <= {"accumulate.stage.lstm", "split.gradients.lstm"}
    assert all(unsteady(result) and TWICE in result["message"] for result in other)
    claimed = [result for (_, device), result in results.items() if device == "cpu" and not result["unclaimed"]]
    assert {result["status"] for result in claimed} == {"passed", "failed"}


@pytest.mark.slow
def test_torch_has_the_cpu_verdicts_on_all_four_devices(judged: Judged) -> None:
    assert_the_cpus_verdicts(judged("torch", 2, "quick"))


@pytest.mark.nightly
def test_torch_has_the_cpu_verdicts_on_all_four_devices_in_one_process_and_in_two(judged: Judged) -> None:
    alone, together = (judged("torch", workers, "quick") for workers in (0, 2))
    assert alone.keys() == together.keys()
    assert [pair for pair in apart(alone, together) if not unsteady(pair[0])] == []
    assert_the_cpus_verdicts(alone)
    assert_the_cpus_verdicts(together)


@pytest.mark.nightly
@pytest.mark.parametrize("device", FOUR[1:])
@pytest.mark.parametrize("target", ["reference-split", "torch"])
def test_the_standard_profile_gives_the_cpu_verdicts(target: str, device: str, judged: Judged) -> None:
    results = judged(target, 2, "standard", ("cpu", device))
    assert [result for result in unexplained(results) if not (target == "torch" and unsteady(result))] == []
