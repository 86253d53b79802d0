"""Layers whose backward a library of kernels has, and stages that are run again."""

from __future__ import annotations

from functools import partial

from gradconform.bench.defect import TARGET, Defect

_AREA, _AGAIN = "kernels", "checkpointing"
_KERNELS = "gradconform.bench.code.kernels"
_CHECKPOINTS = "gradconform.bench.code.checkpoints"
_RUN = ("run", TARGET, "--no-isolation")

#: What is shared, where a record says nothing else.
_kernel = partial(Defect, area=_AREA, command=_RUN)
_again = partial(Defect, area=_AGAIN)

DEFECTS = (
    _kernel(
        project="unslothai/unsloth",
        number=4533,
        had="as of 2026-03",
        mended_in="proposed in pull request #4550",
        seen="Weights of norms never changed in full finetuning.",
        fault="The backward of the norm returns None for the weight.",
        broken=f"{_KERNELS}:norm_leaves_weight",
        mended=f"{_KERNELS}:norm_trains_weight",
        causes=("never_accumulated",),
    ),
    _kernel(
        project="NVIDIA/apex",
        number=1430,
        had="as of 2022-07",
        mended_in="closed",
        seen="The gradient that came into a softmax was another one behind its backward.",
        fault="The kernel computes in the buffer of the incoming gradient.",
        command=("run", TARGET, "--no-isolation", "--stage", f"{_KERNELS}:softmax_stage"),
        broken=f"{_KERNELS}:softmax_in_place",
        mended=f"{_KERNELS}:softmax_apart",
        causes=("changed", "mismatch"),
    ),
    _kernel(
        project="linkedin/Liger-Kernel",
        number=1251,
        had="as of 2026-06, reported in #272",
        mended_in="proposed in pull request #1251, on request",
        seen="The gradient before an operation that had saved its output was wrong, without a word.",
        fault="The gradient of the input is written over the input, which autograd does not notice.",
        broken=f"{_KERNELS}:linear_into_input",
        mended=f"{_KERNELS}:linear",
        causes=("mismatch", "changed"),
    ),
    _kernel(
        project="Dao-AILab/flash-attention",
        number=355,
        had="as of 2023-07",
        mended_in="closed; the report asks for contiguous gradients",
        seen="Gradients were wrong where the incoming gradient was not contiguous.",
        fault="The kernel reads it by its address and the length of its rows.",
        broken=f"{_KERNELS}:linear_as_rows",
        mended=f"{_KERNELS}:linear",
        causes=("read_as_contiguous",),
        otherwise="The cause is looked for in the output gradients of the stage; here one inside is read so, of a "
        "layer whose outputs are transposed.",
    ),
    _kernel(
        project="linkedin/Liger-Kernel",
        number=1298,
        had="before #1298",
        mended_in="#1298",
        seen="With a loss for each token gradients were wrong unless all tokens weighed alike.",
        fault="What is computed in the forward is multiplied by the first element of the incoming gradient.",
        broken=f"{_KERNELS}:tanh_by_first",
        mended=f"{_KERNELS}:tanh_ahead",
        causes=("mismatch",),
    ),
    _kernel(
        project="pytorch/pytorch",
        number=177116,
        had="as of 2026-03, on MPS",
        mended_in="none; open",
        seen="Above 32,768 elements gradients were a thousand times too large, where another shape had run before.",
        fault="Memory of a pass of another shape is taken for a new one, and is not cleared.",
        command=("run", TARGET, "--no-isolation", "--block", "swiglu"),
        broken=f"{_KERNELS}:linear_pooled",
        mended=f"{_KERNELS}:linear",
        causes=("mismatch",),
    ),
    _again(
        project="allenai/OLMo-core",
        number=828,
        had="before #828",
        mended_in="#828",
        seen="Turning checkpointing off, which should change nothing, made the loss smaller.",
        fault="`preserve_rng_state=False` under dropout: what is run again draws other masks.",
        command=("run", TARGET, "--no-isolation", "--checks", "full.*,mode.*,state.*"),
        broken=f"{_CHECKPOINTS}:rng_not_kept",
        mended=f"{_CHECKPOINTS}:not_reentrant",
        causes=("mismatch",),
        real=True,
    ),
    _again(
        project="openai/guided-diffusion",
        number=167,
        had="22e0df81",
        mended_in="none; open",
        seen="With checkpointing and dropout the loss diverged.",
        fault="A checkpoint of its own runs the forward again without restoring the generators.",
        command=("run", TARGET, "--no-isolation", "--checks", "full.*.dropout*,full.*.mlp*,state.rng.*"),
        broken=f"{_CHECKPOINTS}:own_forgetting",
        mended=f"{_CHECKPOINTS}:own_restoring",
        causes=("mismatch",),
    ),
)
