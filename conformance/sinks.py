r"""What others wrote, made fit to be shown: one function for each place that texts end in.

A target's name, what it raises and prints, and all that stands in a file may hold characters that do something in place
of being read: sequences that clear a terminal or write over a line, overrides of the direction of text, lines that a CI
takes for its own commands, links and images of Markdown. Each is shown as the escape that Python writes for it, such as
``\x1b``; letters of all scripts stay as they are. JSON keeps every value.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

#: What is no plain ASCII has to be looked at; a line break and a tab are left to who writes lines.
_TO_LOOK_AT = re.compile(r"[^ -~\n\t]")

#: Joins or parts letters in Persian and Indic words, and the parts of an emoji.
_JOINERS = "\u200c\u200d"

#: Controls, what has no shape of its own (overrides of the direction among them), halves of surrogate pairs, and the
#: separators of lines and paragraphs.
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}

#: XML has no place for these.
_NO_CHARACTERS = "\ufffe\uffff"

#: A line of GitHub or Forgejo begins with the first, whatever white space is before it; Azure, TeamCity and GitHub's
#: older form look for the second in all of a line.
_COMMAND = re.compile(r"^(?P<before>[^\S\n]*):(?=:)|#(?=#\w*\[)", re.MULTILINE)

_MARKUP = re.compile(r"([\\`*_{}\[\]|#~$]|:(?=//)|(?<=www)\.)", re.IGNORECASE)


#: What is kept of a text that a target has made, in characters.
_KEPT = 10_000


def shortened(text: str) -> str:
    """Return what is kept of a text that a target has made: of one that fills a memory, the beginning."""
    return text if len(text) <= _KEPT else f"{text[:_KEPT]} … and {len(text) - _KEPT} more characters"


def printable(text: str) -> str:
    """Return ``text`` with an escape for each character that cannot be seen; line breaks and tabs stay."""
    return _TO_LOOK_AT.sub(lambda found: _seen(found[0]), text)


@lru_cache(maxsize=4096)
def _seen(character: str) -> str:
    if character in _JOINERS or (unicodedata.category(character) not in _UNSEEN and character not in _NO_CHARACTERS):
        return character
    return character.encode("unicode_escape").decode()


def for_terminal(text: str) -> str:
    """Return lines for a terminal, which may be the log of a CI: nothing in them is taken for a command of either."""
    return _COMMAND.sub(_without_command, printable(text))


def _without_command(found: re.Match[str]) -> str:
    return r"\x23" if found["before"] is None else rf"{found['before']}\x3a"


def line_for_terminal(text: str) -> str:
    """Return one line for a terminal, so that a line break in a name begins no line of its own."""
    return for_terminal(text.replace("\n", r"\n"))


def for_json(text: str) -> str:
    """Return JSON text for a terminal: every value is what it was, and no CI takes a string for a command."""
    return re.sub(r"#(?=#\w*\[)", r"\\u0023", text).replace("\x7f", r"\u007f")


class Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


def in_docstring(text: str) -> str:
    """Return text for one line in a docstring of Python: no quote ends it, and no backslash begins an escape."""
    return printable(" ".join(text.split())).replace("\\", "/").replace('"', "'")


def for_markdown(value: object) -> Markdown:
    """Return text for a line or a table of Markdown: no markup, link, HTML or line break, no bar that ends a cell."""
    text = " ".join(str(value).split())
    return Markdown(_MARKUP.sub(r"\\\1", _without_tags(printable(text))).replace("@", "@<wbr>"))


def for_html_in_markdown(value: object) -> Markdown:
    """Return text for an element of HTML that stands in Markdown, where not all agree which of the two it is."""
    text = _without_tags(printable(" ".join(str(value).split())))
    return Markdown(_MARKUP.sub(lambda found: f"&#{ord(found[0])};", text).replace("@", "@<wbr>"))


def _without_tags(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def fenced(text: str, language: str = "text") -> Markdown:
    """Return a Markdown block of code around ``text``, with a fence that is longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markdown(f"{fence}{language}\n{printable(text)}\n{fence}")


def for_github_data(text: str) -> str:
    """Return text for the message of a workflow command of GitHub, whose line it does not end."""
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def for_github_property(text: str) -> str:
    """Return text for a property of a workflow command of GitHub, which ends with it."""
    return for_github_data(text).replace(":", "%3A").replace(",", "%2C")
