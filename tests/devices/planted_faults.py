"""Wrong kernels as a vendor may ship them: each is right on ordinary samples, and wrong in one region.

Each fault is a function of the right kernel and its arguments on the CPU. The regions are like those in public issues
of vendors' backends: long or odd rows, duplicate indices, saturated values, combinations of arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Kernel = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """A wrong kernel ``aten::NAME``, in the place of the right one, and an operation of torch's lists that runs it."""

    kernel: str
    operation: str
    wrong: Kernel

    @property
    def name(self) -> str:
        """Return the kernel's name without its overload."""
        return self.kernel.partition(".")[0]


def _changed(found: Any, change: Callable[[Tensor], Tensor], at: int = 0) -> Any:
    """Return a result with its tensor ``at`` changed."""
    if isinstance(found, Tensor):
        return change(found)
    several = list(found)
    several[at] = change(several[at]) if isinstance(several[at], Tensor) else several[at]
    return tuple(several)


def lost(where: Callable[..., Any], at: int = 0) -> Kernel:
    """Return a kernel whose result is 0 ``where`` a function of its arguments is true."""

    def wrong(right: Kernel, *args: Any, **kwargs: Any) -> Any:
        found = right(*args, **kwargs)
        return _changed(found, lambda tensor: tensor.masked_fill(where(*args), 0.0), at)

    return wrong


def scaled(condition: Callable[..., bool], at: int = 0, factor: float = 1.125) -> Kernel:
    """Return a kernel whose result is too large if a ``condition`` on its arguments holds."""

    def wrong(right: Kernel, *args: Any, **kwargs: Any) -> Any:
        found = right(*args, **kwargs)
        return _changed(found, lambda tensor: tensor * factor, at) if condition(*args) else found

    return wrong


def cut(length: int, dim: int = -1, at: int = 0) -> Kernel:
    """Return a kernel that loses the end of each row longer than its block of ``length`` elements."""

    def wrong(right: Kernel, *args: Any, **kwargs: Any) -> Any:
        return _changed(right(*args, **kwargs), lambda tensor: _cut(tensor, length, dim), at)

    return wrong


def _cut(tensor: Tensor, length: int, dim: int) -> Tensor:
    if not tensor.dim() or tensor.shape[dim] <= length:
        return tensor
    kept = tensor.clone()
    kept.narrow(dim, length, tensor.shape[dim] - length).zero_()
    return kept


def swapped(at: int, value: Any, condition: Callable[..., bool] = lambda *_: True) -> Kernel:
    """Return a kernel that takes ``value`` for its argument ``at`` if a ``condition`` holds."""

    def wrong(right: Kernel, *args: Any, **kwargs: Any) -> Any:
        given = list(args)
        if len(given) > at and condition(*args):
            given[at] = value
        return right(*given, **kwargs)

    return wrong


def _index_put(right: Kernel, x: Tensor, indices: Any, values: Tensor, *_: Any) -> Any:
    return right(x, indices, values, False)


def _pool_ties(right: Kernel, grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, *more: Any) -> Any:
    """Give the gradient of a window to each of its largest elements."""
    dilation, ceil, indices = more
    found = right(grad, x, kernel, stride, padding, dilation, ceil, indices)
    one, other = ((list(value) * 2)[:2] for value in (kernel, stride or kernel))
    if ceil or any(padding) or any(step < size for step, size in zip(other, one, strict=True)) or x.dim() < 3:
        return found
    largest = F.max_pool2d(x, kernel, stride, padding, dilation)
    spread = F.interpolate(largest if x.dim() > 3 else largest[None], x.shape[-2:])
    return torch.where((x == spread.reshape(x.shape)) & (found == 0), torch.full_like(x, 0.5), found)


def _pool_overlap(right: Kernel, grad: Tensor, x: Tensor, *more: Any) -> Any:
    """Store the gradient of a window in place of adding it."""
    del right
    indices = more[-1]
    flat = torch.zeros_like(x, memory_format=torch.contiguous_format).flatten(-2)
    return flat.scatter(-1, indices.flatten(-2), grad.flatten(-2)).view(x.shape)


def _scatter_add(right: Kernel, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    last = torch.scatter(torch.zeros_like(x), dim, index, source[tuple(slice(0, size) for size in index.shape)])
    del right
    return x + last


def _index_add(right: Kernel, x: Tensor, dim: int, index: Tensor, source: Tensor, **kwargs: Any) -> Any:
    once = torch.zeros_like(x).index_copy(dim, index, source)
    del right
    return x + once * kwargs.get("alpha", 1)


def _one_pass_variance(right: Kernel, x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Compute the variance as the mean of squares less the square of the mean."""
    _, mean, deviation = right(x, shape, weight, bias, eps)
    over = tuple(range(-len(shape), 0))
    variance = (x * x).mean(over, keepdim=True) - x.mean(over, keepdim=True) ** 2
    normal = (x - mean) * (variance.clamp(min=0) + eps).rsqrt()
    return normal * (1 if weight is None else weight) + (0 if bias is None else bias), mean, deviation


def _in_bfloat16(right: Kernel, x: Tensor, y: Tensor) -> Tensor:
    return right(x.bfloat16(), y.bfloat16()).to(x.dtype)


def _expanded_sum(right: Kernel, x: Tensor, *more: Any, **kwargs: Any) -> Any:
    return right(x[:1] if 0 in x.stride()[:1] and x.shape[0] > 1 else x, *more, **kwargs)


def _evaluating(right: Kernel, *args: Any, **kwargs: Any) -> Any:
    """Differentiate in evaluation as in training, through the mean of the batch."""
    grad, x, weight, mean, var, _, __, training, eps, mask = args
    if training:
        return right(*args, **kwargs)
    batch = [*range(x.dim())]
    batch.remove(1)
    return right(grad, x, weight, mean, var, x.mean(batch), (x.var(batch, correction=0) + eps).rsqrt(), True, eps, mask)


def _rows(shape: Any, x: Tensor) -> int:
    return x.numel() // max(1, torch.Size(shape).numel())


def _last(x: Tensor) -> int:
    return x.shape[-1] if x.dim() else 1


ODD = 2

FAULTS: dict[str, PlantedFault] = {
    # Activations.
    "gelu-below-minus-3": PlantedFault("gelu_backward", "nn.functional.gelu", lost(lambda g, x, **_: x < -3)),
    "gelu-tanh-as-none": PlantedFault(
        "gelu_backward", "nn.functional.gelu", lambda right, g, x, **_: right(g, x, approximate="none")
    ),
    "tanh-saturated": PlantedFault("tanh_backward", "tanh", lambda right, g, y: right(g, y.clamp(-0.99, 0.99))),
    "sigmoid-saturated": PlantedFault("sigmoid_backward", "sigmoid", lost(lambda g, y: y < 0.01)),
    "silu-far-negative": PlantedFault("silu_backward", "nn.functional.silu", lost(lambda g, x: x < -8)),
    "elu-negative": PlantedFault(
        "elu_backward", "nn.functional.elu", lost(lambda g, a, s, i, is_result, x: x < (-0.99 if is_result else -4))
    ),
    "softplus-beyond-threshold": PlantedFault(
        "softplus_backward", "nn.functional.softplus", lost(lambda g, x, beta, threshold: x * beta > threshold)
    ),
    "logsigmoid-far-negative": PlantedFault(
        "log_sigmoid_backward", "nn.functional.logsigmoid", lost(lambda g, x, buffer: x < -20)
    ),
    "hardswish-above-3": PlantedFault("hardswish_backward", "nn.functional.hardswish", lost(lambda g, x: x > 3)),
    "leaky-relu-negative": PlantedFault(
        "leaky_relu_backward", "nn.functional.leaky_relu", lost(lambda g, x, slope, result: x < -8)
    ),
    "relu-tail-over-1024": PlantedFault("threshold_backward", "nn.functional.relu", cut(1024)),
    "exp-small": PlantedFault("expm1", "expm1", lambda right, x: torch.exp(x) - 1),
    "tanh-near-zero": PlantedFault("tanh", "tanh", lambda right, x: 1 - 2 / (torch.exp(2 * x) + 1)),
    "erf-near-zero": PlantedFault("erf", "erf", lambda right, x: 1 - torch.erfc(x)),
    "log1p-small": PlantedFault("log1p", "log1p", lambda right, x: torch.log(1 + x)),
    "mish-far-negative": PlantedFault("mish_backward", "nn.functional.mish", lost(lambda g, x: x < -9)),
    "glu-long-rows": PlantedFault("glu_backward", "nn.functional.glu", scaled(lambda g, x, dim: x.shape[dim] > 1024)),
    "prelu-channels": PlantedFault(
        "_prelu_kernel_backward", "nn.functional.prelu", scaled(lambda g, x, w: w.numel() > 1, at=1)
    ),
    # Reductions.
    "sum-expanded": PlantedFault("sum.dim_IntList", "sum", _expanded_sum),
    "softmax-rows-over-64": PlantedFault(
        "_softmax_backward_data", "softmax", scaled(lambda g, y, dim, dtype: y.dim() > 0 and y.shape[dim] > 64)
    ),
    "softmax-first-dimension": PlantedFault(
        "_softmax", "softmax", scaled(lambda x, dim, half: x.dim() > 1 and dim % x.dim() == 0 and x.shape[0] > 256)
    ),
    "log-softmax-rows-over-1024": PlantedFault(
        "_log_softmax_backward_data",
        "log_softmax",
        scaled(lambda g, y, dim, dtype: y.dim() > 0 and y.shape[dim] > 1024),
    ),
    "cumsum-carry": PlantedFault("cumsum", "cumsum", cut(1024)),
    "amax-tail": PlantedFault(
        "amax", "amax", lambda right, x, dims, keep=False: right(x[..., :1024] if -1 in dims else x, dims, keep)
    ),
    "mean-of-many-rows": PlantedFault("mean.dim", "mean", scaled(lambda x, *_: x.dim() > 1 and x.shape[0] > 65536)),
    "var-one-pass": PlantedFault(
        "var.correction",
        "var",
        lambda right, x, dim, **kw: (x * x).mean(dim, kw["keepdim"]) - x.mean(dim, kw["keepdim"]) ** 2,
    ),
    "sort-long-rows": PlantedFault("sort", "sort", cut(1024)),
    "logsumexp-far": PlantedFault(
        "logsumexp", "logsumexp", lambda right, x, dim, keep=False: x.clamp(max=50).exp().sum(dim, keep).log()
    ),
    # Windows.
    "max-pool-ties": PlantedFault("max_pool2d_with_indices_backward", "nn.functional.max_pool2d", _pool_ties),
    "max-pool-overlap": PlantedFault("max_pool2d_with_indices_backward", "nn.functional.max_pool2d", _pool_overlap),
    "max-pool-dilation": PlantedFault(
        "max_pool2d_with_indices",
        "nn.functional.max_pool2d",
        scaled(lambda x, k, s, p, d=(1, 1), c=False: max(d) > 1 and max(s) > 1),
    ),
    "avg-pool-counted": PlantedFault("avg_pool2d_backward", "nn.functional.avg_pool2d", swapped(6, True)),
    "adaptive-pool-uneven": PlantedFault(
        "_adaptive_avg_pool2d_backward",
        "nn.functional.adaptive_avg_pool2d",
        scaled(lambda g, x: x.shape[-1] % g.shape[-1] != 0),
    ),
    "conv-stride-2-dilation-2": PlantedFault(
        "convolution_backward",
        "nn.functional.conv2d",
        scaled(lambda g, x, w, b, stride, p, dilation, *_: stride[0] == 2 and dilation[0] == 2, at=1),
    ),
    "conv-depthwise": PlantedFault(
        "convolution_backward",
        "nn.functional.conv2d",
        scaled(lambda g, x, w, b, s, p, d, t, o, groups, m: groups > 2 and s[0] == 2, at=0),
    ),
    "conv-multiplied-groups": PlantedFault(
        "convolution", "nn.functional.conv2d", scaled(lambda x, w, b, s, p, d, t, o, g: g == 4 and w.shape[0] == 8)
    ),
    "conv-transpose-dilation": PlantedFault(
        "convolution",
        "nn.functional.conv_transpose2d",
        scaled(lambda x, w, b, s, p, d, t, o, g: t and d[0] == 2 and g == 2),
    ),
    "bilinear-corners": PlantedFault(
        "upsample_bilinear2d_backward", "nn.functional.interpolate.bilinear", swapped(3, False)
    ),
    "nearest-uneven": PlantedFault(
        "upsample_nearest2d_backward",
        "nn.functional.interpolate.nearest",
        scaled(lambda g, out, into, *_: out[-1] % into[-1] != 0),
    ),
    # Indices.
    "index-put-duplicates": PlantedFault("index_put", "index_put", _index_put),
    "index-add-duplicates": PlantedFault("index_add", "index_add", _index_add),
    "scatter-add-duplicates": PlantedFault("scatter_add", "scatter_add", _scatter_add),
    "embedding-padding": PlantedFault("embedding_dense_backward", "nn.functional.embedding", swapped(3, -1)),
    "embedding-frequency": PlantedFault("embedding_dense_backward", "nn.functional.embedding", swapped(4, False)),
    "embedding-bag-mean": PlantedFault(
        "_embedding_bag",
        "nn.functional.embedding_bag",
        scaled(lambda w, i, o, s, mode, *_: mode == 1 and len(i) > 64),
    ),
    "gather-long": PlantedFault("gather", "gather", cut(1024, dim=0)),
    "nll-ignored": PlantedFault("nll_loss_backward", "nn.functional.nll_loss", swapped(5, -100)),
    "index-select-long": PlantedFault("index_select", "index_select", cut(1024, dim=0)),
    # Normalisations.
    "layer-norm-odd-over-1024": PlantedFault(
        "native_layer_norm_backward",
        "nn.functional.layer_norm",
        scaled(lambda g, x, shape, *_: torch.Size(shape).numel() > 1024 and shape[-1] % ODD == 1),
    ),
    "layer-norm-65536-rows": PlantedFault(
        "native_layer_norm_backward",
        "nn.functional.layer_norm",
        scaled(lambda g, x, shape, *_: len(shape) > 1 and _rows(shape, x) >= 65536, at=1),
    ),
    "layer-norm-one-pass": PlantedFault("native_layer_norm", "nn.functional.layer_norm", _one_pass_variance),
    "batch-norm-evaluation": PlantedFault("native_batch_norm_backward", "nn.functional.batch_norm", _evaluating),
    "group-norm-each-channel": PlantedFault(
        "native_group_norm_backward",
        "nn.functional.group_norm",
        scaled(lambda g, x, m, r, w, n, c, hw, group, mask: group == c),
    ),
    "batch-norm-one-batch": PlantedFault(
        "native_batch_norm", "nn.functional.batch_norm", scaled(lambda x, *_: x.shape[0] == 1 and x.shape[-1] > 32)
    ),
    # Products and losses.
    "mm-in-bfloat16": PlantedFault("mm", "mm", _in_bfloat16),
    "mm-long-odd": PlantedFault("mm", "mm", scaled(lambda x, y: x.shape[1] > 1024 and x.shape[1] % ODD == 1)),
    "bmm-transposed": PlantedFault("bmm", "bmm", scaled(lambda x, y: x.stride(-1) != 1 and x.shape[-1] > 64)),
    "addmm-beta": PlantedFault(
        "addmm", "addmm", lambda right, bias, x, y, *, beta=1, alpha=1: right(bias, x, y, beta=1, alpha=alpha)
    ),
    "mse-long-mean": PlantedFault(
        "mse_loss_backward", "nn.functional.mse_loss", scaled(lambda g, x, y, how: how == 1 and x.numel() > 65536)
    ),
    "smooth-l1-far": PlantedFault(
        "smooth_l1_loss_backward", "nn.functional.smooth_l1_loss", lost(lambda g, x, y, how, beta: (x - y).abs() > 20)
    ),
    "bce-far-negative": PlantedFault(
        "binary_cross_entropy_with_logits",
        "nn.functional.binary_cross_entropy_with_logits",
        scaled(lambda x, y, *_: bool((x < -20).any())),
    ),
    # Shapes.
    "flip-long-rows": PlantedFault("flip", "flip", cut(1024)),
    "cat-long-rows": PlantedFault("cat", "cat", cut(1024)),
    "triu-wide": PlantedFault("triu", "triu", cut(64)),
    "roll-first": PlantedFault(
        "roll",
        "roll",
        lambda right, x, shifts, dims=(): (
            right(x, [s + 1 for s in shifts], dims) if x.shape[0] > 64 and list(dims) == [0] else right(x, shifts, dims)
        ),
    ),
    "pad-long": PlantedFault("constant_pad_nd", "nn.functional.pad.constant", cut(256)),
}
