"""Torch's parallel styles as sharded stages: a transformer layer, and the ends of a language model with its loss.

The plans are those of torchtitan's dense model. ``parallelize_module`` applies them to the whole stage's own module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.utils import get_total_norm

WIDTH, HEADS, WORDS, POSITIONS, ROWS, IGNORED = 16, 4, 16, 8, 2, -100
_SEQUENCE = Shard(1)


def norm_of(module: nn.Module) -> float:
    """Return the norm of all gradients as torch's clipping has it: of divided ones, and of copies, which count once."""
    grads = [one.grad for one in module.parameters() if one.grad is not None]
    divided = [one for one in grads if isinstance(one, DTensor)]
    copies = [one for one in grads if not isinstance(one, DTensor)]
    norms = [get_total_norm(some) for some in (divided, copies) if some]
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in norms]
    return float(torch.stack(whole).norm()) if whole else 0.0


class _Attention(nn.Module):
    """Causal attention, with the heads that its projections have."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        query, key, content = (
            one(value).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for one in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(query, key, content, is_causal=True)
        found: Tensor = self.proj(attended.transpose(1, 2).flatten(2))
        return found


class _MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.down(F.silu(self.gate(value)) * self.up(value))
        return found


class _Layer(nn.Module):
    """A transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.mlp = _Attention(), _MLP()

    def forward(self, value: Tensor) -> Tensor:
        value = value + self.attention(self.before(value))
        found: Tensor = value + self.mlp(self.between(value))
        return found


class TransformerLayer:
    """A transformer layer by ``ColwiseParallel`` and ``RowwiseParallel``, with or without ``SequenceParallel``."""

    name = "torch-transformer-layer"
    mesh = {"tp": (2, 4)}
    options = {"sequence": ("whole", "divided", "gathered")}
    #: Norms stay plain modules without sequence parallelism.
    placements = {"before.weight": Replicate(), "between.weight": Replicate()}

    def __init__(self, *, sequence: str = "whole") -> None:
        """Choose whether ranks divide the sequence between the products, and gather it behind the layer."""
        self.sequence = sequence
        self.arg_placements = (Replicate() if sequence == "whole" else _SEQUENCE,)
        self.output_placements = (_SEQUENCE if sequence == "divided" else Replicate(),)

    def whole(self) -> nn.Module:
        """Return the layer on one process."""
        return _Layer()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return the layer under the plan."""
        divided = self.sequence != "whole"
        enter: Any = PrepareModuleInput(
            input_layouts=_SEQUENCE if divided else Replicate(), desired_input_layouts=Replicate()
        )
        leave = RowwiseParallel(output_layouts=_SEQUENCE if divided else Replicate())
        columns = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
        plan = {
            "attention": enter, "mlp": enter, **dict.fromkeys(columns, ColwiseParallel()),
            "attention.proj": leave, "mlp.down": leave,
        }  # fmt: skip
        if divided:
            plan |= {"before": SequenceParallel(), "between": SequenceParallel()}
        layer = parallelize_module(_Layer(), mesh["tp"], plan)
        if self.sequence == "gathered":
            gather = PrepareModuleOutput(output_layouts=_SEQUENCE, desired_output_layouts=Replicate())
            layer = parallelize_module(layer, mesh["tp"], gather)
        return layer

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        """Return hidden states of shape (rows, positions, width)."""
        return (torch.randn(ROWS, POSITIONS, WIDTH, generator=generator),)

    def grad_norm(self, module: nn.Module) -> float:
        """Return torch's norm."""
        return norm_of(module)


class _Ends(nn.Module):
    """An embedding, a norm, a head and the loss; the first words count twice if it is weighted."""

    def __init__(self, *, tied: bool, weighted: bool, reduction: str) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.weighted, self.reduction = weighted, reduction
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(self.norm(self.words(tokens)))
        weight = (1.0 + (torch.arange(WORDS, device=tokens.device) < WORDS // 4)).to(scores.dtype)
        return F.cross_entropy(
            scores.flatten(0, 1), labels.flatten(), weight if self.weighted else None, reduction=self.reduction
        )


class LanguageModelEnds:
    """An embedding and a head over a divided vocabulary, with ``loss_parallel`` or with gathered scores."""

    name = "torch-language-model-ends"
    mesh = {"tp": (2, 4)}
    options = {
        "loss": ("parallel", "gathered"),
        "sequence_parallel": (False, True),
        "tied": (False, True),
        "class_weights": ("no", "of-all-labels", "with-ignored-labels"),
        "reduction": ("mean", "sum", "none"),
    }
    placements = {"norm.weight": Replicate()}

    def __init__(
        self,
        *,
        loss: str = "parallel",
        sequence_parallel: bool = False,
        tied: bool = False,
        class_weights: str = "no",
        reduction: str = "mean",
    ) -> None:
        """Choose the options of the loss and of the plan."""
        self.loss, self.sequence_parallel, self.tied = loss, sequence_parallel, tied
        self.given: Any = {"tied": tied, "weighted": class_weights != "no", "reduction": reduction}
        self.ignored = 0 if class_weights == "of-all-labels" else 2

    def whole(self) -> nn.Module:
        """Return the model on one process."""
        return _Ends(**self.given)

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return the model under the plan, and stay in ``loss_parallel``, which a backward needs as well."""
        between = _SEQUENCE if self.sequence_parallel else Replicate()
        parallel = self.loss == "parallel"
        plan: dict[str, Any] = {
            "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "head": ColwiseParallel(
                input_layouts=between, output_layouts=Shard(-1) if parallel else Replicate(),
                use_local_output=not parallel,
            ),
        }  # fmt: skip
        if self.sequence_parallel:
            plan["norm"] = SequenceParallel()
        model = _Ends(**self.given)
        parallelize_module(model, mesh["tp"], plan)
        if self.tied:
            model.head.weight = model.words.weight
        self.entered = loss_parallel()
        self.entered.__enter__()
        return model

    def args(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return tokens and labels, each of shape (rows, positions); some labels are ignored."""
        tokens, labels = torch.randint(WORDS, (2, ROWS, POSITIONS), generator=generator)
        labels[:, : self.ignored] = IGNORED
        return tokens, labels

    def grad_norm(self, module: nn.Module) -> float:
        """Return torch's norm."""
        return norm_of(module)
