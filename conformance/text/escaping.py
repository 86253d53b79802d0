r"""Functions that make foreign text safe to show, one for each kind of output.

The name of a target, its messages and output, and the contents of a file may hold characters with side effects.
Examples are sequences that clear a terminal or overwrite a line, and overrides of the direction of text. Others are
lines that a CI reads as its own commands, and links and images of Markdown. Each is shown as the escape that Python
writes for it, such as ``\x1b``; letters of all scripts stay as they are. JSON keeps every value.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

#: Characters outside plain ASCII have to be examined; the writer of lines handles line breaks and tabs.
_TO_LOOK_AT = re.compile(r"[^ -~\n\t]")

#: Joins or separates letters in Persian and Indic words, and the parts of an emoji.
_JOINERS = "\u200c\u200d"

#: Controls, characters without a shape (such as overrides of the direction), halves of surrogate pairs, and the
#: separators of lines and paragraphs.
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}

#: XML does not allow these.
_NO_CHARACTERS = "\ufffe\uffff"

#: A command line of GitHub or Forgejo begins with the first, after any white space; Azure, TeamCity and GitHub's older
#: form search the whole line for the second.
_COMMAND = re.compile(r"^(?P<before>[^\S\n]*):(?=:)|#(?=#\w*\[)", re.MULTILINE)

_MARKUP = re.compile(r"([\\`*_{}\[\]|#~$]|:(?=//)|(?<=www)\.)", re.IGNORECASE)


#: The maximum length of a text from a target, in characters.
_KEPT = 10_000


def shortened(text: str) -> str:
    """Return the beginning of a text from a target, so that a huge text cannot fill the memory."""
    return text if len(text) <= _KEPT else f"{text[:_KEPT]} … and {len(text) - _KEPT} more characters"


def printable(text: str) -> str:
    """Return ``text`` with an escape for each invisible character; line breaks and tabs stay."""
    return _TO_LOOK_AT.sub(lambda found: _seen(found[0]), text)


@lru_cache(maxsize=4096)
def _seen(character: str) -> str:
    if character in _JOINERS or (unicodedata.category(character) not in _UNSEEN and character not in _NO_CHARACTERS):
        return character
    return character.encode("unicode_escape").decode()


def for_terminal(text: str) -> str:
    """Return lines for a terminal or a CI log, so that neither reads a command in them."""
    return _COMMAND.sub(_without_command, printable(text))


def _without_command(found: re.Match[str]) -> str:
    return r"\x23" if found["before"] is None else rf"{found['before']}\x3a"


def line_for_terminal(text: str) -> str:
    """Return one line for a terminal, so that a line break in a name does not begin a new line."""
    return for_terminal(text.replace("\n", r"\n"))


def for_json(text: str) -> str:
    """Return JSON text for a terminal: every value is unchanged, and no CI reads a string as a command."""
    return re.sub(r"#(?=#\w*\[)", r"\\u0023", text).replace("\x7f", r"\u007f")


class Markdown(str):
    """Text that is already Markdown."""

    __slots__ = ()


def in_docstring(text: str) -> str:
    """Return text for one line in a Python docstring: no quote ends it, and no backslash begins an escape."""
    return printable(" ".join(text.split())).replace("\\", "/").replace('"', "'")


def for_markdown(value: object) -> Markdown:
    """Return text for a line or a table of Markdown, without markup, links, HTML, line breaks or cell bars."""
    text = " ".join(str(value).split())
    return Markdown(_MARKUP.sub(r"\\\1", _without_tags(printable(text))).replace("@", "@<wbr>"))


def for_html_in_markdown(value: object) -> Markdown:
    """Return text for an HTML element within Markdown, which renderers read in different ways."""
    text = _without_tags(printable(" ".join(str(value).split())))
    return Markdown(_MARKUP.sub(lambda found: f"&#{ord(found[0])};", text).replace("@", "@<wbr>"))


def _without_tags(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def fenced(text: str, language: str = "text") -> Markdown:
    """Return a Markdown code block around ``text``, with a fence that is longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markdown(f"{fence}{language}\n{printable(text)}\n{fence}")


def for_github_data(text: str) -> str:
    """Return text for the message of a GitHub workflow command, without characters that end its line."""
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def for_github_property(text: str) -> str:
    """Return text for a property of a GitHub workflow command, without characters that end it."""
    return for_github_data(text).replace(":", "%3A").replace(",", "%2C")
