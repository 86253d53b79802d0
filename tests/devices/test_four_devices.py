"""The kit on the four devices that need no hardware: one run, in one process and in two workers of pytest-xdist."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Process = Callable[..., "subprocess.CompletedProcess[str]"]
Result = dict[str, Any]
Results = dict[tuple[str, str], Result]
Judged = Callable[..., Results]

FOUR = ("cpu", "lazy", "simx:0", "simx:1")

#: What a device cannot do, as docs/devices.md says: the messages of what is no verdict there and is one on the CPU.
LIMITS = {
    "lazy": (
        "Input tensor is not a lazy tensor",  # no hidden state of nn.LSTM or nn.GRU
        "The operator aten::as_strided appears to be a view operator",
        "where view 1 was an as_strided() call",
        "where view 2 was an as_strided() call",
        "module 'torch' has no attribute 'lazy'",  # torch.utils.checkpoint
        "_sparse_coo_tensor",
        "expected device lazy:0 but got cpu",  # zeros for parts of an output that nobody uses
        "expected device cpu but got lazy:0",
        "GetTensorList only supports lists of valid tensors",
        "plain autograd is wrong, no operation by itself on lazy:0",  # it adds to a gradient of strides 0
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
            "--gradconform-json", "out.json", limit_s=280 if profile == "quick" else 3600,
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


def explained(result: Result) -> bool:
    """Tell whether a limit of the device explains that a result is not the CPU's."""
    device = result["device"].partition(":")[0]
    if device == "lazy" and result["check"].startswith("state.returned_layout."):
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


@pytest.mark.slow
def test_the_right_split_is_clean_on_all_four_in_one_process_and_in_two(judged: Judged) -> None:
    alone, together = (judged("reference-split", workers, "quick") for workers in (0, 2))
    assert alone == together
    assert list(unexplained(alone)) == []
    assert {result["status"] for (_, device), result in alone.items() if device != "lazy"} == {"passed"}
    assert len(alone) == len(FOUR) * len({check for check, _ in alone})


@pytest.mark.slow
def test_torch_gets_the_cpus_verdicts_on_all_four_in_one_process_and_in_two(judged: Judged) -> None:
    alone, together = (judged("torch", workers, "quick") for workers in (0, 2))
    steady = [place for place, result in alone.items() if not unsteady(result)]
    assert {place: alone[place] for place in steady} == {place: together[place] for place in steady}
    for results in (alone, together):
        apart = list(unexplained(results))
        assert {result["check"] for result in apart} <= {"accumulate.stage.lstm", "split.gradients.lstm"}
        assert all(unsteady(result) and TWICE in result["message"] for result in apart)
        assert {result["status"] for (_, device), result in results.items() if device == "cpu"} == {"passed", "failed"}


@pytest.mark.nightly
@pytest.mark.parametrize("device", FOUR[1:])
@pytest.mark.parametrize("target", ["reference-split", "torch"])
def test_the_standard_profile_gives_the_cpus_verdicts(target: str, device: str, judged: Judged) -> None:
    results = judged(target, 2, "standard", ("cpu", device))
    apart = [result for result in unexplained(results) if not (target == "torch" and unsteady(result))]
    assert apart == []
