"""What torch offers of an accelerator works on simx: indices, memory, streams, generators, autocast, files."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from gradconform.devices.device import Device
from gradconform.plugins.devices import simx

MIB = 1 << 20


def test_simx_is_the_accelerator_and_has_two_indices() -> None:
    assert torch.accelerator.is_available()
    assert str(torch.accelerator.current_accelerator()) == "simx"
    assert torch.accelerator.device_count() == 2
    assert torch.get_device_module("simx").device_count() == 2


@pytest.fixture
def _load() -> Iterator[None]:
    """Keep every core busy, so that threads wait for one another."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range((os.cpu_count() or 1) + 1)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("_load")
def test_gradients_are_freed_after_waiting_for_autograds_device_thread() -> None:
    """Without that, in one of ten cases under load, the device's thread still holds the results that it handed over."""
    device, held = Device("simx:0"), 0
    layer = nn.Linear(5, 5).to(device.torch_device)
    gc.disable()
    try:
        for _ in range(2000):
            grads = torch.autograd.grad(layer(torch.randn(7, 5, device="simx:0")).sum(), list(layer.parameters()))
            alive = [weakref.ref(grad) for grad in grads]
            del grads
            device.wait_for_autograd()
            held += sum(grad() is not None for grad in alive)
    finally:
        gc.enable()
    assert held == 0


def tensors_of_every_form(device: str) -> list[torch.Tensor]:
    """Return tensors on a device, of each dtype, layout and view that a gradient may be."""
    values = torch.arange(-12.0, 12.0).reshape(2, 3, 4).to(device)
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.bool)
    return [
        *(values.to(dtype) for dtype in dtypes),
        values[0, 0, 0],
        values.reshape(-1)[5:17],
        values.transpose(0, 2),
        values[:, :0],
        values[:1].expand(5, 3, 4),
        values.to(torch.complex64).conj(),
        torch.full((3,), float("nan"), device=device),
        nn.Parameter(values),
        values.clone().requires_grad_() * 2,
        values,
    ]


def test_copying_several_tensors_returns_the_values_of_each() -> None:
    given = tensors_of_every_form("simx:1")
    together, alone = Device("simx:1").all_to_cpu(given), [one.detach().cpu() for one in given]
    for got, wanted in zip(together, alone, strict=True):
        assert (got.dtype, got.layout, got.shape) == (wanted.dtype, wanted.layout, wanted.shape)
        assert not got.requires_grad
        assert got.stride() == wanted.stride()
        assert torch.equal(got.nan_to_num(7.0), wanted.nan_to_num(7.0))


def test_copies_of_several_tensors_do_not_share_memory_with_later_copies() -> None:
    device = Device("simx:0")
    first = device.all_to_cpu([torch.ones(3, device="simx:0"), torch.ones(2, device="simx:0")])
    device.all_to_cpu([torch.zeros(3, device="simx:0"), torch.zeros(2, device="simx:0")])
    assert [one.tolist() for one in first] == [[1.0] * 3, [1.0] * 2]


def test_copying_several_tensors_waits_for_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device, blocking, copied = Device("simx:0"), [], torch.Tensor.copy_
    given = [torch.full((number,), float(number), device="simx:0") for number in range(1, 9)]

    def copy(to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # noqa: FBT001, FBT002 (as torch)
        blocking.append(not non_blocking)
        return copied(to, source, non_blocking=non_blocking)

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    monkeypatch.setattr(torch.Tensor, "cpu", None)  # waits
    assert [one.tolist() for one in device.all_to_cpu(given)] == [[float(n)] * n for n in range(1, 9)]
    assert blocking == [False] * 8


def test_logging_operations_does_not_import_torchs_compiler() -> None:
    run = (
        "import sys, gradconform\n"
        "report = gradconform.check_stage_backward('reference-split', device='simx', "
        " checks=['full.gradients.mlp', 'mode.gradients.deterministic-mlp-full'],"
        " device_plugins='gradconform.plugins.devices.simx')\n"
        "print([result.status for result in report], 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False)
    assert done.stdout == "['passed', 'passed'] False\n"


def test_loading_twice_changes_nothing() -> None:
    simx.load()
    assert torch.accelerator.device_count() == 2


@pytest.mark.parametrize("index", [0, 1])
def test_tensors_and_their_gradients_keep_their_index(index: int) -> None:
    layer, x = nn.Linear(2, 2).to(f"simx:{index}"), torch.ones(1, 2, device=f"simx:{index}", requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert {tensor.device.index for tensor in (layer(x), x.grad, *(p.grad for p in layer.parameters()))} == {index}


@pytest.mark.parametrize("index", [0, 1])
def test_a_tensor_that_grows_keeps_its_index(index: int) -> None:
    x = torch.empty(0, device=f"simx:{index}").resize_(3)
    written = torch.abs(torch.ones(2, device=f"simx:{index}"), out=torch.empty(0, device=f"simx:{index}"))
    assert [tensor.untyped_storage().device.index for tensor in (x, written)] == [index, index]


def test_tensors_move_between_indices_in_a_graph() -> None:
    x = torch.ones(2, device="simx:0", requires_grad=True)
    (x.to("simx:1") * 3).sum().backward()
    assert x.grad is not None
    assert (str(x.grad.device), x.grad.tolist()) == ("simx:0", [3.0, 3.0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: torch.ones(1, device="simx:7"), r"invalid device ordinal 7 \(2 devices\)"),
        (lambda: torch.ones(2, device="simx:0") + torch.ones(2), "at least two devices, simx:0 and cpu"),
        (lambda: torch.ones(2) @ torch.ones(2, device="simx:0"), "at least two devices, simx:0 and cpu"),
        (lambda: torch.ones(2, device="simx:0") + torch.ones(2, device="simx:1"), "two devices, simx:0 and simx:1"),
        (lambda: torch.rand(2, device="simx", generator=torch.Generator()), "Expected a 'simx' device type"),
    ],
    ids=["no such index", "the CPU second", "the CPU first", "two indices", "a generator of the CPU"],
)
def test_errors_of_other_accelerators_are_raised_too(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        wrong()


def test_the_current_index_is_restored_after_a_with_block() -> None:
    module = torch.get_device_module("simx")
    with module.device(1):
        assert (module.current_device(), torch.ones(1, device="simx").device.index) == (1, 1)
    assert (module.current_device(), torch.accelerator.current_device_index()) == (0, 0)


def test_memory_counters_rise_and_fall_with_allocations() -> None:
    module = torch.get_device_module("simx")
    before, other = module.memory_allocated(1), module.memory_allocated(0)
    module.reset_peak_memory_stats(1)
    block = torch.empty(MIB, dtype=torch.uint8, device="simx:1")
    assert module.memory_allocated(1) - before == MIB
    del block
    assert (module.memory_allocated(1), module.memory_allocated(0)) == (before, other)
    assert torch.accelerator.max_memory_allocated(1) - before == MIB
    assert torch.accelerator.memory_stats(1)["allocation.all.allocated"] > 0


def test_a_backward_leaves_no_allocated_memory() -> None:
    before = torch.accelerator.memory_allocated(0)
    layer = nn.LSTM(4, 4).to("simx:0")
    layer(torch.ones(3, 2, 4, device="simx:0"))[0].sum().backward()
    del layer
    assert torch.accelerator.memory_allocated(0) == before


def test_streams_and_events_can_be_used() -> None:
    stream = torch.Stream(device="simx:0")
    start, end = (torch.Event("simx", enable_timing=True) for _ in range(2))
    with stream:
        assert torch.accelerator.current_stream() == stream
        start.record()
        x = torch.ones(2, device="simx", requires_grad=True)
        (x * 2).sum().backward()
        end.record()
        x.record_stream(stream)
    assert torch.accelerator.current_stream() != stream
    end.synchronize()
    torch.accelerator.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0


def test_each_index_has_a_generator_that_torch_seeds() -> None:
    torch.manual_seed(1)
    first = [torch.rand(3, device=f"simx:{index}").tolist() for index in (0, 1)]
    torch.manual_seed(1)
    state = torch.simx.get_rng_state("simx:1")
    assert [torch.rand(3, device=f"simx:{index}").tolist() for index in (0, 1)] == first
    torch.simx.set_rng_state(state, "simx:1")
    assert torch.rand(3, device="simx:1").tolist() == first[1]
    generator = torch.Generator("simx:1").manual_seed(1)
    assert torch.rand(3, device="simx:1", generator=generator).tolist() == first[1]


def test_dropout_uses_the_generator_of_the_device_not_of_the_cpu() -> None:
    torch.manual_seed(1)
    cpu, device = torch.get_rng_state(), torch.simx.get_rng_state()
    nn.functional.dropout(torch.ones(64, device="simx:0"), 0.5)
    assert torch.equal(torch.get_rng_state(), cpu)
    assert not torch.equal(torch.simx.get_rng_state(), device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_products_in_the_lower_dtype(dtype: torch.dtype) -> None:
    layer, x = nn.Linear(4, 4).to("simx:0"), torch.ones(2, 4, device="simx:0")
    with torch.autocast("simx", dtype=dtype):
        y = layer(x)
        assert (y.dtype, torch.nn.functional.softmax(y, -1).dtype) == (dtype, torch.float32)
    y.float().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32


def test_cpu_autocast_does_not_change_the_device() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2, device="simx") @ torch.ones(2, 2, device="simx")).dtype == torch.float32


def test_a_module_is_saved_and_loaded_between_cpu_and_device() -> None:
    layer, file = nn.Linear(3, 2).to("simx:1"), io.BytesIO()
    torch.save(layer.state_dict(), file)
    for place in (None, "simx:0", "cpu"):
        file.seek(0)
        loaded = torch.load(file, map_location=place)
        assert str(loaded["weight"].device) == (place or "simx:1")
        assert torch.equal(loaded["weight"].cpu(), layer.weight.detach().cpu())


def test_storages_can_be_resized_and_shared() -> None:
    x = torch.arange(4.0).to("simx:1")
    x.untyped_storage().resize_(32)
    shared = torch.empty(0, device="simx:1").set_(x.untyped_storage(), 1, (3,))
    shared.mul_(2)
    assert x.tolist() == [0.0, 2.0, 4.0, 6.0]


def test_autograd_detects_a_write_after_saving() -> None:
    x = torch.ones(3, device="simx", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_profiler_records_one_device_operation_and_no_cpu_operation() -> None:
    a = torch.ones(2, 2, device="simx")
    with torch.profiler.profile() as profile:
        a @ a
    assert [event.name for event in profile.events()].count("aten::mm") == 1
