"""The options of ``gradconform pipeline``: a report stores them and derives the command that reproduces a check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from gradconform.user_input.option_help import DEFAULT_SEED, RUN_OPTIONS
from gradconform.user_input.values import STEP_PROFILES, SelectionError

from .cases import word_of

#: The key that distinguishes these options from those of a run of the contract.
_COMMAND = "pipeline"

#: The prefix of each training step's id.
STEPS = "step."


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """The options of the command by their names there; without a ``schedule`` whole training steps are judged."""

    profile: str | None = None
    schedule: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    ranks: int | None = None
    stages_per_rank: int | None = None
    microbatches: int | None = None
    device: str = "cpu"
    device_plugins: tuple[str, ...] = ()
    ranks_share_device: bool = False
    dtype: str = "float32"
    seed: int = DEFAULT_SEED
    timeout: float = 60
    nnodes: int = 1
    rdzv_endpoint: str = "localhost:0"
    rdzv_id: str = "gradconform"
    fixed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return every option by name as JSON values, and the command that has them."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {"command": _COMMAND, **values}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PipelineOptions:
        """Return the options that :meth:`to_json` wrote; raise ``SelectionError`` if another run wrote them."""
        plain = cls().to_json()
        if {*values} != {*plain} or values["command"] != _COMMAND:
            msg = f"the report does not have the options of 'gradconform {_COMMAND}'; expected {', '.join(plain)}"
            raise SelectionError(msg)
        for one in fields(cls):
            if not _fits(one, values[one.name]):
                msg = f"{one.name}: expected a value such as {plain[one.name]!r}, got {values[one.name]!r}"
                raise SelectionError(msg)
        several = {name: tuple(map(str, values[name])) for name, default in plain.items() if isinstance(default, list)}
        return cls(**{name: several.get(name, values[name]) for name in plain if name != "command"})

    def alone(self, check: str) -> PipelineOptions:
        """Return the options of a run of one check, with only the check's own schedule."""
        named = {name: Path(name).stem if name.endswith(".csv") else name for name in self.schedule}
        own = tuple(name for name, word in named.items() if check.startswith(f"pipeline.{word_of(word)}."))
        return replace(self, schedule=own or self.schedule, checks=(check,))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> PipelineOptions:
        """Return the options from a parsed command line: a repeatable option that is not given becomes None."""
        values = {one.name: given[one.name] for one in fields(cls)}
        several = {one.name: tuple(values[one.name] or ()) for one in fields(cls) if isinstance(one.default, tuple)}
        return cls(**{**values, **several})

    @property
    def of_values(self) -> PipelineOptions:
        """Return only the options that change a training step's values, which ``gradconform replay`` accepts."""
        return PipelineOptions(device=self.device, device_plugins=self.device_plugins, dtype=self.dtype, seed=self.seed)

    @property
    def words(self) -> list[str]:
        """Return the words of a command line for the options that differ from the default."""
        return list(self._words())

    def _words(self) -> Iterator[str]:
        plain = PipelineOptions()
        for one in fields(self):
            value, flag = getattr(self, one.name), _flag(one.name)
            if value is True:
                yield flag
            elif value != getattr(plain, one.name):
                reported = value if isinstance(value, tuple) else (value,)
                yield from (word for each in reported for word in (flag, str(each)))


def _flag(name: str) -> str:
    """Return the name of an option on the command line."""
    known = next((one for one in RUN_OPTIONS if one.name == name), None)
    return known.flag if known else f"--{name.replace('_', '-')}"


def _fits(one: Field[Any], value: object) -> bool:
    """Return whether the command line can give an option that value, as JSON has it."""
    if isinstance(one.default, bool):
        return isinstance(value, bool)
    if isinstance(one.default, tuple):
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if one.name == "profile":
        return value is None or (isinstance(value, str) and value in STEP_PROFILES)
    if isinstance(one.default, str):
        return isinstance(value, str)
    if value is None:
        return one.default is None
    return isinstance(value, int) and not isinstance(value, bool) and value >= int(one.name != "seed")
