"""The first ten minutes from a wheel, in an empty folder and without a network, as behind a company's wall."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gradconform.cli.init import STARTERS
from gradconform.exits import EXIT_CONFORMS, EXIT_INCOMPLETE
from tests.docs.blocks import Block, blocks, shows

if TYPE_CHECKING:
    from conftest import Environment

START = Path(__file__).parents[2] / "docs" / "start.md"

#: Runs a command in a network namespace of its own, where no other machine can be reached.
_ALONE = ("unshare", "--user", "--map-root-user", "--net")


@pytest.fixture(scope="module")
def alone() -> None:
    """Skip where the system makes no such namespace."""
    possible = shutil.which(_ALONE[0]) and subprocess.run([*_ALONE, "true"], check=False, capture_output=True)
    if not possible or possible.returncode:
        pytest.skip("the system makes no network namespace for a user")


@pytest.fixture
def folder(from_wheel: Environment) -> Iterator[Path]:
    """The empty folder of the wheel's environment, emptied again in the end."""
    yield from_wheel.empty
    shutil.rmtree(from_wheel.empty)
    from_wheel.empty.mkdir()


def typed(line: str, environment: Environment) -> tuple[int, str]:
    """Type a line in a shell without a network; return its exit code, and what was printed, errors with it."""
    done = subprocess.run(
        [*_ALONE, "bash", "-euo", "pipefail", "-c", f"ip link set lo up 2>/dev/null || true; {line}"],
        cwd=environment.empty,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))},
            "PATH": f"{environment.scripts}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "100",
        },
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def do(block: Block, environment: Environment) -> str:
    """Do with a block of the page what its reader does, and return what is printed."""
    if block.written_to(environment.empty):
        return ""
    printed = ""
    for line in block.lines():
        code, said = typed(line, environment)
        assert code in block.exits, f"{line} ended with {code}\n{said}"
        printed += said
    return printed


@pytest.mark.nightly
@pytest.mark.usefixtures("alone", "folder")
def test_the_first_page_works_without_a_network(from_wheel: Environment) -> None:
    code, said = typed("python -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 5)'", from_wheel)
    assert code, "the namespace reaches another machine"
    assert "unreachable" in said
    printed = ""
    for block in blocks(START):
        if block.note("output") is not None:
            assert shows(block.text, printed), f"the page shows\n{block.text}\nand this is printed\n{printed}"
        elif block.reason is None:
            printed = do(block, from_wheel)


@pytest.mark.nightly
@pytest.mark.usefixtures("alone", "folder")
@pytest.mark.parametrize("kind", sorted(STARTERS))
def test_every_first_file_runs_without_a_network(kind: str, from_wheel: Environment) -> None:
    code, said = typed(f"gradconform init --new {kind}", from_wheel)
    assert code == 0, said
    code, said = typed(STARTERS[kind].command, from_wheel)
    chosen = "--checks" in STARTERS[kind].command  # a run of some checks has no verdict
    assert code == (EXIT_INCOMPLETE if chosen else EXIT_CONFORMS), said


@pytest.mark.nightly
@pytest.mark.usefixtures("alone", "folder")
def test_init_and_its_test_run_without_a_network(from_wheel: Environment) -> None:
    (from_wheel.empty / "backward.py").write_text(
        "from gradconform.reference.split import stage_backward_input, stage_backward_weight\n"
        "from gradconform.reference import split\n\n"
        "def stage_backward(*arguments, **options):\n    return split.stage_backward(*arguments, **options)\n",
        encoding="utf-8",
    )
    code, said = typed("gradconform init && python -m pytest -q tests/test_stage_backward.py", from_wheel)
    assert code == 0, said
    assert " passed" in said
