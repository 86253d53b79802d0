"""Questions to a device, each asked once: an answer, or the call that failed, quoted. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: Messages of backends can be pages long; what matters stands in their first line.
_LONGEST = 400


class WrongAnswerError(Exception):
    """The device did what it was asked, and the result is not what it must be."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one question: a value that JSON can hold, or why there is none."""

    ok: bool
    value: Any = None
    message: str = ""


@dataclass(slots=True)
class Asker:
    """Asks questions; a question that an earlier process has asked is not asked again.

    ``known`` holds its answers, by question. ``begin`` and ``end`` are told of every question that is asked.
    """

    known: Mapping[str, Answer] = field(default_factory=dict)
    begin: Callable[[str], None] = lambda _: None
    end: Callable[[str, Answer], None] = lambda _, __: None

    def ask(self, question: str, call: Callable[[], Any], *, again: bool = False) -> Answer:
        """Return the answer to ``question``, which is written as the call that it is.

        ``again`` calls once more what went well in the earlier process, for its effects on this one.
        """
        known = self.known.get(question)
        if known is not None and not (again and known.ok):
            return known
        self.begin(question)
        answer = _answer(question, call)
        self.end(question, answer)
        return answer


def _answer(question: str, call: Callable[[], Any]) -> Answer:
    try:
        return Answer(ok=True, value=call())
    except WrongAnswerError as error:
        return Answer(ok=False, message=f"{question}: {error}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (backends raise what they like, SystemExit among it)
        return Answer(ok=False, message=f"{question} raised {quoted(error)}")


def quoted(error: BaseException) -> str:
    """Return the type and the first line of an error."""
    first = next(iter(str(error).strip().splitlines()), "")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a device's pre-flight: what must hold, and what was seen where it does not."""

    requirement: str
    held: bool
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What was found out about one device.

    ``reason`` says why it cannot be used, with the call that failed, or is None. ``dtypes`` are those that were tried:
    ``""`` for one that works, else why not. ``facts`` are what the report and ``gradconform doctor`` tell besides.
    ``simulated`` devices are left out by ``auto``.
    """

    device: str
    reason: str | None = None
    unknown: bool = False
    dtypes: Mapping[str, str] = field(default_factory=dict)
    preflight: tuple[Line, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """The type of device."""
        return self.device.partition(":")[0]

    @property
    def faults(self) -> tuple[Line, ...]:
        """The lines of the pre-flight that do not hold."""
        return tuple(line for line in self.preflight if not line.held)

    @property
    def limits(self) -> Mapping[str, Any]:
        """What the device's object says it cannot do."""
        return dict(self.facts.get("known_limits", {}))

    @property
    def simulated(self) -> bool:
        """Whether the device's object says that there is no hardware behind it."""
        return bool(self.limits.get("simulated"))

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        values = asdict(self)
        return {**values, "preflight": list(values["preflight"])}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Probe:
        """Return the record that :meth:`to_dict` wrote."""
        return cls(**{**values, "preflight": tuple(Line(**line) for line in values["preflight"])})
