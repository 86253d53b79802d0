"""The forms of README and docs/my-tests.md as a user has them: from the wheel, in a folder and on a package apart."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gradconform.version import CONTRACT_VERSION

if TYPE_CHECKING:
    from conftest import Environment

ROOT = Path(__file__).parents[2]
PAGES = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/my-tests.md"))
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGES, re.DOTALL | re.MULTILINE)
SHELL = [
    line for block in re.findall(r"^```sh\n(.*?)^```$", PAGES, re.DOTALL | re.MULTILINE) for line in block.splitlines()
]

#: A right implementation, by the functions of torch's form, and one whose gradients are lost.
RIGHT = """
from gradconform.reference import split
from gradconform.reference.split import stage_backward_input, stage_backward_weight

def stage_backward(*arguments, **options):
    return split.stage_backward(*arguments, **options)
"""
WRONG = RIGHT.replace("return split.stage_backward(*arguments, **options)", "return None")
#: What a run of a right one says in the end.
CONFORMS = (
    rf"^mypackage\.backward\S* .*conforms to contract {re.escape(CONTRACT_VERSION)} in profile quick: "
    r"(1\d\d) of \1 checks passed; 4 optional checks skipped$"
)


def python_form(words: str) -> str:
    """Return the first block that has the words, with its profile made quick."""
    found = [block for block in PYTHON if words in block and "mypackage.backward" in block]
    assert found, f"no page has the form with {words}"
    return found[0].replace('profile="standard"', 'profile="quick"')


def shell_form(words: str) -> str:
    """Return the first line of shell that has the words, without its comment."""
    found = [line for line in SHELL if line.startswith(words)]
    assert found, f"no page has the form {words}"
    return found[0].partition("#")[0].strip()


@pytest.fixture
def outside(from_wheel: Environment) -> Environment:
    """The environment of the wheel, its folder empty but for a right package."""
    for path in from_wheel.empty.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    write(from_wheel, "mypackage/__init__.py", "")
    write(from_wheel, "mypackage/backward.py", RIGHT)
    return from_wheel


def write(environment: Environment, name: str, text: str) -> None:
    path = environment.empty / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_the_command_of_the_readme_runs(outside: Environment) -> None:
    done = outside.run(*shell_form("gradconform run mypackage.backward").split(), "--profile", "quick")
    assert done.returncode == 0, done.stdout
    assert re.search(CONFORMS, done.stdout, re.MULTILINE)


def test_the_two_lines_of_python_of_the_readme_run(outside: Environment) -> None:
    write(outside, "judge.py", python_form("gradconform.check_stage_backward"))
    done = outside.run("python", "judge.py")
    assert (done.returncode, done.stdout) == (0, "conforms\n")


def test_the_zero_line_pytest_form_of_the_readme_runs(outside: Environment) -> None:
    words = shell_form("pytest --gradconform").split()
    done = outside.run(
        "python", "-m", *words, "--gradconform-profile", "quick", "--gradconform-checks", "*.gradients.*"
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^=+ \d+ passed in .*=$", done.stdout.splitlines()[-1])


def test_the_three_line_pytest_form_of_the_readme_runs(outside: Environment) -> None:
    text = python_form("@gradconform.parametrize_checks")
    write(outside, "test_ours.py", text.replace('("mypackage.backward"', '("mypackage.backward", profile="quick"'))
    done = outside.run("python", "-m", "pytest", "-q")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^1\d\d passed", done.stdout, re.MULTILINE)


def test_the_unittest_class_passes_if_right_and_fails_if_wrong(outside: Environment) -> None:
    write(outside, "test_ours.py", python_form("conformance_case"))
    done = outside.run("python", "-m", "unittest")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^Ran 150 tests in .*\n\nOK \(skipped=4\)$", done.stdout, re.MULTILINE)
    assert re.search(CONFORMS, done.stdout, re.MULTILINE)
    write(outside, "mypackage/backward.py", WRONG)
    done = outside.run("python", "-m", "unittest", "-k", "full_gradients_mlp", "test_ours")
    assert done.returncode == 1, done.stdout
    assert "FAIL: test_full_gradients_mlp (test_ours.Conformance" in done.stdout
    assert "CheckFailedError: B raised TypeError: stage_backward returned NoneType" in done.stdout


#: What is given wrongly, and what is told of it.
WRONG_USES = {
    "'mypackage.backwards'": "TargetError: target 'mypackage.backwards'",
    "'mypackage.backward', profile='fast'": "unknown profile 'fast'; expected one of quick, standard, full",
    "'mypackage.backward', profil='quick'": "TypeError: unknown option 'profil'; nearest: profile",
    "'mypackage.backward', checks='split.gradient.*'": "check pattern 'split.gradient.*' matches no check; nearest: ",
}


def test_wrong_use_of_the_unittest_class_is_reported_where_the_class_is_made(outside: Environment) -> None:
    for number, given in enumerate(WRONG_USES):
        text = f"from gradconform.plugins.unittest import conformance_case\nTestOurs = conformance_case({given})\n"
        write(outside, f"test_wrong_{number}.py", text)
    done = outside.run("python", "-m", "unittest")
    assert done.returncode == 1, done.stdout
    for number, told in enumerate(WRONG_USES.values()):
        _, _, after = done.stdout.partition(f"ERROR: test_wrong_{number} ")
        one = after.partition("=" * 70)[0]
        assert f'test_wrong_{number}.py", line 2' in one
        assert told in one
