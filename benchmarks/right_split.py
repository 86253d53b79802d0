"""The right split against torch's, in time and memory: python benchmarks/right_split.py [--rounds N] [--write PAGE].

Both run the same micro-batch of the same stage in turn, I and W timed apart, and what is told is the median over the
rounds of what ours takes as a share of what torch's took beside it. Memory is what torch's allocator gave out, from
before the forward on, while the caller holds on to the output gradients, as a runtime that receives into them does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from figures import measured
from torch import Tensor, nn

from gradconform.fixtures.blocks.attention import Attention
from gradconform.fixtures.blocks.feed_forward import Experts, SwiGLU, inner_width
from gradconform.fixtures.blocks.size import Size
from gradconform.reference import split
from gradconform.torch_releases import pipelining

GOAL = 1.02
SIZE = Size("bench", 2, 256, 512, 8)
BEGIN, END = "<!-- measured: right-split -->", "<!-- end -->"


class Layer(nn.Module):
    """A layer of a Llama-like model: norms before attention and before what stands in for its feed forward."""

    def __init__(self, size: Size, feed_forward: nn.Module) -> None:
        """Take the feed forward, which may give an auxiliary loss beside its states."""
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(size.hidden) for _ in range(2))
        self.attention, self.feed_forward = Attention(size, is_causal=True), feed_forward

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the states, and the auxiliary loss where there is one."""
        hidden = hidden + self.attention(self.norms[0](hidden))
        found = self.feed_forward(self.norms[1](hidden))
        more, loss = found if isinstance(found, tuple) else (found, None)
        return hidden + more, loss


class Layers(nn.Module):
    """Layers one after the other; their auxiliary losses are summed."""

    def __init__(self, *layers: Layer) -> None:
        """Take the layers."""
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Return the states, and the sum of the auxiliary losses where there are any."""
        losses = []
        for layer in self.layers:
            hidden, loss = layer(hidden)
            losses += [] if loss is None else [loss]
        return (hidden, torch.stack(losses).sum()) if losses else (hidden,)


class Residual(nn.Module):
    """Two convolutions with batch norms and a way around them (arXiv:1512.03385)."""

    def __init__(self, channels: int) -> None:
        """Take the number of channels, in and out."""
        super().__init__()
        convolutions = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        first, second = convolutions
        norms = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.inside = nn.Sequential(first, norms[0], nn.ReLU(), second, norms[1])

    def forward(self, image: Tensor) -> tuple[Tensor]:
        """Return the image behind it."""
        return torch.relu(image + self.inside(image))


class Convolutions(nn.Module):
    """Residual blocks."""

    def __init__(self, channels: int, blocks: int) -> None:
        """Take the width and how many there are."""
        super().__init__()
        self.blocks = nn.Sequential(*(Residual(channels) for _ in range(blocks)))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Return the image behind them."""
        return (self.blocks(image),)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one micro-batch took: seconds of I and W, or bytes at the peak of both and between the two."""

    first: float
    second: float


def llama() -> nn.Module:
    """Return four layers of a Llama-like model of width 512."""
    return Layers(*(Layer(SIZE, SwiGLU(SIZE.hidden, inner_width(SIZE))) for _ in range(4)))


def experts() -> nn.Module:
    """Return two layers whose feed forwards are mixtures of experts."""
    return Layers(*(Layer(SIZE, Experts(SIZE)) for _ in range(2)))


def convolutions() -> nn.Module:
    """Return four residual blocks of 64 channels."""
    return Convolutions(64, 4)


STAGES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Llama-like, 4 layers of width 512": (llama, SIZE.shape),
    "mixture of experts, 2 layers of width 512": (experts, SIZE.shape),
    "convolutions, 4 residual blocks of 64 channels": (convolutions, (8, 64, 32, 32)),
}


def timed(functions: dict[str, Callable[..., Any]], stage: nn.Module, shape: tuple[int, ...]) -> Measured:
    """Return the seconds of I and of W of one micro-batch."""
    for parameter in stage.parameters():
        parameter.grad = None
    x, outputs, grads = forward(stage, shape)
    begun = time.perf_counter()
    _, context = functions["stage_backward_input"](list(outputs), grads, [x], stage.parameters())
    half = time.perf_counter()
    functions["stage_backward_weight"](stage.parameters(), context)
    return Measured(half - begun, time.perf_counter() - half)


def forward(stage: nn.Module, shape: tuple[int, ...]) -> tuple[Tensor, tuple[Tensor, ...], list[Tensor]]:
    """Return an input, the outputs, and their gradients."""
    x = torch.randn(shape, requires_grad=True)
    outputs = stage(x)
    return x, outputs, [torch.randn_like(output) for output in outputs]


def in_memory(functions: dict[str, Callable[..., Any]], stage: nn.Module, shape: tuple[int, ...]) -> Measured:
    """Return the bytes at the peak of I and W, and between the two, beyond those of the stage."""
    for parameter in stage.parameters():
        parameter.grad = None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        x, outputs, grads = forward(stage, shape)
        outputs = list(outputs)
        with torch.profiler.record_function("I begins"):
            found, context = functions["stage_backward_input"](outputs, grads, [x], stage.parameters())
        del outputs, x, found
        with torch.profiler.record_function("W begins"):
            functions["stage_backward_weight"](stage.parameters(), context)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return _held(events)


def _held(events: list[dict[str, Any]]) -> Measured:
    marks = {event["name"]: float(event["ts"]) for event in events if event.get("name") in {"I begins", "W begins"}}
    changes = sorted((float(one["ts"]), int(one["args"]["Bytes"])) for one in events if one.get("name") == "[memory]")
    held, peak, between = 0, 0, 0
    for at, change in changes:
        held += change
        peak = max(peak, held) if at >= marks["I begins"] else peak
        between = held if at < marks["W begins"] else between
    return Measured(peak, between)


@dataclass(frozen=True, slots=True)
class Row:
    """One stage: what ours takes as a share of what torch's does."""

    stage: str
    seconds: tuple[float, float]
    both: float
    memory: tuple[float, float]

    def __str__(self) -> str:
        """Return it as a row of the table."""
        shares = (*self.seconds, self.both, *self.memory)
        return f"| {self.stage} | " + " | ".join(f"{share:.3f}" for share in shares) + " |"

    @property
    def within(self) -> bool:
        """Whether all of it is within its goal."""
        return max(self.seconds) <= GOAL and max(self.memory) <= 1.0


def measure(name: str, rounds: int) -> Row:
    """Return what was measured of one stage, in ``rounds`` pairs of which every second one begins with ours."""
    build, shape = STAGES[name]
    torch.manual_seed(20)
    stage = build()
    sides = {"torch": pipelining.functions(), "ours": {one: getattr(split, one) for one in pipelining.functions()}}
    taken: dict[str, list[Measured]] = {side: [] for side in sides}
    for number in range(-3, rounds):
        for side in sides if number % 2 else reversed(sides):
            one = timed(sides[side], stage, shape)
            if number >= 0:
                taken[side].append(one)
    pairs = list(zip(taken["ours"], taken["torch"], strict=True))
    held = {side: in_memory(sides[side], stage, shape) for side in sides}
    return Row(
        name,
        (
            statistics.median(ours.first / theirs.first for ours, theirs in pairs),
            statistics.median(ours.second / theirs.second for ours, theirs in pairs),
        ),
        statistics.median((ours.first + ours.second) / (theirs.first + theirs.second) for ours, theirs in pairs),
        (held["ours"].first / held["torch"].first, held["ours"].second / held["torch"].second),
    )


def page(rows: list[Row], rounds: int) -> str:
    """Return the table in Markdown."""
    head = ["| stage | I | W | I and W | peak memory | memory between |", "|---|---:|---:|---:|---:|---:|"]
    said = measured(f"benchmarks/right_split.py --rounds {rounds}")
    threads = torch.get_num_threads()
    on = "1 thread" if threads == 1 else f"{threads} threads"
    goal = f"A share of torch's, on {on}; the goal is {GOAL} in time and 1 in memory. {said}"
    return "\n".join([*head, *map(str, rows), "", goal])


def main() -> None:
    """Measure, print, write where asked; end with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--stages", default="", help="those whose names contain this")
    parser.add_argument("--write", type=Path, help="the page whose table is written anew")
    options = parser.parse_args()
    rows = [measure(name, options.rounds) for name in STAGES if options.stages in name]
    text = page(rows, options.rounds)
    print(text)
    if options.write:
        before, _, rest = options.write.read_text(encoding="utf-8").partition(BEGIN)
        options.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    raise SystemExit(0 if all(row.within for row in rows) else 1)


if __name__ == "__main__":
    main()
