"""Template rendering: values are escaped for the template's format, and pages are self-contained."""

from __future__ import annotations

from functools import lru_cache
from operator import methodcaller
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from gradconform.results import STATUSES
from gradconform.text.escaping import Markdown, fenced, for_html_in_markdown, for_markdown, printable
from gradconform.version import KIT_VERSION

_TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: Any) -> str:
    """Return a rendered template; a name that ``values`` lack is an error.

    HTML and Markdown templates show the values literally, with or without an escape in the template.
    """
    return _environment("markdown" if template.endswith(".md.j2") else "html").get_template(template).render(values)


def render_own(template: str, **values: Any) -> str:
    """Return a rendered Markdown template; the values are the kit's own sentences, so their Markdown is kept."""
    return _environment("own").get_template(template).render(values)


def _own(name: str) -> Markup:
    """Return a style sheet or script of the kit without indents and empty lines, which every page would repeat."""
    lines = (_TEMPLATES / name).read_text(encoding="utf-8").splitlines()
    return Markup("\n".join(filter(None, map(str.strip, lines))))  # noqa: S704 (the kit's own file, no input)


def _into_html(value: object) -> object:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _into_markdown(value: object) -> object:
    return value if isinstance(value, Markdown) else for_markdown(value)


@lru_cache(maxsize=3)
def _environment(into: Literal["html", "markdown", "own"]) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=select_autoescape(enabled_extensions=("html.j2",), default=False),
        undefined=StrictUndefined,
        finalize={"html": _into_html, "markdown": _into_markdown, "own": None}[into],
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(kit=KIT_VERSION, own=_own, all_statuses=(*STATUSES, "absent"))
    environment.filters.update(words=methodcaller("replace", "_", " "), number="{:.2g}".format, seconds=_seconds)
    environment.filters.update(html=for_html_in_markdown, fenced=fenced)
    return environment


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.3g} ms"
