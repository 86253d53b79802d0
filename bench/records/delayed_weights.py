"""Weight gradients that are computed later."""

from __future__ import annotations

from functools import partial

from gradconform.bench.defect import TARGET, Defect

_AREA = "delayed weight gradients"
_CODE = "gradconform.bench.code.delayed_weights"
_RUN = ("run", TARGET, "--no-isolation")

#: What is shared, where a record says nothing else.
_delayed = partial(Defect, area=_AREA, command=_RUN, fixed=f"{_CODE}:delayed")

DEFECTS = (
    _delayed(
        project="NVIDIA/TransformerEngine",
        number=2142,
        had="before #2142",
        fixed_in="#2142, labelled 2.7.0",
        seen="With delayed weight gradients, each micro-batch overwrites `grad`, and Megatron's overlapped reduction "
        "refuses it.",
        fault="The delayed computation assigns the weight's gradient instead of adding to it.",
        broken=f"{_CODE}:overwriting",
        causes=("overwritten",),
    ),
    _delayed(
        project="NVIDIA/TransformerEngine",
        number=3437,
        had="as of 2026-08",
        fixed_in="none; open",
        seen="Two tied Linears get another gradient with delayed weight gradients than without.",
        fault="Each layer's delayed gradient replaces the other's.",
        broken=f"{_CODE}:one_layer_at_a_time",
        causes=("uses_missing",),
    ),
    _delayed(
        project="deepspeedai/Megatron-DeepSpeed",
        number=442,
        had="1280f59c",
        fixed_in="none; open",
        seen="Without the zero-bubble engine, the weights of Linears get no gradients.",
        fault="Linears put their weight gradients into a store that only the zero-bubble engine flushes.",
        command=("pipeline", TARGET, "--checks", "step.plain,step.gpipe-sum"),
        broken=f"{_CODE}:never_flushed",
        fixed=f"{_CODE}:flushed",
        causes=("never_accumulated",),
    ),
)
