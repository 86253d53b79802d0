"""Directives that write reference pages from the kit itself: its commands, their exit codes, the report's schema.

``{kit-commands}``, ``{kit-exit-codes}`` and ``{kit-schema}`` read the parsers of ``argparse``, ``gradconform.exits``
and the JSON Schema of the package, so that the pages always match them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gradconform import exits
from gradconform.cli.arguments import parser
from gradconform.cli.parsing import EXIT_CODES

if TYPE_CHECKING:
    from sphinx.application import Sphinx

#: The width of the help, on every machine that builds the site.
_COLUMNS = "100"

_Subcommands = argparse._SubParsersAction  # noqa: SLF001 (argparse has no public name for it)

_Rows = Iterable[tuple[str, list[nodes.Node]]]


def _paragraph(text: str) -> nodes.paragraph:
    return nodes.paragraph("", text)


def _section(title: str, *content: nodes.Node) -> nodes.section:
    made = nodes.section("", nodes.title("", title), *content, ids=[nodes.make_id(title)], names=[title.lower()])
    made["anchor"] = True
    return made


def _terms(rows: _Rows) -> list[nodes.Node]:
    """Return a list of terms and what is said of each; nothing where there is none."""
    items = [
        nodes.definition_list_item("", nodes.term("", "", nodes.literal("", term)), nodes.definition("", *meaning))
        for term, meaning in rows
    ]
    return [nodes.definition_list("", *items)] if items else []


def commands(one: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every command below a parser, by what is typed for it."""
    for action in one._actions:  # noqa: SLF001 (argparse lists its arguments and subcommands nowhere else)
        if isinstance(action, _Subcommands):
            for name, below in action.choices.items():
                yield f"{one.prog} {name}", below
                yield from commands(below)


def options(one: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield each argument of a command as it is typed, with its help."""
    formatter = one._get_formatter()  # noqa: SLF001 (only the parser's formatter writes defaults into the help)
    typed, helped = formatter._format_action_invocation, formatter._expand_help  # noqa: SLF001 (as above)
    for action in one._actions:  # noqa: SLF001 (argparse lists its arguments nowhere else)
        if not isinstance(action, _Subcommands) and action.help != argparse.SUPPRESS:
            yield typed(action), helped(action)


class Commands(SphinxDirective):
    """Every command: usage, what it does, all its arguments, examples."""

    def run(self) -> list[nodes.Node]:
        """Return a section for each."""
        os.environ["COLUMNS"] = _COLUMNS
        return [self._content(name, one) for name, one in commands(parser())]

    @staticmethod
    def _content(name: str, one: argparse.ArgumentParser) -> nodes.Node:
        usage = one.format_usage().removeprefix("usage: ").strip()
        epilog = (one.epilog or "").replace(EXIT_CODES, "").strip()
        return _section(
            name,
            _paragraph(" ".join((one.description or "").split())),
            nodes.literal_block(usage, usage, language="text"),
            *_terms((typed, [_paragraph(" ".join(meaning.split()))]) for typed, meaning in options(one)),
            *([nodes.literal_block(epilog, epilog, language="text")] if epilog else []),
        )


def exit_codes() -> dict[int, str]:
    """Return what each exit code says; raise ``ValueError`` where help and ``gradconform.exits`` have others."""
    meanings = {
        int(code): " ".join(meaning.split())
        for code, meaning in re.findall(r"^  (\d+) +(.*(?:\n {7,}.*)*)", EXIT_CODES, re.MULTILINE)
    }
    known = {value for name, value in vars(exits).items() if name.startswith("EXIT_")}
    if set(meanings) != known:
        msg = f"help lists the exit codes {sorted(meanings)}, gradconform.exits has {sorted(known)}"
        raise ValueError(msg)
    return meanings


class ExitCodes(SphinxDirective):
    """What each exit code says."""

    def run(self) -> list[nodes.Node]:
        """Return a list of them."""
        return _terms((str(code), [_paragraph(meaning)]) for code, meaning in exit_codes().items())


def _form(schema: dict[str, Any]) -> str:
    """Return in words what a value is."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "oneOf" in schema or "anyOf" in schema:
        return " or ".join(map(_form, schema.get("oneOf") or schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        return "one of " * ("enum" in schema) + ", ".join(map(json.dumps, schema.get("enum", [schema.get("const")])))
    kind = schema.get("type", "any value")
    kinds = " or ".join(kind) if isinstance(kind, list) else kind
    inner = schema.get("items") or schema.get("additionalProperties")
    return f"{kinds} of {_form(inner)}" if isinstance(inner, dict) and inner else str(kinds)


class Schema(SphinxDirective):
    """The fields of a report, and of each part of it."""

    def run(self) -> list[nodes.Node]:
        """Return a section for the report and one for each part."""
        schema = json.loads((files("gradconform.reading") / "report-1.schema.json").read_text(encoding="utf-8"))
        parts = {"report": schema, **schema["$defs"]}
        return [_section(name, *self._content(part)) for name, part in parts.items()]

    @staticmethod
    def _content(part: dict[str, Any]) -> Iterator[nodes.Node]:
        if "description" in part:
            yield _paragraph(part["description"])
        required = part.get("required", [])
        yield from _terms(
            (
                name,
                [
                    _paragraph(f"{_form(field)}{'' if name in required else ', may be absent'}"),
                    *([_paragraph(field["description"])] if "description" in field else []),
                ],
            )
            for name, field in part.get("properties", {}).items()
        )


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directives."""
    app.add_directive("kit-commands", Commands)
    app.add_directive("kit-exit-codes", ExitCodes)
    app.add_directive("kit-schema", Schema)
    return {"version": "1", "parallel_read_safe": True, "env_version": 1}
