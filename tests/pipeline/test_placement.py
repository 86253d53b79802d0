"""Where ranks are and what they communicate with: decided, or refused, before any process starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradconform.devices.device import Device
from gradconform.pipeline.cpu_copies import HOST_COPIES
from gradconform.pipeline.placement import backend_for
from gradconform.user_input.values import SelectionError


@pytest.fixture
def one_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device has one index."""
    monkeypatch.setattr(Device, "device_count", lambda _: 1)


def test_the_cpu_accepts_any_number_of_ranks() -> None:
    assert backend_for("cpu", 64) == "gloo"


@pytest.mark.usefixtures("one_index")
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "xla"])
def test_more_ranks_than_indices_are_refused_with_both_numbers(name: str) -> None:
    backend_for(name, 1)
    told = rf"^2 ranks on this machine are too many for device '{name}': it has 1 index\. .* --ranks-share-device"
    with pytest.raises(SelectionError, match=told):
        backend_for(name, 2)
    assert backend_for(name, 2, share=True) == HOST_COPIES


@pytest.mark.usefixtures("one_index")
@pytest.mark.parametrize(("name", "backend"), [("cuda", "nccl"), ("xpu", "xccl"), ("xla", HOST_COPIES)])
def test_torch_chooses_the_backend_else_gloo_with_copies_to_the_cpu(name: str, backend: str) -> None:
    assert backend_for(name, 1) == backend


@pytest.mark.parametrize("what", [("--schedule", "GPipe", "--ranks", "2"), ()], ids=["schedules", "training steps"])
def test_the_command_names_both_numbers_and_starts_no_process(what: tuple[str, ...], tmp_path: Path) -> None:
    words = [sys.executable, "-m", "gradconform", "pipeline", "reference-split" if what else "torch", *what]
    done = subprocess.run([*words, "--device", "simpy"], cwd=tmp_path, capture_output=True, text=True, check=False)
    refused = "gradconform: 2 ranks on this machine are too many for device 'simpy': it has 1 index"
    assert (done.returncode, done.stdout, done.stderr[: len(refused)]) == (2, "", refused)
    assert len(done.stderr.splitlines()) == 1


#: Two ranks gather and scatter as DTensor does; each prints what it received.
COLLECTIVES = """
import sys
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from gradconform.pipeline.cpu_copies import HOST_COPIES, register_host_copies

rank = int(sys.argv[1])
register_host_copies("cpu")
dist.init_process_group(HOST_COPIES, init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
ones = torch.full((2,), rank + 1.0)
several = functional.all_gather_into_tensor_coalesced([ones, 10 * ones], dist.group.WORLD)
summed = functional.reduce_scatter_tensor_coalesced([torch.arange(4.0)], "sum", [0], dist.group.WORLD)
print([one.tolist() for one in (functional.all_gather_tensor(ones, 0, dist.group.WORLD), *several, *summed)])
dist.destroy_process_group()
"""


def test_the_functional_collectives_that_gloo_lacks_run_one_by_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COLLECTIVES]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    printed = [rank.communicate()[0] for rank in ranks]
    gathered = [[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0], [10.0, 10.0, 20.0, 20.0]]
    assert printed == [f"{[*gathered, part]}\n" for part in ([0.0, 2.0], [4.0, 6.0])]
