"""Training steps whose ranks share experts, sequences or what data use, of reports that sharded records have too."""

from __future__ import annotations

from functools import partial

from gradconform.bench.defect import TARGET, Defect

_CODE = "gradconform.bench.code.shared_steps"
_PLAIN = "gradconform.reference.runtime:PlainRuntime"


def _on(*checks: str) -> tuple[str, ...]:
    return ("pipeline", TARGET, "--profile", "standard", "--checks", ",".join(f"step.{one}" for one in checks))


#: What is shared, where a record says nothing else.
_step = partial(Defect, area="steps with experts and context", part="step", fixed=_PLAIN)
_megatron = partial(_step, project="NVIDIA/Megatron-LM")

DEFECTS = (
    _step(
        project="pytorch/pytorch",
        number=160285,
        had="torchtitan as of 2025-08",
        fixed_in="none; open",
        seen="With two expert ranks, the gradients of experts are doubled.",
        fault="The report names no cause; here they are sums over the tokens of both ranks, whose losses are means.",
        command=_on("experts", "idle-experts"),
        broken=f"{_CODE}:experts_doubled",
        causes=("multiplied",),
    ),
    _megatron(
        number=5956,
        had="Megatron-FSDP v2 before #5956",
        fixed_in="#5956",
        seen="Gradients of experts are too large by the number of ranks that share experts.",
        fault="The mean divides by the ranks that have the same experts, not by those whose tokens they got.",
        command=_on("experts", "dropped-tokens"),
        broken=f"{_CODE}:experts_divided_by_copies",
        causes=("multiplied",),
    ),
    _megatron(
        number=7165,
        part="",
        had="before #7165",
        fixed_in="#7165",
        seen="With generalized tensor parallelism, gradients of experts and the norm are too large.",
        fault="A smaller group of replicas scales all gradients, and later only others get the rest of the mean.",
        command=_on("experts", "idle-experts"),
        broken=f"{_CODE}:experts_of_shrunk_group",
        causes=("multiplied",),
    ),
    _megatron(
        number=5916,
        had="before #5916",
        fixed_in="#5916",
        seen="With expert and tensor parallelism, the clipping norm leaves out some experts.",
        fault="Experts that no tensor rank divides count as copies on all tensor ranks but the first.",
        command=_on("experts-over-tensor-ranks"),
        broken=f"{_CODE}:experts_taken_for_copies",
        causes=("norm_leaves_out",),
    ),
    _megatron(
        number=7452,
        part="second-loss-step",
        had="as of 2026-09",
        fixed_in="none; open",
        seen="With losses per token, the loss of predicted later tokens is biased if replicas count unequal numbers.",
        fault="It is normalised by the tokens of one replica; here it is the auxiliary loss of a stage.",
        command=_on("ddp-auxiliary-tokens"),
        broken=f"{_CODE}:auxiliary_by_own_tokens",
        causes=("auxiliary_of_replicas",),
    ),
    _megatron(
        number=7452,
        part="own-tokens-step",
        had="as of 2026-09",
        fixed_in="proposed in pull request #7513",
        seen="With context parallelism, masked tokens change the weight of the other tokens.",
        fault="Each rank divides its loss by its own valid tokens, and the gradients of ranks are averaged.",
        command=_on("mean-of-halves"),
        broken=f"{_CODE}:mean_of_own_tokens",
        causes=("mean_of_replicas",),
    ),
    _step(
        project="NVIDIA-NeMo/Automodel",
        number=3540,
        part="",
        had="before #3540",
        fixed_in="#3540",
        seen="Ranks that a parameter's tokens did not reach reduce other parameters than the rest.",
        fault="A parameter without a gradient is left out of the reduction; the fixed version fills in zeros.",
        command=_on("used-on-one-replica"),
        broken=f"{_CODE}:unused_not_reduced",
        causes=("not_reduced", "not_reduced_nor_divided", "never_accumulated"),
    ),
    _step(
        project="NVIDIA-NeMo/Automodel",
        number=2995,
        had="before #2995",
        fixed_in="#2995",
        seen="The router learns from auxiliary losses alone.",
        fault="Routing weights are gathered over expert ranks by a collective that has no backward.",
        command=_on("experts", "whole-experts"),
        broken=f"{_CODE}:router_without_gradient",
        causes=("only_auxiliary",),
    ),
)
