"""Texts that act if shown raw, in every place of the schema, and what each sink must not show."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from itertools import count
from typing import Any

import pytest
from markdown_it import MarkdownIt

from gradconform.reading.report import schema
from gradconform.results import STATUSES, Report, Result
from gradconform.run.options import RunOptions

#: A terminal is cleared and its title set, text turned round, a line begun; a CI is commanded; Markdown and HTML load.
ATTACK = (
    "\x1b[2J\x1b]0;owned\x07\r\x08\x00\x9b\u202e\u2066\u2028\u2029\u0085\ufffe\x7f\U000e0041\n::error::owned\n"
    "##vso[task.complete]\n##[error]owned\n  ::add-mask::owned\n|[l](javascript:alert) ![i](https://evil.example/i.png)"
    " <img src=x onerror=owned()> </script></pre></details> www.evil.example me@evil.example `x` ```\n# VALID: owned\n"
)
#: The same attack without white space and without a full stop at the end.
TIGHT = re.sub(r"[\s.\u2028\u2029\u0085]", "", ATTACK)

Words = Callable[[], str]


def of_schema(part: Mapping[str, Any], whole: Mapping[str, Any], words: Words) -> Any:
    """Return a value that meets a part of the schema, with ``words`` in every free text."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        inner = {other: one for other, one in whole["$defs"].items() if other != name}  # a cause holds causes
        return of_schema(whole["$defs"][name], {**whole, "$defs": inner}, words)
    if "oneOf" in part:
        return of_schema(next(one for one in part["oneOf"] if one.get("type") != "null"), whole, words)
    if "const" in part or "enum" in part:
        return part["const"] if "const" in part else part["enum"][0]
    kinds = part["type"] if isinstance(part["type"], list) else [part["type"]]
    return _MAKE[next(kind for kind in _MAKE if kind in kinds)](part, whole, words)


def _text(part: Mapping[str, Any], _: object, words: Words) -> str:
    text = words()
    tight = re.sub(r"[\s.\u2028\u2029\u0085]", "", text)
    fits = (text, f"{tight}.{tight}", "0" * 64, "1.0", "2999-12-31", "some_kind")
    return next(one for one in fits if re.search(part.get("pattern", ""), one))


def _object(part: Mapping[str, Any], whole: Mapping[str, Any], words: Words) -> dict[str, Any]:
    known = {name: inner for name, inner in part.get("properties", {}).items() if _is_known(inner, whole)}
    found = {name: of_schema(inner, whole, words) for name, inner in known.items()}
    if isinstance(part.get("additionalProperties"), dict):
        found[words()] = of_schema(part["additionalProperties"], whole, words)
    return found


def _array(part: Mapping[str, Any], whole: Mapping[str, Any], words: Words) -> list[Any]:
    return [of_schema(part["items"], whole, words)] if _is_known(part["items"], whole) else []


def _is_known(part: Mapping[str, Any], whole: Mapping[str, Any]) -> bool:
    return part.get("$ref", "").rpartition("/")[2] in {"", *whole["$defs"]}


_MAKE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "object": _object,
    "array": _array,
    "string": _text,
    "integer": lambda part, *_: max(1, part.get("minimum", 1)),
    "number": lambda *_: 0.5,
    "boolean": lambda *_: True,
}


@pytest.fixture
def marks() -> list[str]:
    """A unique word for each attack, which shows whether a sink showed that text."""
    return []


@pytest.fixture
def attacks(marks: list[str]) -> Words:
    """Return the next attack, with a unique word."""
    numbers = count()

    def words() -> str:
        marks.append(f"field{next(numbers)}q")
        return marks[-1] + ATTACK + marks[-1]

    return words


@pytest.fixture
def hostile(attacks: Words) -> Report:
    """A valid and consistent report with an attack in every text.

    It is of extra checks, whose texts are free: a result of each status, a finding of each kind.
    """
    whole = schema()
    values = of_schema(whole, whole, attacks)
    values["options"] = {**RunOptions().to_json(), "checks": [attacks()], "target": attacks()}
    findings = {
        kind: {**of_schema(whole["$defs"]["finding"], whole, attacks), "kind": kind, "sort": sort}
        for kind in whole["$defs"]["finding"]["properties"]["kind"]["enum"]
        for sort in ("thing", "parameter")
    }
    results = [
        {
            **of_schema(whole["$defs"]["result"], whole, attacks),
            "status": status,
            "level": level,
            "kind": kind,
            "findings": list(findings.values()) if status in {"failed", "waived"} and kind == "mismatch" else [],
            "waiver": values["waivers"]["entries"][0] if status in {"waived", "unexpectedly_passed"} else None,
        }
        for status in STATUSES
        for level in ("MUST", "SHOULD")
        for kind in (("kit", "device", "environment") if status == "error" else ("mismatch", "error"))
    ]
    names = ("target", "environment", "waivers", "devices", "kit", "options")
    return Report(
        **{name: values[name] for name in names},
        profile="full",
        seed=1,
        manifest=len(results),
        planned=len(results),
        extra=tuple(values["extra"]),
        results=[Result.from_dict(result) for result in results],
    )


def unseen(text: str) -> set[str]:
    """Return the parts of a text that would act instead of being shown."""
    kinds = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return {one for one in text if one == "\ufffe" or (unicodedata.category(one) in kinds and one not in "\n\t")}


def commands(text: str) -> list[str]:
    """Return the lines that a CI would run as commands."""
    return [line for line in text.split("\n") if line.lstrip().startswith("::") or re.search(r"##\w*\[", line)]


class _Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record elements that load, link elsewhere, or run."""
        for name, value in attrs:
            local = name not in {"href", "src", "action"} or (value or "").startswith(("#", "data:,"))
            if name.startswith("on") or not local:
                self.wrong.append(f"<{tag} {name}={value}>")
        if tag in {"img", "iframe", "object", "embed", "base"}:
            self.wrong.append(f"<{tag}>")


def alive_in_html(text: str) -> list[str]:
    """Return the parts of a page that load, link elsewhere, or run, except the page's own script."""
    return [*_Elements(text).wrong, *["</script>"] * (text.count("</script>") - 1)]


_OWN = re.compile(r"<wbr>|</?details>|(<details>)?<summary>[^<]*(<wbr>[^<]*)*</summary>")


def alive_in_markdown(text: str) -> Iterator[str]:
    """Yield the links, images and elements of a Markdown text that are not the kit's own."""
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        for one in (token, *(token.children or ())):
            own = _OWN.fullmatch(one.content.strip())
            if one.type in {"link_open", "image"} or (one.type.startswith("html") and not own):
                yield f"{one.type}: {one.content}"
            if one.type == "html_block":
                yield from re.findall(r"\]\(|!\[", one.content)
    outside = re.sub(r"^(`{3,})\w+\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"\w+://\S+|www\.\w+|\w@\w+", outside)  # texts that GitHub turns into links
