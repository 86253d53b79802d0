from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradconform import Capabilities

PAGE = Path(__file__).parents[2] / "docs" / "write-an-adapter.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def block(language: str, position: int = 0) -> str:
    """Return a block of the page."""
    return [text for found, text in BLOCKS if found == language][position]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the files of the page."""
    made = tmp_path_factory.mktemp("adapter")
    (made / "engine.py").write_text(block("python", 0), encoding="utf-8")
    (made / "my_adapter.py").write_text(block("python", 1), encoding="utf-8")
    (made / "zero_bubble.py").write_text(block("python", 2), encoding="utf-8")
    (made / "split_adapter.py").write_text(block("python", 3), encoding="utf-8")
    return made


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("position", [0, 1], ids=["full", "split"])
def test_the_page_shows_the_output_of_its_commands(position: int, folder: Path) -> None:
    done = run(folder, *block("sh", position).split())
    assert (done.returncode, done.stderr) == (0, "")
    # The contract grows: how many checks it has is not what the page is about.
    told = block("text", position).strip()
    assert re.sub(r"\d+", "N", done.stdout.splitlines()[-1]) == re.sub(r"\d+", "N", told)


def test_a_weight_gradient_stored_twice_is_an_engine_failure(folder: Path) -> None:
    wrong = block("python", 2).replace("self.waiting[mb] = list(self.left)", "self.waiting[mb] = 2 * self.left")
    assert wrong != block("python", 2)
    (folder / "twice.py").write_text(wrong, encoding="utf-8")
    adapter = block("python", 3).replace("from zero_bubble", "from twice")
    (folder / "twice_adapter.py").write_text(adapter, encoding="utf-8")
    done = run(folder, "gradconform", "run", "twice_adapter.py:Adapter", "--checks", "split.gradients.mlp")
    assert done.returncode == 1
    assert "micro-batch 1: counted twice" in done.stdout
    assert "error: adapter" not in done.stdout


def test_the_page_imports_the_tree_functions() -> None:
    names: dict[str, Any] = {}
    exec(block("python", 5), names)  # noqa: S102 (the page is the project's own)
    assert {"as_tuple", "flattened", "map_leaves"} <= names.keys()


def test_the_refusal_example_of_the_page_works(folder: Path) -> None:
    (folder / "refusal.py").write_text(block("python", 4), encoding="utf-8")
    adapter = block("python", 1).replace("        outputs = self", "        refuse_empty(args)\n        outputs = self")
    (folder / "refusing.py").write_text(f"from refusal import refuse_empty\n{adapter}", encoding="utf-8")
    done = run(folder, "gradconform", "run", "refusing.py:Adapter", "--checks", "full.gradients.empty-batch", "-v")
    assert "refused by my-engine: my-engine sends no empty batch" in " ".join(done.stdout.split())
    assert "1 unsupported" in done.stdout


def test_the_adapter_has_less_than_50_lines() -> None:
    assert len(block("python", 1).splitlines()) < 50


def test_an_adapter_that_fails_on_a_linear_fails_its_pre_flight(folder: Path) -> None:
    wrong = block("python", 1).replace("tuple(self.engine", "tuple(2 * grad for grad in self.engine")
    assert wrong != block("python", 1)
    (folder / "wrong.py").write_text(wrong, encoding="utf-8")
    done = run(folder, "gradconform", "run", "wrong.py:Adapter", "--checks", "full.gradients.mlp")
    assert done.returncode == 7
    assert "failed its pre-flight" in done.stdout
    assert "error: adapter" in done.stdout


def test_the_page_names_the_entry_point_group_that_is_read() -> None:
    from gradconform.target.resolve import ENTRY_POINTS  # noqa: PLC0415 (it imports torch)

    assert f'[project.entry-points."{ENTRY_POINTS}"]' in block("toml")


def headings() -> list[str]:
    return re.findall(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_page_begins_with_the_engine_the_adapter_and_the_first_run() -> None:
    assert headings()[:3] == ["What you have", "The adapter", "Run it"]
    others = ("An engine that runs the forward again", "When your engine refuses something", "What to claim")
    assert all(heading in headings()[3:] for heading in others)


def test_the_table_of_refusals_lists_claims_that_exist() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| capability | refused |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.strip().splitlines()[1:]]
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert listed <= Capabilities.__dataclass_fields__.keys()
    assert {"grad_mode", "changed_params", "sparse_grads"} <= listed


def test_the_page_says_once_what_zeros_before_the_first_backward_mean() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert len(re.findall(r"before the first backward[^.]*`main_grad`[^.]*zeros", text)) == 1
