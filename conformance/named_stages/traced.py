"""Stages of a model that torch's tracer cuts, by ``torch.distributed.pipelining.pipeline``.

A trace contains its dtype, so there is one for each; the parameters are the stage's.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.fixtures.inputs import draw_arguments, place_arguments
from gradconform.fixtures.stages.case import StageCase
from gradconform.text.escaping import shortened
from gradconform.user_input.values import nearest

from .error import StageError, StageNotInstalledError
from .example import recipes_of
from .measured_traits import traits_of

_CPU = torch.device("cpu")

_CUT = re.compile(r"[?&]cut=(?P<paths>[^?&#]*)$")


def without_cut(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of a stage without its cut points, and these modules."""
    found = _CUT.search(text)
    return (text, ()) if found is None else (text[: found.start()], tuple(found["paths"].split(",")))


def stages_cut(case: StageCase, paths: tuple[str, ...]) -> Iterator[StageCase]:
    """Yield the stages of a model that is cut before the modules at ``paths``.

    Raises :class:`StageError` for an unknown module, and with the tracer's message if it refuses the model.
    """
    text = f"{case.special}{'&' if '?' in case.special else '?'}cut={','.join(paths)}"
    description = f"stage {text!r}"
    traced = _Traced(case, tuple(_module_at(case, path, description) for path in paths), description)
    parts = traced.parts(torch.float32)
    if len(parts) <= len(paths):
        msg = f"{description}: torch's tracer found {len(parts)} of {case.special}; its forward does not call every one"
        raise StageError(msg)
    for number, (stage, args) in enumerate(parts):
        names, buffers = [name for name, _ in stage.named_parameters(remove_duplicate=False)], _buffers_of(stage)

        def build(number: int = number, names: Any = names, buffers: Any = buffers) -> nn.Module:
            return _Stage(case.build(), names, buffers, traced, number)

        example = recipes_of(args, build(), description)
        part = StageCase(f"{case.name}-{number}", f"{text} {number}", build, example, own_values=True)
        yield replace(part, traits=traits_of(part, description))


def _module_at(case: StageCase, path: str, description: str) -> str:
    """Return the path of a named module, or the only path that ends with the name."""
    known = [name for name, _ in case.make(dtype=torch.float32, device=_CPU, seed=0).named_modules() if name]
    ending = [name for name in known if name.endswith(f".{path}")]
    if path in known or len(ending) == 1:
        return path if path in known else ending[0]
    near = f"it may be {', '.join(ending)}" if ending else f"nearest: {nearest(path, known)}"
    msg = f"{description}: {case.special} has no module {path!r}; {near[:200]}"
    raise StageError(msg)


def _buffers_of(stage: nn.Module) -> list[str]:
    return [name for name, _ in stage.named_buffers(remove_duplicate=False)]


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Suppress the tracer's warnings, logs and output, which contain the whole graph if it refuses a model."""
    disabled, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


class _Traced:
    """The traces of a model, made once for each dtype and device."""

    def __init__(self, case: StageCase, paths: tuple[str, ...], description: str) -> None:
        self._case, self._paths, self._description = case, paths, description
        self.parts = lru_cache(self._parts)
        self.graph = lru_cache(self._graph)

    def __deepcopy__(self, memo: Any) -> _Traced:
        """Return the traces themselves: copies of a stage share them."""
        return self

    def _parts(self, dtype: torch.dtype) -> list[tuple[nn.Module, tuple[Any, ...]]]:
        """Return the stages and the arguments of each."""
        try:
            from torch.distributed.pipelining import SplitPoint, pipeline  # noqa: PLC0415 (a slow import)
        except ImportError as error:
            msg = f"{self._description} requires torch's tracer, which this torch does not have: {error}"
            raise StageNotInstalledError(msg) from error
        case, split = self._case, dict.fromkeys(self._paths, SplitPoint.BEGINNING)
        module = case.make(dtype=dtype, device=_CPU, seed=0)
        args = place_arguments(case.inputs, draw_arguments(case.inputs, seed=0, dtype=dtype), module, _CPU)
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad(), _silence():
                return list(_fed(pipeline(module, tuple(args), split_spec=split), args))
        except Exception as error:
            msg = f"{self._description}: torch's tracer refuses {case.special}: {_words(error)}"
            raise StageError(msg) from error

    def _graph(self, number: int, dtype: torch.dtype, device: torch.device) -> nn.Module:
        """Return the trace of one stage in a dtype, with its constants on a device."""
        stage, _ = self.parts(dtype)[number]
        if device.type == "cpu":
            return stage
        with _silence():
            moved = copy.deepcopy(stage)
        for part in moved.modules():
            for node in getattr(part, "graph", torch.fx.Graph()).nodes:
                node.args, node.kwargs = torch.fx.node.map_aggregate(
                    (node.args, node.kwargs), lambda one: device if isinstance(one, torch.device) else one
                )
            if isinstance(part, torch.fx.GraphModule):
                part.recompile()
        return moved.to(device)


def _fed(pipe: Any, args: Sequence[Any]) -> Iterator[tuple[nn.Module, tuple[Any, ...]]]:
    """Yield the stages of a pipeline with their arguments, where the first stage receives ``args``."""
    stages: list[nn.Module] = [pipe.get_stage_module(number) for number in range(pipe.num_stages)]
    seen: dict[nn.Module, tuple[Any, ...]] = {}
    handles = [stage.register_forward_pre_hook(seen.__setitem__) for stage in stages]
    pipe(*args)
    for handle in handles:
        handle.remove()
    for stage in stages:
        yield stage, seen[stage]


class _Stage(nn.Module):
    """One stage of a traced model, with the model's names of parameters and buffers."""

    def __init__(
        self, whole: nn.Module, parameters: list[str], buffers: list[str], traced: _Traced, number: int
    ) -> None:
        super().__init__()
        self.traced, self.number = traced, number
        for name in parameters:
            owner, last = _owner(self, name)
            owner.register_parameter(last, whole.get_parameter(name))
        known = dict(whole.named_buffers(remove_duplicate=False))
        for name in filter(known.__contains__, buffers):  # others are constants of the trace
            owner, last = _owner(self, name)
            owner.register_buffer(last, known[name])

    def forward(self, *args: Any) -> Any:
        """Run the trace of this dtype with these parameters."""
        held = {
            **dict(self.named_parameters(remove_duplicate=False)),
            **dict(self.named_buffers(remove_duplicate=False)),
        }
        several = (one for one in (*held.values(), *args) if isinstance(one, Tensor) and one.is_floating_point())
        first = next(several, torch.empty(0))
        graph = self.traced.graph(self.number, first.dtype, first.device)
        return torch.func.functional_call(graph, held, args)


def _owner(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the module that owns a name, created if missing, and the last part of the name."""
    *path, last = name.split(".")
    for part in path:
        if part not in dict(root.named_children()):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root, last


def _words(error: BaseException) -> str:
    """Return the message of an error's first cause as one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(shortened(str(error)).split())[:300]}"
