# ruff: noqa: E501 (messages stand as they are printed)
"""What a user reads of a failing check, whole: one message per sentence that the diagnosis has."""

from __future__ import annotations

import re

from expecttest import assert_expected_inline

from gradconform import check_stage_backward
from gradconform.reference.faults import FAULTS


def message(fault: str, check: str) -> str:
    """Return the message, its numbers to two digits and without those that hang on the last bits of a machine."""
    (result,) = check_stage_backward(FAULTS[fault].make(), checks=check)
    head, *findings = result.message.splitlines()
    # expecttest writes ASCII only.
    return "\n".join([head, *map(_steady, findings)]).replace("×", "x").replace("…", "...")


def _steady(finding: str) -> str:
    place, colon, numbers = finding.partition(": worst at ")
    if not colon:
        return finding
    numbers, _, cause = numbers.partition("; likely cause: ")
    numbers = re.sub(r"expected (\S+), got (\S+); error.*", _short, numbers)
    return f"{place}{colon}{numbers}; likely cause: {cause or 'none'}"


def _short(found: re.Match[str]) -> str:
    return f"expected {float(found[1]):.2g}, got {float(found[2]):.2g}; ..."


def test_a_micro_batch_counted_twice_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("wrong-after-the-fifth-call", "accumulate.iterations.full-10"),
        """\
program F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 ... B9 (20 actions)
0.weight, after B5: worst at [8, 0]: expected 1.1, got 2.2; ...; likely cause: 2.0 x micro-batch 5: counted twice
0.bias, after B5: worst at [6]: expected -1.1, got -1.8; ...; likely cause: 2.0 x micro-batch 5: counted twice
2.weight, after B5: worst at [2, 4]: expected -4.7, got 2.9; ...; likely cause: 2.0 x micro-batch 5: counted twice
2.bias, after B5: worst at [2]: expected -2.9, got -0.58; ...; likely cause: 2.0 x micro-batch 5: counted twice""",
    )


def test_overwritten_gradients_are_reported_as_cause() -> None:
    assert_expected_inline(
        message("overwrite", "accumulate.iterations.split-3"),
        """\
program F0 I0 W0 F1 I1 W1 F2 I2 W2
0.weight, after W1: worst at [4, 1]: expected -3.5, got -2.6; ...; likely cause: only micro-batch 1: overwritten instead of accumulated
0.bias, after W1: worst at [4]: expected -1.3, got -0.91; ...; likely cause: only micro-batch 1: overwritten instead of accumulated
2.weight, after W1: worst at [1, 4]: expected 9.2, got 4.7; ...; likely cause: only micro-batch 1: overwritten instead of accumulated
2.bias, after W1: worst at [1]: expected 3.7, got 1.9; ...; likely cause: only micro-batch 1: overwritten instead of accumulated""",
    )


def test_a_missing_micro_batch_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("first-microbatch-only", "accumulate.iterations.full-3"),
        """\
program F0 B0 F1 B1 F2 B2
0.weight, after B1: worst at [4, 1]: expected -3.5, got -0.83; ...; likely cause: micro-batch 1 missing
0.bias, after B1: worst at [4]: expected -1.3, got -0.44; ...; likely cause: micro-batch 1 missing
2.weight, after B1: worst at [1, 4]: expected 9.2, got 4.4; ...; likely cause: micro-batch 1 missing
2.bias, after B1: worst at [1]: expected 3.7, got 1.8; ...; likely cause: micro-batch 1 missing""",
    )


def test_division_by_the_number_of_micro_batches_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("divided-by-microbatches", "accumulate.iterations.split-3"),
        """\
program F0 I0 W0 F1 I1 W1 F2 I2 W2
0.weight, after W0: worst at [4, 1]: expected -0.83, got -0.28; ...; likely cause: scaled by 1/3: divided by the number of micro-batches
0.bias, after W0: worst at [4]: expected -0.44, got -0.15; ...; likely cause: scaled by 1/3: divided by the number of micro-batches
2.weight, after W0: worst at [1, 4]: expected 4.4, got 1.5; ...; likely cause: scaled by 1/3: divided by the number of micro-batches
2.bias, after W0: worst at [1]: expected 1.8, got 0.61; ...; likely cause: scaled by 1/3: divided by the number of micro-batches""",
    )


def test_swapped_contexts_are_reported_as_cause() -> None:
    assert_expected_inline(
        message("weight-passes-last-in-first-out", "split.gradients.mlp"),
        """\
program F0 I0 F1 I1 W0 W1
0.weight, after W0: worst at [4, 1]: expected -0.83, got -2.6; ...; likely cause: micro-batch 1 in place of micro-batch 0: contexts are swapped
0.bias, after W0: worst at [6]: expected -0.23, got 0.3; ...; likely cause: micro-batch 1 in place of micro-batch 0: contexts are swapped
2.weight, after W0: worst at [2, 6]: expected -3.9, got -0.063; ...; likely cause: micro-batch 1 in place of micro-batch 0: contexts are swapped
2.bias, after W0: worst at [2]: expected -1.8, got -0.27; ...; likely cause: micro-batch 1 in place of micro-batch 0: contexts are swapped""",
    )


def test_a_running_sum_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("running-sum-of-an-input", "accumulate.reused_input.full"),
        """\
program F0 B0 F1 B1 F2 B2
input 0, after B1: worst at [3, 0]: expected -0.13, got -0.34; ...; likely cause: micro-batch 0 also added: a running sum, or added too early""",
    )


def test_swapped_slots_are_reported_as_cause() -> None:
    assert_expected_inline(
        message("input-grads-reversed", "full.gradients.two-inputs"),
        """\
program F0 B0 F1 B1
input 0, after B0: expected shape (7, 5), got (7, 3); likely cause: equals the gradient of input 1: slots are swapped or shifted
input 1, after B0: expected shape (7, 3), got (7, 5); likely cause: equals the gradient of input 0: slots are swapped or shifted""",
    )


def test_shifted_slots_are_reported_as_cause() -> None:
    assert_expected_inline(
        message("input-that-needs-none-shifts-the-slots", "split.gradients.fixed-input-first"),
        """\
program F0 I0 F1 I1 W0 W1
input 0, after I0: expected None, got a tensor of shape (7, 3) with largest element 0.403; likely cause: equals the gradient of input 1: slots are swapped or shifted
input 1, after I0: expected a tensor of shape (7, 3) with largest element 0.403, got None; likely cause: returned for input 0: slots are swapped or shifted""",
    )


def test_one_use_of_a_tied_weight_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("later-uses-of-a-tied-weight", "split.gradients.tied-apart"),
        """\
program F0 I0 F1 I1 W0 W1
first.weight, after W0: worst at [8, 4]: expected -2.7, got 0.7; ...; likely cause: 1 of the 2 uses of the tied parameter: the others are missing""",
    )


def test_one_path_to_an_input_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("later-paths-to-an-input", "full.gradients.residual"),
        """\
program F0 B0 F1 B1
input 0, after B0: worst at [0, 3]: expected 0.75, got -1.8; ...; likely cause: 1 of the 2 paths to the input: the others are missing""",
    )


def test_a_transpose_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("square-gradient-transposed", "full.gradients.square-weight"),
        """\
program F0 B0 F1 B1
input 0, after B0: worst at [0, 2]: expected -0.042, got -2.4; ...; likely cause: transposed
0.weight, after B0: worst at [0, 1]: expected 0.98, got -0.87; ...; likely cause: transposed""",
    )


def test_a_rounding_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("rounded-through-bfloat16", "full.gradients.sum-of-inputs"),
        """\
program F0 B0 F1 B1
input 0, after B0: worst at [3, 3]: expected -1.3, got -1.3; ...; likely cause: rounded to bfloat16
input 1, after B0: worst at [3, 3]: expected -1.3, got -1.3; ...; likely cause: rounded to bfloat16""",
    )


def test_a_relative_error_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("relative-error-1e-5", "full.gradients.sum-of-inputs"),
        """\
program F0 B0 F1 B1
input 0, after B0: worst at [0, 1]: expected -1.9, got -1.9; ...; likely cause: a relative error of 1e-05 everywhere
input 1, after B0: worst at [0, 1]: expected -1.9, got -1.9; ...; likely cause: a relative error of 1e-05 everywhere""",
    )


def test_one_wrong_element_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("one-element-wrong", "full.gradients.sum-of-inputs"),
        """\
program F0 B0 F1 B1
input 0, after B0: worst at [0, 1]: expected -1.9, got -1.9; ...; likely cause: one element of 35 is wrong
input 1, after B0: worst at [0, 1]: expected -1.9, got -1.9; ...; likely cause: one element of 35 is wrong""",
    )


def test_a_replaced_nan_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("nan-replaced", "grad_tuple.nonfinite.nan-full"),
        """\
program F0 B0 F1 B1
input 0 (NaN and inf), after B0: at [3, 0]: expected nan, got 0 (5 elements); likely cause: NaN replaced by a number
0.weight (NaN and inf), after B0: at [4, 0]: expected nan, got 0 (15 elements); likely cause: NaN replaced by a number
0.bias (NaN and inf), after B0: at [4]: expected nan, got 0 (3 elements); likely cause: NaN replaced by a number
2.weight (NaN and inf), after B0: at [1, 0]: expected nan, got 0 (11 elements); likely cause: NaN replaced by a number
2.bias (NaN and inf), after B0: at [1]: expected nan, got 0 (1 element); likely cause: NaN replaced by a number""",
    )


def test_a_dropped_output_gradient_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("second-output", "full.gradients.two-outputs"),
        """\
program F0 B0 F1 B1
input 0, after B0: worst at [6, 3]: expected -1.3, got -0.35; ...; likely cause: output 1 missing: its gradient is dropped
trunk.weight, after B0: worst at [2, 4]: expected 1.4, got -0.66; ...; likely cause: output 1 missing: its gradient is dropped
trunk.bias, after B0: worst at [2]: expected -1.2, got 0.42; ...; likely cause: output 1 missing: its gradient is dropped
right.weight, after B0: expected a tensor of shape (2, 11) with largest element 4.06, got None; likely cause: never accumulated: output 1 missing: its gradient is dropped
right.bias, after B0: expected a tensor of shape (2,) with largest element 1.22, got None; likely cause: never accumulated: output 1 missing: its gradient is dropped""",
    )


def test_none_treated_as_ones_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("none-read-as-ones", "grad_tuple.none.middle-full"),
        """\
program F0 B0
input 0, after B0: worst at [6, 0]: expected 1.2, got 2.1; ...; likely cause: None for output 1 is treated as ones
heads.1.weight, after B0: worst at [0, 3]: expected 0.21, got -3.2; ...; likely cause: None for output 1 is treated as ones""",
    )


def test_two_mistakes_with_equal_results_are_both_reported_as_cause() -> None:
    assert_expected_inline(
        message("none-shifts-the-gradients-behind-it", "grad_tuple.none.chunk-full"),
        """\
program F0 B0
input 0, after B0: worst at [1, 1]: expected -1.3, got 3.7; ...; likely cause: None shifts the gradients after it by one; or output gradients are reversed: the last goes to the first output
linear.weight, after B0: worst at [6, 3]: expected 3.1, got -0.69; ...; likely cause: None shifts the gradients after it by one; or output gradients are reversed: the last goes to the first output
linear.bias, after B0: worst at [6]: expected 3, got 0.57; ...; likely cause: None shifts the gradients after it by one; or output gradients are reversed: the last goes to the first output""",
    )


def test_mixed_up_forwards_are_reported_as_cause() -> None:
    assert_expected_inline(
        message("newest-forward-for-every-backward", "accumulate.order.full-all-forwards-first"),
        """\
program F0 F1 F2 B0 B1 B2
input 0, after B0: worst at [2, 0]: expected 0.023, got 0.94; ...; likely cause: the forward of micro-batch 2 with the output gradients of micro-batch 0: contexts are mixed up
0.weight, after B0: worst at [3, 3]: expected -0.055, got 1.2; ...; likely cause: the forward of micro-batch 2 with the output gradients of micro-batch 0: contexts are mixed up
0.bias, after B0: worst at [5]: expected 0, got 0.69; ...; likely cause: the forward of micro-batch 2 with the output gradients of micro-batch 0: contexts are mixed up
2.weight, after B0: worst at [2, 3]: expected -0.8, got 2; ...; likely cause: the forward of micro-batch 2 with the output gradients of micro-batch 0: contexts are mixed up
input 0, after B0: worst at [1, 1]: expected -1.9, got -0.34; ...; likely cause: the forward of micro-batch 2 with the output gradients of micro-batch 0: contexts are mixed up
trunk.weight, after B0: worst at [10, 4]: expected -3.5, got 1.3; ...; likely cause: the forward of micro-batch 2 with the output gradients of micro-batch 0: contexts are mixed up
trunk.bias, after B0: worst at [3]: expected 0.055, got -0.78; ...; likely cause: the forward of micro-batch 2 with the output gradients of micro-batch 0: contexts are mixed up
left.weight, after B0: worst at [2, 6]: expected 1.5, got -5.9; ...; likely cause: the forward of micro-batch 2 with the output gradients of micro-batch 0: contexts are mixed up
right.weight, after B0: worst at [1, 6]: expected -4.1, got 1.1; ...; likely cause: the forward of micro-batch 2 with the output gradients of micro-batch 0: contexts are mixed up""",
    )


def test_a_lost_context_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("ring-of-eight-contexts", "accumulate.iterations.split-10-deferred"),
        """\
program F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 ... W9 (30 actions)
0.weight, after W0: expected a tensor of shape (11, 5) with largest element 0.519, got None; likely cause: never accumulated: only the newest 8 weight contexts are kept
0.bias, after W0: expected a tensor of shape (11,) with largest element 0.548, got None; likely cause: never accumulated: only the newest 8 weight contexts are kept
2.weight, after W0: expected a tensor of shape (3, 11) with largest element 3.1, got None; likely cause: never accumulated: only the newest 8 weight contexts are kept
2.bias, after W0: expected a tensor of shape (3,) with largest element 1.27, got None; likely cause: never accumulated: only the newest 8 weight contexts are kept""",
    )


def test_one_buffer_for_two_parameters_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("two-parameters-share-a-buffer", "split.gradients.mlp"),
        """\
program F0 I0 F1 I1 W0 W1
0.weight, after W0: worst at [3, 0]: expected 0.0084, got 4.4; ...; likely cause: the first 11 elements are those of the gradient of 0.bias: one buffer for both
0.bias, after W0: worst at [2]: expected 0.41, got -1.8; ...; likely cause: the first 11 elements are those of the gradient of 0.weight: one buffer for both
2.weight, after W0: worst at [0, 2]: expected -0.09, got -1.8; ...; likely cause: the first 33 elements are those of the gradient of 0.weight: one buffer for both
2.bias, after W1: worst at [0]: expected -2.1, got -2.4; ...; likely cause: the first 3 elements are those of the gradient of 0.weight: one buffer for both""",
    )


def test_a_gradient_changed_after_its_return_is_reported() -> None:
    assert_expected_inline(
        message("returned-buffer-reused", "state.returned.mlp-full"),
        """\
program F0 F1 B0 B1
input gradient 0 returned by B0: changed after it was returned""",
    )


def test_storage_shared_with_the_output_gradient_is_reported() -> None:
    assert_expected_inline(
        message("output-gradient-stored", "state.stored_storage.bare-bias-full"),
        """\
program F0 F1 B0 B1
gradient of bare, after B0: shares storage with output gradient 0 of micro-batch 0""",
    )


def test_an_earlier_error_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("next-session-poisoned", "misuse.next_session.shape-full"),
        """\
program F0 B0! close 1F0 1B0 1F1 1B1
input 0, after 1B0: expected a tensor of shape (7, 5) with largest element 1.02, got None; likely cause: not returned: nothing was added after the error in B0!
0.weight, after 1B0: expected a tensor of shape (11, 5) with largest element 1.93, got None; likely cause: never accumulated: nothing was added after the error in B0!
0.bias, after 1B0: expected a tensor of shape (11,) with largest element 1.64, got None; likely cause: never accumulated: nothing was added after the error in B0!
2.weight, after 1B0: expected a tensor of shape (3, 11) with largest element 7.58, got None; likely cause: never accumulated: nothing was added after the error in B0!
2.bias, after 1B0: expected a tensor of shape (3,) with largest element 3.95, got None; likely cause: never accumulated: nothing was added after the error in B0!""",
    )


def test_a_stage_in_eval_mode_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("stage-left-in-eval-mode", "full.gradients.dropout"),
        """\
program F0 B0 F1 B1
output 0, after F1: worst at [6, 1]: expected -0.43, got 0.24; ...; likely cause: the stage is in eval mode
input 0, after B1: worst at [3, 0]: expected -0.28, got -0.78; ...; likely cause: the stage is in eval mode
0.weight, after B1: worst at [2, 1]: expected 1.6, got 0.46; ...; likely cause: the stage is in eval mode
0.bias, after B1: worst at [2]: expected -2.1, got -1.2; ...; likely cause: the stage is in eval mode
3.weight, after B1: worst at [1, 1]: expected 0.9, got 3.4; ...; likely cause: the stage is in eval mode""",
    )


def test_a_buffer_reused_between_stages_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("returned-buffer-shared-by-stages", "schedule.gradients.interleaved-zero-bubble-2x2x3"),
        """\
program F0 F1 1F0 F2 1F1 2F0 1F2 2F1 3F0 3I0 2I0 3F1 ... 1W2 (36 actions)
input 0, after 1I0: worst at [0, 4]: expected -0.03, got -0.0045; ...; likely cause: the output gradients are what stage 2 returned for micro-batch 2: a returned buffer was written again before it was read; or the output gradients are those of micro-batch 2
branch.0.weight, after 1W0: worst at [8, 0]: expected -0.093, got -0.15; ...; likely cause: the output gradients are what stage 2 returned for micro-batch 2: a returned buffer was written again before it was read; or the output gradients are those of micro-batch 2
branch.0.bias, after 1W0: worst at [8]: expected -0.044, got -0.069; ...; likely cause: the output gradients are what stage 2 returned for micro-batch 2: a returned buffer was written again before it was read; or the output gradients are those of micro-batch 2
branch.2.weight, after 1W0: worst at [0, 6]: expected 0.06, got -0.0041; ...; likely cause: the output gradients are what stage 2 returned for micro-batch 2: a returned buffer was written again before it was read; or the output gradients are those of micro-batch 2
branch.2.bias, after 1W0: worst at [0]: expected 0.02, got -0.0018; ...; likely cause: the output gradients are what stage 2 returned for micro-batch 2: a returned buffer was written again before it was read; or the output gradients are those of micro-batch 2""",
    )


def test_accumulation_into_a_detached_copy_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("written-to-a-detached-copy", "full.gradients.checkpoint"),
        """\
program F0 B0 F1 B1
block.0.weight, after B0: expected a tensor of shape (13, 11) with largest element 0.624, got None; likely cause: never accumulated: only parameters inside a checkpoint get none: added to a detached copy of the parameter, or removed again
block.2.weight, after B0: expected a tensor of shape (7, 13) with largest element 1.22, got None; likely cause: never accumulated: only parameters inside a checkpoint get none: added to a detached copy of the parameter, or removed again""",
    )


def test_a_gradient_with_a_graph_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("gradients-with-a-history", "full.gradients.linear-3d"),
        """\
program F0 B0 F1 B1
weight, after B0: requires a gradient itself (plain autograd: no); likely cause: it was accumulated with gradients enabled, and its graph starts at CloneBackward0
bias, after B0: requires a gradient itself (plain autograd: no); likely cause: it was accumulated with gradients enabled, and its graph starts at CloneBackward0""",
    )


def test_a_hook_applied_twice_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("activation-hooks-twice", "full.gradients.linear-hook"),
        """\
program F0 B0 F1 B1
input 0, after B0: worst at [3, 1]: expected 0.22, got 0.11; ...; likely cause: a hook multiplying it by 0.5 is applied twice
first.weight, after B0: worst at [2, 2]: expected -0.23, got -0.12; ...; likely cause: a hook multiplying it by 0.5 is applied twice
first.bias, after B0: worst at [1]: expected -0.057, got -0.028; ...; likely cause: a hook multiplying it by 0.5 is applied twice""",
    )


def test_the_weight_pass_of_another_session_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("weight-passes-of-every-session", "schedule.gradients.zbv-zero-bubble-2x2x3"),
        """\
program F0 F1 1F0 F2 2F0 3F0 1F1 3I0 2F1 3W0 2I0 3F1 ... 1W2 (36 actions)
branch.0.weight, after 1I2: worst at [6, 0]: expected 0.17, got 0.36; ...; likely cause: micro-batch 1 added by W1, the W of another session
branch.0.bias, after 1I2: worst at [6]: expected 0.076, got 0.16; ...; likely cause: micro-batch 1 added by W1, the W of another session
branch.2.weight, after 1I2: worst at [4, 6]: expected -0.36, got -0.73; ...; likely cause: micro-batch 1 added by W1, the W of another session
branch.2.bias, after 1I2: worst at [4]: expected -0.12, got -0.26; ...; likely cause: micro-batch 1 added by W1, the W of another session""",
    )


def test_a_reused_micro_batch_number_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("contexts-of-the-first-step", "steps.params.rebind-tied-parallel-split"),
        """\
program F0 I0 F1 I1 W0 W1 finish rebind F0 I0 F1 I1 ... finish (23 actions)
linear.weight, after W0: expected a tensor of shape (3, 5) with largest element 5.03, got None; likely cause: never accumulated: its micro-batch number was used before
linear.bias, after W0: expected a tensor of shape (3,) with largest element 3.23, got None; likely cause: never accumulated: its micro-batch number was used before""",
    )


def test_a_session_opened_in_between_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("opening-clears-the-module", "steps.opened_late.one-module-split"),
        """\
program F0 I0 F1 1F0 1I0 W0 1W0 I1 W1
0.weight, after W0: expected a tensor of shape (11, 5) with largest element 0.83, got None; likely cause: never accumulated: 1F0 opened another session after its F
0.bias, after W0: expected a tensor of shape (11,) with largest element 0.436, got None; likely cause: never accumulated: 1F0 opened another session after its F
2.weight, after W0: expected a tensor of shape (3, 11) with largest element 4.41, got None; likely cause: never accumulated: 1F0 opened another session after its F
2.bias, after W0: expected a tensor of shape (3,) with largest element 1.84, got None; likely cause: never accumulated: 1F0 opened another session after its F
0.weight, after 1W0: worst at [4, 1]: expected -1.6, got -0.78; ...; likely cause: the gradients of other sessions are missing
0.bias, after 1W0: worst at [4]: expected -1.4, got -0.98; ...; likely cause: the gradients of other sessions are missing
2.weight, after 1W0: worst at [1, 4]: expected 15, got 11; ...; likely cause: the gradients of other sessions are missing
2.bias, after 1W0: worst at [1]: expected 5.8, got 4; ...; likely cause: the gradients of other sessions are missing
the action, after I1: raised KeyError: 1; plain autograd does not""",
    )


def test_a_context_freed_by_the_garbage_collector_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("contexts-held-weakly-in-a-cycle", "lifetime.collected.mlp"),
        """\
program F0 F1 I0 drop0 I1 drop1 collect W1 collect W0
0.weight, after W1: expected a tensor of shape (11, 5) with largest element 2.63, got None; likely cause: never accumulated: the garbage collector ran after its F and may have freed its context
0.bias, after W1: expected a tensor of shape (11,) with largest element 0.911, got None; likely cause: never accumulated: the garbage collector ran after its F and may have freed its context
2.weight, after W1: expected a tensor of shape (3, 11) with largest element 4.75, got None; likely cause: never accumulated: the garbage collector ran after its F and may have freed its context
2.bias, after W1: expected a tensor of shape (3,) with largest element 1.86, got None; likely cause: never accumulated: the garbage collector ran after its F and may have freed its context""",
    )


def test_a_weight_pass_that_was_never_called_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("forgotten-weight-pass-left-in-a-queue", "misuse.forgotten_weight.next-session"),
        """\
program F0 I0 finish! close 1F0 1I0 1W0 1finish
0.weight, after 1W0: expected a tensor of shape (11, 5) with largest element 1.93, got None; likely cause: never accumulated: the W of I0 was never called, and this W may have run it instead
0.bias, after 1W0: expected a tensor of shape (11,) with largest element 1.64, got None; likely cause: never accumulated: the W of I0 was never called, and this W may have run it instead
2.weight, after 1W0: expected a tensor of shape (3, 11) with largest element 7.58, got None; likely cause: never accumulated: the W of I0 was never called, and this W may have run it instead
2.bias, after 1W0: expected a tensor of shape (3,) with largest element 3.95, got None; likely cause: never accumulated: the W of I0 was never called, and this W may have run it instead""",
    )


def test_a_limit_on_the_number_of_backwards_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("backwards-past-sixty-four-lost", "space.full.past-64-mb-2"),
        """\
program F0 F1 F2 F3 F4 F5 F6 F7 F8 F9 F10 F11 ... drop64 (195 actions)
layers.gain, after B64: worst at [6]: expected 0.98, got 29; ...; likely cause: micro-batch 64 missing: only the first 64 B add anything; only with: count=past-64-mb
layers.linear.weight, after B64: worst at [6, 3]: expected 1.9e+02, got 1.1e+02; ...; likely cause: micro-batch 64 missing: only the first 64 B add anything; only with: count=past-64-mb
layers.linear.bias, after B64: worst at [3]: expected -79, got -1e+02; ...; likely cause: micro-batch 64 missing: only the first 64 B add anything; only with: count=past-64-mb""",
    )


def test_a_call_under_no_grad_from_another_thread_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("backward-left-out-without-grad-mode", "mode.gradients.together-full"),
        """\
program F0 F1 B0 B1
input 0, after B0: expected a tensor of shape (7, 5) with largest element 0.214, got None
0.weight, after B0: expected a tensor of shape (11, 5) with largest element 0.83, got None; likely cause: never accumulated: it was called under no_grad, where it may be skipped; or it was called from another thread than its F, where it may be skipped
0.bias, after B0: expected a tensor of shape (11,) with largest element 0.436, got None; likely cause: never accumulated: it was called under no_grad, where it may be skipped; or it was called from another thread than its F, where it may be skipped
2.weight, after B0: expected a tensor of shape (3, 11) with largest element 4.41, got None; likely cause: never accumulated: it was called under no_grad, where it may be skipped; or it was called from another thread than its F, where it may be skipped
2.bias, after B0: expected a tensor of shape (3,) with largest element 1.84, got None; likely cause: never accumulated: it was called under no_grad, where it may be skipped; or it was called from another thread than its F, where it may be skipped""",
    )


def test_a_gradient_moving_hook_that_is_never_called_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("post-accumulate-hooks-never", "hooks.altered.move-tied-parallel-full"),
        """\
program F0 F1 B0 B1
linear.weight, after B0: expected a tensor of shape (3, 5) with largest element 2.23, got None; likely cause: never accumulated: a hook that moves the gradient away after accumulation is never called
linear.bias, after B0: expected a tensor of shape (3,) with largest element 1.29, got None; likely cause: never accumulated: a hook that moves the gradient away after accumulation is never called""",
    )


def test_a_parameter_frozen_at_open_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("trained-parameters-looked-up-once", "steps.frozen.thawed-in-flight-full"),
        """\
program F0 unfreeze2 B0 F1 B1
2.weight, after B1: expected a tensor of shape (3, 11) with largest element 1.23, got None; likely cause: never accumulated: it was frozen when the stage was opened and is trained now""",
    )


def test_a_gradient_cleared_while_its_parameter_was_frozen_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("gradients-of-frozen-parameters-cleared", "steps.frozen.between-full"),
        """\
program F0 B0 freeze0 F1 B1 unfreeze0 F2 B2
0.weight, after freeze0: expected a tensor of shape (11, 5) with largest element 0.83, got None; likely cause: cleared after it was accumulated: it was frozen in between""",
    )


def test_a_parameter_without_elements_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("no-elements-no-gradient", "space.split.no-elements-1"),
        """\
program F0 I0 W0 F1 I1 W1 F2 I2 W2 finish zero_fill restride F0 I0 W0
layers.linear.weight, after W0: expected a tensor of shape (7, 0) with largest element 0, got None; likely cause: never accumulated: it has no elements; only with: size=no-elements""",
    )


def test_a_limit_on_the_number_of_parameters_is_reported_as_cause() -> None:
    told = message("parameters-past-128-left-out", "space.split.many-parameters-1")
    assert_expected_inline(
        "\n".join(told.splitlines()[:3]),
        """\
program F0 F1 I0 I1 W1 W0
layers.biases.125, after W1: expected a tensor of shape (7,) with largest element 5.74, got None; likely cause: never accumulated: only the first 128 parameters get any; only with: parameters=many-parameters
layers.biases.126, after W1: expected a tensor of shape (7,) with largest element 5.78, got None; likely cause: never accumulated: only the first 128 parameters get any; only with: parameters=many-parameters""",
    )


def test_an_unused_argument_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("all-inputs-lost-with-one-that-is-not-used", "space.full.unused-input-1"),
        """\
program F0 B0 finish freeze0 F0 B0
input 0, after B0: expected a tensor of shape (3, 37) with largest element 1.48, got None; likely cause: not returned: one argument is unused, and the other arguments get no gradient either; only with: inputs=unused-input""",
    )


def test_missing_elements_after_whole_blocks_are_reported_as_cause() -> None:
    assert_expected_inline(
        message("tail-behind-blocks-of-sixteen-dropped", "space.full.37x41-1"),
        """\
program lose0 F0 F1 B0 B1 finish F2 B2 finish zero_none F0 B0 finish
layers.gain, after B0: worst at [40]: expected 89, got 0; ...; likely cause: nothing was added to the last 9 of 41 elements, those after the first 32
layers.linear.weight, after B0: worst at [40, 36]: expected 57, got 0; ...; likely cause: nothing was added to the last 13 of 1517 elements, those after the first 1504
layers.linear.bias, after B0: worst at [33]: expected 12, got 0; ...; likely cause: nothing was added to the last 9 of 41 elements, those after the first 32""",
    )


def test_subnormal_numbers_flushed_to_zero_are_reported_as_cause() -> None:
    assert_expected_inline(
        message("subnormal-gradients-flushed", "space.full.subnormal-1"),
        """\
program F0 F1 B0 B1 finish F0 B0 finish F0 B0
layers.linear.weight, after B0: worst at [16, 25]: expected 1.2e-38, got 0; ...; likely cause: values below the smallest normal number of float32 are flushed to zero; only with: values=subnormal""",
    )


def test_an_argument_that_cancels_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("arguments-that-add-up-to-zero-taken-for-padding", "space.split.cancelling-1"),
        """\
program F0 1F0 F1 1F1 I0 1I0 I1 1I1 W0 1W0 W1 1W1 ... 1finish (22 actions)
input 0, after I0: worst at [0, 0]: expected -5.4e+02, got 0; ...; likely cause: none
input 1, after I0: worst at [0, 0]: expected -1.6e+03, got 0; ...; likely cause: none
input 0, after 1I0: worst at [0, 0]: expected 3.4e+02, got 0; ...; likely cause: none
input 1, after 1I0: worst at [0, 0]: expected 1e+03, got 0; ...; likely cause: none
layers.gain, after W0: worst at [217]: expected 4.9e+02, got 0; ...; likely cause: it is zero: an argument sums to zero and may be treated as padding; only with: values=cancelling
layers.linear.weight, after W0: worst at [90, 0]: expected 5.6e+02, got 0; ...; likely cause: it is zero: an argument sums to zero and may be treated as padding; only with: values=cancelling
layers.linear.bias, after W0: worst at [191]: expected -1.8e+02, got 0; ...; likely cause: it is zero: an argument sums to zero and may be treated as padding; only with: values=cancelling
layers.gain, after 1W0: worst at [217]: expected 6.1e+02, got 0; ...; likely cause: none
layers.linear.weight, after 1W0: worst at [191, 0]: expected -8.2e+02, got 0; ...; likely cause: none
layers.linear.bias, after 1W0: worst at [111]: expected -2e+02, got 0; ...; likely cause: none""",
    )


def test_two_possible_reasons_for_padding_are_both_reported_as_cause() -> None:
    assert_expected_inline(
        message("output-of-bools-taken-for-a-mask", "space.full.bools-1"),
        """\
program F0 B0 finish zero_fill restride F0 B0
input 0, after B0: worst at [2, 0]: expected -22, got 0; ...; likely cause: it is zero: an argument is all zeros and may be treated as padding; or an output is boolean and may be treated as a mask; only with: outputs=bools
input 1, after B0: worst at [2, 0]: expected -65, got 0; ...; likely cause: it is zero: an argument is all zeros and may be treated as padding; or an output is boolean and may be treated as a mask; only with: outputs=bools
layers.gain, after B0: worst at [28]: expected -82, got 0; ...; likely cause: it is zero: an argument is all zeros and may be treated as padding; or an output is boolean and may be treated as a mask; only with: outputs=bools
layers.linear.weight, after B0: worst at [212, 0]: expected -33, got 0; ...; likely cause: it is zero: an argument is all zeros and may be treated as padding; or an output is boolean and may be treated as a mask; only with: outputs=bools
layers.linear.bias, after B0: worst at [16]: expected -6.9, got 0; ...; likely cause: it is zero: an argument is all zeros and may be treated as padding; or an output is boolean and may be treated as a mask; only with: outputs=bools""",
    )


def test_truncation_to_integers_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("input-gradients-in-the-dtype-of-the-last-argument", "space.split.integer-input-1"),
        """\
program F0 I0 receive0 W0 finish F0 I0 receive0 W0 finish F0 I0 receive0 W0
input 0, after I0: worst at [2, 32]: expected 14, got 13; ...; likely cause: truncated to integers; only with: inputs=integer-input""",
    )


def test_a_rounding_to_eight_bits_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("parameter-gradients-through-fp8", "split.bias.gradients"),
        """\
program F0 I0 F1 I1 W0 W1
conv.weight, after W0: worst at [1, 4, 2]: expected -17, got -17; ...; likely cause: rounded to float8_e4m3fn
conv.bias, after W0: worst at [14]: expected 2.5, got 2.6; ...; likely cause: rounded to float8_e4m3fn
norm.weight, after W0: worst at [15]: expected -6.6, got -6.3; ...; likely cause: rounded to float8_e4m3fn
norm.bias, after W0: worst at [23]: expected -2.3, got -2.5; ...; likely cause: rounded to float8_e4m3fn
up.weight, after W0: worst at [17, 28]: expected -20, got -19; ...; likely cause: rounded to float8_e4m3fn
up.bias, after W0: worst at [20]: expected -6.1, got -6.2; ...; likely cause: rounded to float8_e4m3fn
down.weight, after W0: worst at [10, 3]: expected 24, got 26; ...; likely cause: rounded to float8_e4m3fn
down.bias, after W0: worst at [10]: expected 7, got 6.8; ...; likely cause: none""",
    )


def test_a_rounding_to_few_bits_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("parameter-gradients-rounded-at-random", "split.bias.gradients"),
        """\
program F0 I0 F1 I1 W0 W1
conv.weight, after W0: worst at [1, 9, 1]: expected -17, got -18; ...; likely cause: rounded to 5 bits
conv.bias, after W0: worst at [4]: expected -3.4, got -3.4; ...; likely cause: rounded to 5 bits
norm.weight, after W0: worst at [4]: expected 9.8, got 10; ...; likely cause: rounded to 5 bits
norm.bias, after W0: worst at [3]: expected -4.9, got -5; ...; likely cause: rounded to 5 bits
up.weight, after W0: worst at [14, 1]: expected 49, got 50; ...; likely cause: rounded to 5 bits
up.bias, after W0: worst at [17]: expected 5.2, got 5.2; ...; likely cause: rounded to 5 bits
down.weight, after W0: worst at [6, 3]: expected 35, got 34; ...; likely cause: rounded to 5 bits
down.bias, after W0: worst at [2]: expected 4.1, got 4.2; ...; likely cause: rounded to bfloat16""",
    )


def test_a_caller_hook_applied_twice_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("tensor-hooks-applied-twice", "hooks.altered.scale-mlp-full"),
        """\
program F0 F1 B0 B1
0.weight, after B0: worst at [4, 1]: expected -3.3, got -13; ...; likely cause: a hook multiplying it by 4 is applied twice
0.bias, after B0: worst at [4]: expected -1.7, got -7; ...; likely cause: a hook multiplying it by 4 is applied twice
2.weight, after B0: worst at [1, 4]: expected 18, got 71; ...; likely cause: a hook multiplying it by 4 is applied twice
2.bias, after B0: worst at [1]: expected 7.4, got 29; ...; likely cause: a hook multiplying it by 4 is applied twice""",
    )


def test_module_hooks_never_called_are_reported_as_cause() -> None:
    assert_expected_inline(
        message("modules-walked-around", "hooks.value.module-hooks-full"),
        """\
program F0 F1 B0 B1
input 0, after B0: worst at [2, 1]: expected -0.059, got -0.12; ...; likely cause: module hooks are never called
0.weight, after B0: worst at [5, 0]: expected -0.029, got -0.058; ...; likely cause: module hooks are never called
0.bias, after B0: worst at [5]: expected 0.033, got 0.066; ...; likely cause: module hooks are never called""",
    )


def test_a_stage_in_training_mode_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("stage-put-into-training-mode", "mode.gradients.eval-dropout-full"),
        """\
program F0 F1 B0 B1
output 0, after F0: worst at [6, 0]: expected 2.2, got 1.5; ...; likely cause: the stage is in training mode
input 0, after B0: worst at [5, 0]: expected -0.66, got 0.0025; ...; likely cause: the stage is in training mode
0.weight, after B0: worst at [2, 3]: expected 0.031, got 0.77; ...; likely cause: the stage is in training mode
0.bias, after B0: worst at [0]: expected -0.21, got 0.24; ...; likely cause: the stage is in training mode
3.weight, after B0: worst at [1, 10]: expected 1.6, got -0.41; ...; likely cause: the stage is in training mode""",
    )


def test_a_skipped_output_without_gradient_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("output-that-needs-none-shifts-the-gradients", "split.gradients.mask-output"),
        """\
program F0 I0 F1 I1 W0 W1
input 0, after I0: expected a tensor of shape (7, 5) with largest element 1.04, got None; likely cause: not returned: an output without requires_grad is skipped but its output gradient is not, so the others shift
linear.weight, after W0: expected a tensor of shape (3, 5) with largest element 3.41, got None; likely cause: never accumulated: an output without requires_grad is skipped but its output gradient is not, so the others shift
linear.bias, after W0: expected a tensor of shape (3,) with largest element 0.617, got None; likely cause: never accumulated: an output without requires_grad is skipped but its output gradient is not, so the others shift""",
    )


def test_parameters_from_before_a_step_are_reported_as_cause() -> None:
    assert_expected_inline(
        message("weights-of-the-first-forward", "steps.params.step-full"),
        """\
program F0 F1 B0 B1 finish step F0 F1 B0 B1 finish step ... finish (17 actions)
output 0, after F0: worst at [6, 2]: expected 0.87, got -2.4; ...; likely cause: the parameters have the values from before step
input 0, after B0: worst at [2, 3]: expected 0.054, got -0.15; ...; likely cause: the parameters have the values from before step
0.weight, after B0: worst at [4, 1]: expected -3.5, got -4.3; ...; likely cause: the parameters have the values from before step
0.bias, after B0: worst at [5]: expected -0.56, got 0; ...; likely cause: the parameters have the values from before step
2.weight, after B0: worst at [1, 4]: expected 9.2, got 14; ...; likely cause: the parameters have the values from before step""",
    )


def test_strided_gradients_added_as_flat_memory_are_reported_as_cause() -> None:
    assert_expected_inline(
        message("gradients-added-as-flat-memory", "steps.grads.strides-full"),
        """\
program F0 B0 restride F1 B1
0.weight, after B1: worst at [10, 1]: expected 0, got -2.6; ...; likely cause: added as flat memory although the strides differ
0.bias, after B1: worst at [2]: expected 0.5, got -0.5; ...; likely cause: added as flat memory although the strides differ
2.weight, after B1: worst at [0, 4]: expected -5.7, got 0.31; ...; likely cause: added as flat memory although the strides differ
2.bias, after B1: worst at [1]: expected 3.7, got 1.6; ...; likely cause: added as flat memory although the strides differ""",
    )


def test_gradients_added_at_the_start_of_a_bucket_are_reported_as_cause() -> None:
    assert_expected_inline(
        message("gradients-added-at-the-start-of-their-storage", "steps.grads.bucket-for-none-full"),
        """\
program F0 B0 zero_none bucket F1 B1
0.weight, after B1: worst at [0, 4]: expected 0.083, got -5.6; ...; likely cause: added at the start of the buffer that all gradients share
0.bias, after B1: worst at [4]: expected -0.91, got 0; ...; likely cause: added at the start of the buffer that all gradients share
2.weight, after B1: worst at [1, 4]: expected 4.7, got 0; ...; likely cause: added at the start of the buffer that all gradients share
2.bias, after B1: worst at [1]: expected 1.9, got 0; ...; likely cause: added at the start of the buffer that all gradients share""",
    )


def test_parameters_from_after_a_step_are_reported_as_cause() -> None:
    assert_expected_inline(
        message("forward-run-again-with-new-parameters", "steps.in_flight.full"),
        """\
program F0 F1 step B0 step F2 B1 B2
input 0, after B0: worst at [6, 3]: expected 0.084, got 1.7; ...; likely cause: the parameters have the values that they got in step, which came after its F
shift, after B0: worst at [3]: expected -2.3, got 1.8; ...; likely cause: the parameters have the values that they got in step, which came after its F""",
    )


def test_the_forward_of_another_session_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("contexts-kept-on-the-module", "steps.one_module.full"),
        """\
program F0 1F0 F1 1F1 B0 1B1 1B0 B1
input 0, after B0: worst at [3, 2]: expected -0.037, got 0.48; ...; likely cause: the forward of micro-batch 0 of stage 1: both sessions use one module
0.weight, after B0: worst at [4, 1]: expected -0.83, got 0.55; ...; likely cause: the forward of micro-batch 0 of stage 1: both sessions use one module
0.bias, after B0: worst at [10]: expected 0, got 0.53; ...; likely cause: the forward of micro-batch 0 of stage 1: both sessions use one module
2.weight, after B0: worst at [2, 8]: expected -0.31, got -4; ...; likely cause: the forward of micro-batch 0 of stage 1: both sessions use one module
0.weight, after 1B1: worst at [4, 1]: expected -0.23, got 1.2; ...; likely cause: none
0.bias, after 1B1: worst at [10]: expected 0.31, got 0.84; ...; likely cause: none
2.weight, after 1B1: worst at [2, 8]: expected -0.077, got -3.8; ...; likely cause: none
the action, after 1B0: raised KeyError: 0; plain autograd does not
the action, after B1: raised KeyError: 1; plain autograd does not""",
    )


def test_overwritten_gradients_of_other_sessions_are_reported_as_cause() -> None:
    assert_expected_inline(
        message("sums-of-each-session-assigned", "steps.tied.full"),
        """\
program F0 1F0 F1 1F1 B0 1B1 1B0 B1
0.weight, after B1: worst at [5, 3]: expected -3.2, got 0; ...; likely cause: the gradients of other sessions are missing
2.bias, after B1: worst at [1]: expected 14, got 3.7; ...; likely cause: the gradients of other sessions are missing
0.weight, after 1finish: worst at [5, 3]: expected -3.2, got 0; ...; likely cause: none
2.bias, after 1finish: worst at [1]: expected 14, got 3.7; ...; likely cause: none""",
    )


def test_the_first_row_used_for_all_rows_is_reported_as_cause() -> None:
    assert_expected_inline(
        message("tuple-of-one-taken-apart-twice", "space.split.tuple-of-one-1"),
        """\
program F0 I0 overwrite0 W0 F1 I1 overwrite1 W1 finish freeze0 F0 I0 overwrite0 W0
input 0, after I0: worst at [2, 3]: expected -2.9, got 5.5; ...; likely cause: the first row of an output gradient is used for all rows; only with: outputs=tuple-of-one
input 1, after I0: worst at [2, 3]: expected -8.8, got 16; ...; likely cause: the first row of an output gradient is used for all rows; only with: outputs=tuple-of-one
layers.linear.bias, after W0: worst at [4]: expected 15, got 39; ...; likely cause: the first row of an output gradient is used for all rows; only with: outputs=tuple-of-one""",
    )


def test_a_weight_pass_that_was_not_called_after_an_error_is_named() -> None:
    assert_expected_inline(
        message("next-micro-batch-left-out-after-an-error", "errors.next.raising-hook-split"),
        """\
program F0 I0 W0 F1 F2 I1! W1! I2 W2 F3 I3 W3
W1! was not called, because I1! raised
input 0, after I2: expected a tensor of shape (7, 5) with largest element 0.592, got None; likely cause: not returned: nothing was added after the error in I1!
first.weight, after W2: worst at [9, 1]: expected -0.94, got 0.027; ...; likely cause: none
first.bias, after W2: worst at [9]: expected -0.72, got 0.048; ...; likely cause: none
second.weight, after W2: worst at [5, 3]: expected 0.073, got -2.2; ...; likely cause: none
second.bias, after W2: worst at [5]: expected -3.1, got -1.7; ...; likely cause: none
third.weight, after W2: worst at [1, 0]: expected -3.1, got 0.54; ...; likely cause: none
third.bias, after W2: worst at [1]: expected -3.3, got 0.55; ...; likely cause: none""",
    )


def test_what_keeps_a_closed_stage_alive_is_named() -> None:
    assert_expected_inline(
        message("modules-registered", "caller.freed.full"),
        """\
program F0 B0 finish close
the module, after close: is alive after close; attribute 'modules' of class _Registry holds it
parameter 0.weight, after close: is alive after close; attribute 'modules' of class _Registry holds it
parameter 0.bias, after close: is alive after close; attribute 'modules' of class _Registry holds it
parameter 2.weight, after close: is alive after close; attribute 'modules' of class _Registry holds it
parameter 2.bias, after close: is alive after close; attribute 'modules' of class _Registry holds it""",
    )
