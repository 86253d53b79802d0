"""What a target is called, raises and prints, and what waivers and bundles of others hold, on the way to the screen."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from gradconform.cli import main

from .conftest import ATTACK, commands, unseen

CHECK = "full.gradients.mlp"
#: A name that attacks, a check that raises the attack, and another that is judged.
TARGET = f"""
import sys

from gradconform.reference.autograd import AutogradAdapter

ATTACK = {ATTACK!r}
LOUD = False


class Attack:
    name, capabilities = ATTACK, AutogradAdapter().capabilities

    def open(self, stage, spec):
        if LOUD:
            print(ATTACK, flush=True)
            print(ATTACK, file=sys.stderr, flush=True)
        if len(list(stage.parameters())) > 2:
            raise ValueError(ATTACK)
        return AutogradAdapter().open(stage, spec)


def at_once():
    raise RuntimeError(ATTACK)
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "attack.py"
    path.write_text(TARGET, encoding="utf-8")
    return path


def harmless(text: str) -> bool:
    return (unseen(text), commands(text)) == (set(), [])


@pytest.mark.parametrize("name", ["Attack", "at_once"])
def test_the_name_and_exception_of_a_target_are_printed_as_text(
    target: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code = main(["run", "--no-isolation", f"{target.name}:{name}", "--checks", CHECK, "--json", "report.json"])
    told = "".join(capsys.readouterr())
    assert code != 0
    assert harmless(told)
    assert "\\x1b]0;owned\\x07" in told


def test_output_of_a_target_is_forwarded_as_text_and_kept_in_the_report(target: Path) -> None:
    target.write_text(TARGET.replace("LOUD = False", "LOUD = True"), encoding="utf-8")
    command = [sys.executable, "-m", "gradconform", "run", f"{target.name}:Attack", "--checks", CHECK]
    done = subprocess.run([*command, "--json", "report.json"], capture_output=True, check=False)
    for stream in (done.stdout.decode(), done.stderr.decode()):
        assert "\\x1b]0;owned\\x07" in stream
        assert harmless(stream)
    assert json.loads(Path("report.json").read_text(encoding="utf-8"))["target"]["name"] == ATTACK


def test_pytest_and_its_junit_xml_show_target_text_as_text(target: Path, pytester: pytest.Pytester) -> None:
    (pytester.path / "attack.py").write_text(target.read_text(encoding="utf-8"), encoding="utf-8")
    done = pytester.runpytest(
        "--gradconform=attack.py:Attack", f"--gradconform-checks={CHECK}", "--junitxml=out.xml", "-rA"
    )
    assert done.ret != 0
    assert "\\x1b]0;owned\\x07" in done.stdout.str()
    assert harmless(done.stdout.str() + done.stderr.str())
    for element in ET.parse(pytester.path / "out.xml").iter():  # noqa: S314 (pytest has just written it)
        assert all(harmless(text) for text in (element.text or "", *element.attrib.values()))
    done = pytester.runpytest("--gradconform=attack.py:at_once")
    assert harmless(done.stdout.str() + done.stderr.str())


@pytest.mark.parametrize("name", ["check", "verdict", "reason", "issue", "owner", "expires", "when", "unknown"])
def test_errors_in_a_waiver_are_reported_as_text(target: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    entry = {"check": "a.b", "verdict": "error", "reason": "r", "issue": "i", "owner": "o", "expires": "2000-01-01"}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**entry, name: ATTACK}.items()]
    text = "\n".join(["[[waiver]]", *lines, f"{json.dumps('key' + ATTACK)} = 1"])
    Path("waivers.toml").write_text(text.replace("\\udb40\\udc41", "\\U000e0041"), encoding="utf-8")
    code = main(["run", str(target), "--waivers", "waivers.toml", "--checks", CHECK])
    told = "".join(capsys.readouterr())
    assert code == 2
    assert "waivers.toml" in told
    assert harmless(told)


def test_names_in_an_archive_are_reported_as_text(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert target.is_file()
    for name in (ATTACK, "statement.json"):
        with zipfile.ZipFile("bundle.zip", "w") as archive:
            archive.writestr(name.replace("\0", ""), ATTACK)
        assert main(["verify", "bundle.zip"]) != 0
        assert harmless("".join(capsys.readouterr()))


def test_an_overlong_text_of_a_target_is_cut_after_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    long = TARGET.replace("raise ValueError(ATTACK)", "raise UnsupportedError('x' * 3_000_000)")
    long = "from gradconform.adapter import UnsupportedError\n" + long.replace("= ATTACK,", "= 'long',")
    Path("target.py").write_text(long, encoding="utf-8")
    assert main(["run", "target.py:Attack", "--checks", CHECK, "--json", "report.json", "--ndjson", "run.ndjson"]) == 5
    (result,) = json.loads(Path("report.json").read_text(encoding="utf-8"))["results"]
    assert 1_000 < result["message"].count("x") < 100_000
    assert "more characters" in result["message"]
    assert max(len(line) for line in Path("run.ndjson").read_text(encoding="utf-8").splitlines()) < 100_000
