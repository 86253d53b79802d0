"""Losses with wrong counts over micro-batches, tokens and steps."""

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
_of_trainer = partial(Defect, area=_AREA, command=_REPLICAS, fixed=f"{_TRAINERS}:trainer")
_of_pipeline = partial(Defect, area=_AREA, command=_STAGES, fixed=_PLAIN)
_auxiliary = partial(Defect, project="NVIDIA-NeMo/Automodel", area="auxiliary losses", fixed=_PLAIN)

DEFECTS = (
    _of_trainer(
        project="huggingface/transformers",
        number=34191,
        had="before #34191",
        fixed_in="#34191",
        seen="Gradient accumulation gives other losses than the same batch in one piece.",
        fault="The model averages over the tokens of each micro-batch, and the loop averages these means.",
        broken=f"{_TRAINERS}:mean_of_means",
        causes=("mean_of_microbatches",),
    ),
    _of_trainer(
        project="huggingface/transformers",
        number=40052,
        had="4.54.1",
        fixed_in="requested in the report; closed",
        seen="With accumulation, gradients are too small by the number of micro-batches.",
        fault="The loop divides the loss, and accelerate's backward divides it again.",
        broken=f"{_TRAINERS}:divided_twice",
        causes=("divided",),
    ),
    _of_trainer(
        project="deepinsight/insightface",
        number=2258,
        had="as of 2023-03",
        fixed_in="announced in the report",
        seen="With accumulation, the learning rate acts as if it were larger, and models still train.",
        fault="The loss is not divided by the number of micro-batches.",
        broken=f"{_TRAINERS}:never_divided",
        causes=("multiplied",),
    ),
    _of_trainer(
        project="OpenNMT/OpenNMT-py",
        number=526,
        had="as of 2018-01",
        fixed_in="#526",
        seen="Accuracy is slightly too low with normalisation by tokens.",
        fault="Losses are always divided by the number of sentences.",
        broken=f"{_TRAINERS}:by_sentences",
        causes=("divided_by_other",),
    ),
    _of_trainer(
        project="deepspeedai/DeepSpeed",
        number=7839,
        had="before #7839",
        fixed_in="#7839",
        seen="In bfloat16 without ZeRO, the norm of gradients is 65536 times too small.",
        fault="The optimizer removes a loss scale that the engine never applied.",
        broken=f"{_TRAINERS}:scale_taken_off_alone",
        fixed=f"{_TRAINERS}:loss_scaled",
        causes=("scaled", "divided_by_other"),
    ),
    _of_pipeline(
        project="pytorch/torchtitan",
        number=2972,
        had="as of 2026-04",
        fixed_in="none in the report; #4194 does so for Forge",
        seen="With pipeline parallelism, gradients are larger by the number of tokens.",
        fault="The schedule runs the backward of a sum, and divides by tokens only afterwards, for metrics.",
        broken=f"{_PIPELINES}:normalised_for_metrics",
        causes=("multiplied", "divided_by_other"),
    ),
    _of_pipeline(
        project="deepspeedai/DeepSpeed",
        number=7773,
        had="as of 2026-01",
        fixed_in="none in the report",
        seen="With a pipeline, the norm of gradients grows with the number of micro-batches.",
        fault="The pipeline engine never divides losses by the number of micro-batches.",
        broken=f"{_PIPELINES}:summed_over_microbatches",
        causes=("multiplied",),
    ),
    _of_pipeline(
        project="areal-project/AReaL",
        number=1273,
        had="before #1273",
        fixed_in="#1273",
        seen="The norm of gradients is smaller than the FSDP engine's, by the number of micro-batches.",
        fault="The caller normalises each loss, and Megatron's schedule divides it by the number of micro-batches.",
        broken=f"{_PIPELINES}:divided_by_schedule",
        causes=("divided",),
    ),
    _of_pipeline(
        project="pytorch/torchtitan",
        number=1733,
        had="torch 2.13.0, with the schedules' default",
        fixed_in="torchtitan #1732 sets scale_grads=False; the kit's runtime is judged instead",
        seen="With a pipeline and accumulation, loss curves diverge and gradients are much too small.",
        fault="Each step ends by dividing all gradients by the number of micro-batches, those of earlier steps again.",
        command=("pipeline", TARGET, "--checks", "step.checkpoint-accumulated"),
        broken="torch",
        causes=("divided_again",),
        real=True,
    ),
    _auxiliary(
        number=1408,
        had="before #1412",
        fixed_in="#1412",
        seen="Experts are not balanced: the auxiliary loss has no effect on the router.",
        fault="The function that puts the auxiliary loss into the graph returns a tensor that no code uses.",
        command=("pipeline", TARGET, "--checks", "step.auxiliary"),
        broken=f"{_PIPELINES}:auxiliary_discarded",
        causes=("auxiliary_missing", "never_accumulated"),
    ),
    _auxiliary(
        number=3359,
        had="before #3359",
        fixed_in="#3359",
        seen="Auxiliary losses weigh more with more accumulated micro-batches.",
        fault="The loss is normalised, but each micro-batch's auxiliary loss is not.",
        command=("pipeline", TARGET, "--profile", "standard", "--checks", "step.pairs.checkpoint-2,step.pairs.ddp-3"),
        broken=f"{_PIPELINES}:auxiliary_not_normalised",
        causes=("auxiliary_scaled",),
    ),
)
