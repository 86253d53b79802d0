"""What losses count over micro-batches, tokens and steps."""

from __future__ import annotations

from functools import partial

from gradconform.bench.defect import TARGET, Defect

_AREA = "scaling of losses"
_TRAINERS = "gradconform.bench.code.trainers"
_PIPELINES = "gradconform.bench.code.pipelines"
_PLAIN = "gradconform.reference.runtime:PlainRuntime"
#: The steps over replicas, which are all that a trainer without stages has.
_REPLICAS = ("pipeline", TARGET, "--checks", "step.ddp,step.ddp-tokens")
_STAGES = ("pipeline", TARGET, "--checks", "step.plain,step.ddp-tokens")

#: What is shared, where a record says nothing else.
_of_trainer = partial(Defect, area=_AREA, command=_REPLICAS, mended=f"{_TRAINERS}:trainer")
_of_pipeline = partial(Defect, area=_AREA, command=_STAGES, mended=_PLAIN)
_auxiliary = partial(Defect, project="NVIDIA-NeMo/Automodel", area="auxiliary losses", mended=_PLAIN)

DEFECTS = (
    _of_trainer(
        project="huggingface/transformers",
        number=34191,
        had="before #34191",
        mended_in="#34191",
        seen="Training with gradient accumulation gave other losses than the same batch in one piece.",
        fault="The model takes the mean over the tokens of each micro-batch, and the loop the mean of these.",
        broken=f"{_TRAINERS}:mean_of_means",
        causes=("mean_of_microbatches",),
    ),
    _of_trainer(
        project="huggingface/transformers",
        number=40052,
        had="4.54.1",
        mended_in="the report asks for it; closed",
        seen="With accumulation losses were divided twice, and gradients too small by the number of micro-batches.",
        fault="The loop divides the loss, and accelerate's backward divides it again.",
        broken=f"{_TRAINERS}:divided_twice",
        causes=("divided",),
    ),
    _of_trainer(
        project="deepinsight/insightface",
        number=2258,
        had="as of 2023-03",
        mended_in="announced in the report",
        seen="With accumulation the learning rate acted as if it were larger; models still trained.",
        fault="The loss is not divided by the number of micro-batches.",
        broken=f"{_TRAINERS}:never_divided",
        causes=("multiplied",),
    ),
    _of_trainer(
        project="OpenNMT/OpenNMT-py",
        number=526,
        had="as of 2018-01",
        mended_in="#526",
        seen="Accuracy was slightly less than it should be with normalisation by tokens.",
        fault="Losses are divided by the number of sentences, whatever is asked.",
        broken=f"{_TRAINERS}:by_sentences",
        causes=("divided_by_other",),
    ),
    _of_trainer(
        project="deepspeedai/DeepSpeed",
        number=7839,
        had="before #7839",
        mended_in="#7839",
        seen="In bfloat16 without ZeRO the norm of gradients was 65536 times too small.",
        fault="The optimizer takes off a loss scale that the engine has never put on.",
        broken=f"{_TRAINERS}:scale_taken_off_alone",
        mended=f"{_TRAINERS}:loss_scaled",
        causes=("scaled", "divided_by_other"),
    ),
    _of_pipeline(
        project="pytorch/torchtitan",
        number=2972,
        had="as of 2026-04",
        mended_in="none in the report; #4194 does so for Forge",
        seen="Gradients with pipeline parallelism were larger than without, by the number of tokens.",
        fault="The schedule runs the backward of a sum; the division by tokens comes behind it, for metrics.",
        broken=f"{_PIPELINES}:normalised_for_metrics",
        causes=("multiplied", "divided_by_other"),
    ),
    _of_pipeline(
        project="deepspeedai/DeepSpeed",
        number=7773,
        had="as of 2026-01",
        mended_in="none in the report",
        seen="With a pipeline the norm of gradients grew with the number of micro-batches.",
        fault="The pipeline engine never divides losses by the number of micro-batches.",
        broken=f"{_PIPELINES}:summed_over_microbatches",
        causes=("multiplied",),
    ),
    _of_pipeline(
        project="areal-project/AReaL",
        number=1273,
        had="before #1273",
        mended_in="#1273",
        seen="The norm of gradients was smaller than that of the FSDP engine, by the number of micro-batches.",
        fault="The caller normalises each loss, and Megatron's schedule divides it by the number of micro-batches.",
        broken=f"{_PIPELINES}:divided_by_schedule",
        causes=("divided",),
    ),
    _of_pipeline(
        project="pytorch/torchtitan",
        number=1733,
        had="torch 2.13.0, with the schedules' default",
        mended_in="torchtitan #1732 sets scale_grads=False; the kit's own runtime in its place",
        seen="With a pipeline and accumulation loss curves diverged, and gradients were much too small.",
        fault="At the end of each step all gradients are divided by the number of micro-batches, and those of "
        "earlier steps again.",
        command=("pipeline", TARGET, "--checks", "step.checkpoint-accumulated"),
        broken="torch",
        causes=("divided_again",),
        real=True,
    ),
    _auxiliary(
        number=1408,
        had="before #1412",
        mended_in="#1412",
        seen="Experts were not balanced: the auxiliary loss had no effect on the router.",
        fault="What puts the auxiliary loss into the graph returns a tensor that nobody takes.",
        command=("pipeline", TARGET, "--checks", "step.auxiliary"),
        broken=f"{_PIPELINES}:auxiliary_discarded",
        causes=("auxiliary_missing", "never_accumulated"),
    ),
    _auxiliary(
        number=3359,
        had="before #3359",
        mended_in="#3359",
        seen="Auxiliary losses weighed more the more micro-batches were accumulated.",
        fault="Each micro-batch's auxiliary loss enters the backward as it is, while the loss is normalised.",
        command=("pipeline", TARGET, "--profile", "standard", "--checks", "step.pairs.checkpoint-2,step.pairs.ddp-3"),
        broken=f"{_PIPELINES}:auxiliary_not_normalised",
        causes=("auxiliary_scaled",),
    ),
)
