"""A log of the collectives that a rank calls, each with the line of the user's code that calls it."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from gradconform.torch_releases.dispatch import DispatchMode
from gradconform.trial.mesh import Mesh

#: The namespaces of operators that communicate.
_COMMUNICATE = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})
#: Operators there that only wait for one that was called before, and those between two ranks.
_WAITS = frozenset({"wait_tensor", "wrap_tensor_autograd"})
_BETWEEN_TWO = frozenset({"send", "recv_", "recv_any_source_"})

_KIT = str(Path(__file__).parents[1])
_INSTALLED = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_TORCH = str(Path(torch.__file__).parent)

#: How many frames of the user's code a line names: a collective is often called by a helper.
_FRAMES = 2

#: Names of operators whose public name is another.
_PUBLIC = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "alltoall_base": "all_to_all_single", "allgather_base": "all_gather_into_tensor",
    "reduce_scatter_base": "reduce_scatter_tensor", "allreduce_coalesced": "all_reduce_coalesced",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """One collective: its name, the ranks of its group, the number of its elements, and the user's line."""

    name: str
    ranks: tuple[int, ...]
    elements: int
    line: str

    def shown(self, mesh: Mesh) -> str:
        """Return the call in words."""
        return f"{self.name} over {mesh.named(self.ranks)} at {self.line}"


class CollectiveLog(DispatchMode):
    """Records every collective of this thread while it is active, and reports each to ``on_call`` before it begins.

    Each is also written to ``file``, which other processes read if this rank ends or hangs. ``groups`` has the ranks of
    the groups of a mesh by the group's name.
    """

    def __init__(self, file: Path, groups: Mapping[str, tuple[int, ...]], on_call: Callable[[Call], None]) -> None:
        """Create an empty log."""
        super().__init__()  # type: ignore[no-untyped-call] # so is torch's
        self._groups = groups
        self.calls: list[Call] = []
        self._on_call = on_call
        self._file = file.open("w", encoding="utf-8", buffering=1)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Record a collective, and run the operator."""
        if func.namespace in _COMMUNICATE:
            self._record(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        name = func.overloadpacket.__name__
        if name in _WAITS:
            return
        plain = name.rstrip("_")
        public = _PUBLIC.get(plain.lstrip("_"), plain.lstrip("_"))
        call = Call(public, _ranks_of(args, kwargs, self._groups), _elements(args), user_line())
        self._on_call(call)
        if name not in _BETWEEN_TWO:
            self.calls.append(call)
            self._file.write(json.dumps(asdict(call)) + "\n")


def _ranks_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...]:
    """Return the ranks of the group among the arguments of an operator: an object of torch, or one of known names."""
    for one in (*args, *kwargs.values()):
        with suppress(RuntimeError, TypeError, ValueError):
            if isinstance(one, torch.ScriptObject):
                return tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(one)))
            if isinstance(one, str) and one in groups:
                return groups[one]
    return tuple(range(dist.get_world_size()))


def _elements(args: tuple[Any, ...]) -> int:
    """Return the number of elements of the first tensors among the arguments."""
    for one in args:
        found = list(_tensors(one))
        if found:
            return sum(tensor.numel() for tensor in found)
    return 0


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def user_line() -> str:
    """Return the file and line of the innermost frames of the user's own code; of a library's if there are none."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 (traceback.extract_stack reads every source file)
    own: list[str] = []
    library = ""
    while frame is not None and len(own) < _FRAMES:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if not file.startswith((_TORCH, "<")) and not _of_kit(file):
            where = f"{Path(file).name}:{line}, in {frame.f_code.co_name}"
            if not file.startswith(_INSTALLED):
                own.append(where)
            library = library or where
        frame = frame.f_back
    return ", called by ".join(own) or library or "the backward of torch"


def _of_kit(file: str) -> bool:
    """Return whether a file is of the kit, except its reference stages, which are judged as a user's."""
    inside = file.removeprefix(_KIT)
    return inside != file and not inside.startswith("/reference")


def read_calls(file: Path) -> list[Call]:
    """Return the calls that a rank wrote; a line that it was writing when it died is skipped."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.is_file() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [Call(**{**one, "ranks": tuple(one["ranks"])}) for one in found]


def mismatch(logs: Sequence[Sequence[Call]], mesh: Mesh, *, ended: bool = True) -> str:
    """Return the first call in which ranks of one group differ, in words; empty if all call the same.

    Unless all ranks have ``ended`` their program, a rank may still make the calls that it lacks.
    """
    groups = dict.fromkeys(call.ranks for log in logs for call in log)
    for group in groups:
        own = {rank: [call for call in logs[rank] if call.ranks == group] for rank in group if rank < len(logs)}
        for place in range(max(map(len, own.values()), default=0)):
            calls = {rank: calls[place] if place < len(calls) else None for rank, calls in own.items()}
            if not ended and None in calls.values():
                break
            kinds = {None if call is None else (call.name, _even(call)) for call in calls.values()}
            if len(kinds) > 1:
                said = [_said(rank, call, mesh) for rank, call in calls.items()]
                return f"call {place + 1} over {mesh.named(group)} differs: {'; '.join(said)}"
    return ""


def _even(call: Call) -> int:
    """Return the number of elements that all ranks must pass; 0 if each may pass another."""
    return call.elements if call.name in {"all_reduce", "broadcast", "reduce"} else 0


def _said(rank: int, call: Call | None, mesh: Mesh) -> str:
    return (
        f"rank {rank} calls no more"
        if call is None
        else f"rank {rank} calls {call.shown(mesh)}, {call.elements} elements"
    )
