"""The names of a run's options in pytest; every session registers them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from gradconform.run.sources import all_options
from gradconform.user_input.option import Kind, Option

if TYPE_CHECKING:
    from .contract_run import ContractRun


@dataclass(frozen=True)
class PluginOption:
    """An option with its three names in pytest: on the command line, in the ini file and in the environment."""

    option: Option

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--gradconform" if self.option.name == "target" else f"--gradconform-{self.option.word}"

    @property
    def ini(self) -> str:
        """The name in the ini file, and the attribute of ``config.option``."""
        return f"gradconform_{self.option.word.replace('-', '_')}"

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return self.ini.upper()

    @property
    def help_text(self) -> str:
        """The help text, with the default and the two other names."""
        several = "; repeatable" if self.option.kind in {"several", "paths"} else ""
        names = f"default: {self.option.shown}; ini: {self.ini}; environment: {self.variable}"
        return f"{self.option.help}{several} ({names})"


OPTIONS = tuple(
    PluginOption(option)
    for option in (
        *all_options().values(),
        Option(name="json", metavar="PATH", help="write the report to PATH as JSON"),
        Option(
            name="ndjson",
            metavar="PATH",
            help="append each result of --gradconform TARGET to PATH as it arrives; "
            "'gradconform run --resume PATH' continues the run",
        ),
    )
)


def add_options(parser: pytest.Parser) -> None:
    """Add every option and its ini twin."""
    group = parser.getgroup("gradconform", "conformance of stage backward (gradconform)")
    for one in OPTIONS:
        name = {} if one.option.kind == "switch" else {"metavar": one.option.metavar}
        # %: argparse formats help texts.
        group.addoption(
            one.flag,
            dest=one.ini,
            default=None,
            help=one.help_text.replace("%", "%%"),
            **name,
            **_ACTIONS[one.option.kind],
        )
        ini_type: Any = "int" if type(one.option.default) is int and _NATIVE else _INI_TYPES[one.option.kind]
        parser.addini(one.ini, one.help_text, type=ini_type, default=None)


_ACTIONS: Mapping[Kind, dict[str, Any]] = {
    "text": {},
    "several": {"action": "append"},
    "paths": {"action": "append"},
    "switch": {"action": argparse.BooleanOptionalAction},
}
_INI_TYPES: Mapping[Kind, str] = {"text": "string", "several": "args", "paths": "args", "switch": "bool"}
_NATIVE = pytest.version_tuple >= (8, 4)  # native TOML gives a number


def anything_set(config: pytest.Config) -> bool:
    """Return whether the command line, the ini file or the environment sets an option to any value."""
    return any(
        config.getoption(one.ini) is not None or config.getini(one.ini) is not None or os.environ.get(one.variable)
        for one in OPTIONS
    )


#: The key of the run of ``--gradconform TARGET``.
ZERO_LINES = "gradconform"
#: The runs of ``--gradconform TARGET``: the contract's, and that of added stages if there are any.
RUNS_KEY: pytest.StashKey[list[ContractRun]] = pytest.StashKey()
#: Names of the items that the command line names by node id.
NAMES_KEY: pytest.StashKey[tuple[str, ...]] = pytest.StashKey()

#: The marker of tests that are run once per check.
MARKER = "gradconform_checks"
