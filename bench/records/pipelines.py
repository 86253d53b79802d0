"""Wrong communication, tying and clipping in pipelines, and wrong sharing over tensor ranks."""

from __future__ import annotations

from functools import partial

from gradconform.bench.defect import TARGET, Defect

_SENT, _NORM, _TENSOR = "sent and tied tensors", "norm and clipping", "tensor and expert ranks"
_PIPELINES = "gradconform.bench.code.pipelines"
_RANKS = "gradconform.bench.code.tensor_ranks"
_PLAIN = "gradconform.reference.runtime:PlainRuntime"
_STEPS = ("pipeline", TARGET, "--checks", "step.plain,step.gpipe-sum")
_CLIPPED = ("pipeline", TARGET, "--checks", "step.*clipped")


def _rows(*names: str) -> tuple[str, ...]:
    """Return the command on rows of profile standard."""
    return ("pipeline", TARGET, "--profile", "standard", "--checks", ",".join(names))


#: What is shared, where a record says nothing else.
_sent = partial(Defect, area=_SENT, command=_STEPS, fixed=_PLAIN)
_norm = partial(Defect, area=_NORM, command=_CLIPPED, fixed=_PLAIN)
_tensor = partial(Defect, area=_TENSOR, fixed=_PLAIN)

DEFECTS = (
    _sent(
        project="pytorch/pytorch",
        number=139404,
        had="as of 2024-10",
        fixed_in="#140981",
        seen="If several backwards run before their sends, wrong gradients are sent.",
        fault="A stage keeps only the input gradients of its newest backward.",
        broken=f"{_PIPELINES}:newest_result_kept",
        fixed=f"{_PIPELINES}:sends_behind",
        causes=("mismatch",),
    ),
    _sent(
        project="deepspeedai/DeepSpeed",
        number=4777,
        had="as of 2023-12",
        fixed_in="#5481, by dynamic_shape=True",
        seen="Micro-batches of different lengths cannot be accumulated: shapes of outputs and labels differ.",
        fault="Stages send the shape of their tensors once, and make receive buffers once.",
        command=_rows("step.lengths"),
        broken=f"{_PIPELINES}:shapes_of_first",
        causes=("error",),
    ),
    _sent(
        project="deepspeedai/DeepSpeed",
        number=5729,
        had="as of 2024-07",
        fixed_in="closed",
        seen="The loss uses the outputs of one micro-batch and the labels of another.",
        fault="The only buffer receives the labels of the next micro-batch before the loss is computed.",
        broken=f"{_PIPELINES}:labels_of_next",
        fixed=f"{_PIPELINES}:labels_in_ring",
        causes=("mismatch",),
    ),
    _sent(
        project="uw-syfi/piper",
        number=13,
        had="as of 2026-07",
        fixed_in="pull request #25",
        seen="Tied embeddings on two ranks become different.",
        fault="Each rank has its own parameter, and no code adds their gradients.",
        command=_CLIPPED,
        broken=f"{_PIPELINES}:tied_not_summed",
        causes=("uses_missing",),
    ),
    _sent(
        project="pytorch/pytorch",
        number=185331,
        had="2.13.0",
        fixed_in="none; open; the kit's runtime is judged instead",
        seen="Hooks on the tensors that a stage receives fire once more in every step.",
        fault="The stage gets the receive buffers themselves, which the next step uses again.",
        command=_rows("step.hooked"),
        broken="torch",
        causes=("hooks", "alive"),
        real=True,
    ),
    _norm(
        project="pytorch/torchtitan",
        number=596,
        had="before #649",
        fixed_in="#649",
        seen="With a pipeline, each rank clips gradients by another norm.",
        fault="Each rank passes only its own parameters to `clip_grad_norm_`.",
        broken=f"{_PIPELINES}:clipped_by_stage",
        causes=("norm_of_stages", "clipped_by_other_norm"),
    ),
    _norm(
        project="NVIDIA/Megatron-LM",
        number=7228,
        had="Megatron-FSDP v2 before #7228",
        fixed_in="#7228",
        seen="With embeddings tied across stages, the norm is too large and gradients are clipped too much.",
        fault="The norm counts both copies of the weight.",
        broken=f"{_PIPELINES}:tied_counted_twice",
        causes=("norm_of_tied",),
    ),
    _norm(
        project="NVIDIA-NeMo/RL",
        number=3788,
        had="as of 2026-08",
        fixed_in="pull request #3788",
        seen="The norm grows with the number of tensor ranks.",
        fault="Parameters that each tensor rank has whole are counted once per rank.",
        command=_rows("step.pairs.sequence-1", "step.pairs.column-row-3"),
        broken=f"{_PIPELINES}:whole_counted_by_each",
        causes=("norm_of_tensor_ranks",),
    ),
    _tensor(
        project="NVIDIA/Megatron-LM",
        number=1446,
        had="fdfcef87",
        fixed_in="closed",
        seen="The gradient of the last norm layer differs between tensor ranks.",
        fault="The layer gets a part of the sequence, and its gradient is not summed over tensor ranks.",
        command=_rows("step.pairs.sequence-1"),
        broken=f"{_RANKS}:last_norm_not_marked",
        causes=("tensor_rank_alone",),
    ),
    _tensor(
        project="inclusionAI/AReno",
        number=496,
        had="before #496",
        fixed_in="#496",
        seen="Gradients of replicated projections are too large by the number of tensor ranks.",
        fault="They are reduced at the input of the column layer, and again as parameters.",
        command=_rows("step.pairs.column-row-1"),
        broken=f"{_RANKS}:replicated_reduced_again",
        causes=("multiplied",),
    ),
    _tensor(
        project="NVIDIA-NeMo/Automodel",
        number=1260,
        had="before #1260",
        fixed_in="#1260",
        seen="Experts converge worse with one way of sharing them than with another.",
        fault="The backward of a gather slices the gradient as if it were equal on all ranks, and sums nothing.",
        command=_rows("step.pairs.sequence-1"),
        broken=f"{_RANKS}:gather_taken_for_replicated",
        fixed=f"{_RANKS}:gather_then_column",
        causes=("tensor_rank_alone",),
        otherwise="An inner gradient lacks another tensor rank's share in some rows, which is no share of a "
        "parameter's gradient. After clipping it looks like another norm.",
    ),
    _tensor(
        project="NovaSky-AI/SkyRL",
        number=1886,
        had="in review of #1886",
        fixed_in="#1886",
        seen="Without sequence parallelism, the model before the head trains on gradients that are not reduced.",
        fault="It reduces a copy of a gradient that is not contiguous, and returns the original.",
        command=_rows("step.pairs.column-row-1"),
        broken=f"{_RANKS}:copy_reduced",
        fixed=f"{_RANKS}:reduced_in_place",
        causes=("tensor_rank_alone",),
    ),
)
