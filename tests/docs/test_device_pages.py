"""The pages on devices: start, how a device is judged, reference and results, each short enough to be read at once."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
MOST_LINES = 250


def test_there_are_four_pages_on_devices_each_of_at_most_250_lines() -> None:
    lines = {page.name: len(page.read_text(encoding="utf-8").splitlines()) for page in DOCS.glob("devices*.md")}
    assert set(lines) == {"devices.md", "devices-judged.md", "devices-reference.md", "devices-results.md"}
    assert max(lines.values()) <= MOST_LINES, lines


def test_the_first_page_has_the_commands_from_nothing_to_a_verdict_and_links_the_others() -> None:
    text = (DOCS / "devices.md").read_text(encoding="utf-8")
    commands = ("gradconform doctor --device npu", "gradconform device npu ", "gradconform device --resume")
    assert [text.index(command) for command in commands] == sorted(text.index(command) for command in commands)
    assert all(f"(devices-{name}.md" in text for name in ("judged", "reference", "results"))
