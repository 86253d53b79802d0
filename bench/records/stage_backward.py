"""Stage backwards: torch's own as 2.13.0 has it, PiPPy's, and what earlier releases of torch did."""

from __future__ import annotations

from functools import partial

from gradconform.bench.defect import TARGET, Defect

_AREA = "stage backward"
_CODE = "gradconform.bench.code.stage_backward"


def _checks(*globs: str) -> tuple[str, ...]:
    """Return the command on the stages that the report is of."""
    return ("run", TARGET, "--no-isolation", "--checks", ",".join(globs))


#: Torch's own code is judged as it is, and no release of it is mended.
_of_torch = partial(
    Defect,
    project="pytorch/pytorch",
    area=_AREA,
    had="2.13.0",
    mended_in="no release so far; the kit's own split in its place",
    broken="torch",
    mended="reference-split",
    real=True,
)

#: What earlier releases did.
_of_release = partial(Defect, project="pytorch/pytorch", area=_AREA)

DEFECTS = (
    _of_torch(
        number=142229,
        seen="A split backward raises where an output is a view, as that of a Linear on 3-D input.",
        fault="Outputs are detached in place.",
        command=_checks("split.gradients.linear-3d", "split.gradients.output-*"),
        causes=("error",),
    ),
    _of_torch(
        number=144530,
        seen="Under zero-bubble schedules DDP never reduces: hooks on parameters do not fire.",
        fault="W takes gradients by `torch.autograd.grad` and adds them by itself.",
        command=_checks("hooks.*"),
        causes=("hooks",),
    ),
    _of_torch(
        number=153833,
        seen="What W returns are the gradients from before it.",
        fault="The tuple is made before gradients are added.",
        command=_checks("state.weight_result.*"),
        causes=("stale", "stale_nothing"),
    ),
    _of_torch(
        number=138863,
        seen="A stage whose inputs need no gradient, the first or the only one, has parameters without gradients.",
        fault="The groups that W works on are found by a walk from the inputs.",
        command=_checks("split.*.embedding*", "split.*.fixed-inputs"),
        causes=("never_accumulated",),
    ),
    _of_torch(
        number=164329,
        had="2.13.0, in the split",
        mended_in="the full backward alone",
        seen="Input gradients of one micro-batch change when another is run that has the same input.",
        fault="What is returned is `.grad` of the input, which the next backward adds to.",
        command=_checks("accumulate.reused_input.*", "state.returned_same_args.*"),
        causes=("added", "changed", "shared"),
    ),
    _of_torch(
        number=166577,
        seen="W raises where a custom function returns None for its weight.",
        fault="What was kept for the function is taken for a gradient.",
        command=_checks("split.*.custom-none-for-weight"),
        causes=("error",),
    ),
    _of_release(
        number=180952,
        had="2.12",
        mended_in="2.13.0",
        seen="A weight that is used at two depths has a wrong gradient.",
        fault="W starts at each place where the weight enters, and what lies below the upper one is walked twice.",
        command=_checks("split.*.tied*", "split.*.looped-block"),
        broken=f"{_CODE}:nodes_each_alone",
        mended=f"{_CODE}:nodes_apart",
        causes=("uses_miscounted",),
    ),
    _of_release(
        number=136507,
        had="PiPPy 0.2.0, and torch before #136507",
        mended_in="#136507; torch 2.13.0 is judged",
        seen="Outputs and their graph stay alive until the garbage collector runs.",
        fault="A recursive function inside the backward refers to itself, and to what it has walked.",
        command=_checks("lifetime.*full*"),
        broken="torchpippy",
        mended="torch",
        causes=("alive",),
        real=True,
    ),
    _of_release(
        number=182182,
        had="2.8 to 2.11, in the first half of the split",
        mended_in="2.12",
        seen="With an input that needs no gradient every later one got that of its neighbour.",
        fault="Gradients are returned for the inputs that need one, and nothing in the place of the others.",
        command=("run", TARGET, "--no-isolation"),
        broken=f"{_CODE}:input_shifts",
        mended=f"{_CODE}:input_in_place",
        causes=("returned_elsewhere", "not_returned", "error"),
    ),
    _of_release(
        number=170277,
        had="2.9 to 2.11",
        mended_in="2.12",
        seen="Where a node has several outputs their gradients are all added up in the first.",
        fault="W starts at the first output of a node, with the sum of what came in at all of them.",
        command=_checks("split.gradients.*", "split.loss.*"),
        broken=f"{_CODE}:nodes_summed",
        mended=f"{_CODE}:nodes_apart",
        causes=("mismatch",),
    ),
)
