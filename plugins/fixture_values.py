"""Which values the fixtures that go over devices, dtypes, stages and output gradients take in a test."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import pytest

from gradconform.devices import nearest
from gradconform.fixtures.grad_tuples import WRONG_PATTERNS
from gradconform.fixtures.stages import TRAITS, ZOO
from gradconform.fixtures.stages.case import StageCase
from gradconform.plugins.built_stage import patterns_of
from gradconform.plugins.chosen_devices import choice_of
from gradconform.plugins.extensions import extensions
from gradconform.plugins.options import Options

STAGES_MARKER = "gradconform_stages"
PATTERNS_MARKER = "gradconform_patterns"


def parametrize_fixtures(metafunc: pytest.Metafunc, options: Options) -> None:
    """Give the fixtures of a test their values; what the test itself parametrises is left to it.

    Raises ``CollectError`` for a marker that matches nothing.
    """
    asked = set(metafunc.fixturenames) - _own(metafunc)
    _over_cells(metafunc, asked, options)
    if "gradconform_stage" not in asked:
        return
    try:
        stages = _stages(metafunc)
        if "gradconform_output_grads" not in asked:
            metafunc.parametrize("gradconform_stage", stages, ids=[case.name for case in stages], indirect=True)
            return
        pairs = _with_patterns(metafunc, stages, options.seed)
    except ValueError as error:
        msg = f"{metafunc.definition.nodeid}: {error}"
        raise pytest.Collector.CollectError(msg) from error
    names = ("gradconform_stage", "gradconform_output_grads")
    metafunc.parametrize(names, pairs, ids=[f"{case.name}-{pattern}" for case, pattern in pairs], indirect=True)


def _over_cells(metafunc: pytest.Metafunc, asked: set[str], options: Options) -> None:
    """Run the test on every device and dtype; both together where it asks for both, since devices differ in dtypes."""
    names = [name for name in ("gradconform_device", "gradconform_dtype") if name in asked]
    if not names or not _several(options):
        return
    cells = choice_of(metafunc.config, options).cells
    columns = {"gradconform_device": 0, "gradconform_dtype": 1}
    values = list(dict.fromkeys(tuple(cell[columns[name]] for name in names) for cell in cells))
    if len(values) > 1:
        metafunc.parametrize(names, values, ids=["-".join(value) for value in values], indirect=True)


def _several(options: Options) -> bool:
    """Tell whether more than one device or dtype may be meant."""
    given = (*options.device, *options.dtype)
    return len(given) > 2 or any("," in name or "*" in name or name in {"auto", "all"} for name in given)  # noqa: PLR2004 (one of each)


def _own(metafunc: pytest.Metafunc) -> set[str]:
    """Return the arguments that the test parametrises itself."""
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    return {name.strip() for names in given for name in (names.split(",") if isinstance(names, str) else names)}


def _stages(metafunc: pytest.Metafunc) -> list[StageCase]:
    zoo = [*ZOO.values(), *extensions(metafunc.config).stages]
    mark = metafunc.definition.get_closest_marker(STAGES_MARKER)
    if mark is None:
        return zoo
    without = mark.kwargs.get("without", ())
    for pattern in (*mark.args, *([without] if isinstance(without, str) else without)):
        if not any(_matches(case, [pattern]) for case in zoo):
            known = nearest(pattern, {*(case.name for case in zoo), *TRAITS})
            msg = f"{STAGES_MARKER}: {pattern!r} matches no stage and no trait; nearest: {known}"
            raise ValueError(msg)
    dropped = [without] if isinstance(without, str) else without
    return [case for case in zoo if (not mark.args or _matches(case, mark.args)) and not _matches(case, dropped)]


def _matches(case: StageCase, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in (case.name, *case.traits))


def _with_patterns(metafunc: pytest.Metafunc, stages: Sequence[StageCase], seed: int) -> list[tuple[StageCase, str]]:
    """Return every stage with every pattern of its outputs; wrong patterns only where the marker asks for them."""
    mark = metafunc.definition.get_closest_marker(PATTERNS_MARKER)
    if mark is None:
        return [(case, pattern) for case in stages for pattern in patterns_of(case, seed)]
    pairs = [
        (case, pattern)
        for case in stages
        for pattern in (*patterns_of(case, seed), *WRONG_PATTERNS)
        if any(fnmatchcase(pattern, glob) for glob in mark.args)
    ]
    if not pairs:
        known = sorted({*WRONG_PATTERNS, *(pattern for case in stages for pattern in patterns_of(case, seed))})
        msg = f"{PATTERNS_MARKER}{mark.args} matches no pattern of these stages; expected some of {', '.join(known)}"
        raise ValueError(msg)
    return pairs
