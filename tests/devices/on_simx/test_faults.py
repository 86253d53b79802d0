"""Each fault of simx is there when it is asked for, shown with torch alone, and gone afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradconform.devices.flags import flags_set
from gradconform.plugins.devices.simx import OPTIONS, inject


@pytest.fixture(autouse=True)
def _healthy_afterwards() -> Iterator[None]:
    yield
    a = draw(4, 4)
    assert torch.equal((a @ a).cpu(), a.cpu() @ a.cpu())


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype).to("simx:1")


def error(of: Tensor, expected: Tensor) -> float:
    """Return the largest error, as a part of the largest element."""
    expected = expected.double()
    return float((of.cpu().double() - expected).abs().max() / expected.abs().max())


def test_memory_has_a_limit_per_index() -> None:
    used = torch.accelerator.memory_allocated(0)
    with inject(memory_limit=used + 4096):
        assert torch.accelerator.get_memory_info(0) == (4096, used + 4096)
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 8192 bytes on simx:0"):
            torch.empty(8192, dtype=torch.uint8, device="simx:0")
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(600, device="simx:0").exp()  # room for one, not for two
        assert torch.accelerator.memory_allocated(0) == used
        torch.empty(4096, dtype=torch.uint8, device="simx:0")
    torch.empty(8192, dtype=torch.uint8, device="simx:0")


def test_memory_counters_can_be_frozen() -> None:
    with inject(no_memory_stats=True):
        kept = torch.empty(1 << 20, dtype=torch.uint8, device="simx:0")
        assert (torch.accelerator.memory_allocated(0), torch.accelerator.max_memory_allocated(0)) == (0, 0)
        del kept


def test_dtypes_can_be_missing() -> None:
    with inject(no_dtypes="float64,bfloat16"):
        for dtype in (torch.float64, torch.bfloat16):
            with pytest.raises(TypeError, match="simx does not support"):
                torch.ones(2, dtype=dtype).to("simx")
        assert torch.ones(2, device="simx").exp().dtype == torch.float32
        assert torch.float64 not in torch.accelerator.get_device_capability("simx:0")["supported_dtypes"]


def test_float64_can_silently_be_float32() -> None:
    with inject(narrow_float64=True):
        x = torch.full((2,), 1 / 3, dtype=torch.float64).to("simx")
    assert x.dtype == torch.float32
    assert x.tolist() == torch.full((2,), 1 / 3).tolist()


def test_operations_can_be_missing_in_forward_and_in_backward() -> None:
    x = draw(3, 3).requires_grad_()
    with inject(no_ops="aten::gelu,aten::tanh_backward"):
        with pytest.raises(NotImplementedError, match="Could not run 'aten::gelu' with arguments from the 'simx'"):
            F.gelu(x)
        with pytest.raises(NotImplementedError, match="aten::tanh_backward"):
            x.tanh().sum().backward()
        (x @ x).sum().backward()


def test_a_result_can_be_left_on_the_cpu() -> None:
    with inject(cpu_result="aten::gelu"):
        y = F.gelu(draw(3))
    assert str(y.device) == "cpu"
    assert torch.equal(y, F.gelu(draw(3).cpu()))


def test_an_operation_can_use_torchs_cpu_fallback() -> None:
    x = draw(3)
    with inject(cpu_fallback="aten::gelu"), torch.profiler.profile() as profile:
        y = F.gelu(x)
    assert str(y.device) == "simx:1"
    assert torch.equal(y.cpu(), F.gelu(x.cpu()))
    assert "aten::_to_cpu" in {event.name for event in profile.events()}


@pytest.mark.parametrize("product", ["mm", "addmm", "bmm", "conv", "mv"])
def test_float32_products_can_be_tf32(product: str) -> None:
    a, b = draw(2, 16, 16)
    computed, factors = {
        "mm": (lambda a, b: a @ b, (a, b)),
        "addmm": (lambda a, b: F.linear(a, b, a[0]), (a, b)),
        "bmm": (lambda a, b: a @ b, (a[None], b[None])),
        "conv": (F.conv1d, (a[None], b[..., None])),
        "mv": (lambda a, b: a @ b, (a, b[0])),
    }[product]
    expected = computed(*(factor.double().cpu() for factor in factors))
    assert error(computed(*factors), expected) < 1e-6
    with inject(tf32=True):
        assert 1e-5 < error(computed(*factors), expected) < 1e-3


@pytest.mark.parametrize(("product", "on"), [("mm", False), ("conv", True)])
def test_tf32_can_follow_torchs_switches(product: str, *, on: bool) -> None:
    a, b = draw(2, 16, 16)
    computed = (lambda: a @ b) if product == "mm" else (lambda: F.conv1d(a[None], b[..., None]))
    exact = computed()
    with inject(tf32="torch"):
        assert (error(computed(), exact.double().cpu()) > 1e-5) is on
        with flags_set({"tf32": "off" if on else "on"}, "simx"):
            assert (error(computed(), exact.double().cpu()) > 1e-5) is not on


def test_fast_cells_have_the_requested_error_and_keep_float64_exact() -> None:
    cell = nn.GRUCell(4, 4).to("simx:1").requires_grad_(requires_grad=False)
    x, wide = draw(3, 4), nn.GRUCell(4, 4).double().to("simx:1")
    exact, of_wide = cell(x), wide(x.double())
    with inject(rough_cells="64"):
        apart = float((cell(x) - exact).abs().max() / exact.abs().max()) * 2**23  # a small element may be far off
        assert 8 < apart < 1024
        assert torch.equal(wide(x.double()), of_wide)


def test_atomics_can_add_in_a_varying_order() -> None:
    values, index = draw(4096), torch.zeros(4096, dtype=torch.int64, device="simx:1")

    def added() -> list[float]:
        empty = torch.zeros(1, device="simx:1")
        return [float(empty.index_add(0, index, values)), float(empty.scatter_add(0, index, values))]

    assert added() == added()
    with inject(atomics="1"):
        runs = [added() for _ in range(8)]
    for several in zip(*runs, strict=True):
        assert len(set(several)) > 1
        assert max(several) - min(several) < 1e-3


def test_seeded_numbers_can_differ_from_the_cpu_and_repeat() -> None:
    def drawn() -> Tensor:
        torch.manual_seed(3)
        return torch.rand(8, device="simx:1").cpu()

    torch.manual_seed(3)
    of_cpu = torch.rand(8)
    assert torch.equal(drawn(), of_cpu)
    with inject(own_random="1"):
        assert torch.equal(drawn(), drawn())
        assert not torch.equal(drawn(), of_cpu)


def test_tf32_applies_to_backward_but_not_to_other_dtypes() -> None:
    layer, x = nn.Linear(32, 32).to("simx:1"), draw(8, 32)
    with inject(tf32=True):
        layer(x).square().sum().backward()
        a = draw(16, 16, dtype=torch.float64)
        assert torch.equal((a @ a).cpu(), a.cpu() @ a.cpu())
    twin = nn.Linear(32, 32).double()
    twin.load_state_dict({name: value.cpu() for name, value in layer.state_dict().items()})
    twin(x.cpu().double()).square().sum().backward()
    assert layer.weight.grad is not None
    assert twin.weight.grad is not None
    assert 1e-5 < error(layer.weight.grad, twin.weight.grad) < 1e-2


def test_bfloat16_can_add_up_in_bfloat16() -> None:
    a, ones = draw(4, 512, dtype=torch.bfloat16).abs(), torch.ones(512, 4, dtype=torch.bfloat16, device="simx:1")
    for computed in (
        lambda: a @ ones,
        lambda: torch.addmm(ones[:4], a, ones),
        lambda: (a[None] @ ones[None])[0],
        lambda: a.sum(1, keepdim=True),
    ):
        right = computed()
        with inject(bfloat16_accumulate=True):
            off = computed()
        assert (off.shape, off.dtype) == (right.shape, right.dtype)
        assert error(off, right.cpu()) > 0.05
    with inject(bfloat16_accumulate=True):
        assert torch.equal(a.float().sum(1).cpu(), a.cpu().float().sum(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_denormals_can_be_flushed(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    x = torch.tensor([tiny, -tiny, 1.0, float("nan")], dtype=dtype).to("simx:1")
    assert (x * 0.5)[0].item() > 0
    with inject(flush_denormals=True):
        assert (x * 0.5)[:3].tolist() == [0.0, 0.0, 0.5]
        assert (x * 1)[:2].tolist() == [tiny, -tiny]
        assert x.isnan().tolist() == [False, False, False, True]
        assert (x * 0.5).cpu()[3].isnan()
        kept = (torch.tensor([tiny], dtype=dtype) / 2).to("simx:1")  # a copy computes nothing
    assert kept.item() > 0


def test_sums_can_have_an_order_that_no_seed_decides() -> None:
    a = draw(8, 4096)
    for computed in (lambda: a @ a.t(), lambda: a.sum(1), lambda: torch.addmm(a[:, :8], a, a.t()), lambda: a[0] @ a[1]):
        with inject(nondeterministic=True):
            torch.manual_seed(1)
            runs = {str(computed().tolist()) for _ in range(4) if torch.manual_seed(1)}
            assert len(runs) > 1
            assert error(computed(), computed().cpu()) < 1e-4
        assert len({str(computed().tolist()) for _ in range(4)}) == 1


def test_a_kernel_can_return_a_transposed_result() -> None:
    a, b = draw(2, 3, 3)
    with inject(wrong="aten::mm:transpose"):
        assert torch.equal((a @ b).cpu(), (a.cpu() @ b.cpu()).t())
        assert torch.equal((a * b).cpu(), a.cpu() * b.cpu())


def test_a_kernel_can_return_values_of_the_neighbouring_element() -> None:
    x = draw(2, 3)
    with inject(wrong="aten::exp:index"):
        assert torch.equal(x.exp().cpu(), x.cpu().exp().roll(1))


def test_a_kernel_can_return_the_result_of_the_previous_call() -> None:
    x, y = draw(2, 3), draw(2, 3) + 1
    with inject(wrong="aten::exp:stale"):
        assert torch.equal(x.exp().cpu(), x.cpu().exp())
        assert torch.equal(y.exp().cpu(), x.cpu().exp())
        assert torch.equal(x.exp().cpu(), y.cpu().exp())


@pytest.mark.parametrize("operation", ["convolution_backward", "_thnn_fused_lstm_cell", "_copy_from"])
def test_device_specific_kernels_can_be_wrong(operation: str) -> None:
    conv, cell, x = nn.Conv1d(2, 2, 3).to("simx:1"), nn.LSTMCell(3, 3).to("simx:1"), draw(2, 2, 5)

    def computed() -> list[list[float]]:
        leaf = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(conv(leaf).square().sum(), leaf)
        return [grad.tolist(), cell(x[:, 0, :3])[0].tolist(), torch.arange(4.0).to("simx:1").tolist()]

    right = computed()
    with inject(wrong=f"aten::{operation}:index"):
        assert computed() != right
    assert computed() == right


def test_views_can_be_copies() -> None:
    x = torch.zeros(2, 2, device="simx:1")
    with inject(copying_views=True):
        x[0].fill_(1)
        assert x.cpu().sum() == 0
    x[0].fill_(1)
    assert x.cpu().sum() == 2


def test_cpu_and_device_tensors_can_be_mixed() -> None:
    with inject(mix_with_cpu=True):
        assert (torch.ones(2, device="simx:1") + torch.ones(2)).tolist() == [2.0, 2.0]


def test_an_index_can_be_ignored() -> None:
    with inject(one_index=True):
        assert torch.ones(2, device="simx:1").device.index == 0
        assert torch.ones(2).to("simx:1").device.index == 0


def test_seeds_can_be_ignored() -> None:
    def drawn() -> list[float]:
        torch.manual_seed(1)
        values: list[float] = torch.rand(8, device="simx:1").tolist()
        return values

    assert drawn() == drawn()
    with inject(unseeded=True):
        assert drawn() != drawn()


def test_an_operation_can_be_slow() -> None:
    x = draw(2, 2)
    with inject(slow="aten::mm:200"):
        start = time.perf_counter()
        x @ x
        assert time.perf_counter() - start >= 0.2


def test_a_lost_device_stays_lost_until_it_is_reset() -> None:
    x = draw(2, 2)

    def lost() -> AbstractContextManager[object]:
        return pytest.raises(torch.AcceleratorError, match="device lost")

    with inject(lost_at="aten::mm:2"):
        x @ x
        with lost():
            x @ x
        for after in (lambda: x + 1, x.cpu, torch.accelerator.synchronize, lambda: torch.ones(1, device="simx:0")):
            with lost():
                after()
    x @ x


def test_if_no_operation_is_named_every_operation_counts() -> None:
    x = draw(2, 2)
    with inject(lost_at=3):
        y = (x * x).add_(1)
        with pytest.raises(torch.AcceleratorError):
            y.exp()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrnog": "1"}, "simx has no option wrnog; nearest: wrong"),
        ({"tf32": "yes"}, "tf32='yes': expected 1, 0 or torch"),
        ({"no_dtypes": "float65"}, "no_dtypes='float65': 'float65' is not a dtype; nearest: float64"),
        ({"no_ops": "aten::gelo"}, "'aten::gelo' is not an operation"),
        ({"no_ops": "gelu"}, "'gelu' is not an operation"),
        ({"no_ops": "aten::linear"}, "'aten::linear' never reaches the device: torch composes it"),
        ({"wrong": "aten::mm:backwards"}, "expected OPERATION:{index,transpose,stale}"),
        ({"slow": "aten::mm"}, "expected OPERATION:MILLISECONDS"),
        ({"lost_at": "0"}, "lost_at='0': expected N or OPERATION:N, counted from 1"),
        ({"memory_limit": "-1"}, "memory_limit='-1': expected a number of bytes above 0"),
        ({"devices": "1"}, "simx has 2 devices in this process; set SIMX_DEVICES before it is loaded"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError) as raised, inject(**options):  # noqa: PT011 (the text is compared below)
        pytest.fail("accepted")
    assert message in str(raised.value)


def test_the_example_of_each_option_is_valid() -> None:
    for name, option in OPTIONS.items():
        assert option.complaint(option.example) is None, name


def test_the_documentation_lists_each_option_unchanged() -> None:
    text = (Path(__file__).parents[3] / "docs" / "devices-results.md").read_text(encoding="utf-8")
    rows = [f"| `SIMX_{name.upper()}` | `{option.example}` | {option.meaning} |" for name, option in OPTIONS.items()]
    documented = [line for line in text.splitlines() if line.startswith("| `SIMX_")]
    assert documented == rows


def test_the_examples_in_the_documentation_run() -> None:
    text = (Path(__file__).parents[3] / "docs" / "devices-results.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in text.split("```python\n")[1:]]
    examples = [block for block in blocks if "import simx" in block]
    assert len(examples) == 1
    for example in examples:
        exec(compile(example, "docs/devices-results.md", "exec"), {})  # noqa: S102 (what is run is ours, and shown to users)
