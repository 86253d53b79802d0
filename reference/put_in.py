"""The right split in torch's own runtime: ``PipelineStage`` of this process calls it, in every release from 2.6 on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gradconform.torch_releases import pipelining

from . import split


def install() -> None:
    """Let every ``torch.distributed.pipelining.PipelineStage`` of this process call the right split, for good.

    Stages that were made before call it as well. Every rank installs it for itself. Raises
    :class:`~gradconform.torch_releases.names.UnavailableError` where torch's stages call other functions, and changes
    nothing then.
    """
    pipelining.put_in_stages(_functions())


@contextlib.contextmanager
def in_torch() -> Iterator[None]:
    """Let stages call the right split inside a ``with`` block, and afterwards what they called before.

    Blocks may be nested, and may end by an exception. Raises as :func:`install` does.
    """
    before = pipelining.put_in_stages(_functions())
    try:
        yield
    finally:
        pipelining.put_in_stages(before)


def _functions() -> dict[str, pipelining.StageFunction]:
    return {name: getattr(split, name) for name in pipelining.functions()}
