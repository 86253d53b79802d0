"""One class per device, as torch's ``instantiate_device_type_tests`` makes them."""

from __future__ import annotations

import os
import unittest
from collections.abc import Sequence
from typing import Any

from gradconform.devices.choice import choose
from gradconform.run.options import RunOptions
from gradconform.run.run import Run
from gradconform.user_input.values import UnusableDeviceError

from .cases import class_of, test_of

#: The variables that select the device types of torch's device tests.
ONLY_FOR, EXCEPT_FOR = "PYTORCH_TESTING_DEVICE_ONLY_FOR", "PYTORCH_TESTING_DEVICE_EXCEPT_FOR"


def instantiate(
    scope: dict[str, Any],
    target: object,
    *,
    name: str = "TestStageBackward",
    only_for: Sequence[str] | str | None = None,
    except_for: Sequence[str] | str = (),
    **options: Any,
) -> list[str]:
    """Put one class per device type into ``scope``, and return their names, such as ``TestStageBackwardCUDA``.

    A class has one test per check and dtype, such as ``test_full_gradients_mlp_cuda_float32``, and the attribute
    ``device_type``. Types are ``only_for``, else all usable ones, without ``except_for``. The variables
    ``PYTORCH_TESTING_DEVICE_ONLY_FOR`` and ``PYTORCH_TESTING_DEVICE_EXCEPT_FOR`` select further. A named type that
    cannot be used has a class with one skipped test, which gives the reason. ``options`` are those of
    :func:`gradconform.check_stage_backward` except ``device``. ::

        from gradconform.plugins.unittest import instantiate

        instantiate(globals(), "mylib.backward", only_for=("cpu", "npu"), dtype=("float32", "bfloat16"))
    """
    if "device" in options:
        msg = f"device={options['device']!r}: instantiate makes a class per type of device; name them by only_for"
        raise TypeError(msg)
    types = _types(only_for, options.get("device_plugins", ()))
    wanted, unwanted = _listed(os.environ.get(ONLY_FOR)), [*_listed(except_for), *_listed(os.environ.get(EXCEPT_FOR))]
    chosen = [kind for kind in types if kind not in unwanted and (not wanted or kind in wanted)]
    made: dict[str, type[unittest.TestCase]] = {}
    for kind in chosen:
        try:
            run = Run(RunOptions.of(target, device=kind, **options))
        except UnusableDeviceError as error:
            made[f"{name}{kind.upper()}"] = _skipped(kind, str(error))
            continue
        tests = {f"{one.check.id}_{kind}_{one.dtype}": test_of(one) for one in run.plan.items}
        made[f"{name}{kind.upper()}"] = class_of(f"{name}{kind.upper()}", run, tests)
    if not made:
        reason = (
            f"every device type of {', '.join(types)} is excluded: see only_for, except_for, {ONLY_FOR}, {EXCEPT_FOR}"
        )
        made[f"{name}NoDevice"] = _skipped("none", reason)
    for class_name, one in made.items():
        one.__name__ = one.__qualname__ = class_name
        one.__module__ = str(scope.get("__name__", one.__module__))
        scope[class_name] = one
    return list(made)


def _types(only_for: Sequence[str] | str | None, plugins: Sequence[str] | str) -> list[str]:
    if only_for is not None:
        return _listed(only_for)
    return list(dict.fromkeys(choose(("all",), plugins=_listed(plugins)).types))


def _listed(given: Sequence[str] | str | None) -> list[str]:
    """Return names from a sequence, or from one text with commas."""
    several = given.split(",") if isinstance(given, str) else (given or ())
    return [one.strip() for one in several if one.strip()]


def _skipped(kind: str, why: str) -> type[unittest.TestCase]:
    """Return a class with one skipped test, which reports that nothing was judged on a device."""

    def test_stage_backward(self: unittest.TestCase) -> None:
        self.skipTest(why)

    return type("Skipped", (unittest.TestCase,), {"device_type": kind, "test_stage_backward": test_stage_backward})
