"""The text of torch's own runtime for the script of a training step, with the installed torch's names."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from gradconform.pipeline.training_step.composition import Composition
from gradconform.pipeline.training_step.runtimes import TORCH, runtime_named
from gradconform.torch_releases import pipelining
from gradconform.torch_releases.distributed_tensors import ALL_TO_ALL, IGNORE


def session_of_torch(composition: Composition) -> tuple[ModuleType, str]:
    """Return the module of the session, and its name there."""
    divided = composition.tensor_ranks > 1 or composition.experts == "replicas"
    name = "_SharedSession" if divided else "TorchSession"
    return sys.modules[type(runtime_named(TORCH)).__module__], name


def known_of_torch(composition: Composition) -> dict[str, Any]:
    """Return the values of expressions of torch's runtime, by their text, that do not change while a script runs."""
    vocabulary = composition.tensor_parallel == "vocabulary"
    return {
        "single": None,
        "'vocabulary' in self.spec.shared.values()": vocabulary,
        **{f"{style!r} in spec.experts.values()": composition.experts == style for style in ("replicas", "tensor")},
        **({} if vocabulary else {"looked_up": False}),
    }


def _schedule(composition: Composition) -> Any:
    return (
        pipelining.RUNTIME.find()
        if composition.schedule == "CSV"
        else pipelining.SCHEDULE_CLASS.find()(composition.schedule)
    )


def imports_of_torch(composition: Composition) -> dict[str, str]:
    """Return the import lines of the names that :func:`spelled_out` inserts."""
    made = _schedule(composition)
    exchange = ALL_TO_ALL.spellings[-1]
    return {
        "PipelineStage": "from torch.distributed.pipelining import PipelineStage",
        exchange: f"from {ALL_TO_ALL.owner} import {exchange}",
        made.__name__: f"from {made.__module__} import {made.__name__}",
    }


def spelled_out(composition: Composition) -> dict[str, str]:
    """Return the replacements of the kit's look-ups, by their text."""
    made = _schedule(composition)
    scaled = dict(pipelining.scaling(made, scaled=composition.reduction == "mean"))
    options = ", ".join(["'loss_fn': self._loss", *(f"{name!r}: {value}" for name, value in scaled.items())])
    stage = "PipelineStage(stage, index, spec.stages, spec.device, group=pipeline)"
    single = issubclass(made, pipelining.SINGLE.find())
    as_laid = {f"self._as_laid(super().{kept}())": f"super().{kept}()" for kept in ("params", "param_grads")}
    return {
        **({} if composition.data_parallel == "ddp" else as_laid),
        **({} if composition.auxiliary else {"scale_auxiliary(self.modules.values(), self._times)": "None"}),
        "ALL_TO_ALL.find()": ALL_TO_ALL.spellings[-1],
        "IGNORE.find()": f"DistributedDataParallel.{IGNORE.spellings[-1]}",
        "pipelining.wait_for_all(dist.get_default_backend_for_device(spec.device))": "None",
        "pipelining.connect(self.stages, dist.get_backend(pipeline))": "None",
        "make_stages(self.modules, spec.stages, spec.device, pipeline, spec.note)": (
            f"[{stage} for index, stage in sorted(self.modules.items())]"
        ),
        "pipelining.SCHEDULE_CLASS.find()(spec.schedule)": made.__name__,
        "pipelining.RUNTIME.find()": made.__name__,
        "pipelining.LOAD_CSV.find(self.schedule)": f"self.schedule.{pipelining.LOAD_CSV.spellings[0]}",
        "issubclass(found, pipelining.SINGLE.find())": str(single),
        "self.stages[0] if single else self.stages": "self.stages[0]" if single else "self.stages",
        "{'loss_fn': self._loss, **pipelining.scaling(found, scaled=spec.reduction == 'mean')}": f"{{{options}}}",
        "pipelining.EVALUATION.find(self.schedule)": f"self.schedule.{pipelining.EVALUATION.spelled(made)}",
    }
