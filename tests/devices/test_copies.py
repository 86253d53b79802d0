"""Views that a device copies wrong: the copies are named, and no right operation is charged with them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gradconform
from gradconform.devices.copies import TO_CPU, WrongCopyError, read, reading_of, wrong_copies
from gradconform.devices.device import Device, device_of
from gradconform.pipeline.exchange import Job
from gradconform.results import Place
from gradconform.sources.pipeline import PipelineOptions, checks

CPU = torch.device("cpu")

Process = Callable[..., "subprocess.CompletedProcess[str]"]


def without_gaps(tensor: Tensor) -> Tensor:
    """Copy the first elements in memory, as torch_mcpu does for a column."""
    strides = torch.empty(tensor.shape, device="meta").stride()
    return tensor.as_strided(tensor.shape, strides).clone() if min(tensor.stride(), default=1) > 1 else tensor.clone()


def from_0(tensor: Tensor) -> Tensor:
    """Copy the first elements of the storage, whatever the offset is."""
    return without_gaps(tensor.as_strided(tensor.shape, tensor.stride(), 0))


def test_a_wrong_copy_is_named_with_its_view_and_values() -> None:
    assert wrong_copies(CPU, Tensor.clone) == {}
    assert wrong_copies(CPU, without_gaps) == {
        TO_CPU: "every second element: expected [0.0, 2.0, 4.0], got [0.0, 1.0, 2.0]"
    }


@pytest.mark.parametrize(
    ("copy", "way"),
    [(Tensor.clone, "copy"), (without_gaps, "memory"), (from_0, "nothing")],
    ids=["right", "wrong with gaps", "wrong with an offset"],
)
def test_views_are_read_from_memory_only_if_that_is_right_and_their_copy_is_not(
    copy: Callable[[Tensor], Tensor], way: str
) -> None:
    assert reading_of(CPU, copy) == way


def test_a_view_read_from_memory_has_the_values_and_bits_of_the_view() -> None:
    whole = torch.complex(torch.arange(24.0), -torch.arange(24.0)).reshape(2, 3, 4)
    for view in (whole[..., 1::2], whole.permute(2, 0, 1), whole.mT.conj(), whole.conj().imag[1:, ::2], whole[:, :1]):
        assert torch.equal(read(view, without_gaps, "memory"), view.resolve_conj().resolve_neg())


def test_a_view_that_cannot_be_read_is_no_value() -> None:
    device = Device("cpu")
    device.reads_views = "nothing"
    assert device.to_cpu(torch.ones(3)).tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(WrongCopyError, match="cpu copies views to the CPU with other elements"):
        device.to_cpu(torch.ones(6)[::2])


def test_the_ranks_of_a_pipeline_read_views_as_the_probe_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_of(CPU), "reads_views", "memory")
    seen: list[Job] = []
    monkeypatch.setattr(checks, "run_pipeline", lambda job, *_: seen.append(job))
    run = checks.prepare(PipelineOptions(target="torch", schedule=("1F1B",)))
    places = [Place(clause.id, "cpu", "float32") for clause in run.clauses]
    run.run(lambda _: None, on_start=lambda *_: None, places=places)
    assert {Job.from_json(job.to_json()).reads_views for job in seen} == {"memory"}


READ_ON_A_RANK = """
import miscopying, torch
from gradconform.devices.device import device_of
from gradconform.pipeline.cpu_copies import _on_host
from gradconform.pipeline.training_step.gathering import _digest
from gradconform.sharded.on_rank import _on_cpu

here, there = (torch.arange(12.0).reshape(4, 3).to(device)[:, ::2] for device in ("cpu", "abacus"))
device_of(there.device).reads_views = "memory"
print(torch.equal(there.cpu(), here), *(torch.equal(read(there), here) for read in (_on_host, _on_cpu)))
print(_digest(there) == _digest(here))
"""


@pytest.mark.slow
def test_a_rank_reads_no_view_by_a_wrong_copy(abacus: Path, process: Process) -> None:
    shutil.copy(Path(__file__).with_name("miscopying.py"), abacus)
    (abacus / "rank.py").write_text(READ_ON_A_RANK, encoding="utf-8")
    assert process("rank", MISCOPIES="reads").stdout == "False True True\nTrue\n"


@pytest.fixture
def judged(abacus: Path, process: Process) -> Callable[..., tuple[str, dict[str, Any]]]:
    """Judge operations on the device of the docs with wrong copies of one kind: the output, and the report."""
    shutil.copy(Path(__file__).with_name("miscopying.py"), abacus)

    def run(kind: str, operations: str, oracle: str) -> tuple[str, dict[str, Any]]:
        done = process(
            "gradconform", "run", "reference-split", "--device", "abacus", "--device-plugin", "miscopying",
            "--operation", operations, "--oracle", oracle, "--checks", f"ops.{oracle}.*", "--json", "out.json",
            MISCOPIES=kind,
        )  # fmt: skip
        gradconform.read_report(abacus / "out.json")  # it meets the schema
        report: dict[str, Any] = json.loads((abacus / "out.json").read_text(encoding="utf-8"))
        return done.stdout, report

    return run


COPIED_WRONG = "the device's own copies are wrong (see its pre-flight)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "oracle", "unjudged"),
    [
        ("reads", "edges", 0),
        ("reads", "layout", 0),
        ("copies", "edges", 0),
        ("copies", "layout", 1),
        ("all", "edges", 1),
    ],
)
def test_a_right_operation_is_not_charged_with_a_wrong_copy(
    kind: str, oracle: str, unjudged: int, judged: Callable[..., tuple[str, dict[str, Any]]]
) -> None:
    output, report = judged(kind, "sum", oracle)
    (result,) = report["results"]
    (probe,) = report["devices"]["probes"]
    assert result["findings"] == [], output
    assert result["status"] == "passed"
    assert result["oracle"]["compared"] > 20
    assert (COPIED_WRONG in result["oracle"]["not_tried"]) == unjudged
    broken = [line["message"] for line in probe["preflight"] if not line["held"]]
    assert len(broken) == 1
    assert "copied to the CPU, every second element: expected [0.0, 2.0, 4.0], got [0.0, 1.0, 2.0]" in broken[0]
    assert probe["facts"]["reads_views"] == ("nothing" if kind == "all" else "memory")


@pytest.mark.slow
def test_a_wrong_operation_is_found_behind_a_wrong_copy(judged: Callable[..., tuple[str, dict[str, Any]]]) -> None:
    output, report = judged("kernel", "sum", "edges")
    (result,) = report["results"]
    assert [one["cause"]["names"][0] for one in result["findings"]] == ["aten::sum"], output


@pytest.mark.slow
def test_numbers_that_a_copy_changes_charge_no_operation(
    judged: Callable[..., tuple[str, dict[str, Any]]],
) -> None:
    output, report = judged("numbers", "nn.functional.relu", "edges")
    (result,) = report["results"]
    (probe,) = report["devices"]["probes"]
    assert (result["status"], result["findings"]) == ("passed", []), output
    assert COPIED_WRONG in result["oracle"]["not_tried"]
    assert probe["facts"]["wrong_copies"] == ["of some numbers"]
    assert {probe["facts"]["numerics"][name] for name in ("nan_kept", "signed_zero_kept", "denormals_kept")} == {None}


@pytest.mark.slow
def test_a_sample_whose_views_cannot_be_read_is_counted_as_not_judged(
    judged: Callable[..., tuple[str, dict[str, Any]]],
) -> None:
    output, report = judged("all", "t", "alone")
    (result,) = report["results"]
    assert (result["status"], result["kind"]) == ("unsupported", "miscopied")
    assert "1 not judged behind wrong copies" in " ".join(output.split())
    assert "1  not judged: t" in output
