"""What an installed plugin costs those who do not use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = ("torch", "hypothesis", "rich", "numpy")


def loaded(code: str, *, cwd: Path) -> set[str]:
    """Return which of the heavy packages are loaded after ``code`` in a new process."""
    script = f"{code}\nimport sys\nprint('LOADED', *[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=cwd, check=True)
    return set(next(line for line in done.stdout.splitlines() if line.startswith("LOADED")).split()[1:])


def test_importing_the_kit_and_its_plugin_imports_nothing_heavy(tmp_path: Path) -> None:
    modules = ("plugin", "fixtures", "hookspec", "options", "reporter")
    imports = "".join(f"import gradconform.plugins.pytest.{name}\n" for name in modules)
    assert loaded(f"import gradconform\n{imports}", cwd=tmp_path) == set()


def test_pytest_with_an_unused_plugin_does_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    run = "import pytest\nassert pytest.main(['-q', '-p', 'no:hypothesispytest']) == 0"
    assert "torch" not in loaded(run, cwd=tmp_path)


def test_options_in_the_ini_file_do_not_import_torch_before_a_test_needs_it(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_own(gradconform_microbatches): pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\ngradconform_device = cpu:0\ngradconform_dtype = float64 float32\n")
    assert "torch" not in loaded("import pytest\nassert pytest.main(['-q']) == 0", cwd=tmp_path)


def test_importing_the_three_line_form_imports_nothing_heavy(tmp_path: Path) -> None:
    assert loaded("import gradconform\ngradconform.parametrize_checks('torch')", cwd=tmp_path) == set()
