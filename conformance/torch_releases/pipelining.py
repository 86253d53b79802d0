"""``torch.distributed.pipelining``: the stage backward, stages, schedules and the launcher, by names that may move."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from .names import Name, UnavailableError, installed, require

_PACKAGE = "torch.distributed.pipelining"
_STAGE = f"{_PACKAGE}.stage"
_SCHEDULES = f"{_PACKAGE}.schedules"

_OF_THE_BACKWARD = "is the target torch"
#: Private functions, although torch's stages and other projects call them.
BACKWARD = tuple(
    Name(f"{_PACKAGE}._backward", (one,), _OF_THE_BACKWARD)
    for one in ("stage_backward", "stage_backward_input", "stage_backward_weight")
)

#: The modules in which ``PipelineStage`` finds the three functions: an implementation replaces them there.
CALLED_BY_STAGES = tuple(
    Name(_STAGE, (one,), "its PipelineStage calls, so that nothing can be put in its place")
    for one in ("stage_backward", "stage_backward_input", "stage_backward_weight")
)

_OF_SCHEDULES = "makes its schedules"
SCHEDULE_CLASS = Name(_SCHEDULES, ("get_schedule_class",), _OF_SCHEDULES)
SINGLE = Name(_SCHEDULES, ("PipelineScheduleSingle",), _OF_SCHEDULES)
ORDER = Name(_SCHEDULES, ("pipeline_order",), "is the order of a schedule", of_instances=True)
#: Missing in 2.10 and before for some classes.
EVALUATION = Name(_SCHEDULES, ("eval",), "runs a schedule without its backward", of_instances=True)
#: Not in 2.6, which waits only for the last of several transfers; enough if a backend makes one, as NCCL does.
WAIT_FOR_ALL = Name(_SCHEDULES, ("_wait_batch_p2p",), "waits for each of several transfers: schedules hang without it")
#: The messages with which stages connect to their neighbours: not in 2.8 and before, nor in 2.15.
CONNECTS = Name(f"{_STAGE}:_PipelineStageBase", ("_get_init_p2p_neighbors_ops",), "connects stages with neighbours")
#: From 2.12 to 2.14, the schedules' replacement for it.
VOTES = Name(f"{_SCHEDULES}:_PipelineSchedule", ("_warmup_p2p",), "has stages vote, which connects them")
RUNTIME = Name(_SCHEDULES, ("_PipelineScheduleRuntime",), "runs a schedule that a file says")
LOAD_CSV = Name(f"{_SCHEDULES}:_PipelineScheduleRuntime", ("_load_csv",), "reads a schedule from a file")

_OF_TEXT = "works on schedules as text"
ACTION = Name(_SCHEDULES, ("_Action",), _OF_TEXT)
KIND = Name(_SCHEDULES, ("_ComputationType",), _OF_TEXT)
#: Text forms of actions newer than 2.6: those that overlap and reduce by 2.10, those that wait in 2.15.
NEWER_ACTIONS = frozenset({"OVERLAP_F_B", "REDUCE_GRAD", "WAIT_REDUCE_GRAD", "WAIT_SEND_B", "WAIT_SEND_F"})
VALIDATE = Name(_SCHEDULES, ("_validate_schedule",), _OF_TEXT)
MERGE = Name(_SCHEDULES, ("_merge_bw",), _OF_TEXT)
ADD_UNSHARD = Name(_SCHEDULES, ("_add_unshard_reshard",), _OF_TEXT)
ADD_SEND = Name(_SCHEDULES, ("_add_send_recv",), _OF_TEXT)
#: Not in 2.6.
PLACE = Name(f"{_PACKAGE}._utils", ("generate_stage_to_rank_mapping",), "places stages on ranks")

_OF_A_STAGE = "makes a stage ready to run outside a schedule"
_BASE = f"{_STAGE}:_PipelineStageBase"
PREPARE_FORWARD = Name(f"{_STAGE}:PipelineStage", ("_prepare_forward_infra",), _OF_A_STAGE)
PREPARE_BACKWARD = Name(_BASE, ("_prepare_backward_infra",), _OF_A_STAGE)
TAKE_INPUT = Name(_BASE, ("set_local_fwd_input",), _OF_A_STAGE)
TAKE_GRADS = Name(_BASE, ("set_local_bwd_input",), _OF_A_STAGE)
GIVE_GRADS = Name(_BASE, ("get_local_bwd_output",), _OF_A_STAGE)
CLEAR = Name(_BASE, ("clear_runtime_states",), _OF_A_STAGE)
#: Not in 2.10 and before, which only use the metadata that they are given.
INFERENCE_MODE = Name(f"{_PACKAGE}._utils", ("InferenceMode",), "says that all metadata of a stage is given")
MODE_OF_STAGE = Name(_STAGE, ("_inference_mode",), "says that all metadata of a stage is given", of_instances=True)
VALIDATES = Name(_STAGE, ("_runtime_validate",), "lets a stage validate its arguments", of_instances=True)

_OF_CACHES = "is one of the caches of a stage"
CACHES = {
    "forward cache": Name(_STAGE, ("_forward_chunk_states", "fwd_cache"), _OF_CACHES, of_instances=True),  # 2.15
    "backward cache": Name(_STAGE, ("bwd_cache",), _OF_CACHES, of_instances=True),
    "output chunks": Name(_STAGE, ("output_chunks",), _OF_CACHES, of_instances=True),
    "weight runners": Name(_STAGE, ("dw_runner",), _OF_CACHES, of_instances=True),
}

#: The names that each part of the kit requires.
FOR_PIPELINES = (*CALLED_BY_STAGES, SCHEDULE_CLASS, SINGLE)
FOR_TEXT = (ACTION, KIND, VALIDATE, MERGE, ADD_UNSHARD, ADD_SEND)
FOR_STAGES = (PREPARE_FORWARD, PREPARE_BACKWARD, TAKE_INPUT, TAKE_GRADS, GIVE_GRADS, CLEAR)


def functions() -> dict[str, Callable[..., Any]]:
    """Return torch's three functions by name; raise :class:`~.names.UnavailableError` for one that is gone."""
    return {name.spellings[0]: name.find() for name in BACKWARD}


#: One of torch's three functions, or its replacement.
StageFunction = Callable[..., Any]


def put_in_stages(functions: Mapping[str, StageFunction]) -> dict[str, StageFunction]:
    """Make every PipelineStage of this process call ``functions``, by torch's names; return the earlier ones.

    Raises :class:`~.names.UnavailableError`, and changes nothing, if stages call no function of such a name.
    """
    places = {name.spellings[-1]: (name.home(), name.spelled(name.home())) for name in CALLED_BY_STAGES}
    before = {name: getattr(*places[name]) for name in functions}
    for name, function in functions.items():
        setattr(*places[name], function)
    return before


def action_of(cell: str) -> Any:
    """Return the action of a cell, None for a bubble; raise torch's error for an invalid action.

    Raises :class:`~.names.UnavailableError` for an action of another release.
    """
    for word in re.findall(r"[A-Z_]{2,}", cell):
        if word in NEWER_ACTIONS and not hasattr(KIND.find(), word):
            msg = f"torch {installed()} has no action {word} in a schedule"
            raise UnavailableError(msg)
    return ACTION.find().from_str(cell)


def no_ranks() -> UnavailableError:
    """Return the error of a torch whose ``_validate_schedule`` returns nothing, such as 2.6."""
    return UnavailableError(f"torch {installed()} does not report which rank of a schedule has which stage")


def make_ready(stage: Any, microbatches: int, example: tuple[Any, ...], *, manual: bool = True) -> None:
    """Prepare a stage as a schedule does before its first step; a ``manual`` stage already has all metadata.

    If these names disappear, the schedules' ``_initialize_stages`` has the new ones.
    """
    require(*FOR_STAGES)
    stage.has_backward = True
    if manual and (INFERENCE_MODE.there() or MODE_OF_STAGE.there(stage)):
        setattr(stage, MODE_OF_STAGE.spelled(stage), INFERENCE_MODE.find().STATIC)
    prepare = PREPARE_FORWARD.find(stage)
    prepare(microbatches, example, **taken(prepare, has_backward=True))
    PREPARE_BACKWARD.find(stage)(microbatches)


def validate(stage: Any, *, checked: bool) -> None:
    """Make a stage validate its inputs and outputs, as TORCH_DISTRIBUTED_DEBUG=DETAIL does.

    In 2.10 and before, a stage always validates. The variable is read once, when a stage is made.
    """
    if INFERENCE_MODE.there() or VALIDATES.there(stage):
        setattr(stage, VALIDATES.spelled(stage), checked)


def taken(function: Callable[..., Any], **options: Any) -> Mapping[str, Any]:
    """Return the options that a function of this release accepts."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in known}


def scaling(schedule: type, *, scaled: bool) -> Mapping[str, Any]:
    """Return the option of a schedule class for scaling gradients; 2.6 has none and scales nothing.

    A class may pass on options that it does not name itself, as torch's runtime does.
    """
    makers = [vars(one)["__init__"] for one in schedule.__mro__ if "__init__" in vars(one) and one is not object]
    options = next((found for maker in makers if (found := taken(maker, scale_grads=scaled))), {})
    if scaled and not options:
        msg = f"torch {installed()} has no scale_grads in {schedule.__name__}, which divides gradients"
        raise UnavailableError(msg)
    return options


def wait_for_all(backend: str) -> None:
    """Raise :class:`~.names.UnavailableError` if schedules do not wait for each transfer of a backend, and hang."""
    if backend == "gloo":
        WAIT_FOR_ALL.find()


def connect(stages: Sequence[Any], backend: str) -> None:
    """Raise :class:`~.names.UnavailableError` if a backend cannot carry the messages that connect stages.

    With gloo, 2.9 sends more than is awaited, which ends the process. Up to 2.11, a stage sends to itself if its
    neighbour is on the same rank, which raises. Every rank finds the same.
    """
    if backend != "gloo" or VOTES.there() or not CONNECTS.there():
        return
    for stage in stages:
        if len({message.tensor.nbytes for message in CONNECTS.find(stage)()}) > 1:
            msg = f"torch {installed()} connects stages by messages larger than those awaited, which end gloo"
            raise UnavailableError(msg)
        ranks = [rank for _, rank in sorted(stage.stage_index_to_group_rank.items())]
        if any(rank == after for rank, after in pairwise(ranks)):
            msg = f"torch {installed()} connects neighbours on one rank by a message to itself, which gloo refuses"
            raise UnavailableError(msg)


def launch_options(config: Callable[..., Any], seconds: float) -> Mapping[str, Any]:
    """Return the option of ``LaunchConfig`` for the time limit of ranks; 2.10 and before accept none."""
    return taken(config, shutdown_timeout=seconds)
