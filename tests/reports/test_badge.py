"""A report as a badge: what it says for each verdict, that it says no less to who cannot see it, and hostile texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from expecttest import assert_expected_inline

from gradconform.cli import main
from gradconform.report.badge import BadgeError, badge
from gradconform.report.sentences import verdict
from gradconform.results import Report

SVG = "{http://www.w3.org/2000/svg}"


def read(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 (made a line above)


def told(text: str) -> list[str]:
    """Return the letters that are drawn."""
    return [str(one.text) for one in read(text).iter(f"{SVG}text")]


def but_first(report: Report, **changes: object) -> Report:
    return replace(report, results=[replace(report.results[0], **changes), *report.results[1:]])  # type: ignore[arg-type] # as a test writes them


def counted(text: str, whole: Report) -> str:
    """Return a text with N in place of how many checks the contract has for the target, and M for one less."""
    number = len(whole.results)
    return text.replace(f"{number} of {number} ", "N of N ").replace(f"{number - 1} of {number} ", "M of N ")


def test_the_badge_of_a_conforming_run_is_drawn(whole: Report) -> None:
    assert_expected_inline(
        counted(badge(whole, "gradconform"), whole),
        """\
<svg xmlns="http://www.w3.org/2000/svg" width="370" height="20" role="img" aria-label="gradconform: contract 1.3, profile full: conforms, N of N passed">
  <title>mine 1.0 conforms to contract 1.3 in profile full: N of N checks passed</title>
  <rect width="370" height="20" rx="3" fill="#444444" />
  <path fill="#1a7f37" d="M81 0h286a3 3 0 0 1 3 3v14a3 3 0 0 1 -3 3h-286z" />
  <g fill="#ffffff" font-family="DejaVu Sans,Verdana,sans-serif" font-size="11">
    <text x="6" y="14" textLength="69" lengthAdjust="spacingAndGlyphs">gradconform</text>
    <text x="87" y="14" textLength="277" lengthAdjust="spacingAndGlyphs">contract 1.3, profile full: conforms, N of N passed</text>
  </g>
</svg>
""",  # noqa: E501 (as it is written)
    )


def _failed(whole: Report) -> Report:
    return but_first(whole, status="failed", level="MUST", kind="mismatch")


def _incomplete(whole: Report) -> Report:
    return replace(whole, results=whole.results[1:])


def _error(whole: Report) -> Report:
    return but_first(whole, status="error", kind="device")


def _in_part(whole: Report) -> Report:
    one = next(result for result in whole if result.check.startswith("split.") and not result.core)
    refused = replace(one, status="unsupported")
    return replace(whole, results=[refused if result is one else result for result in whole])


def _with_waivers(whole: Report) -> Report:
    return but_first(whole, status="waived", level="MUST", core=False)


def _beside(whole: Report) -> Report:
    return replace(whole, extra=("zbv.csv",))


def _worse_beside(whole: Report) -> Report:
    return _failed(_beside(whole))


@pytest.mark.parametrize(
    ("made", "words", "colour"),
    [
        (_failed, "contract 1.3, profile full: does not conform, M of N passed", "#b3261e"),
        (_incomplete, "contract 1.3, profile full: incomplete, no verdict, M of N passed", "#8a5a00"),
        (_error, "contract 1.3, profile full: error, no verdict, M of N passed", "#8a5a00"),
        (_in_part, "contract 1.3, profile full: conforms in part, M of N passed", "#8a5a00"),
        (_with_waivers, "contract 1.3, profile full: conforms with waivers, M of N passed", "#8a5a00"),
        (_worse_beside, "extra checks beside contract 1.3: failed, M of N passed", "#b3261e"),
        (_beside, "extra checks beside contract 1.3: N of N passed", "#1a7f37"),
    ],
)
def test_each_verdict_is_shown_with_the_share_of_passed_checks(
    whole: Report, made: Callable[[Report], Report], words: str, colour: str
) -> None:
    report = made(whole)
    drawn = badge(report, "mine")
    assert [counted(text, whole) for text in told(drawn)] == ["mine", words]
    assert [one.get("fill") for one in read(drawn).iter(f"{SVG}path")] == [colour]
    assert read(drawn)[0].text == verdict(report)


def test_a_shard_has_no_badge_and_the_error_names_merge(whole: Report) -> None:
    shard = {"index": 1, "count": 2, "selected": whole.manifest, "sha256": "0" * 64, "positions": []}
    with pytest.raises(BadgeError, match="shard 1 of 2 of a run has no verdict; merge all shards with"):
        badge(replace(whole, shard=shard), "mine")


def test_a_screen_reader_reads_the_visible_text_and_each_text_fits(whole: Report) -> None:
    drawn = read(badge(whole, "ein Ziel — 目標"))
    assert drawn.get("role") == "img"
    assert drawn.get("aria-label") == ": ".join(str(one.text) for one in drawn.iter(f"{SVG}text"))
    texts = [(float(one.get("x", "")), float(one.get("textLength", ""))) for one in drawn.iter(f"{SVG}text")]
    edges = [0.0, *(x + length for x, length in texts), float(drawn.get("width", ""))]
    assert all(before + 6 <= after for before, after in pairwise(edges))
    assert {one for one in drawn.iter() if one.get("id") or one.get("href") or one.get("style")} == set()


def test_white_text_is_readable_on_each_colour() -> None:
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
        return sum(one * share for one, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))

    for colour in ("#444444", "#1a7f37", "#8a5a00", "#b3261e"):
        assert 1.05 / (light(colour) + 0.05) > 5


def test_foreign_text_is_shown_and_has_no_effect(whole: Report) -> None:
    hostile = "\x1b[2J</title><script>owned()</script>\u202e\n&amp;\ufffe"
    report = replace(whole, target={**whole.target, "name": hostile})
    drawn = badge(report, hostile)
    assert {one.tag.removeprefix(SVG) for one in read(drawn).iter()} == {"svg", "title", "rect", "path", "g", "text"}
    assert told(drawn)[0] == "\\x1b[2J</title><script>owned()</script>\\u202e &amp;\\ufffe"
    assert re.search("[\x1b\u202e\ufffe]", drawn) is None


@pytest.fixture
def written(whole: Report) -> Report:
    Path("run.json").write_text(whole.to_json(), encoding="utf-8")
    return whole


def test_the_command_prints_or_writes_the_badge(written: Report, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["badge", "run.json"]) == 0
    assert capsys.readouterr().out == badge(written, "gradconform")
    assert main(["badge", "run.json", "--output", "badge.svg", "--label", "our backward"]) == 0
    assert Path("badge.svg").read_text(encoding="utf-8") == badge(written, "our backward")
    assert capsys.readouterr() == ("badge: badge.svg\n", "")


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("run.json", "--label", " "), "argument --label: expected some text, such as the name of the target; got ' '"),
        (("run.json", "-o", "."), "--output '.' is a folder; name a file in it"),
        (("other.json",), "other.json"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_written(
    words: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["badge", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert what in err


def test_the_command_names_the_file_of_a_shard(written: Report, capsys: pytest.CaptureFixture[str]) -> None:
    positions = list(range(written.planned))
    shard = {"index": 1, "count": 1, "selected": written.manifest, "sha256": "0" * 64, "positions": positions}
    Path("shard.json").write_text(replace(written, shard=shard).to_json(), encoding="utf-8")
    assert main(["badge", "shard.json"]) == 2
    assert capsys.readouterr().err.startswith("gradconform: shard.json: shard 1 of 1 of a run")
