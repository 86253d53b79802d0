"""Causes: why a tensor is wrong, as a value; only this module turns them into sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from enum import Enum, unique
from typing import Any


@unique
class Mistake(Enum):
    """The kinds of mistake, each with its sentence; ``c`` there is the reported :class:`Cause`."""

    # The gradient is missing.
    CLEARED = "cleared after it was accumulated"
    NEVER_ACCUMULATED = "never accumulated"
    ARGUMENT_DETACHED = (
        "never accumulated: the parameter is passed as an argument, and a session that detaches its arguments "
        "withholds parameter_input"
    )
    NOT_RETURNED = "not returned"
    RETURNED_ELSEWHERE = "returned for input {c.slots[0]}: slots are swapped or shifted"
    ARGUMENT_IS_PARAMETER = "the argument is a parameter of the stage"
    ACTION_RAISED = "{c.action} raised and added nothing"
    IDLE_SINCE_ERROR = "nothing was added after the error in {c.action}"
    WEIGHT_TOO_EARLY = "{c.action} came before its I and used up its turn"
    DONE_FOR_OTHER_STAGE = "the backward ran for stage {c.stage} instead"
    DETACHED_COPY = (
        "only parameters inside a checkpoint get none: added to a detached copy of the parameter, or removed again"
    )
    NUMBER_USED_BEFORE = "its micro-batch number was used before"
    SESSION_OPENED = "{c.action} opened another session after its F"
    COLLECTED = "the garbage collector ran after its F and may have freed its context"
    FORGOTTEN = "the W of {c.action} was never called, and this W may have run it instead"
    PAST_COUNT = "only the first {c.counts[0]} B add anything"
    CALLED_WITHOUT_GRAD = "it was called under no_grad, where it may be skipped"
    CALLED_FROM_ANOTHER_THREAD = "it was called from another thread than its F, where it may be skipped"
    MOVED_BY_HOOK = "a hook that moves the gradient away after accumulation is never called"
    FROZEN = "it was frozen in between"
    MEMORY_REPLACED = "its memory was replaced in between"
    THAWED = "it was frozen when the stage was opened and is trained now"
    NO_ELEMENTS = "it has no elements"
    PARAMETERS_PAST_COUNT = "only the first {c.counts[0]} parameters get any"
    ARGUMENTS_PAST_COUNT = "only the first {c.counts[0]} arguments with a gradient get one"
    STAGES_AT_ONCE = "two stages ran at once in two threads, and may share what the backward searches"
    UNUSED_ARGUMENT = "one argument is unused, and the other arguments get no gradient either"
    OUTPUT_GRADS_EMPTY = "the output gradients have no elements and may be treated as None"
    OUTPUT_GRADS_ZERO = "the output gradients are zeros and may be treated as None"
    ARGUMENT_CANCELS = "an argument sums to zero and may be treated as padding"
    ARGUMENT_ZERO = "an argument is all zeros and may be treated as padding"
    OUTPUT_OF_BOOLS = "an output is boolean and may be treated as a mask"
    # Weight contexts get lost.
    CONTEXTS_LOST = "{rules}"
    FIRST_WEIGHT_ONLY = "only the first W of a stage adds anything"
    NEWEST_CONTEXT_KEPT = "only the newest weight context is kept"
    NEWEST_CONTEXTS_KEPT = "only the newest {c.counts[0]} weight contexts are kept"
    LOST_AT_FULL_BACKWARD = "weight contexts are lost if a B runs between I and W"
    KEPT_BY_MICROBATCH = "weight contexts are stored by micro-batch and not by stage"
    DROPPED_WHERE_ANOTHER_WAITS = "a W is dropped if another one is waiting"
    OLDEST_OF_ANY_STAGE = "W takes the oldest weight context of any stage"
    NEWEST_OF_ANY_STAGE = "W takes the newest weight context of any stage"
    # Micro-batches are miscounted.
    ZERO = "it is zero"
    EQUAL_VALUES = "{c.names[0]} has equal values, and one may be taken for the other"
    RELATIVE_ERROR = "a relative error of {c.factors[0]:.2g} everywhere"
    DIVIDED = "scaled by 1/{c.factors[0]:.0f}: divided by {any_name}"
    MULTIPLIED = "scaled by {c.factors[0]:.0f}: multiplied by {any_name}"
    SIGN_REVERSED = "the sign is reversed"
    SCALED = "scaled by {c.factors[0]:.4g}"
    SCALED_IN_PART = "{parts}: {several}"
    COUNTED_TWICE = "{c.factors[0]:.1f} × {parts}: counted twice"
    COMBINATION = "it is {sum}"
    SHARED_WITH_BUFFER = (
        "{c.factors[0]:.1f} × {parts}, and the others are missing: .grad shares memory with the buffer "
        "that each gradient is computed in"
    )
    UNWRITTEN_FOR_NO_ROWS = "{parts} added again for {others}, which has no rows: a buffer's old values"
    OVERWRITTEN = "only {parts}: overwritten instead of accumulated"
    BESIDE_BUFFER = "the sum is in a new .grad tensor, and the caller's buffer, of which .grad was a view, lacks it"
    ONLY = "only {parts}: the others are missing"
    MISSING = "{parts} missing"
    OTHER_SESSIONS_MISSING = "the gradients of other sessions are missing"
    ADDED = "{parts} also added: a running sum, or added too early"
    ADDED_IN_MISUSE = "{parts} added by {c.action}, which must add nothing"
    OTHER_SESSION = "{parts} added by {c.action}, the W of another session"
    CONTEXTS_SWAPPED = "{parts} in place of {others}: contexts are swapped"
    CONTEXTS_SWAPPED_OR_LATE = "{parts} in place of {others}: returned late, or contexts are swapped"
    # The value belongs to something else.
    OTHER_INPUT = "equals the gradient of input {c.slots[0]}: slots are swapped or shifted"
    OTHER_PARAMETER = "equals the gradient of {c.names[0]}: parameters are mixed up, or share a buffer"
    ADDED_OF_OTHER_PARAMETER = "{parts} added the gradient of {c.names[0]} here: parameters are mixed up"
    ROWS_OF_OTHER = "its rows were added to those of {parts}"
    ONE_BUFFER = "the first {c.counts[0]} elements are those of the gradient of {c.names[0]}: one buffer for both"
    WRITTEN_OVER = "the caller overwrote a returned gradient in {c.action}, and both share storage"
    RECEIVED_OVER = "{c.action} overwrote the output gradients, and W reads them afterwards"
    OUTPUT_GRAD_HANDED_ON = "equals output gradient {c.slots[0]}: passed on unchanged"
    STALE = "the value from before this W"
    STALE_NOTHING = "the value from before this W, which was None"
    ZEROS_FOR_NONE = "zeros instead of None"
    HISTORY = "it was accumulated with gradients enabled, and its graph starts at {c.names[0]}"
    MARKED = "it has no graph, but its requires_grad is set"
    # Hooks of the stage change the gradient.
    HOOK_TWICE = "{hooks} applied twice"
    HOOK_NEVER = "{hooks} never applied"
    HOOK_ON_PARTS = "a hook on the parameter changed parts of its gradient one by one, not their sum"
    MODULE_HOOKS_NEVER = "module hooks are never called"
    # The gradient is added in the wrong place.
    ADDED_AS_FLAT = "added as flat memory although the strides differ"
    ADDED_AT_START = "added at the start of the buffer that all gradients share"
    # Elements are wrong.
    TRANSPOSED = "transposed"
    DIMENSIONS_SWAPPED = "its dimensions {c.slots[0]} and {c.slots[1]} are swapped"
    WRITTEN_ACROSS = "its elements were written row by row into memory {names}"
    READ_ACROSS = "its elements were read row by row from memory {names}"
    CONJUGATED = "conjugated"
    IMAGINARY_LOST = "its imaginary part is lost"
    FIRST_ROW_REPEATED = "its first row is used for all rows"
    SUMMED_AS_ARGUMENT = "it is summed over the dimensions in which the argument is expanded"
    ROWS_LEFT_OUT = "the last {c.counts[0]} of {c.counts[1]} rows are left out, which fill no block of {c.counts[2]}"
    ACTIVATIONS_OF_LAYER = "computed from the activations that entered {c.names[0]}"
    STRIDED_AS_GRADIENT = "{c.names[0]} writes its gradient over an expanded one: one element for all that it repeats"
    RECEIVED_WRITTEN_OVER = "{c.names[0]} writes its gradient into the memory of the one that it receives"
    ARGUMENT_TAKEN_AS = "{c.names[0]} takes {c.names[1]} instead of {c.names[2]}"
    FACTOR_NOT_CONJUGATED = "{c.names[0]} multiplies by a factor that is not conjugated"
    ROUNDED = "rounded to {c.names[0]}"
    ROUNDED_BEFORE_SUM = "its contributions are rounded to {c.names[0]} before they are summed over {c.names[1]}"
    ROUNDED_TO_BITS = "rounded to {c.counts[0]} bits"
    WHOLE_NUMBERS = "truncated to integers"
    CUT_OFF = (
        "nothing was added to the last {c.counts[0]} of {c.counts[1]} elements, those after the first {c.counts[2]}"
    )
    FLUSHED = "values below {c.names[0]} are flushed to zero"
    CLIPPED = "clipped at {c.factors[0]:.3g}"
    ONE_ELEMENT = "one element of {c.counts[0]} is wrong"
    ELEMENTS_ZERO = "{c.counts[0]} of {c.counts[1]} elements are zero"
    NAN_SPREAD = "NaN where plain autograd has numbers: it spread, or came from undefined arithmetic"
    UNWRITTEN = "uninitialised memory: deterministic mode fills it with NaN"
    NAN_REPLACED = "NaN replaced by a number"
    INF_CLIPPED = "inf replaced by a finite number: clipped"
    # A parameter is tied, or several paths lead to an input.
    USES_MISSING = "{c.counts[0]} of the {c.counts[1]} uses of the tied parameter: the others are missing"
    PATHS_MISSING = "{c.counts[0]} of the {c.counts[1]} paths to the input: the others are missing"
    USES_MISCOUNTED = "of the {c.counts[0]} uses of the tied parameter, {uses}"
    PATHS_MISCOUNTED = "of the {c.counts[0]} paths to the input, {uses}"
    # The backward started from other output gradients, from another forward, or in another mode.
    OUTPUTS_MISSING = "{slots} missing: {dropped}{special}"
    OUTPUTS_COUNTED_TWICE = "2.0 × {slots}: counted twice"
    SAME_AS_OTHER_OUTPUT = "the same tensor as another output"
    NOT_COMPUTED = "an input or a parameter itself"
    NESTED = "inside a tuple or dict"
    REACHES_NO_INPUT = "it reaches no input"
    NONE_READ_AS_ONE = "None for the 0-d {slots} is treated as 1"
    NONE_READ_AS_ONES = "None for {slots} is treated as ones"
    NONE_SHIFTS = "None shifts the gradients after it by one"
    OUTPUT_GRADS_REVERSED = "output gradients are reversed: the last goes to the first output"
    OUTPUT_GRADS_SWAPPED = "output gradients {c.slots[0]} and {c.slots[1]} are swapped"
    OUTPUT_GRADS_BY_TEXT = "output gradients are in the order of their numbers as text: 10 is before 2"
    OUTPUT_GRAD_FOR_ALL = "the gradient of output {c.slots[0]} is used for every output that it fits"
    OUTPUT_GRADS_SUMMED = "the output gradients are summed into the first"
    DICT_BY_ORDER = "a dict's output gradients are paired by their order, not by their keys"
    DICT_BY_ALPHABET = "a dict's output gradients are paired in alphabetical order"
    READ_AS_CONTIGUOUS = "an output gradient is read from the start of its memory as if it were contiguous"
    READ_WITH_STRIDES_OF = "an output gradient is read with the strides that it had for {parts}"
    ARGUMENTS_READ_AS_CONTIGUOUS = "an argument is read from the start of its memory as if it were contiguous"
    OUTPUT_GRADS_ONES = "ones instead of the output gradients"
    OTHER_FORWARD = "the forward of {parts} with the output gradients of {others}: contexts are mixed up"
    OTHER_OUTPUT_GRADS = "the output gradients are those of {parts}"
    RETURNED_BUFFER_REUSED = (
        "the output gradients are what stage {c.stage} returned for {parts}: "
        "a returned buffer was written again before it was read"
    )
    EVAL_MODE = "the stage is in eval mode"
    TRAINING_MODE = "the stage is in training mode"
    PARAMETERS_OLD = "the parameters have the values from before {c.action}"
    PARAMETERS_NEW = "the parameters have the values that they got in {c.action}, which came after its F"
    FORWARD_TOO_OFTEN = "a forward ran once too often before it, and updated the buffers that it reads"
    BUFFERS_NEW = "a forward that runs again in the backward reads buffers that were updated since"
    DRAWN_AGAIN = "a forward that runs again in the backward draws other random numbers"
    OTHER_SESSION_FORWARD = "the forward of {parts} of stage {c.stage}: both sessions use one module"
    OUTPUTS_SHIFT = "an output without requires_grad is skipped but its output gradient is not, so the others shift"
    FIRST_ROW = "the first row of an output gradient is used for all rows"
    # The device is wrong: an operation, its arguments, and its result.
    OPERATION_WRONG = "{c.names[0]} of {c.names[1]} is wrong when called alone: {c.names[2]}"
    LAYOUT_IGNORED = "{c.names[0]} reads {c.names[1]} as if it were contiguous"
    LAYOUT_DEPENDENT = "{c.names[0]} gives other values if {c.names[1]} has another memory layout"
    SLOPE_WRONG = "the backward of {c.names[0]} is not the derivative of its forward"
    ROWS_MIXED = "the backward of {c.names[0]} mixes the rows of a batch, and its forward does not"
    OPERATION_OF_ITS_OWN = "no operation that the CPU also has is wrong when called alone; only this device has {names}"
    OPERATION_DRAWS = (
        "the backward does not match the forward of the same seed: their slopes differ by "
        "{c.factors[0]:.0%}; {names} draws random numbers"
    )
    # A training step is wrong: over steps, replicas, tokens, stages.
    DIVIDED_AGAIN = "gradients of earlier steps are divided again by {any_name}, at the end of each step"
    ONLY_THIS_STEP = "only this step's gradients: those of earlier steps are lost"
    ONLY_EARLIER_STEPS = "only earlier steps' gradients: those of this step are missing"
    EARLIER_REDUCED_AGAIN = "{c.factors[0]:.0f} × the gradients of earlier steps: reduced over replicas again"
    EARLIER_NOT_REDUCED = "of earlier steps only the share of replica {c.slots[0]}: never reduced over replicas"
    NOT_REDUCED = "only the share of replica {c.slots[0]}: never reduced over replicas"
    NOT_REDUCED_NOR_DIVIDED = "only the share of replica {c.slots[0]}, as if it were that of all: never reduced"
    USE_OF_REPLICA_MISSING = "of one use of the tied parameter, the share of replica {c.slots[0]} is missing"
    USE_NOT_REDUCED = "of one use of the tied parameter, only the share of replica {c.slots[0]}: never reduced"
    REPLICA_MISSING = "the share of replica {c.slots[0]} missing"
    REDUCED_EARLY = "reduced over replicas before {parts}, which stays local to each replica"
    REDUCED_EARLY_ONLY = "reduced over replicas before {parts}: later micro-batches are missing"
    MEAN_OF_MICROBATCHES = "the mean of micro-batch means instead of the mean over all tokens"
    MEAN_OF_REPLICAS = "each replica is divided by its own token count instead of the total"
    DIVIDED_BY_OTHER = "divided by {any_name}"
    AUXILIARY_MISSING = "the auxiliary losses are missing"
    AUXILIARY_SCALED = "the auxiliary losses are scaled by {c.factors[0]:.4g}: {any_name}"
    AUXILIARY_OF_REPLICAS = "each replica's auxiliary losses are divided by its own token count instead of the total"
    AUXILIARY_OF_MICROBATCHES = (
        "the auxiliary losses are the mean of micro-batch means instead of the mean over all tokens"
    )
    SECOND_LOSS_MISSING = "the second loss is missing"
    SECOND_LOSS_SCALED = "the second loss is scaled by {c.factors[0]:.4g}: {any_name}"
    SECOND_LOSS_OF_REPLICAS = "each replica's second loss is divided by its own token count instead of the total"
    SECOND_LOSS_OF_MICROBATCHES = (
        "the second loss is the mean of micro-batch means instead of the mean over all its tokens"
    )
    ATTENDS_TO_OWN_PART = "attention sees only the positions of its own rank"
    ATTENDS_TO_LATER = "attention also sees later positions"
    POSITIONS_OF_OTHER_DIVISION = "attention takes a rank's positions for those of another way to divide sequences"
    KEYS_WITHOUT_GRADIENT = "keys and values get no gradient from the positions of other ranks"
    KEY_GRADIENTS_AVERAGED = "the gradients of keys and values are averaged over ranks instead of summed"
    KEY_GRADIENTS_OF_OTHER_RANK = "keys and values get the gradients of another rank's"
    ONLY_AUXILIARY = "only the auxiliary losses: the loss of the last stage is missing"
    NORM_OF_REPLICAS = (
        "the norm counts each replica's gradients: it is the square root of {c.counts[0]} times too large"
    )
    TENSOR_RANK_ALONE = "only the share of tensor rank {c.slots[0]}: never summed over tensor ranks"
    NORM_OF_TENSOR_RANKS = "the norm counts parameters that all tensor ranks hold {c.counts[0]} times"
    NORM_WITHOUT_STAGES = "the norm does not include {names}"
    NORM_OF_STAGES = "the norm covers only {names}"
    NORM_OF_TIED = "the norm counts a tied weight {c.counts[0]} times"
    NOT_CLIPPED = "not clipped"
    CLIPPED_BY_OTHER_NORM = "clipped with the norm {c.factors[0]:.6g}; the right norm is {c.factors[1]:.6g}"
    BATCHES_COUNTED = "{c.counts[0]} batches were counted; there were {c.counts[1]}"
    # A tensor of a sharded stage is wrong on some ranks of its mesh.
    NOT_SUMMED_OVER = "never summed over {names}: each rank has only its own contribution"
    TIMES_SIZE_OF = "{c.counts[0]} times the right value: multiplied by the size of {names}, or summed over it again"
    DIVIDED_BY_SIZE_OF = "1/{c.counts[0]} of the right value: divided by the size of {names}"
    ONE_RANK_HAS_IT = "only {ranks} {has} it; the others have {c.names[0]}"
    SUMMED_OVER_OTHER = "summed over {c.names[0]} instead of {c.names[1]}"
    PARTS_SUMMED = "summed over {names}, although each rank there has another part"
    PART_OF_OTHER_RANK = "rank {c.slots[0]} has the part of rank {c.slots[1]}"
    RANK_MISSING = "the contribution of rank {c.slots[0]} of {names} is missing"
    MEAN_OF_RANKS = "the mean of the ranks' means instead of the mean over all tokens"
    RANKS_SCALED = "scaled by another factor on each rank: {factors}"
    COPIES_DIFFER = "the copies differ by rounding: each rank computes its own instead of receiving one"
    COPIES_UNEQUAL = "its copies have different values along {names}: each rank computes it from its own part"
    LOGARITHM_COUNTS = (
        "log {c.counts[0]} too large: a sum inside a logarithm counts each term once for every rank of {names}"
    )
    COPIES_DRIFT = "the copies had equal gradients in the first step, and differ after three"
    OF_WRONG_GRADIENT = "it is computed from wrong gradients, which another check reports"
    OF_WRONG_OUTPUT = "it is computed with wrong outputs, which another check reports"
    NORM_COUNTS_COPIES = "the norm counts parameters that several ranks have {c.counts[0]} times"
    NORM_OF_OWN_RANK = "the norm includes only the parts of its own rank"
    NORM_MEAN_OF_RANKS = "the norm is the mean of the norms that each rank has for its own parts"
    NORM_LEAVES_OUT = "the norm leaves out {names}"
    NORM_OF_ONE_PART = "the norm includes only {c.names[1]}'s part of {c.names[0]}"
    NORM_COUNTS = "the norm counts {names} {c.counts[0]} times"
    NORM_TIMES_ROOT = "the norm is the square root of {c.counts[0]}, the size of {names}, times too large"
    # One mistake, made in every action of a kind: plain autograd with it shows the same values.
    STANDING_KEPT = "{acting} add{s} nothing to existing parameter gradients"
    MATRICES_KEPT = "{acting} add{s} nothing to existing gradients of parameters with two or more dimensions"
    STANDING_CLEARED = "{acting} overwrite{s} existing parameter gradients instead of adding"
    ALL_CLEARED = "{acting} clear{s} all parameter gradients first"
    ALL_MULTIPLIED = "in {names}, gradients are multiplied by {c.factors[0]:.3g}"
    STARTS_MULTIPLIED = "in {names}, output gradients are multiplied by {c.factors[0]:.3g}"
    NOTHING_ADDED = "in {acting}, no parameter gets a gradient"
    LAST_PARAMETER_SKIPPED = "in {acting}, the last parameter gets no gradient"
    FIRST_PARAMETER_SKIPPED = "in {acting}, the first parameter gets no gradient"
    VECTORS_SKIPPED = "in {acting}, parameters with one dimension get no gradient"
    MATRICES_SKIPPED = "in {acting}, parameters with two or more dimensions get no gradient"
    FIRST_USE_COUNTS = "in {acting}, only the first use of a parameter counts"
    LAST_USE_COUNTS = "in {acting}, only the last use of a parameter counts"
    FIRST_OUTPUT_COUNTS = "in {names}, only the first output's gradient counts"
    LAST_OUTPUT_COUNTS = "in {names}, only the last output's gradient counts"
    LAST_OUTPUT_SKIPPED = "in {names}, the last output's gradient does not count"
    NEWEST_CONTEXT_USED = "in {names}, the newest weight context is used"
    OLDEST_CONTEXT_USED = "in {names}, the oldest weight context is used"
    INPUTS_REVERSED = "in {names}, the input gradients are returned in reverse order"
    INPUTS_SWAPPED = "in {names}, the first two input gradients are swapped"
    INPUTS_SHIFTED = "in {names}, the input gradients are shifted by one"
    INPUTS_REVERSED_NOT_NONE = "in {names}, the input gradients that are not None are returned in reverse order"
    INPUTS_SWAPPED_NOT_NONE = "in {names}, the first two input gradients that are not None are swapped"
    INPUTS_SHIFTED_NOT_NONE = "in {names}, the input gradients that are not None are shifted by one"
    NOTHING_RETURNED = "in {names}, no input gradient is returned"
    FIRST_INPUT_ALONE = "in {names}, only the first input gradient is returned"
    LAST_INPUT_SKIPPED = "in {names}, the last input gradient is not returned"
    ZEROS_RETURNED = "in {names}, zeros are returned instead of None"
    FIRST_FORWARD_KEPT = "the backward uses the first of two forwards of a micro-batch"
    ARGUMENTS_COPIED_ONCE = "an argument is copied when it is first passed, and not when the caller refills it"
    OUTPUT_GRADS_COPIED_ONCE = (
        "an output gradient is copied when it is first passed, and not when the caller refills it"
    )
    FORWARD_RUNS_AGAIN = "the forward runs again in the backward, on values that the caller has changed since"
    WRITES_UNCOUNTED = "the backward reads saved tensors that the caller has written to since, which autograd refuses"
    WEIGHTS_OF_NOW = "the backward reads the weights from their parameters, which the caller has changed since"
    KEPT_BY_OUTPUT_GRAD = "if outputs share one output gradient, only the last one counts"
    ALL_ROUNDED = "gradients are rounded to {names}"
    # Several causes, or none.
    SEVERAL = "{several}"
    EITHER = "{either}"
    DIAGNOSIS_FAILED = "the diagnosis failed: {c.names[0]}"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a tensor is wrong: the kind of mistake and its details.

    ``microbatches`` and ``others`` (the ones that they replace) are numbers, None for values from before the first
    action. ``slots`` are inputs or outputs; ``names`` are of parameters, dtypes or numbers; ``factors`` are wrong
    multipliers, and ``counts`` are a part and its whole. ``elements`` is the number of elements of the largest
    argument of a wrong operation. ``causes`` are the parts of a combined cause, and ``why``
    explains it further. ``dtype`` is that in which the same trial showed the cause, if it was not the run's own.
    """

    kind: Mistake
    _: KW_ONLY
    microbatches: tuple[int | None, ...] = ()
    others: tuple[int | None, ...] = ()
    slots: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    factors: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    action: str | None = None
    stage: int | None = None
    elements: int | None = None
    causes: tuple[Cause, ...] = ()
    why: Cause | None = None
    dtype: str | None = None

    def __str__(self) -> str:
        """Return the sentence."""
        reported = self.kind.value.format_map(_Words(self))
        reported = f"{reported}: {self.why}" if self.why else reported
        return f"{reported} (found in {self.dtype})" if self.dtype else reported

    @property
    def every(self) -> Iterator[Cause]:
        """Yield this cause, its parts and its explanation."""
        yield self
        for cause in (*self.causes, *([self.why] if self.why else [])):
            yield from cause.every

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values: the kind, the details, and the sentence as ``text``."""
        given = {one.name: getattr(self, one.name) for one in fields(self)[1:]}
        values: dict[str, Any] = {name: value for name, value in given.items() if value not in {(), None}}
        for name, value in values.items():
            if isinstance(value, Cause):
                values[name] = value.to_dict()
            elif isinstance(value, tuple):
                values[name] = [one.to_dict() if isinstance(one, Cause) else one for one in value]
        return {"kind": self.kind.name.lower(), **values, "text": str(self)}


def cause_from(values: Mapping[str, Any]) -> Cause:
    """Return the cause that :meth:`Cause.to_dict` wrote."""
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name in {"kind", "text"}:
            continue
        if name == "why":
            given[name] = cause_from(value)
        elif name == "causes":
            given[name] = tuple(map(cause_from, value))
        else:
            given[name] = tuple(value) if isinstance(value, list) else value
    return Cause(Mistake[values["kind"].upper()], **given)


def listed(names: Sequence[str]) -> str:
    """Return names as in a sentence."""
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"  # noqa: PLR2004 (three or more have commas)


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """Return ``output 1`` or ``outputs 0 and 2``."""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {listed([str(number) for number in numbers])}"


class _Words:
    """The words for several values in sentences, each made when a sentence asks for it; ``c`` is the cause itself."""

    def __init__(self, cause: Cause) -> None:
        self._cause = cause

    def __getitem__(self, word: str) -> Any:
        """Return a cause, or words for some of its values."""
        return self._cause if word == "c" else _WORDS[word](self._cause)


def _inner(cause: Cause) -> list[str]:
    return [str(one) for one in cause.causes]


def _either(cause: Cause) -> str:
    # "X; or it equals …": the gradient, which is the subject of all other sentences too, has no name in them.
    also = [f"it {one}" if one.kind is Mistake.OTHER_PARAMETER else str(one) for one in cause.causes[1:]]
    return "; or ".join([*_inner(cause)[:1], *also])


def _sum(cause: Cause) -> str:
    weighted = zip(cause.microbatches, cause.factors, strict=False)
    return " + ".join(f"{factor:.3g} × {_part(mb)}" for mb, factor in weighted)


def _hooks(cause: Cause) -> str:
    """Return the hooks, with their factors if each is known."""
    number = cause.counts[0] if cause.counts else 1
    by = listed([f"{factor:.3g}" for factor in cause.factors]) if len(cause.factors) == number else ""
    reported = f"multiplying it by {by}" if by else "changing it"
    return f"a hook {reported} is" if number == 1 else f"{number} hooks {reported} are"


def _part(microbatch: int | None) -> str:
    return "the earlier value" if microbatch is None else f"micro-batch {microbatch}"


#: The words that sentences use, by the names in them.
_WORDS: Mapping[str, Callable[[Cause], str]] = {
    "parts": lambda cause: listed([_part(mb) for mb in cause.microbatches]),
    "others": lambda cause: listed([_part(mb) for mb in cause.others]),
    "slots": lambda cause: numbered(cause.names[0] if cause.names else "output", cause.slots),
    "dropped": lambda cause: "its gradient is dropped" if len(cause.slots) == 1 else "their gradients are dropped",
    "any_name": lambda cause: " or ".join(cause.names),
    "names": lambda cause: listed(cause.names),
    "acting": lambda cause: listed([name.removesuffix("'s parameters") for name in cause.names]),
    "s": lambda cause: "s" if len(cause.names) == 1 else "",
    "sum": _sum,
    "uses": lambda cause: ", ".join(
        f"use {n} counted {one:.3g} times" for n, one in enumerate(cause.factors) if one != 1.0
    ),
    "special": lambda cause: f" ({', '.join(_inner(cause))})" if cause.causes else "",
    "hooks": _hooks,
    "several": lambda cause: "; ".join(_inner(cause)),
    "either": _either,
    "rules": lambda cause: ", or ".join(_inner(cause)),
    "ranks": lambda cause: numbered("rank", cause.slots),
    "has": lambda cause: "has" if len(cause.slots) == 1 else "have",
    "factors": lambda cause: ", ".join(f"{factor:.4g}" for factor in cause.factors),
}
