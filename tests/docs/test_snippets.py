"""What README.md and the pages tell a reader to type is typed here: every block of each page, in order, in one folder.

What a page supposes (a backward, a model, reports of earlier runs) is in the folder; :func:`quick` says what is typed
otherwise, because a page means a device or an hour that no test has.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from gradconform.cli.arguments import parser
from gradconform.exits import EXIT_INCOMPLETE

from .blocks import Block, blocks, pages, shows

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Tests of their own run the blocks of these; the commands of each are parsed here as well.
ELSEWHERE = {
    "devices.md": "tests/devices",
    "devices-judged.md": "tests/devices",
    "devices-reference.md": "tests/devices",
    "devices-results.md": "tests/devices",
    "write-an-adapter.md": "tests/adapters/test_write_an_adapter.py",
    "write-a-runtime.md": "tests/pipeline/test_write_a_runtime.py",
}
ALL = [block for page in pages() for block in blocks(page)]
SHELL = [block for block in ALL if block.language == "sh"]
TYPED = [page for page in pages() if {one.language for one in blocks(page)} & {"sh", "python"}]
RELEASE = torch.__version__.partition("+")[0]
RIGHT = "from gradconform.reference.split import stage_backward, stage_backward_input, stage_backward_weight\n"

#: What a page says, and what is typed for it here.
OTHERWISE = {
    r"(?<=device )(npu|cuda|all|cpu,cuda:1,npu)\b": "cpu",
    r"--dtype all": "--dtype float32",
    r"--max-examples \d+": "--max-examples 20",
    r"^gradconform device (?!.*--time-budget)": "gradconform device --time-budget 2s ",
    r"--time-budget 30m": "--time-budget 2s",
    r"--operation all": "--operation erf",
    r"--setting all": "--setting deterministic",
    r"--block all": "--block rms-norm",
    r"-n 4": "-n 2",
    r"(?<=--profile )standard$": "quick",
    r"--sizes large": "--sizes small",
    r"--schedule all": "--schedule 1F1B",
    r"^(gradconform pipeline \S+)(?=  )": r"\1 --checks step.plain",
    r"Runtime --profile standard": "Runtime --profile standard --checks step.ddp",
    r"^(gradconform selftest)": r"\1 --faults 'first-microbatch-*' --profile quick",
    r"^pytest ": "pytest -q -p no:cacheprovider ",
    r"^python ": f"{sys.executable} ",
    r"^torchrun ": f"{sys.executable} -m torch.distributed.run ",
    r"'linalg\.\*,nn\.LSTM'": "linalg.det",
}


def quick(line: str) -> str:
    """Return what is typed for a line of a page."""
    for said, typed in OTHERWISE.items():
        line = re.sub(said, typed, line)
    return line


@pytest.mark.parametrize("page", sorted({one.page for one in SHELL}))
def test_every_command_of_a_page_exists(page: str) -> None:
    for block in SHELL:
        for words in block.commands() if block.page == page else ():
            if words[:1] == ["gradconform"]:
                assert parser().parse_args(words[1:]).command.startswith("gradconform.cli.")


def test_every_skipped_snippet_gives_a_reason() -> None:
    assert [block for block in ALL if block.reason == ""] == []


@pytest.mark.parametrize("page", [page for page in TYPED if page.name not in ELSEWHERE], ids=lambda page: page.name)
def test_every_command_of_a_page_is_followed_by_its_output(page: Path) -> None:
    for block, behind in pairwise([*blocks(page), None]):
        if block is not None and block.language == "sh" and block.reason is None and block.note("silent") is None:
            assert behind is not None, block.text
            assert behind.note("output") is not None, block.text


@pytest.mark.parametrize("page", sorted({one.page for one in ALL if one.language == "toml"}))
def test_every_table_of_a_page_is_toml(page: str) -> None:
    for block in ALL:
        if (block.page, block.language) == (page, "toml"):
            assert tomllib.loads(block.text)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("a 2.5 b", True),
        ("a 7 b\n…\nd", True),
        ("a\n  1e-05\nb", True),
        ("…\nc d", True),
        ("a b", False),
        ("a 1 c", False),
        ("a 1 b …c d …e", False),
    ],
)
def test_a_page_shows_the_printed_output_up_to_numbers(told: str, shown: bool) -> None:  # noqa: FBT001 (a case)
    assert shows(told, "a 1.5e-3 b\nc  d\n") is shown


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the reports of two quick runs, one right and one wrong, for the pages that suppose them."""
    folder = tmp_path_factory.mktemp("reports")
    for target in ("reference-split", "torch"):
        typed("gradconform run " + target + f" --profile quick --json {target}.json", folder, {0, 1})
    for name in ("base", "new", "run", "npu"):
        shutil.copy(folder / "reference-split.json", folder / f"{name}.json")
    shutil.copy(folder / "torch.json", folder / "report.json")
    return folder


def typed(line: str, folder: Path, exits: set[int]) -> str:
    """Type a line in a shell, and return what was printed; fail where it ends otherwise than in one of ``exits``."""
    with started(line, folder, {"GRADCONFORM_PROFILE": "quick"}) as shell:
        out, err = shell.communicate()
    assert shell.returncode in exits, f"{line}\nended with {shell.returncode}\n{out[-3000:]}{err[-3000:]}"
    return out


def started(line: str, folder: Path, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a line in a shell of its own, as a terminal does."""
    scripts = Path(sys.executable).parent
    given = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "GRADCONFORM"))}
    narrow = {"COLUMNS": "100", "OMP_NUM_THREADS": "1", "GITHUB_STEP_SUMMARY": str(folder / "summary.md"), **variables}
    return subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", line],  # noqa: S607 (the shell of whoever runs the tests)
        cwd=folder,
        env={**given, **narrow, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def interrupted(line: str, folder: Path, file: str) -> str:
    """Type a line, press ctrl-C when ``file`` has the results of 400 checks, and return what was printed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        shell = started(line, folder, {})
    finally:
        signal.signal(signal.SIGINT, before)
    with shell:
        results = 0
        while shell.poll() is None and results < 400:  # of 1,296; the first failed SHOULD is among them
            time.sleep(0.1)
            written = folder / file
            results = written.read_text(encoding="utf-8").count('"record":"result"') if written.exists() else 0
        os.killpg(shell.pid, signal.SIGINT)  # what a terminal does with ctrl-C
        out, err = shell.communicate()
    # Where the machine is busy, a line says what the command waits for.
    err = "".join(said for said in err.splitlines(keepends=True) if not said.startswith("gradconform: still "))
    assert (shell.returncode, err) == (128 + signal.SIGINT, ""), f"{line}\n{out[-3000:]}{err[-3000:]}"
    return out


def run_as_expected(block: Block, folder: Path) -> str:
    """Do with a block what its reader does with it, and return what it prints."""
    if block.note("apart") is not None:
        folder = Path(shutil.copytree(folder, folder.with_name("apart")))
    if block.written_to(folder):
        return ""
    if (results := block.note("ctrl-c")) is not None:
        return "".join(interrupted(line, folder, results) for line in block.lines())
    if block.language == "sh":
        asked = [(quick(line), {EXIT_INCOMPLETE} if quick(line) != line else set()) for line in block.lines()]
        return "".join(typed(line, folder, block.exits | incomplete) for line, incomplete in asked)
    if block.note("compiles") is not None:
        compile(block.text, block.page, "exec")
    elif block.language == "python":
        tests = block.note("pytest") is not None
        (folder / "test_block.py").write_text(block.text, encoding="utf-8")
        line = "pytest -q -p no:cacheprovider test_block.py" if tests else "python test_block.py"
        return typed(line, folder, block.exits)
    return ""


def supposed(folder: Path, reports: Path) -> None:
    """Put into a folder what pages suppose that a reader has."""
    (folder / "mypackage").mkdir()
    for name in ("__init__", "backward", "fixed"):
        (folder / "mypackage" / f"{name}.py").write_text("" if name == "__init__" else RIGHT, encoding="utf-8")
    (runtime,) = (one.text for one in ALL if (one.page, one.language) == ("write-a-runtime.md", "python"))
    (folder / "myruntime.py").write_text(runtime, encoding="utf-8")
    for report in reports.glob("*.json"):
        shutil.copy(report, folder)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in TYPED if page.name not in ELSEWHERE], ids=lambda page: page.name)
def test_a_page_shows_the_output_of_its_commands(page: Path, tmp_path: Path, reports: Path) -> None:
    supposed(tmp_path, reports)
    printed = ""
    for block in blocks(page):
        if block.note("output") is not None:
            if block.torch in {None, RELEASE}:  # torch fails in other ways on other releases
                assert shows(block.text, printed), f"{page.name} shows\n{block.text}\nand this is printed\n{printed}"
            printed = ""
        elif block.reason is None:
            assert not printed, f"{page.name} does not show what is printed before\n{block.text}\n{printed}"
            printed = run_as_expected(block, tmp_path)
    assert not printed, f"{page.name} does not show what its last block prints\n{printed}"
