"""What each sink makes of a text, and that the kit's own texts are left as they are."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

from gradconform.cli import main
from gradconform.process.pipes import Printed
from gradconform.text import escaping

from .conftest import ATTACK, TIGHT, alive_in_markdown, commands, unseen

ROOT = Path(__file__).parents[2]

READABLE = [
    "smørrebrød, Ελληνικά, русский, עברית, العربية, فارسی‌ها, हिन्दी, 日本語, 한국어, 👩‍🔬 é",  # noqa: RUF001 (Arabic letters are meant)
    "a path C:\\x1b, a node a.py::test[cpu-float32], a heading ## [l], gradconform::x, std::move, # 1, C##",
    "\ttab and\nline",
]


@pytest.mark.parametrize("text", READABLE)
def test_letters_of_every_script_and_the_kits_own_texts_are_unchanged(text: str) -> None:
    assert escaping.printable(text) == text
    assert escaping.for_terminal(text) == text
    assert escaping.fenced(text) == f"```text\n{text}\n```"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("a\rb\x07\x7f\x9b", r"a\rb\x07\x7f\x9b"),
        ("\u202eabc\u2028\ud800\U000e0041", r"\u202eabc\u2028\ud800\U000e0041"),
        ("::error::x\n  ::add-mask::y\nz::w", "\\x3a:error::x\n  \\x3a:add-mask::y\nz::w"),
        ("a ##vso[task.x]##[error] ###teamcity[x]", r"a \x23#vso[task.x]\x23#[error] #\x23#teamcity[x]"),
    ],
)
def test_control_characters_are_shown_escaped(text: str, shown: str) -> None:
    assert escaping.for_terminal(text) == shown


@pytest.mark.parametrize("text", [ATTACK, TIGHT])
def test_an_attack_has_no_effect_in_any_output_and_escaping_twice_changes_nothing(text: str) -> None:
    for sink in (escaping.for_terminal, escaping.line_for_terminal):
        assert (unseen(sink(text)), commands(sink(text))) == (set(), [])
        assert sink(sink(text)) == sink(text)
    assert "\n" not in escaping.line_for_terminal(text)
    for shown in (
        escaping.for_markdown(text),
        escaping.fenced(text),
        f"<summary>{escaping.for_html_in_markdown(text)}</summary>",
    ):
        assert (unseen(shown), list(alive_in_markdown(shown))) == (set(), [])


def test_json_keeps_every_value_and_contains_no_command() -> None:
    values = {ATTACK: [ATTACK, "\\##vso[x]", "##[y]"]}
    shown = escaping.for_json(json.dumps(values))
    assert json.loads(shown) == values
    assert (unseen(shown), commands(shown)) == (set(), [])


@pytest.mark.parametrize("page", ["contract.md", "space.md", "limits.md", "implementations.md"])
def test_pages_of_the_kit_are_printed_unchanged(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert escaping.for_terminal(text) == text


def test_the_style_and_the_script_of_a_page_are_printed_unchanged() -> None:
    for path in (ROOT / "conformance/report/page/templates").iterdir():
        text = path.read_text(encoding="utf-8")
        assert escaping.for_terminal(text) == text, path


def test_typed_arguments_are_escaped_in_messages(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([ATTACK], ["run", "torch", ATTACK], ["compare", ATTACK, "x"], ["run", ATTACK, "--dtype", ATTACK]):
        assert main(words) == 2
        told = "".join(capsys.readouterr())
        assert (unseen(told), commands(told)) == (set(), []), words


def test_only_a_few_modules_write_to_a_stream() -> None:
    writers = set()
    for top in ("bench", "conformance", "plugins", "fixtures", "reference"):
        for path in (ROOT / top).rglob("*.py"):
            names = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                     if isinstance(node, (ast.Name, ast.Attribute))}  # fmt: skip
            if names & {"print", "sys.stdout.write", "sys.stderr.write", "terminal.write_line", "terminal.write_sep"}:
                writers.add(path.relative_to(ROOT).as_posix())
    assert writers == {
        "conformance/cli/console.py",
        "conformance/process/time_limit.py",  # the stack of a hang, just before the process ends
        "conformance/process/wait_notices.py",  # what takes long, from any process
        "conformance/replay/standalone.py",  # the sources of scripts that know no kit
        "conformance/replay/standalone_sharded.py",
        "conformance/replay/standalone_step.py",
        "plugins/devices/simx/library.py",  # that it builds, and where
        "plugins/pytest/recorder.py",
        "plugins/unittest/cases.py",  # the verdict, where unittest writes what it has to say
    }


def test_lines_of_a_process_are_forwarded_whole_and_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    printed = Printed(os.fdopen(reading, "rb"), "stdout", passed_on=True)
    for part in (b"\n:", b":error::x\na\r1%\r2%\r\n##vs", b"o[task]\n\n\xe2\x80", b"\xae", b"x" * 9000, b"\x1bc end"):
        os.write(writing, part)
    os.close(writing)
    printed.wait(10)
    out = capsys.readouterr().out
    assert out.startswith("\n\\x3a:error::x\na\n1%\n2%\n\\x23#vso[task]\n\n\\u202ex")
    assert out.endswith("\\x1bc end\n")
    assert (unseen(out), commands(out)) == (set(), [])
