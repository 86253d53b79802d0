"""Run offered tests in this process, each as it is or with what is right in the project's place.

The arguments are the project, ``as-it-is`` or ``right``, and the files. The last line is JSON: for each file, in its
order, the type of what was raised, its message, and the lines of the file that it went through; null where it passed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


class Seen:
    """What pytest tells of one file."""

    def __init__(self, path: str) -> None:
        """Know the file; a test in it is still to come."""
        self.path = path
        self.ended: list[Any] = []

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        """Note how a test, or what is around it, ended."""
        if call.excinfo is not None:
            error = call.excinfo.value
            lines = [entry.lineno + 1 for entry in call.excinfo.traceback if str(entry.path) == self.path]
            causes = [error, *([error.__cause__] if error.__cause__ else [])]
            self.ended.append({"type": type(error).__name__, "said": "\n".join(map(str, causes)), "lines": lines})
        elif call.when == "call":
            self.ended.append(None)


def main(project: str, mode: str, paths: Sequence[str]) -> None:
    """Run the files one by one."""
    from rights import right_of  # noqa: PLC0415 (it imports torch, and this file is a script)

    told = []
    for path in paths:
        seen, name = Seen(path), Path(path).stem.removeprefix("test_")
        with right_of(project, name) if mode == "right" else contextlib.nullcontext():
            options = ["-q", "--import-mode=importlib", "-c", os.devnull, "--rootdir", str(Path(path).parent)]
            pytest.main([path, *options, "-p", "no:cacheprovider", "-p", "no:gradconform"], plugins=[seen])
        told.append(seen.ended)
    print("\n" + json.dumps(told), flush=True)  # noqa: T201 (its output is what it is for)
    os._exit(0)  # a library's worker threads may abort the interpreter's own ending


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
