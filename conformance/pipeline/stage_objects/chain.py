"""A chain of stage objects on one process, and the whole model that it must equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.drive.watches import on_cpu
from gradconform.judge.finding import Finding, Judged
from gradconform.judge.values import compare
from gradconform.pipeline.cases import BY_NAME
from gradconform.pipeline.whole_model import NUMBERS, Batch, given, make_batch, mean_square, run_step

from . import StageObject, StageObjects

MICROBATCHES = 3
_CPU = torch.device("cpu")


class Block(nn.Module):
    """A Linear with a nonlinearity, an optional keyword argument, and a residual."""

    def __init__(self) -> None:
        """Make the layer."""
        super().__init__()
        self.linear = nn.Linear(NUMBERS, NUMBERS)

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """Return the sum of x and the layer's output, multiplied by the gate if there is one."""
        y = torch.tanh(self.linear(x))
        return x + (y if gate is None else y * gate)


class Whole(nn.Module):
    """The model: a sequence of blocks; the keyword argument goes to the first."""

    def __init__(self, blocks: int = 3) -> None:
        """Create the blocks, with values that depend only on their number."""
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        generator = torch.Generator().manual_seed(20)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """Return the output of the last block."""
        for number, block in enumerate(self.blocks):
            x = block(x, gate) if number == 0 else block(x)
        return x


@dataclass(frozen=True, slots=True)
class Subject:
    """The stage objects under test, and the device of the models and micro-batches."""

    objects: StageObjects
    device: torch.device = _CPU

    @property
    def name(self) -> str:
        """Return the name of the stage objects' maker."""
        return self.objects.name

    def whole(self, blocks: int = 3) -> Whole:
        """Return the model."""
        return Whole(blocks).to(self.device)

    def batches(self, *, gated: bool = False) -> list[Batch]:
        """Return the micro-batches of a chain: if ``gated``, with the keyword argument."""
        scenario = BY_NAME["keyword-arguments" if gated else "two-steps"]
        batch = make_batch(scenario, 0, MICROBATCHES, dtype=torch.float32, seed=20)
        return [one.map(lambda tensor: tensor.to(self.device)) for one in batch.chunks(MICROBATCHES)]

    def example(self) -> tuple[Tensor]:
        """Return the arguments of the first stage."""
        return (self.batches()[0].x.clone(),)


def run_chain(
    stages: Sequence[StageObject],
    data: Sequence[Batch],
    order: str,
    after: Callable[[str, int], None] = lambda _action, _mb: None,
) -> list[Tensor]:
    """Run all stages in ``order`` (``F0 F1 B0 …``, each action on every stage) and return the outputs by micro-batch.

    ``after`` is called after each action on all stages.
    """
    outputs: dict[int, Tensor] = {}
    for token in order.split():
        letter, mb = token[0], int(token[1:])
        if letter == "F":
            outputs[mb] = _forward(stages, mb, data)
        elif letter in "BI":
            loss = mean_square(outputs[mb], data[mb].target)
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


def _forward(stages: Sequence[StageObject], mb: int, data: Sequence[Batch]) -> Tensor:
    output: Any = None
    for number, stage in enumerate(stages):
        if number:
            stage.take(mb, output)
        output = stage.forward(mb, () if number else (data[mb].x.clone(),), {} if number else data[mb].kwargs)
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def against_whole(
    model: Whole, named: Mapping[str, nn.Parameter], outputs: Sequence[Tensor], data: Sequence[Batch]
) -> Judged:
    """Yield outputs and parameter gradients that differ from one plain backward of ``model``.

    The plain backward runs on the model's device; values are compared on the CPU.
    """
    wide = Whole(len(model.blocks)).double()
    last = "the last action"
    expected, _ = run_step([model], data, {})
    references, _ = run_step([wide], [one.map(lambda tensor: tensor.cpu().double()) for one in data], {})
    for mb, output in enumerate(outputs):
        got, known = on_cpu(output), on_cpu(expected[mb])
        yield from compare("output", f"output {mb}", last, got, known, given(references[mb]))
    missing = sorted(dict(model.named_parameters()).keys() ^ named.keys())
    if missing:
        yield Finding("missing", "the parameters", "", f"stages and model have different parameters: {missing}")
    for (name, parameter), known in zip(model.named_parameters(), wide.parameters(), strict=True):
        got = on_cpu(named[name].grad) if name in named else None
        yield from compare("parameter gradient", name, last, got, on_cpu(parameter.grad), given(known.grad))
