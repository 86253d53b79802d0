"""Templates, filled in: what is put into one of HTML is escaped, and what stands in a page is all that it needs."""

from __future__ import annotations

import re
from functools import lru_cache
from operator import methodcaller
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from gradconform.version import KIT_VERSION

_TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: Any) -> str:
    """Return a template filled in; a name that it has and ``values`` lack is an error, not an empty place."""
    text = _environment().get_template(template).render(values)
    # A report read from JSON may hold half of a surrogate pair, which no file can.
    return text.encode("utf-8", "replace").decode("utf-8")


def _own(name: str) -> Markup:
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704 (the kit's own file, no input)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=select_autoescape(enabled_extensions=("html.j2",), default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(kit=KIT_VERSION, own=_own)
    environment.filters.update(
        md=escaped, fenced=fenced, words=methodcaller("replace", "_", " "), number="{:.2g}".format, seconds=_seconds
    )
    return environment


def escaped(value: object) -> str:
    """Return text for a line or a table of Markdown: no markup, no line break, no bar that would end a cell."""
    text = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", text)


def fenced(text: str, language: str = "text") -> str:
    """Return a Markdown block of code around ``text``, with a fence that is longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.3g} ms"
