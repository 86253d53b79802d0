"""Installs the correct split in torch's own runtime: ``PipelineStage`` calls it, in every release from 2.6 on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gradconform.torch_releases import pipelining

from . import split


def install() -> None:
    """Make every ``torch.distributed.pipelining.PipelineStage`` of this process call the correct split, permanently.

    Existing stages call it as well. Every rank installs it for itself. Raises
    :class:`~gradconform.torch_releases.names.UnavailableError`, and changes nothing, if torch's stages call other
    functions.
    """
    pipelining.put_in_stages(_functions())


@contextlib.contextmanager
def in_torch() -> Iterator[None]:
    """Make stages call the correct split inside a ``with`` block, and afterwards their previous functions.

    Blocks may be nested, and may end with an exception. Raises as :func:`install` does.
    """
    before = pipelining.put_in_stages(_functions())
    try:
        yield
    finally:
        pipelining.put_in_stages(before)


def _functions() -> dict[str, pipelining.StageFunction]:
    return {name: getattr(split, name) for name in pipelining.functions()}
