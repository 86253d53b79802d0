"""What is named in place of an ordinary file: nothing waits for anybody, and nothing is read without end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradconform.cli import main
from gradconform.files.user_files import LONGEST_TEXT, content, line_of_long_text, opened, sha256

#: Each way to name a file that somebody else has written.
WAYS: dict[str, Callable[[str], list[str]]] = {
    "verify": lambda path: ["verify", path],
    "bundle": lambda path: ["bundle", path, "-o", "out.zip"],
    "compare": lambda path: ["compare", path, path],
    "merge": lambda path: ["merge", path],
    "report": lambda path: ["report", path, "--markdown", "-"],
    "waivers add": lambda path: ["waivers", "add", "--from", path],
    "waivers prune": lambda path: ["waivers", "prune", "--from", path],
    "run waivers": lambda path: ["run", "torch", "--list", "--waivers", path],
    "run records": lambda path: ["run", "torch", "--ndjson", path],
    "run resume": lambda path: ["run", "--resume", path],
    "run schedule": lambda path: ["run", "torch", "--schedule", f"{path}.csv"],
    "replay": lambda path: ["replay", f"{path}#0"],
}


@pytest.fixture(params=["pipe", "device", "folder"])
def odd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A path that holds up whoever opens it, one that never ends, and one that nobody can read."""
    monkeypatch.chdir(tmp_path)
    for name in ("odd", "odd.csv"):
        if request.param == "pipe":
            os.mkfifo(name)
        elif request.param == "device":
            Path(name).symlink_to("/dev/zero")
        else:
            Path(name).mkdir()
    return "odd"


@pytest.mark.parametrize("way", WAYS)
def test_an_unreadable_file_is_refused_at_once_and_named(
    odd: str, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    assert main(WAYS[way](odd)) == 2
    told = capsys.readouterr().err
    assert odd in told
    assert "Traceback" not in told


def test_a_shell_process_substitution_is_read_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_bytes(b"a report")
    code = "import sys; from gradconform.files.user_files import content; print(content(sys.argv[1], 99).decode())"
    command = f"{sys.executable} -c '{code}' <(sleep 0.2; cat {path})"
    done = subprocess.run(command, shell=True, executable="/bin/bash", capture_output=True, text=True, check=True)  # noqa: S602 (a shell is what is asked)
    assert done.stdout == "a report\n"


def test_a_file_over_the_size_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"12345")
    assert content(path, 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        content(path, 4)
    with opened(path) as file:
        assert file.read() == b"12345"
    assert sha256(path).startswith("5994471abb01")


def test_an_overlong_text_is_refused_with_its_line_before_parsing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "long.json"
    path.write_text('{\n"schema": "' + "x" * (LONGEST_TEXT + 1) + '"}')
    for command in (["compare", str(path), str(path)], ["run", "--resume", str(path)]):
        assert main(command) == 2
        told = capsys.readouterr().err
        assert f"{path}" in told
        assert "line 2" in told
        assert len(told) < 1000


@pytest.mark.parametrize(
    ("held", "line"),
    [
        (b'"' + b"x" * LONGEST_TEXT, 1),
        (b'"' + b"x" * (LONGEST_TEXT - 1) + b'"', None),
        (b'["a",\n\n"' + b"x" * LONGEST_TEXT + b'"]', 3),
        (b'"a"' * LONGEST_TEXT, None),
        (b"", None),
    ],
)
def test_the_line_of_an_overlong_text_is_found(held: bytes, line: int | None) -> None:
    assert line_of_long_text(held) == line
