"""Blocks of models at increasing sizes: extra checks outside the contract, up to the limit of memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from gradconform.contract.check import Check
from gradconform.contract.extra_ids import BLOCKS as AREA
from gradconform.contract.extra_ids import chosen
from gradconform.contract.full_and_split import checks_on
from gradconform.fixtures.blocks.block import Block
from gradconform.fixtures.blocks.size import LADDER, Size, rungs
from gradconform.fixtures.blocks.zoo import BLOCKS
from gradconform.fixtures.stages.case import StageCase
from gradconform.fixtures.stages.shown_traits import shown
from gradconform.run.in_short import device_as_a_whole, device_in_short
from gradconform.run.options import RunOptions
from gradconform.run.selection import Selected
from gradconform.text.counts import count
from gradconform.user_input.values import Sizes

#: The values of 8 bytes that one check holds, per parameter and per element of the hidden states. The parameters are in
#: the modules of the implementation, plain autograd and the reference, in their gradients, and in the copies after each
#: action. ``benchmarks/blocks.py`` measures both factors.
_PER_PARAMETER, _PER_ELEMENT = 8, 100
_BYTES = 8

#: The small sizes that a device is tried at in short: one that no kernel expects, and the largest.
_IN_SHORT = {"odd", "above-2-15"}

#: The share of a machine's memory that a check may take.
_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class OnBlocks:
    """The checks on blocks: ``blocks`` and ``stages`` count them; ``left_out`` has the bytes that skipped ones need."""

    checks: tuple[Check, ...]
    blocks: int
    stages: int
    left_out: Mapping[str, int]

    @property
    def description(self) -> str:
        """Return the report's text on them before any check runs."""
        parts = [f"{count(self.blocks, 'block')} at {count(self.stages, 'size')}"]
        if self.left_out:
            least, most = min(self.left_out.values()) / 2**30, max(self.left_out.values()) / 2**30
            needed = f"{least:.0f} to {most:,.0f} GiB" if most - least >= 1 else f"{most:.0f} GiB"
            names = sorted({name.partition(" ")[2] for name in self.left_out})
            reported = f"{len(self.left_out)} at {', '.join(names)}, which need about {needed}"
            parts.append(f"skipped, too large for the memory: {reported}; {room() / 2**30:.0f} GiB may be used")
        return "; ".join(parts)


def select(options: RunOptions, measured: Mapping[str, Any] | None) -> Selected:
    """Return the checks on the blocks that the options name.

    Raises :class:`~gradconform.user_input.values.SelectionError` for a name that no block has.
    """
    del measured
    if not options.block:
        return Selected(checks=())
    in_short, whole = device_in_short(options), device_as_a_whole(options)
    selected = select_checks(options.block, options.sizes, in_short=in_short, whole=whole)
    return Selected(checks=selected.checks, lines=(f"blocks: {selected.description}",))


def select_checks(patterns: Sequence[str], sizes: Sizes, *, in_short: bool = False, whole: bool = False) -> OnBlocks:
    """Return the checks on the blocks that ``patterns`` name, at all sizes up to ``sizes`` that fit in memory.

    ``in_short``, of the small sizes only :data:`_IN_SHORT` are tried, and in B alone. Of a ``whole`` device, only these
    sizes are judged in a split backward: at the others, B runs the same kernels.

    Raises :class:`~gradconform.user_input.values.SelectionError` for a pattern that names none.
    """
    checks: list[Check] = []
    left_out: dict[str, int] = {}
    tried = 0
    named, most = chosen(patterns, BLOCKS, "unknown block {}"), room()
    for block in named:
        for size in filter(block.takes, rungs(sizes)):
            if in_short and size in LADDER["small"] and size.name not in _IN_SHORT:
                continue
            needed = memory_of(block, size)
            if needed > most:
                left_out[f"{block.name} {size.name}"] = needed
                continue
            case = case_of(block, size)
            words = f"the block {block.name} ({block.special.lower()}) at {size.rows} × {size.positions}"
            name = f"{block.name}.{size.name}"
            split = not in_short and (not whole or size.name in _IN_SHORT)
            checks += checks_on(AREA, name, f"{words} × {size.hidden}", [case], split=split)
            tried += 1
    return OnBlocks(tuple(checks), len(named), tried, left_out)


def case_of(block: Block, size: Size) -> StageCase:
    """Return the stage of a block at a size."""
    return replace(block.at(size), traits=_traits(block))


def memory_of(block: Block, size: Size) -> int:
    """Return the estimated bytes of a check on a block at a size, from its numbers of values."""
    with torch.device("meta"):
        parameters = sum(one.numel() for one in block.build(size).parameters())
    return _BYTES * (_PER_PARAMETER * parameters + _PER_ELEMENT * size.elements)


def room() -> int:
    """Return the bytes that a check may take: a share of all memory, not of free memory, so that processes agree."""
    return int(_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


@cache
def _traits(block: Block) -> frozenset[str]:
    """Return the traits of a block, observed at its smallest size."""
    return shown(block.at(LADDER["small"][0]), torch.float32)
