"""A chain of stage objects on one process, and the whole model that it must equal."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.beside import Held, given
from gradconform.judge.finding import Finding
from gradconform.judge.values import compare
from gradconform.stage_objects.subject import StageObject

MICROBATCHES, ROWS, NUMBERS = 3, 7, 5


class Block(nn.Module):
    """A Linear with a nonlinearity, an optional keyword argument, and a residual."""

    def __init__(self) -> None:
        """Make the layer."""
        super().__init__()
        self.linear = nn.Linear(NUMBERS, NUMBERS)

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """Return x and what the layer makes of it, through the gate where there is one."""
        y = torch.tanh(self.linear(x))
        return x + (y if gate is None else y * gate)


class Whole(nn.Module):
    """The model: blocks one behind the other; the keyword argument goes to the first."""

    def __init__(self, blocks: int = 3) -> None:
        """Make the blocks, with values that depend on nothing but their number."""
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        generator = torch.Generator().manual_seed(20)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """Return what the last block gives."""
        for number, block in enumerate(self.blocks):
            x = block(x, gate) if number == 0 else block(x)
        return x


def drawn(*shape: int, seed: int) -> Tensor:
    """Return normal values."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass(slots=True)
class Data:
    """Inputs, targets and keyword arguments by micro-batch."""

    xs: list[Tensor] = field(default_factory=lambda: [drawn(ROWS, NUMBERS, seed=mb) for mb in range(MICROBATCHES)])
    targets: list[Tensor] = field(
        default_factory=lambda: [drawn(ROWS, NUMBERS, seed=100 + mb) for mb in range(MICROBATCHES)]
    )
    gated: bool = False

    def kwargs(self, mb: int) -> dict[str, Tensor]:
        """Return the keyword arguments of a micro-batch."""
        return {"gate": drawn(ROWS, NUMBERS, seed=200 + mb)} if self.gated else {}


def run_chain(
    stages: Sequence[StageObject], data: Data, order: str, after: Callable[[str, int], None] = lambda _action, _mb: None
) -> list[Tensor]:
    """Run all stages in ``order`` (``F0 F1 B0 …``, each action on every stage) and return the outputs by micro-batch.

    ``after`` is called behind each action on all stages.
    """
    outputs: dict[int, Tensor] = {}
    for token in order.split():
        letter, mb = token[0], int(token[1:])
        if letter == "F":
            outputs[mb] = _forward(stages, mb, data)
        elif letter in "BI":
            loss = nn.functional.mse_loss(outputs[mb], data.targets[mb])
            for stage, behind in zip(reversed(stages), [None, *reversed(stages)], strict=False):
                if behind is not None:
                    stage.take_grads(mb, behind)
                stage.backward(mb, loss if behind is None else None, full=letter == "B")
        else:
            for stage in stages:
                stage.weight(mb)
        outputs = {
            number: output.detach() if letter in "BI" and number == mb else output for number, output in outputs.items()
        }
        after(letter, mb)
    return [outputs[mb] for mb in sorted(outputs)]


def _forward(stages: Sequence[StageObject], mb: int, data: Data) -> Tensor:
    output: Any = None
    for number, stage in enumerate(stages):
        if number:
            stage.take(mb, output)
        output = stage.forward(mb, () if number else (data.xs[mb].clone(),), {} if number else data.kwargs(mb))
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def against_whole(
    model: nn.Module, named: Mapping[str, nn.Parameter], outputs: Sequence[Tensor], data: Data
) -> Iterator[Finding]:
    """Yield outputs and parameter gradients that one plain backward of the whole model does not give."""
    plain, wide = copy.deepcopy(model), copy.deepcopy(model).double()
    held = Held("the last action")
    for mb in range(MICROBATCHES):
        expected, reference = _step(plain, mb, data, torch.float32), _step(wide, mb, data, torch.float64)
        yield from compare(held, held, f"output {mb}", outputs[mb], expected, given(reference))
    missing = sorted(dict(plain.named_parameters()).keys() ^ named.keys())
    if missing:
        yield Finding("missing", "the parameters", "", f"stages and model do not have the same: {missing}")
    references = dict(wide.named_parameters())
    for name, parameter in plain.named_parameters():
        got = named[name].grad if name in named else None
        yield from compare(held, held, name, got, parameter.grad, given(references[name].grad))


def _step(model: nn.Module, mb: int, data: Data, dtype: torch.dtype) -> Tensor:
    kwargs = {name: value.to(dtype) for name, value in data.kwargs(mb).items()}
    output: Tensor = model(data.xs[mb].to(dtype), **kwargs)
    nn.functional.mse_loss(output, data.targets[mb].to(dtype)).backward()
    return output.detach()
