"""The stacks that faulthandler writes of a process that hangs or dies, cut to what its user can change."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

#: The most frames of each thread's stack.
_FRAMES = 8

#: The folders of the kit, whose frames call a target's code; of Python; and of installed packages.
_KIT = f"{Path(__file__).parents[1]}{os.sep}"
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platlib", "purelib"))
#: The code that runs checks: without other frames a thread runs none.
_RUNNING = tuple(f"{_KIT}{folder}{os.sep}" for folder in ("workers", "process"))
_RUNS_NONE = ("in listen_to_parent", "<no Python frame>")


def stack_lines(stacks: str) -> list[str]:
    """Return faulthandler's output without threads that run no check, in the order of a traceback: innermost last."""
    found: list[str] = []
    for block in stacks.split("\n\n"):
        lines = [line.rstrip() for line in block.splitlines() if not line.startswith("Extension modules")]
        if not any(word in line for line in lines for word in _RUNS_NONE):
            frames = [line for line in lines if line.startswith("  File") and not line.startswith('  File "<')]
            heads = [line for line in lines if not line.startswith("  File")]
            found += [line.replace("(most recent call first)", "(most recent call last)") for line in heads]
            found += reversed(_of_use([line for line in frames if not _within(line, *_RUNNING)]))
    return [line for line in found if line]


def _of_use(frames: list[str]) -> list[str]:
    """Return the frames of a stack to show, the innermost first: a target's own ones before those of libraries.

    The kit's frames are left out unless there are no others.
    """
    others = [line for line in frames if not _within(line, _KIT)] or frames
    own = [line for line in others if not _within(line, *_INSTALLED)][:_FRAMES]
    more = [line for line in others if line not in own][: _FRAMES - len(own)]
    return [line for line in others if line in own or line in more]


def _within(line: str, *folders: str) -> bool:
    """Return whether a frame's file is in one of some folders."""
    return any(line.startswith(f'  File "{folder}') for folder in folders)
