"""Micro-batches that are lost, overwritten or synchronised at the wrong time."""

from __future__ import annotations

from functools import partial

from gradconform.bench.defect import TARGET, Defect

_ACCUMULATION, _REPLICAS = "accumulation", "replicas"
_TRAINERS = "gradconform.bench.code.trainers"
_PIPELINES = "gradconform.bench.code.pipelines"
#: The steps over replicas, which are all that a trainer without stages has.
_STEPS = ("pipeline", TARGET, "--checks", "step.ddp,step.ddp-tokens")

#: What is shared, where a record says nothing else.
_accumulation = partial(Defect, area=_ACCUMULATION)
_of_replicas = partial(Defect, area=_REPLICAS, command=_STEPS)

DEFECTS = (
    _accumulation(
        project="bytetriper/RAE",
        number=67,
        had="as of 2026-02",
        fixed_in="pull request #78",
        seen="With accumulation, only the last micro-batch trains the model.",
        fault="The loop over micro-batches calls `zero_grad`.",
        command=_STEPS,
        broken=f"{_TRAINERS}:cleared_in_loop",
        fixed=f"{_TRAINERS}:trainer",
        causes=("only",),
    ),
    _accumulation(
        project="ServiceNow/Fast-LLM",
        number=550,
        had="as of 2026-06",
        fixed_in="proposed in the report",
        seen="Most parameters have the gradient of the last micro-batch alone.",
        fault="If one rank has all replicas, each flush of a shared buffer copies instead of adding.",
        command=("pipeline", TARGET, "--checks", "step.plain,step.gpipe-sum"),
        broken=f"{_PIPELINES}:last_flush_kept",
        fixed=f"{_PIPELINES}:grad_shards",
        causes=("only",),
    ),
    _accumulation(
        project="NVIDIA-NeMo/Automodel",
        number=3530,
        had="before #3530",
        fixed_in="#3530",
        seen="With a pipeline, only the last micro-batch trains the model. The loss looks right, the norm does not.",
        fault="It initialises stages again if sequences have another length, which sets gradients to None.",
        command=("pipeline", TARGET, "--profile", "standard", "--checks", "step.lengths"),
        broken=f"{_PIPELINES}:stages_initialised_again",
        fixed=f"{_PIPELINES}:gradients_kept",
        causes=("only", "missing"),
    ),
    _of_replicas(
        project="karpathy/build-nanogpt",
        number=30,
        had="before #30",
        fixed_in="#30",
        seen="With accumulation on several GPUs, losses are worse than with one large batch.",
        fault="The loop sets DDP's flag after the forward, which already decided whether the backward synchronises.",
        broken=f"{_TRAINERS}:sync_of_backward_alone",
        fixed=f"{_TRAINERS}:sync_of_both",
        causes=("not_reduced_nor_divided", "not_reduced", "reduced_early", "earlier_not_reduced"),
    ),
    _of_replicas(
        project="verl-project/verl",
        number=7493,
        had="as of 2026-08",
        fixed_in="closed",
        seen="With shards of size one on several GPUs, each GPU trains its own model.",
        fault="Gradients are synchronised in the group of the shards, which has one rank.",
        broken=f"{_TRAINERS}:groups_of_one",
        fixed=f"{_TRAINERS}:trainer",
        causes=("not_reduced_nor_divided", "not_reduced"),
    ),
    _of_replicas(
        project="deepspeedai/DeepSpeed",
        number=7985,
        had="0.18.6",
        fixed_in="#7985",
        seen="Losses and norms differ more and more between equivalent settings.",
        fault="The accumulator is reduced before it has the last micro-batch.",
        broken=f"{_TRAINERS}:reduced_before_taken",
        fixed=f"{_TRAINERS}:accumulates_apart",
        causes=("reduced_early",),
    ),
)
