"""Sharded stages of Megatron-core on any device: its cross entropy, its parallel layers and a GPT model.

Its modules create tensors on CUDA's current device, and draw from its generators; without CUDA these are the CPU's.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

from gradconform.adapter import needed
from gradconform.plugins.runtimes.megatron_norm import joint_norm
from gradconform.plugins.runtimes.named_device import NamedDevice

with needed("megatron-core", "pip install 'gradconform[megatron-core]'"):
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed.finalize_model_grads import _allreduce_non_tensor_model_parallel_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

WIDTH, HEADS, WORDS, POSITIONS, ROWS = 16, 4, 16, 8, 2


class _NoStream:
    """A stream where there is none: its work is done when it is given."""

    def __init__(self, *_: object) -> None:
        """Take what torch's stream takes."""

    def wait_stream(self, other: object) -> None:
        """Return at once."""

    def record_event(self) -> _NoStream:
        """Return an event that has happened."""
        return self

    def synchronize(self) -> None:
        """Return at once."""


def groups_of(mesh: DeviceMesh) -> None:
    """Make Megatron's groups as the mesh says, in a rank's own process; on a CPU, let it name that instead of CUDA.

    A backward also asks for CUDA's current device, so the replacement stays.
    """
    if not torch.cuda.is_available():
        torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value] # the CPU
        tracker = tensor_parallel.random.CudaRNGStatesTracker
        tracker.fork = lambda *_: contextlib.nullcontext()
        torch.cuda.Stream = _NoStream  # type: ignore[misc, assignment] # as above
        torch.cuda.current_stream = lambda *_: _NoStream()  # type: ignore[assignment] # as above
        torch.cuda.stream = lambda *_: contextlib.nullcontext()  # type: ignore[assignment] # as above
    sizes = dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))
    if parallel_state.is_initialized():
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=sizes.get("tp", 1), expert_model_parallel_size=sizes.get("ep", 1),
        expert_tensor_parallel_size=sizes.get("tp", 1), context_parallel_size=sizes.get("cp", 1),
    )  # fmt: skip


def config_of(size: int, **given: Any) -> TransformerConfig:
    """Return a configuration of small layers without dropout and without fused kernels."""
    return TransformerConfig(
        num_layers=1, hidden_size=WIDTH, num_attention_heads=HEADS, ffn_hidden_size=2 * WIDTH,
        tensor_model_parallel_size=size, use_cpu_initialization=True, bias_activation_fusion=False,
        bias_dropout_fusion=False, masked_softmax_fusion=False, hidden_dropout=0.0, attention_dropout=0.0,
        gradient_accumulation_fusion=False, **given,
    )  # fmt: skip


def norm_of(module: nn.Module) -> float:
    """Return the norm by which Megatron's optimizers clip: one has the experts, and sums over other ranks."""
    with NamedDevice(next(module.parameters()).device):
        return joint_norm(module.parameters(), lambda one: one.grad)


def gradients_summed(module: nn.Module, config: TransformerConfig) -> None:
    """Sum the gradients that each tensor rank has for its positions alone, as ``finalize_model_grads`` does."""
    chunk = SimpleNamespace(
        ddp_config=SimpleNamespace(use_megatron_fsdp=False), named_parameters=module.named_parameters
    )
    _allreduce_non_tensor_model_parallel_grads([chunk], config)


class _WithLosses(torch.autograd.Function):
    """Adds the gradient of the sum of losses that are no output."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, losses: Tensor) -> Tensor:
        ctx.shape = losses.shape
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, torch.ones(ctx.shape, dtype=grad.dtype)


def with_losses(value: Tensor, losses: Tensor) -> Tensor:
    """Return the value; its backward also starts one at each of the losses, whose sum is no output."""
    found: Tensor = _WithLosses.apply(value, losses)  # type: ignore[no-untyped-call] # torch has no types for it
    return found


class _WholeHead(nn.Module):
    """A head and its cross entropy, smoothed as Megatron's comment defines it."""

    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing * WORDS / (WORDS - 1)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, value: Tensor, labels: Tensor) -> Tensor:
        logs = self.head(value).log_softmax(-1)
        right = logs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        losses: Tensor = -(1.0 - self.smoothing) * right - self.smoothing * logs.mean(-1)
        return losses


class _ShardedHead(nn.Module):
    def __init__(self, config: TransformerConfig, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing
        self.head = tensor_parallel.ColumnParallelLinear(
            WIDTH, WORDS, config=config, init_method=nn.init.normal_, bias=False, gather_output=False
        )

    def forward(self, value: Tensor, labels: Tensor) -> Tensor:
        scores, _ = self.head(value)
        losses: Tensor = vocab_parallel_cross_entropy(scores, labels, self.smoothing)
        return losses


class CrossEntropy:
    """``ColumnParallelLinear`` as a head, and ``vocab_parallel_cross_entropy``, with and without label smoothing."""

    name = "megatron-core-cross-entropy"
    mesh = {"tp": (2, 4)}
    options = {"smoothing": (0.0, 0.1)}
    placements = {"head.weight": Shard(0)}

    def __init__(self, *, smoothing: float = 0.0) -> None:
        """Choose the label smoothing."""
        self.smoothing = smoothing

    def whole(self) -> nn.Module:
        """Return the head and the loss on one process."""
        return _WholeHead(self.smoothing)

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return this rank's words."""
        groups_of(mesh)
        return _ShardedHead(config_of(mesh["tp"].size()), self.smoothing)

    def args(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return hidden states of shape (positions, rows, width), and labels of (positions, rows)."""
        value = torch.randn(POSITIONS, ROWS, WIDTH, generator=generator)
        return value, torch.randint(WORDS, (POSITIONS, ROWS), generator=generator)

    def grad_norm(self, module: nn.Module) -> float:
        """Return Megatron's norm."""
        return norm_of(module)


class WholeLayer(nn.Module):
    """A transformer layer with causal attention; each head's query, key and value are next to each other in ``qkv``."""

    def __init__(self, *, sink: bool) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.sink = nn.Parameter(torch.randn(HEADS) + 2.0) if sink else None

    def forward(self, value: Tensor) -> Tensor:
        value = value + self.proj(self.attended(self.qkv(self.before(value))))
        found: Tensor = value + self.down(F.gelu(self.up(self.between(value))))
        return found

    def attended(self, qkv: Tensor) -> Tensor:
        positions, rows = qkv.shape[:2]
        query, key, content = qkv.reshape(positions, rows, HEADS, 3, -1).unbind(3)
        scores = torch.einsum("prhd,qrhd->rhpq", query, key) / query.shape[-1] ** 0.5
        hidden = torch.ones(positions, positions, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -10000.0)
        if self.sink is not None:
            sink = self.sink.reshape(1, -1, 1, 1).expand(rows, HEADS, positions, 1)
            weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        return torch.einsum("rhpq,qrhd->prhd", weights, content).flatten(2)


class _WholeGPT(nn.Module):
    """Embeddings, a layer, a norm, a head and the loss of each token."""

    def __init__(self, *, sink: bool, tied: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.layer, self.norm = WholeLayer(sink=sink), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        value = (self.words(tokens) + self.places.weight).transpose(0, 1)
        scores = self.head(self.norm(self.layer(value))).transpose(0, 1)
        losses: Tensor = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none")
        return losses.view_as(labels)


class Norm(nn.LayerNorm):
    """A norm that marks its parameters as Megatron's does where Transformer Engine is installed."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps)
        for one in self.parameters():
            one.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined] # as Megatron reads it


def layers() -> TransformerBlockSubmodules:
    """Return one layer of Megatron's own modules, with norms whose gradients are summed over divided sequences."""
    layer = get_gpt_layer_local_spec()
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    return TransformerBlockSubmodules(layer_specs=[layer], layer_norm=Norm)


class _ShardedGPT(nn.Module):
    """Megatron's model, called with what its training loop gives it."""

    def __init__(self, model: GPTModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        places = torch.arange(POSITIONS).expand_as(tokens)
        hidden = torch.ones(1, 1, POSITIONS, POSITIONS, dtype=torch.bool).triu(1)
        losses: Tensor = self.model(tokens, places, hidden, labels=labels)
        return losses


#: The parameters of Megatron's layer: the whole layer's name of each, and how it is divided.
LAYER_PARAMETERS: dict[str, tuple[str, Any]] = {
    "input_layernorm.weight": ("before.weight", Replicate()),
    "input_layernorm.bias": ("before.bias", Replicate()),
    "self_attention.linear_qkv.weight": ("qkv.weight", Shard(0)),
    "self_attention.linear_qkv.bias": ("qkv.bias", Shard(0)),
    "self_attention.linear_proj.weight": ("proj.weight", Shard(1)),
    "self_attention.linear_proj.bias": ("proj.bias", Replicate()),
    "self_attention.core_attention.softmax_offset": ("sink", Shard(0)),
    "pre_mlp_layernorm.weight": ("between.weight", Replicate()),
    "pre_mlp_layernorm.bias": ("between.bias", Replicate()),
    "mlp.linear_fc1.weight": ("up.weight", Shard(0)),
    "mlp.linear_fc1.bias": ("up.bias", Shard(0)),
    "mlp.linear_fc2.weight": ("down.weight", Shard(1)),
    "mlp.linear_fc2.bias": ("down.bias", Replicate()),
}
#: As above, for the whole model.
GPT_PARAMETERS: dict[str, tuple[str, Any]] = {
    "model.embedding.word_embeddings.weight": ("words.weight", Shard(0)),
    "model.embedding.position_embeddings.weight": ("places.weight", Replicate()),
    **{
        f"model.decoder.layers.0.{own}": (f"layer.{whole}", placement)
        for own, (whole, placement) in LAYER_PARAMETERS.items()
    },
    "model.decoder.final_layernorm.weight": ("norm.weight", Replicate()),
    "model.decoder.final_layernorm.bias": ("norm.bias", Replicate()),
    "model.output_layer.weight": ("head.weight", Shard(0)),
}


class GPT:
    """A whole ``GPTModel`` with labels: embeddings, a layer, the head and the loss of each token."""

    name = "megatron-core-gpt"
    mesh = {"tp": (2, 4)}
    options = {
        "gathered_output": (False, True),
        "sequence_parallel": (False, True),
        "attention_sink": (False, True),
        "tied": (False, True),
    }

    def __init__(
        self,
        *,
        gathered_output: bool = False,
        sequence_parallel: bool = False,
        attention_sink: bool = False,
        tied: bool = False,
    ) -> None:
        """Choose the options of the model."""
        self.gathered_output, self.sequence_parallel = gathered_output, sequence_parallel
        self.attention_sink, self.tied = attention_sink, tied
        lacking = {"layer.sink": not attention_sink, "head.weight": tied}
        here = {own: parts for own, parts in GPT_PARAMETERS.items() if not lacking.get(parts[0], False)}
        self.whole_names = {own: whole for own, (whole, _) in here.items()}
        self.placements = {own: placement for own, (_, placement) in here.items()}

    def whole(self) -> nn.Module:
        """Return the model on one process, in torch alone."""
        return _WholeGPT(sink=self.attention_sink, tied=self.tied)

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return Megatron's model on this rank."""
        groups_of(mesh)
        config = config_of(
            mesh["tp"].size(),
            sequence_parallel=self.sequence_parallel,
            softmax_type="learnable" if self.attention_sink else "vanilla",
        )
        return _ShardedGPT(
            GPTModel(
                config, layers(), vocab_size=WORDS, max_sequence_length=POSITIONS,
                parallel_output=not self.gathered_output, share_embeddings_and_output_weights=self.tied,
            )
        )  # fmt: skip

    def args(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return tokens and labels, each of shape (rows, positions)."""
        tokens, labels = torch.randint(WORDS, (2, ROWS, POSITIONS), generator=generator)
        return tokens, labels

    def finish(self, module: _ShardedGPT) -> None:
        """Sum the gradients that each rank has for its positions alone, as ``finalize_model_grads`` does."""
        gradients_summed(module, module.model.config)

    def grad_norm(self, module: nn.Module) -> float:
        """Return Megatron's norm."""
        return norm_of(module)
