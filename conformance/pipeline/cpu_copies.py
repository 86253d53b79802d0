"""Communication for devices without a backend of their own, or with a shared index: gloo over copies on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradconform.drive.watches import on_cpu
from gradconform.trees import map_leaves

#: The name of the backend, as ``torch.distributed.get_backend`` gives it.
HOST_COPIES = "host_copies"

#: The process group methods whose first argument is written.
_WRITING = (
    "allgather", "_allgather_base", "allgather_coalesced", "allreduce", "allreduce_coalesced", "alltoall",
    "alltoall_base", "broadcast", "gather", "reduce", "reduce_scatter", "_reduce_scatter_base", "scatter",
)  # fmt: skip

#: Methods that gloo lacks in Python: they take lists, for each element of which gloo has a method. DTensor and the
#: functional collectives call them, if several tensors are gathered at once.
_ONE_BY_ONE = {
    "allgather_into_tensor_coalesced": "_allgather_base",
    "reduce_scatter_tensor_coalesced": "_reduce_scatter_base",
}


def register_host_copies(device_type: str) -> None:
    """Make the backend known to torch.distributed for tensors of the CPU and of ``device_type``."""
    types = [*dict.fromkeys(("cpu", device_type))]

    def made(store: Any, rank: int, size: int, timeout: timedelta) -> HostCopies:
        return HostCopies(dist.ProcessGroupGloo(store, rank, size, timeout), rank, size, types)

    dist.Backend.register_backend(HOST_COPIES, made, devices=types)


class HostCopies(dist.ProcessGroup):
    """A process group for tensors on any device: gloo sends and receives copies of them on the CPU.

    Every call except a receive is complete when it returns; a receive is complete after waiting for its work.
    """

    def __init__(self, gloo: Any, rank: int, size: int, types: list[str]) -> None:
        """Wrap a gloo group of the same ranks."""
        super().__init__(rank, size)  # type: ignore[call-arg] # torch's stub lacks what a subclass calls
        self._gloo = gloo
        # A group gets its name from its default backend, and torch looks up the one of a device type.
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        for one in types:
            self._register_backend(torch.device(one), dist.ProcessGroup.BackendType.GLOO, gloo)

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """Return the backend's name."""
        return HOST_COPIES

    def send(self, tensors: list[Tensor], rank: int, tag: int = 0) -> dist.Work:
        """Send copies of the tensors."""
        work: dist.Work = self._gloo.send([_on_host(tensor) for tensor in tensors], rank, tag)
        return work

    def recv(self, tensors: list[Tensor], rank: int, tag: int = 0) -> dist.Work:
        """Receive into the tensors; complete after waiting for the work."""
        host = [_like(tensor) for tensor in tensors]
        return _Received(self._gloo.recv(host, rank, tag), tensors, host)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> dist.Work:
        """Receive from any sending rank; complete after waiting for the work."""
        host = [_like(tensor) for tensor in tensors]
        return _Received(self._gloo.recv_anysource(host, tag), tensors, host)

    def barrier(self, *options: Any) -> dist.Work:
        """Wait for every rank."""
        del options  # they name devices, which gloo does not support
        work: dist.Work = self._gloo.barrier()
        return work


def _writing(name: str) -> Callable[..., dist.Work]:
    def collective(self: HostCopies, written: Any, *more: Any) -> dist.Work:
        copies: list[tuple[Tensor, Tensor]] = []

        def noted(tensor: Any) -> Any:
            if isinstance(tensor, Tensor) and not tensor.is_cpu:
                copies.append((tensor, _on_host(tensor)))
                return copies[-1][1]
            return tensor

        host = map_leaves(noted, written)
        getattr(self._gloo, name)(host, *(map_leaves(_on_host, one) for one in more)).wait()
        _copy_back(copies)
        return _Done(written)

    collective.__name__ = name
    return collective


def _one_by_one(name: str, single: str) -> Callable[..., dist.Work]:
    def collective(self: HostCopies, written: list[Tensor], read: list[Tensor], *options: Any) -> dist.Work:
        for output, given in zip(written, read, strict=True):
            getattr(self, single)(output, given, *options)
        return _Done(written)

    collective.__name__ = name
    return collective


for _name in _WRITING:
    setattr(HostCopies, _name, _writing(_name))
for _name, _single in _ONE_BY_ONE.items():
    setattr(HostCopies, _name, _one_by_one(_name, _single))


def _on_host(value: Any) -> Any:
    return on_cpu(value) if isinstance(value, Tensor) and not value.is_cpu else value


def _like(tensor: Tensor) -> Tensor:
    """Return CPU memory to receive into; a tensor that is on the CPU is used itself."""
    return tensor if tensor.is_cpu else torch.empty(tensor.shape, dtype=tensor.dtype)


def _copy_back(copies: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for tensor, host in copies:
            tensor.copy_(host)


class _Done(dist.Work):
    """Completed work; ``found`` are the tensors that were written."""

    def __init__(self, found: Any) -> None:
        super().__init__()
        self._found = found

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        del timeout
        return True

    def is_completed(self) -> bool:
        """Whether the work is complete."""
        return True

    def result(self) -> Any:
        """Return the tensors that were written."""
        return self._found

    def get_future(self) -> Future[Any]:
        """Return a future that holds the tensors."""
        future: Future[Any] = Future()
        future.set_result(self._found)
        return future


class _Received(dist.Work):
    """A pending receive into CPU memory, for tensors of a device."""

    def __init__(self, work: Any, tensors: list[Tensor], host: list[Tensor]) -> None:
        super().__init__()
        self._work, self._tensors, self._host = work, tensors, host

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the sender, and copy the received values to the device."""
        done: bool = self._work.wait() if timeout is None else self._work.wait(timeout)
        _copy_back(
            [(tensor, host) for tensor, host in zip(self._tensors, self._host, strict=True) if tensor is not host]
        )
        return done

    def is_completed(self) -> bool:
        """Whether the sender's values have arrived."""
        completed: bool = self._work.is_completed()
        return completed
