"""Damages of a file: by a careless edit, a bad merge, a full disk, another version, or an attacker.

Each strategy damages the values of a valid file in place. The file keeps its form, so that its reader gets far.
"""

from __future__ import annotations

import copy
import csv
import hashlib
import io
import json
import math
import stat
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from gradconform.bundle.archive import NAMES

Values = Any
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Raw:
    """Text that is written as a value without quotes."""

    text: str


@dataclass(frozen=True)
class Pairs:
    """An object that may contain a key twice."""

    items: tuple[tuple[str, Values], ...]


TEXTS = (
    "", " ", "a", "0", "passed", "failed", "error", "full", "1.1", "9.9", "cuda", "float8", "../../x", "/nowhere/x",
    "\x1b[2J", "\n::error::x", "\x00", "\ud800", "\udcff\ud800", "\u202e", "\U0001d7d9", "*", "[", "a" * 5000, "%s{}",
    "1e400", "2999-12-31", "9999-99-99", "split.gradients.gru", "-1/0", "1/99999999999",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 0.5, -0.0, 2**31, 2**63, -(2**63), 10**30, math.nan, math.inf, -math.inf, 1e308, 5e-324,
    Raw("1e999"), Raw("-1e999"), Raw("9" * 5000), Raw("0x10"), Raw("01"),
)  # fmt: skip
OTHERS = (
    None, True, False, [], {}, [[]], [None], {"": None}, {"check": 1}, Raw(""), Raw("[" * 200 + "]" * 200),
    Raw("[" * 100_000), Raw('{"a":' * 2000 + "1" + "}" * 2000),
)  # fmt: skip

odd_values: st.SearchStrategy[Values] = st.one_of(
    st.sampled_from(TEXTS),
    st.sampled_from(NUMBERS),
    st.sampled_from(OTHERS).map(copy.deepcopy),  # what is put in place may be damaged there
    st.text(max_size=8),
    st.integers(),
    st.floats(),
)


def places_in(values: Values) -> Iterator[tuple[Any, Any]]:
    """Yield each container and a key or index in it."""
    inner: Sequence[tuple[Any, Any]] = ()
    if isinstance(values, dict):
        inner = [*values.items()]
    elif isinstance(values, list):
        inner = [*enumerate(values)]
    for key, value in inner:
        yield values, key
        yield from places_in(value)


@st.composite
def damaged(draw: st.DrawFn, values: Values) -> Values:
    """Return a copy of JSON values with one to three damages."""
    root = [copy.deepcopy(values)]
    for _ in range(draw(st.integers(1, 3))):
        places = [*places_in(root)]
        # A report has many more results than other values: half of the damages are above them.
        high = [place for place in places if place[0] is root or place[0] is root[0]]
        within, key = draw(st.sampled_from(draw(st.sampled_from([high, places]))))
        _ACTS[draw(st.sampled_from(sorted(_ACTS)))](draw, places, within, key)
        if not root:
            return draw(odd_values)
    return root[0]


def _replace(draw: st.DrawFn, _: Any, within: Any, key: Any) -> None:
    within[key] = draw(odd_values)


def _drop(_: st.DrawFn, __: Any, within: Any, key: Any) -> None:
    del within[key]


def _double(_: st.DrawFn, __: Any, within: Any, key: Any) -> None:
    if isinstance(within, list):
        within.insert(key, copy.deepcopy(within[key]))
    else:
        within[f"{key}s"] = copy.deepcopy(within[key])


def _twice(draw: st.DrawFn, _: Any, within: Any, key: Any) -> None:
    """Repeat one key of an object."""
    held = within[key]
    if isinstance(held, dict) and held:
        name = draw(st.sampled_from(sorted(held)))
        within[key] = Pairs((*held.items(), (name, draw(odd_values))))


def _exchange(draw: st.DrawFn, places: Any, within: Any, key: Any) -> None:
    """Replace a value by another one of the file."""
    other, other_key = draw(st.sampled_from(places))
    within[key] = copy.deepcopy(other[other_key])


def _turn(_: st.DrawFn, __: Any, within: Any, key: Any) -> None:
    if isinstance(within[key], list):
        within[key].reverse()
    elif isinstance(within[key], str):
        within[key] = within[key][::-1]


def _retype(_: st.DrawFn, __: Any, within: Any, key: Any) -> None:
    held = within[key]
    within[key] = str(held) if isinstance(held, (int, float)) else [held] if isinstance(held, str) else str(held)[:50]


_ACTS: Mapping[str, Callable[[st.DrawFn, Any, Any, Any], None]] = {
    act.__name__: act for act in (_replace, _drop, _double, _twice, _exchange, _turn, _retype)
}


def json_text(values: Values) -> str:
    """Return values as JSON, or as almost JSON."""
    if isinstance(values, Raw):
        return values.text
    if isinstance(values, (dict, Pairs)):
        items = values.items if isinstance(values, Pairs) else values.items()
        return "{" + ",".join(f"{json.dumps(str(key))}:{json_text(value)}" for key, value in items) + "}"
    if isinstance(values, list):
        return "[" + ",".join(map(json_text, values)) + "]"
    return json.dumps(values)


def ndjson_text(values: Values) -> str:
    """Return records as lines."""
    return "".join(f"{json_text(one)}\n" for one in values) if isinstance(values, list) else json_text(values)


def toml_text(values: Values) -> str:
    """Return tables as TOML; texts are written as in JSON, and dates without quotes."""
    if not isinstance(values, dict):
        return _toml(values)
    lines = []
    for name, held in values.items():
        tables = held if isinstance(held, list) and held and all(isinstance(one, dict) for one in held) else None
        if tables is None:
            lines.append(f"{json.dumps(name)} = {_toml(held)}")
        for table in tables or ():
            lines += [f"[[{name}]]", *(f"{_key(key)} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if key.isidentifier() else json.dumps(key)


def _toml(value: Values) -> str:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, (dict, Pairs)):
        items = value.items if isinstance(value, Pairs) else value.items()
        return "{" + ", ".join(f"{_key(str(key))} = {_toml(held)}" for key, held in items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    dates = isinstance(value, str) and len(value) == len("2999-12-31") and value[4:8:3] == "--"
    return value if dates else json.dumps(value)


def csv_text(rows: Values) -> str:
    """Return rows as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", escapechar="\\")
    for row in rows if isinstance(rows, list) else [[rows]]:
        cells = row if isinstance(row, list) else [row]
        writer.writerow([cell.text if isinstance(cell, Raw) else str(cell) for cell in cells])
    return out.getvalue()


@st.composite
def spoiled(draw: st.DrawFn, held: bytes) -> bytes:
    """Return bytes that are mostly unchanged, sometimes with a few other bytes or another end."""
    act = draw(st.sampled_from(["nothing", "nothing", "nothing", "cut", "insert", "overwrite", "double"]))
    if act == "nothing" or not held:
        return held
    where = draw(st.integers(0, len(held) - 1))
    if act == "cut":
        return held[:where]
    if act == "double":
        return held[:where] + held
    more = draw(
        st.sampled_from([b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\r", b'"', b"\\", b"\xed\xa0\x80", b"9" * 400])
    )
    return held[:where] + more + held[where + (len(more) if act == "overwrite" else 0) :]


def texts(values: Values, as_text: Callable[[Values], str]) -> st.SearchStrategy[bytes]:
    """Return damaged files of such values."""
    found = damaged(values).map(lambda one: as_text(one).encode("utf-8", "surrogatepass"))
    return found.flatmap(spoiled)


@st.composite
def bundles(draw: st.DrawFn, files: Files) -> bytes:
    """Return bundles of such files, with one file or the archive damaged."""
    held = dict(files)
    act = draw(st.sampled_from(["content", "content", "entries", "bytes"]))
    if act == "content":
        name = draw(st.sampled_from([name for name in held if name.endswith("json")]))
        held[name] = draw(texts(json.loads(held[name]), json_text)) if name.endswith(".json") else held[name]
        if name != "statement.json" and draw(st.booleans()):
            stated = json.loads(held["statement.json"])
            stated["files"][name] = hashlib.sha256(held[name]).hexdigest()
            held["statement.json"] = json.dumps(stated).encode()
    entries = [*held.items()]
    if act == "entries":
        for _ in range(draw(st.integers(1, 2))):
            _entry_act(draw, entries)
    made = archive(entries, draw(st.sampled_from([0o100644, 0o100644, stat.S_IFLNK | 0o777, stat.S_IFDIR | 0o755, 0])))
    return _lying(draw, made) if act == "bytes" else made


def _entry_act(draw: st.DrawFn, entries: list[tuple[str, bytes]]) -> None:
    names = ("/etc/passwd", "../up", "a/../../b", "C:\\x", "", "x\0y", "statement.json/", "\U0001d7d9", *NAMES)
    which = draw(st.integers(0, len(entries) - 1))
    name, held = entries[which]
    match draw(st.sampled_from(["double", "drop", "rename", "add", "swap", "empty", "pack"])):
        case "double":
            entries.append((name, held))
        case "drop":
            if len(entries) > 1:
                del entries[which]
        case "rename":
            entries[which] = (draw(st.sampled_from(names)), held)
        case "add":
            entries.append((draw(st.sampled_from(names)), draw(st.binary(max_size=8))))
        case "swap":
            entries[which] = (name, entries[0][1])
        case "empty":
            entries[which] = (name, b"")
        case _:
            entries[which] = (name, b"0" * 2_000_000)


def archive(entries: Sequence[tuple[str, bytes]], mode: int = 0o100644) -> bytes:
    """Return a zip archive of the entries; the last one gets the mode."""
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names that are there twice
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
            for number, (name, held) in enumerate(entries, 1):
                entry = zipfile.ZipInfo(name or "x")
                entry.filename = name
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = (mode if number == len(entries) else 0o100644) << 16
                file.writestr(entry, held)
    return out.getvalue()


def _lying(draw: st.DrawFn, held: bytes) -> bytes:
    """Return an archive with wrong numbers in its list of files or in the files' headers."""
    found = bytearray(held)
    signs = [b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"]
    for _ in range(draw(st.integers(1, 3))):
        sign = draw(st.sampled_from(signs))
        begins = [at for at in range(len(held)) if held.startswith(sign, at)]
        at = draw(st.sampled_from(begins)) + draw(st.integers(4, 45))
        number = draw(st.sampled_from([b"\0", b"\1", b"\x7f\xff", b"\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0"]))
        found[at : at + len(number)] = number
    return bytes(found)
