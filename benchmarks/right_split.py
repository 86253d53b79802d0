"""The right split against torch's and one plain backward: python benchmarks/right_split.py [--rounds N] [--write PAGE].

Each of them runs a micro-batch of the same stage in turn, with I and W timed separately. A share is the median over the
rounds of what ours takes by what the other took in the same round. Memory is what torch's allocator has given out since
before the forward, while the caller holds on to the output gradients, as a runtime that receives into them does. The
host limits the rows of small width: engine calls and walked nodes take most of their time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from figures import measured
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge

from gradconform.fixtures.blocks.attention import Attention
from gradconform.fixtures.blocks.feed_forward import Experts, SwiGLU, inner_width
from gradconform.fixtures.blocks.size import Size
from gradconform.reference import split
from gradconform.reference.recomputed import nodes_behind
from gradconform.torch_releases import pipelining

SIZE = Size("bench", 2, 256, 512, 8)
NARROW = Size("narrow", 2, 16, 64, 4)
MIDDLE = Size("middle", 2, 64, 128, 4)
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


def llama(size: Size, layers: int) -> nn.Module:
    """Return layers of a Llama-like model."""
    return Layers(*(Layer(size, SwiGLU(size.hidden, inner_width(size))) for _ in range(layers)))


def experts(size: Size, layers: int) -> nn.Module:
    """Return layers whose feed forwards are mixtures of experts."""
    return Layers(*(Layer(size, Experts(size)) for _ in range(layers)))


def convolutions() -> nn.Module:
    """Return four residual blocks of 64 channels."""
    return Convolutions(64, 4)


@dataclass(frozen=True, slots=True)
class Case:
    """A stage, the shape of its argument, and the goals for I and W together and for memory.

    Time is a share of one plain backward (``of_plain``, None for no goal) and of torch's I and W, memory of torch's.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    of_torch: float = 1.02
    of_plain: float | None = None
    memory: float = 1.0


CASES = {
    "Llama-like, 8 layers of width 64": Case(partial(llama, NARROW, 8), NARROW.shape, 0.5, 1.5),
    "mixture of experts, 8 layers of width 64": Case(partial(experts, NARROW, 8), NARROW.shape),
    "Llama-like, 8 layers of width 128": Case(partial(llama, MIDDLE, 8), MIDDLE.shape, 1.02, 1.15),
    "Llama-like, 4 layers of width 512": Case(partial(llama, SIZE, 4), SIZE.shape, 1.02, 1.03),
    "mixture of experts, 2 layers of width 512": Case(partial(experts, SIZE, 2), SIZE.shape),
    "convolutions, 4 residual blocks of 64 channels": Case(convolutions, (8, 64, 32, 32)),
}

#: A stage backward by torch's three names, or one plain backward, which has none of them.
Functions = dict[str, Callable[..., Any]]
PLAIN, TORCH, OURS = "plain", "torch", "ours"


@dataclass(frozen=True, slots=True)
class Measured:
    """What one micro-batch took: seconds of I and W, or bytes at the peak of both and between the two."""

    first: float
    second: float

    @property
    def both(self) -> float:
        """The sum."""
        return self.first + self.second


class Clock:
    """Seconds between marks: the host's on a CPU, elsewhere those of the device, by events."""

    def __init__(self, device: torch.device) -> None:
        """Take the device."""
        self.device = device
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Mark a moment."""
        if self.device.type == "cpu":
            self._marks.append(time.perf_counter())
        else:
            event = torch.Event(self.device.type, enable_timing=True)
            event.record()
            self._marks.append(event)

    def seconds(self) -> list[float]:
        """Return the seconds from each mark to the next."""
        pairs = list(zip(self._marks, self._marks[1:], strict=False))
        if self.device.type == "cpu":
            return [after - before for before, after in pairs]
        torch.accelerator.synchronize()
        return [before.elapsed_time(after) / 1000 for before, after in pairs]


def forward(stage: nn.Module, shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, tuple[Any, ...], Any]:
    """Return an input, the outputs, and their gradients; the stage has none before."""
    for parameter in stage.parameters():
        parameter.grad = None
    x = torch.randn(shape, requires_grad=True, device=device)
    outputs = stage(x)
    return x, outputs, [torch.randn_like(output) for output in outputs]


def timed(functions: Functions, stage: nn.Module, shape: tuple[int, ...], device: torch.device) -> Measured:
    """Return the seconds of I and of W of one micro-batch, or those of one plain backward."""
    x, outputs, grads = forward(stage, shape, device)
    clock = Clock(device)
    clock.mark()
    if functions:
        _, context = functions["stage_backward_input"](list(outputs), grads, [x], stage.parameters())
        clock.mark()
        functions["stage_backward_weight"](stage.parameters(), context)
    else:
        torch.autograd.backward(outputs, grads)
    clock.mark()
    return Measured(*clock.seconds(), *(() if functions else (0.0,)))


def in_memory(functions: Functions, stage: nn.Module, shape: tuple[int, ...], device: torch.device) -> Measured:
    """Return the bytes at the peak of I and W, and between the two, beyond those of the stage."""
    if device.type != "cpu":
        return _by_counter(functions, stage, shape, device)
    stage.zero_grad()  # before the profile: it would count what is freed and not what was allocated
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        x, outputs, grads = forward(stage, shape, device)
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


def _by_counter(functions: Functions, stage: nn.Module, shape: tuple[int, ...], device: torch.device) -> Measured:
    counter = getattr(torch, device.type)
    stage.zero_grad()
    before = counter.memory_allocated()
    x, outputs, grads = forward(stage, shape, device)
    outputs = list(outputs)
    counter.reset_peak_memory_stats()
    found, context = functions["stage_backward_input"](outputs, grads, [x], stage.parameters())
    del outputs, x, found
    between = counter.memory_allocated() - before
    functions["stage_backward_weight"](stage.parameters(), context)
    return Measured(counter.max_memory_allocated() - before, between)


class Counter:
    """Stands for torch's engine and counts its calls, and the nodes that each of them finds behind its roots."""

    def __init__(self, engine: Any) -> None:
        """Take the engine."""
        self._engine = engine
        self.calls, self.nodes = 0, 0

    def run_backward(self, roots: Any, *args: Any, **options: Any) -> Any:
        """Count, and run."""
        self.calls += 1
        self.nodes += sum(1 for _ in nodes_behind(roots))
        return self._engine.run_backward(roots, *args, **options)

    def __getattr__(self, name: str) -> Any:
        """Return what the engine has by that name."""
        return getattr(self._engine, name)


@contextmanager
def counted() -> Iterator[Counter]:
    """Count what the engine does meanwhile."""
    engine = Variable._execution_engine  # noqa: SLF001 (there is no public way to see each call)
    counter = Counter(engine)
    Variable._execution_engine = counter  # type: ignore[assignment] # noqa: SLF001 (as above)
    try:
        yield counter
    finally:
        Variable._execution_engine = engine  # noqa: SLF001 (as above)


def counts(functions: Functions, stage: nn.Module, shape: tuple[int, ...], device: torch.device) -> tuple[int, int]:
    """Return how often a micro-batch calls the engine, and how many nodes are walked, by that and by I itself."""
    x, outputs, grads = forward(stage, shape, device)
    own = sum(1 for _ in nodes_behind([get_gradient_edge(output) for output in outputs]))
    with counted() as counter:
        _, context = functions["stage_backward_input"](list(outputs), grads, [x], stage.parameters())
        functions["stage_backward_weight"](stage.parameters(), context)
    return counter.calls, counter.nodes + own


@dataclass(frozen=True, slots=True)
class Row:
    """One stage: what ours takes as a share of torch's and of one plain backward, and what is counted of both."""

    stage: str
    seconds: tuple[float, float]
    both: float
    of_plain: tuple[float, float]
    memory: tuple[float, float]
    counts: tuple[tuple[int, int], tuple[int, int]]

    @property
    def case(self) -> Case:
        """What was run."""
        return CASES[self.stage]

    def __str__(self) -> str:
        """Return it as a row of the table of shares."""
        shares = (*self.seconds, self.both, *self.memory)
        return f"| {self.stage} | " + " | ".join(f"{share:.3f}" for share in shares) + " |"

    def against_plain(self) -> str:
        """Return it as a row of the table that has one plain backward and the counts."""
        goal = "" if self.case.of_plain is None else f"{self.case.of_plain:.2f}"
        ours, theirs = self.of_plain
        calls, nodes = ([f"{one[at]:,}" for one in self.counts] for at in (0, 1))
        return f"| {self.stage} | {ours:.2f} | {goal} | {theirs:.2f} | " + " | ".join([*calls, *nodes]) + " |"

    @property
    def within(self) -> bool:
        """Whether all of it is within its goal."""
        plain = self.case.of_plain is None or self.of_plain[0] <= self.case.of_plain
        return plain and self.both <= self.case.of_torch and max(self.memory) <= self.case.memory


def measure(name: str, rounds: int, device: torch.device) -> Row:
    """Measure one stage in ``rounds``; each side runs once per round, and the order alternates."""
    case = CASES[name]
    torch.manual_seed(20)
    stage = case.build().to(device)
    sides: dict[str, Functions] = {
        PLAIN: {},
        TORCH: pipelining.functions(),
        OURS: {one: getattr(split, one) for one in pipelining.functions()},
    }
    taken: dict[str, list[Measured]] = {side: [] for side in sides}
    for number in range(-3, rounds):
        for side in sides if number % 2 else reversed(sides):
            one = timed(sides[side], stage, case.shape, device)
            if number >= 0:
                taken[side].append(one)
    held = {side: in_memory(sides[side], stage, case.shape, device) for side in (OURS, TORCH)}

    def share(side: str, other: str, of: Callable[[Measured], float]) -> float:
        return statistics.median(of(a) / of(b) for a, b in zip(taken[side], taken[other], strict=True))

    return Row(
        name,
        (share(OURS, TORCH, lambda one: one.first), share(OURS, TORCH, lambda one: one.second)),
        share(OURS, TORCH, lambda one: one.both),
        (share(OURS, PLAIN, lambda one: one.both), share(TORCH, PLAIN, lambda one: one.both)),
        (held[OURS].first / held[TORCH].first, held[OURS].second / held[TORCH].second),
        (counts(sides[OURS], stage, case.shape, device), counts(sides[TORCH], stage, case.shape, device)),
    )


def page(rows: list[Row], rounds: int, device: torch.device) -> str:
    """Return the tables in Markdown."""
    threads = torch.get_num_threads()
    on = f"on {'1 thread' if threads == 1 else f'{threads} threads'}" if device.type == "cpu" else f"on {device.type}"
    options = "" if device.type == "cpu" else f" --device {device}"
    how_measured = measured(f"benchmarks/right_split.py --rounds {rounds}{options}")
    return "\n".join(
        [
            "| stage | I | W | I and W | peak memory | memory between |",
            "|---|---:|---:|---:|---:|---:|",
            *map(str, rows),
            "",
            f"A share of torch's, {on}. The goals: memory 1; I and W together 1.02, at width 64 0.5 if Llama-like.",
            "",
            "| stage | of one plain backward | goal | torch's | engine calls | torch's | walked nodes | torch's |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
            *(row.against_plain() for row in rows),
            "",
            f"I and W as a share of one plain backward, and what the CPU does per micro-batch. {how_measured}",
        ]
    )


def main() -> None:
    """Measure, print, write where asked; end with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--stages", default="", help="those whose names contain this")
    parser.add_argument(
        "--device", type=torch.device, default=torch.device("cpu"), help="where to run; events time a GPU"
    )
    parser.add_argument("--write", type=Path, help="the page whose table is written anew")
    options = parser.parse_args()
    rows = [measure(name, options.rounds, options.device) for name in CASES if options.stages in name]
    text = page(rows, options.rounds, options.device)
    print(text)
    if options.write:
        before, _, rest = options.write.read_text(encoding="utf-8").partition(BEGIN)
        options.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    raise SystemExit(0 if all(row.within for row in rows) else 1)


if __name__ == "__main__":
    main()
