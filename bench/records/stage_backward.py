"""Stage backwards: torch 2.13.0's own, PiPPy's, and those of earlier releases of torch."""

from __future__ import annotations

from functools import partial

from gradconform.bench.defect import TARGET, Defect

_AREA = "stage backward"
_CODE = "gradconform.bench.code.stage_backward"


def _checks(*globs: str) -> tuple[str, ...]:
    """Return the command on the stages of the report."""
    return ("run", TARGET, "--no-isolation", "--checks", ",".join(globs))


#: Torch's own code is judged unchanged, and no release of it is fixed.
_of_torch = partial(
    Defect,
    project="pytorch/pytorch",
    area=_AREA,
    had="2.13.0",
    fixed_in="no release yet; the kit's split is judged instead",
    broken="torch",
    fixed="reference-split",
    real=True,
)

#: What earlier releases did.
_of_release = partial(Defect, project="pytorch/pytorch", area=_AREA)

DEFECTS = (
    _of_torch(
        number=142229,
        seen="A split backward raises if an output is a view, such as that of a Linear on 3-D input.",
        fault="It detaches outputs in place.",
        command=_checks("split.gradients.linear-3d", "split.gradients.output-*"),
        causes=("error",),
    ),
    _of_torch(
        number=144530,
        seen="Under zero-bubble schedules, DDP never reduces: hooks on parameters do not fire.",
        fault="W calls `torch.autograd.grad` and adds the gradients without autograd.",
        command=_checks("hooks.*"),
        causes=("hooks",),
    ),
    _of_torch(
        number=153833,
        seen="W returns the gradients from before the call.",
        fault="It makes the tuple before it adds gradients.",
        command=_checks("state.weight_result.*"),
        causes=("stale", "stale_nothing"),
    ),
    _of_torch(
        number=138863,
        seen="The parameters of a stage get no gradients if no input needs one, as on the first or only stage.",
        fault="It finds the groups for W by a walk from the inputs.",
        command=_checks("split.*.embedding*", "split.*.fixed-inputs"),
        causes=("never_accumulated",),
    ),
    _of_torch(
        number=164329,
        had="2.13.0, in the split",
        fixed_in="in the full backward only",
        seen="Input gradients of a micro-batch change when another runs with the same input.",
        fault="It returns `.grad` of the input, and the next backward adds to that.",
        command=_checks("accumulate.reused_input.*", "state.returned_same_args.*"),
        causes=("added", "changed", "shared"),
    ),
    _of_torch(
        number=166577,
        seen="W raises if a custom function returns None for its weight.",
        fault="It takes the value stored for the function for a gradient.",
        command=_checks("split.*.custom-none-for-weight"),
        causes=("error",),
    ),
    _of_release(
        number=180952,
        had="2.12",
        fixed_in="2.13.0",
        seen="A weight that is used at two depths gets a wrong gradient.",
        fault="W starts at each use of the weight, and walks the graph below the upper use twice.",
        command=_checks("split.*.tied*", "split.*.looped-block"),
        broken=f"{_CODE}:nodes_each_alone",
        fixed=f"{_CODE}:nodes_apart",
        causes=("uses_miscounted",),
    ),
    _of_release(
        number=136507,
        had="PiPPy 0.2.0, torch before #136507",
        fixed_in="#136507; torch 2.13.0 is judged",
        seen="Outputs and their graph stay alive until the garbage collector runs.",
        fault="A recursive function inside the backward refers to itself and to all that it walked.",
        command=_checks("lifetime.*full*"),
        broken="torchpippy",
        fixed="torch",
        causes=("alive",),
        real=True,
    ),
    _of_release(
        number=182182,
        had="2.8 to 2.11, in I",
        fixed_in="2.12",
        seen="If an input needs no gradient, every later input gets that of its neighbour.",
        fault="It returns gradients for the inputs that need one, and leaves out the others.",
        command=("run", TARGET, "--no-isolation"),
        broken=f"{_CODE}:input_shifts",
        fixed=f"{_CODE}:input_in_place",
        causes=("returned_elsewhere", "not_returned", "error"),
    ),
    _of_release(
        number=170277,
        had="2.9 to 2.11",
        fixed_in="2.12",
        seen="If a node has several outputs, their gradients are all added to the first.",
        fault="W starts at a node's first output, with the sum of the gradients of all.",
        command=_checks("split.gradients.*", "split.loss.*"),
        broken=f"{_CODE}:nodes_summed",
        fixed=f"{_CODE}:nodes_apart",
        causes=("mismatch",),
    ),
)
