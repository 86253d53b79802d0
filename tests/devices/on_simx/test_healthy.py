"""A healthy simx computes what the CPU computes, bit by bit, forward and backward; torch alone, no contract."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Case = Callable[[torch.device], Iterator[Tensor]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__.replace("_", " ").strip()] = function
    return function


def drawn(*shape: int, device: torch.device, grad: bool = True) -> Tensor:
    return torch.randn(*shape).to(device).requires_grad_(grad)


def of_module(build: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Case:
    """Return a case: outputs of a module, and the gradients of its inputs and parameters after two backwards."""

    def run(device: torch.device) -> Iterator[Tensor]:
        module = build().to(device)
        for _ in range(2):
            inputs = [drawn(*shape, device=device) for shape in shapes]
            with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):  # the CPU has another one as well
                outputs = module(*inputs)
            first = outputs[0] if isinstance(outputs, tuple) else outputs
            yield first
            first.backward(drawn(*first.shape, device=device, grad=False))
            yield from (tensor.grad for tensor in inputs if tensor.grad is not None)
        yield from (parameter.grad for parameter in module.parameters() if parameter.grad is not None)

    return run


CASES |= {
    "linear": of_module(lambda: nn.Linear(5, 7), (4, 5)),
    "linear of three dimensions": of_module(lambda: nn.Linear(5, 7, bias=False), (2, 4, 5)),
    "bilinear": of_module(lambda: nn.Bilinear(3, 4, 5), (6, 3), (6, 4)),
    "layer norm": of_module(lambda: nn.LayerNorm(6), (4, 6)),
    "group norm": of_module(lambda: nn.GroupNorm(2, 6), (4, 6, 3)),
    "batch norm": of_module(lambda: nn.BatchNorm1d(6), (4, 6)),
    "conv": of_module(lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), (2, 4, 5, 5)),
    "conv of channels last": of_module(lambda: nn.Conv1d(3, 4, 3, stride=2), (2, 3, 9)),
    "transposed conv": of_module(lambda: nn.ConvTranspose2d(3, 4, 2, stride=2), (2, 3, 4, 4)),
    "max pool": of_module(lambda: nn.MaxPool2d(2), (2, 3, 6, 6)),
    "average pool": of_module(lambda: nn.AdaptiveAvgPool2d(2), (2, 3, 5, 5)),
    "activations": of_module(lambda: nn.Sequential(nn.GELU(), nn.SiLU(), nn.Softmax(-1), nn.LogSoftmax(0)), (4, 6)),
    "attention": of_module(lambda: nn.MultiheadAttention(8, 2, batch_first=True), (2, 5, 8), (2, 5, 8), (2, 5, 8)),
    "transformer layer": of_module(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (5, 2, 8)),
    "lstm cell": of_module(lambda: nn.LSTMCell(4, 3), (2, 4)),
    "gru cell": of_module(lambda: nn.GRUCell(4, 3), (2, 4)),
    "gru cell without bias": of_module(lambda: nn.GRUCell(4, 3, bias=False), (2, 4)),
}


@case
def embedding_with_one_row_twice(device: torch.device) -> Iterator[Tensor]:
    module = nn.Embedding(10, 4, padding_idx=0).to(device)
    output = module(torch.tensor([[1, 2, 2], [0, 9, 1]], device=device))
    output.square().sum().backward()
    yield from (output, module.weight.grad)


@case
def embedding_bag(device: torch.device) -> Iterator[Tensor]:
    module = nn.EmbeddingBag(10, 4, mode="mean").to(device)
    output = module(torch.tensor([1, 2, 4, 5, 4], device=device), torch.tensor([0, 3], device=device))
    output.square().sum().backward()
    yield from (output, module.weight.grad)


@case
def scaled_dot_product_attention(device: torch.device) -> Iterator[Tensor]:
    q, k, v = (drawn(2, 3, 5, 4, device=device) for _ in range(3))
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        output = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    output.square().sum().backward()
    yield from (output, q.grad, k.grad, v.grad)


@case
def cross_entropy(device: torch.device) -> Iterator[Tensor]:
    x = drawn(4, 5, device=device)
    loss = F.cross_entropy(x, torch.tensor([0, 4, 2, 2], device=device), label_smoothing=0.1)
    loss.backward()
    yield from (loss, x.grad)


@case
def chunks_and_splits(device: torch.device) -> Iterator[Tensor]:
    x = drawn(6, 8, device=device)
    a, b = x.chunk(2, dim=1)
    c, d, e = x.split([1, 2, 3])
    first, *_ = x.unbind(1)
    ((a * b).sum() + (c.sum() * d).sum() + e.exp().sum() + first.sum()).backward()
    yield from (a * b, e, x.grad)


@case
def written_in_place(device: torch.device) -> Iterator[Tensor]:
    x = drawn(4, 6, device=device)
    y = x * 2
    y.add_(1).mul_(x.detach())
    y[1].fill_(3.0)
    y[:, ::2].clamp_(min=-1)
    y.index_add_(0, torch.tensor([0, 2], device=device), drawn(2, 6, device=device))
    y.square().sum().backward()
    yield from (y, x.grad)


@case
def views(device: torch.device) -> Iterator[Tensor]:
    x = drawn(4, 6, device=device)
    y = x.t().reshape(3, 8)[:, 1:].unfold(1, 3, 2).permute(2, 0, 1).expand(3, 3, 3).flatten(1).diagonal()
    z = x.view(2, 2, 6).movedim(0, -1).as_strided((2, 2), (6, 1), 1)
    y.exp().sum().backward(retain_graph=True)
    z.exp().sum().backward()
    yield from (y, z, x.grad)


@case
def complex_numbers(device: torch.device) -> Iterator[Tensor]:
    x = torch.randn(3, 4, dtype=torch.complex64).to(device).requires_grad_()
    y = torch.view_as_real(x.conj() @ x.t() @ x + x.imag.neg())
    y.square().sum().backward()
    yield from (y, x.grad)


@case
def chosen_by_index(device: torch.device) -> Iterator[Tensor]:
    x = drawn(5, 4, device=device)
    rows = torch.tensor([4, 0, 0], device=device)
    y = x[rows, 1:3] + x[torch.tensor([1, 2, 3])][:, :2] + x[x > 10].sum()
    z = torch.where(x > 0, x, x * 2).gather(1, torch.tensor([[0, 3]], device=device).expand(5, 2))
    (y.square().sum() + z.sort(0).values.cumsum(0).sum() + x.topk(2).values.sum()).backward()
    yield from (y, z, x.grad)


@case
def one_tensor_used_twice(device: torch.device) -> Iterator[Tensor]:
    x, layer = drawn(4, 4, device=device), nn.Linear(4, 4).to(device)
    y = layer(layer(x) + x) * x
    y.sum().backward()
    yield from (y, x.grad, layer.weight.grad, layer.bias.grad)


@case
def hooks_on_tensors_and_modules(device: torch.device) -> Iterator[Tensor]:
    x, layer = drawn(4, 4, device=device), nn.Linear(4, 4).to(device)
    seen: list[Tensor] = []
    layer.register_full_backward_hook(lambda _, grads, outputs: seen.extend([*grads, *outputs]))
    layer.weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.clone()))
    y = layer(x * 2)
    y.register_hook(lambda grad: grad * 3)
    y.square().sum().backward()
    yield from (*seen, x.grad, layer.bias.grad)


@case
def checkpointed_dropout(device: torch.device) -> Iterator[Tensor]:
    x = drawn(4, 4, device=device)
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(device)
    torch.manual_seed(3)
    for reentrant in (False, True):
        y = checkpoint(lambda x: layer(x) * torch.bernoulli(torch.full_like(x, 0.5)), x, use_reentrant=reentrant)
        y.sum().backward()
        yield y
    yield from (x.grad, layer[0].weight.grad)


@case
def grad_of_grad(device: torch.device) -> Iterator[Tensor]:
    x = drawn(4, 4, device=device)
    (grad,) = torch.autograd.grad((x @ x).tanh().sum(), x, create_graph=True)
    grad.square().sum().backward()
    yield from (grad, x.grad)


@case
def optimisers(device: torch.device) -> Iterator[Tensor]:
    layer = nn.Linear(4, 4).to(device)
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        optimiser = kind(layer.parameters(), lr=0.1)
        layer(drawn(3, 4, device=device)).square().sum().backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    yield from layer.parameters()


@case
def random_numbers_of_one_seed(device: torch.device) -> Iterator[Tensor]:
    torch.manual_seed(3)
    yield torch.randn(5, device=device)
    yield torch.empty(5, device=device).uniform_(-1, 1)
    yield torch.randperm(9, device=device)
    yield torch.multinomial(torch.ones(5, device=device), 3)
    yield torch.native_dropout(torch.ones(20, device=device), 0.5, True)[0]  # noqa: FBT003 (it takes it by position)


@case
def results_written_to_out(device: torch.device) -> Iterator[Tensor]:
    a, b = drawn(3, 4, device=device, grad=False), drawn(4, 5, device=device, grad=False)
    fitting, empty = torch.zeros(3, 5, device=device), torch.zeros(0, device=device)
    torch.mm(a, b, out=fitting)
    torch.mm(a, b, out=empty)
    yield from (fitting, empty)
    transposed = torch.zeros(5, 3, device=device).t()
    torch.mm(a, b, out=transposed)
    yield transposed


@case
def linear_algebra(device: torch.device) -> Iterator[Tensor]:
    x = drawn(4, 4, device=device)
    y = torch.linalg.solve(x @ x.mT + torch.eye(4, device=device), x) + torch.linalg.svdvals(x).sum()
    y.sum().backward()
    yield from (y, x.grad)


@case
def deep_copies(device: torch.device) -> Iterator[Tensor]:
    layer = nn.Linear(3, 3).to(device)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        layer.weight.zero_()
    yield from (layer.weight, twin.weight)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_forward_and_backward_are_bit_equal_to_the_cpu(name: str, dtype: torch.dtype) -> None:
    expected, got = (computed(CASES[name], device, dtype) for device in ("cpu", "simx:1"))
    assert len(expected) > 0
    assert {str(tensor.device) for tensor in got} == {"simx:1"}
    for one, other in zip(expected, got, strict=True):
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        torch.testing.assert_close(other.cpu(), one, rtol=0, atol=0, equal_nan=True)


def computed(run: Case, device: str, dtype: torch.dtype) -> list[Tensor]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    torch.manual_seed(20)
    try:
        return [tensor.detach() for tensor in run(torch.device(device))]
    finally:
        torch.set_default_dtype(before)


RECURRENT = {
    "rnn": of_module(lambda: nn.RNN(4, 3, num_layers=2), (5, 2, 4)),
    "lstm": of_module(lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True), (5, 2, 4)),
    "lstm of projections": of_module(lambda: nn.LSTM(4, 5, proj_size=3), (5, 2, 4)),
    "gru": of_module(lambda: nn.GRU(4, 3, bias=False), (5, 2, 4)),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_are_equal_to_the_cpus_within_rounding(name: str) -> None:
    """The CPU multiplies all steps of the input at once, and an accelerator step by step: sums of another order."""
    expected, got = (computed(RECURRENT[name], device, torch.float64) for device in ("cpu", "simx:0"))
    for one, other in zip(expected, got, strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-12, atol=1e-14)
