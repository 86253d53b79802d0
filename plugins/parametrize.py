"""The three-line form: the contract as the parameters of a user's own test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

    from gradconform.plugins.options import Options

MARKER = "gradconform_checks"


def parametrize_checks(  # noqa: PLR0913 (these are the options a user has)
    target: object = None,
    *,
    device: str | torch.device | Sequence[str | torch.device] | None = None,
    dtype: str | torch.dtype | Sequence[str | torch.dtype] | None = None,
    profile: str | None = None,
    checks: Sequence[str] | str | None = None,
    exclude: Sequence[str] | str | None = None,
    seed: int | None = None,
) -> pytest.MarkDecorator:
    """Run the decorated test once per check of the contract on ``target``, device and dtype.

    The test has an argument ``check``; calling it runs the check: it raises an ``AssertionError`` with the kit's
    message for a failure, and skips what the target does not claim. What is left out is taken from the command line
    (``--gradconform…``), the ini file and the environment. ::

        import gradconform

        @gradconform.parametrize_checks("torch", profile="quick", checks="full.loss.*")
        def test_conformance(check):
            check()
    """
    given = {
        "device": _names(device),
        "dtype": _names(dtype),
        "profile": profile,
        "checks": _names(checks),
        "exclude_checks": _names(exclude),
        "seed": seed,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    decorator: pytest.MarkDecorator = getattr(pytest.mark, MARKER).with_args(target, **chosen)
    return decorator


def _names(given: object) -> tuple[str, ...] | None:
    """Return the names of what may be given alone or as a sequence, as options hold them."""
    if given is None:
        return None
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(str(one).removeprefix("torch.") for one in several)


def parametrize(metafunc: pytest.Metafunc, mark: pytest.Mark, options: Options) -> None:
    """Give a test with the marker its checks.

    Raises ``CollectError`` with the kit's message for what the decorator, or the options, ask for and does not exist.
    """
    from gradconform.plugins.bound_check import BoundCheck  # noqa: PLC0415 (only tests with the marker need the kit)
    from gradconform.plugins.contract_run import make_runs  # noqa: PLC0415 (as above)
    from gradconform.plugins.items import register_writer  # noqa: PLC0415 (as above)

    target = mark.args[0] if mark.args[0] is not None else options.target
    where = metafunc.definition.nodeid
    if target is None:
        msg = f"{where}: parametrize_checks has no target; give it one, or pass --gradconform TARGET"
        raise pytest.Collector.CollectError(msg)
    try:
        runs = make_runs(metafunc.config, replace(options, **mark.kwargs), where, target=target)
    except ValueError as error:
        msg = f"{where}: {error}"
        raise pytest.Collector.CollectError(msg) from error
    bound = [BoundCheck(run, position) for run in runs for position in range(len(run.items))]
    register_writer(metafunc.config)
    metafunc.parametrize("check", bound, ids=[check.name for check in bound])
