"""Run offered tests in this process, on the project or on the right version in its place.

The arguments are the project, ``as-it-is`` or ``right``, and the files. The last line is JSON, with an entry for each
file in order: the exception's type, its message, and the traceback's lines in the file. The entry is null if the test
passed.
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
    """The outcome of one file, from pytest."""

    def __init__(self, path: str) -> None:
        """Store the file, before its test has run."""
        self.path = path
        self.ended: list[Any] = []

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        """Record how a test, its setup or its teardown ended."""
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

    outcomes = []
    for path in paths:
        seen, name = Seen(path), Path(path).stem.removeprefix("test_")
        with right_of(project, name) if mode == "right" else contextlib.nullcontext():
            options = ["-q", "--import-mode=importlib", "-c", os.devnull, "--rootdir", str(Path(path).parent)]
            pytest.main([path, *options, "-p", "no:cacheprovider", "-p", "no:gradconform"], plugins=[seen])
        outcomes.append(seen.ended)
    print("\n" + json.dumps(outcomes), flush=True)  # noqa: T201 (its output is what it is for)
    os._exit(0)  # a library's worker threads may abort the interpreter's own ending


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
