"""The devices and dtypes of a pytest run: chosen once, by the process that reports, and handed to its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gradconform.devices import Choice, SelectionError, choose
from gradconform.devices.naming import ready
from gradconform.devices.sharing import refuse_crowd
from gradconform.numeric_flags import flags_named
from gradconform.plugins.extensions import extensions

if TYPE_CHECKING:
    from gradconform.plugins.options import Options

_INPUT = "gradconform_choices"
_KEY = pytest.StashKey[dict[str, Choice]]()


def choice_of(config: pytest.Config, options: Options) -> Choice:
    """Return the devices and dtypes that ``options`` ask for, ready for use in this process.

    A worker of pytest-xdist takes what the controller has found out. Raises ``ValueError`` with the kit's message for
    a device or dtype that cannot be used.
    """
    known = extensions(config)  # a hook may have to make a device usable first
    choices = config.stash.setdefault(_KEY, _handed_down(config))
    key = repr((options.device, options.dtype, options.device_plugin))
    if key not in choices:
        choices[key] = _choose(options, known.devices)
        refuse_crowd(choices[key], _workers(config))
    if not _only_controls(config):
        ready(choices[key], flags_named(options.flag))
    return choices[key]


def _choose(options: Options, offered: tuple[str, ...]) -> Choice:
    here = {name.partition(":")[0] for name in offered} - {"cpu"}
    try:
        return choose(options.device, options.dtype, plugins=options.device_plugin, here=here)
    except SelectionError as error:
        if not offered:
            raise
        msg = f"{error}; pytest_gradconform_devices names: {', '.join(offered)}"
        raise type(error)(msg) from error


def _handed_down(config: pytest.Config) -> dict[str, Choice]:
    found: dict[str, Any] = getattr(config, "workerinput", {}).get(_INPUT, {})
    return {key: Choice.from_dict(values) for key, values in found.items()}


def hand_down(config: pytest.Config, worker: Any) -> None:
    """Let a worker of pytest-xdist know what was found out."""
    choices = config.stash.get(_KEY, {})
    worker.workerinput[_INPUT] = {key: choice.to_dict() for key, choice in choices.items()}


def _workers(config: pytest.Config) -> int:
    """Return how many processes will run checks."""
    workers = getattr(config, "workerinput", {}).get("workercount")
    return int(workers or len(getattr(config.option, "tx", None) or ()) or 1)


def _only_controls(config: pytest.Config) -> bool:
    """Tell whether this process leaves the checks to workers: then it takes no device, which some give to one alone."""
    return not hasattr(config, "workerinput") and bool(getattr(config.option, "tx", None))
