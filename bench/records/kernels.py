"""Layers whose backward is in a kernel library, and recomputed stages."""

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
        fixed_in="proposed in pull request #4550",
        seen="In full finetuning, the weights of norm layers never change.",
        fault="The backward of the norm returns None for the weight.",
        broken=f"{_KERNELS}:norm_leaves_weight",
        fixed=f"{_KERNELS}:norm_trains_weight",
        causes=("never_accumulated",),
    ),
    _kernel(
        project="NVIDIA/apex",
        number=1430,
        had="as of 2022-07",
        fixed_in="closed",
        seen="The gradient that a softmax receives has other values after its backward.",
        fault="The kernel computes in the buffer of the incoming gradient.",
        command=("run", TARGET, "--no-isolation", "--stage", f"{_KERNELS}:softmax_stage"),
        broken=f"{_KERNELS}:softmax_in_place",
        fixed=f"{_KERNELS}:softmax_apart",
        causes=("changed", "mismatch"),
    ),
    _kernel(
        project="linkedin/Liger-Kernel",
        number=1251,
        had="as of 2026-06, reported in #272",
        fixed_in="proposed in pull request #1251, on request",
        seen="The gradient before an operation that saved its output is wrong, without an error.",
        fault="It writes the gradient of the input over the input, and autograd does not detect that.",
        broken=f"{_KERNELS}:linear_into_input",
        fixed=f"{_KERNELS}:linear",
        causes=("mismatch", "changed"),
    ),
    _kernel(
        project="Dao-AILab/flash-attention",
        number=355,
        had="as of 2023-07",
        fixed_in="closed; the report recommends contiguous gradients",
        seen="Gradients are wrong if the incoming gradient is not contiguous.",
        fault="The kernel reads it by its address and row length.",
        broken=f"{_KERNELS}:linear_as_rows",
        fixed=f"{_KERNELS}:linear",
        causes=("read_as_contiguous",),
        otherwise="The kit looks for the cause in the stage's output gradients. Here it is in an inner one, of a "
        "layer whose outputs are transposed.",
    ),
    _kernel(
        project="linkedin/Liger-Kernel",
        number=1298,
        had="before #1298",
        fixed_in="#1298",
        seen="With one loss per token, gradients are wrong unless all tokens have the same weight.",
        fault="The backward multiplies a result of the forward by the first element of the incoming gradient.",
        broken=f"{_KERNELS}:tanh_by_first",
        fixed=f"{_KERNELS}:tanh_ahead",
        causes=("mismatch",),
    ),
    _kernel(
        project="pytorch/pytorch",
        number=177116,
        had="as of 2026-03, on MPS",
        fixed_in="none; open",
        seen="Above 32,768 elements, gradients are a thousand times too large if another shape ran before.",
        fault="It uses the memory of a pass of another shape as new, without clearing it.",
        command=("run", TARGET, "--no-isolation", "--block", "swiglu"),
        broken=f"{_KERNELS}:linear_pooled",
        fixed=f"{_KERNELS}:linear",
        causes=("mismatch",),
    ),
    _again(
        project="allenai/OLMo-core",
        number=828,
        had="before #828",
        fixed_in="#828",
        seen="Without checkpointing, which should change nothing, the loss is smaller.",
        fault="With `preserve_rng_state=False`, dropout draws other masks when the forward runs again.",
        command=("run", TARGET, "--no-isolation", "--checks", "full.*,mode.*,state.*"),
        broken=f"{_CHECKPOINTS}:rng_not_kept",
        fixed=f"{_CHECKPOINTS}:not_reentrant",
        causes=("mismatch",),
        real=True,
    ),
    _again(
        project="openai/guided-diffusion",
        number=167,
        had="22e0df81",
        fixed_in="none; open",
        seen="With checkpointing and dropout, the loss diverges.",
        fault="The project's own checkpoint runs the forward again without restoring the generators.",
        command=("run", TARGET, "--no-isolation", "--checks", "full.*.dropout*,full.*.mlp*,state.rng.*"),
        broken=f"{_CHECKPOINTS}:own_forgetting",
        fixed=f"{_CHECKPOINTS}:own_restoring",
        causes=("mismatch",),
    ),
)
