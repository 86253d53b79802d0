"""A fault of values is told with its cause, as the catalogue has it; what is no mistake but noise is told none."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from gradconform import check_stage_backward
from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.reference.faults import FAULTS
from gradconform.reference.faults.alterations import every_grad, target
from gradconform.results import Report
from gradconform.sources.faults.subject import VALUES, reported_cause

#: Half a millionth, as another processor's rounding writes it too.
FIVE = r"(4\.\d+|5(\.\d+)?)e-07"

#: What a message says on a fault of values.
SAID = {
    "overwrite": r"only micro-batch \d+: overwritten instead of accumulated|the earlier value missing",
    "doubled": "counted twice",
    "first-microbatch-only": "micro-batch 1 missing|only micro-batch 0",
    "averaged-with-what-stands": "scaled by 0.5|0.5 × ",
    "wrong-after-the-fifth-call": "2.0 × micro-batch 5: counted twice",
    "first-call-assigns": "only micro-batch 0: overwritten instead of accumulated",
    "written-behind-zero-grad": "also added: a running sum",
    "divided-by-microbatches": "divided by the number of micro-batches",
    "running-sum-of-an-input": "also added: a running sum",
    "returned-gradient-stored": "the caller overwrote a returned gradient in overwrite0",
    "two-parameters-share-a-buffer": "one buffer for both",
    "first-of-a-node-only": "slots 1 and 2 missing: their gradients are dropped",
    "last-of-a-node-dropped": "slot 1 missing: its gradient is dropped",
    "none-shifts-the-slots-of-a-node": "None shifts the gradients",
    "outputs-of-a-node-summed-into-the-first": "summed into the first",
    "biases": "never accumulated",
    "embeddings": "never accumulated",
    "parameter-only-paths": "never accumulated",
    "parameters-without-a-dimension": "never accumulated",
    "complex-parameters": "never accumulated",
    "outputs-that-reach-no-input": "never accumulated",
    "stages-whose-inputs-need-no-gradient": "never accumulated",
    "second-output": "output 1 missing: its gradient is dropped",
    "outputs-beyond-the-second": "(outputs 2, 3 and 4 missing: their|output 2 missing: its) gradients? (is|are) drop",
    "nested-outputs": r"missing: their gradients are dropped \(inside a tuple or dict\)",
    "output-returned-twice": r"output 1 missing: its gradient is dropped \(the same tensor as another output\)",
    "stages-with-a-frozen-parameter": "never accumulated|micro-batch 0 missing",
    "outputs-that-are-leaves": r"missing: its gradient is dropped \(an input or a parameter itself\)",
    "later-uses-of-a-tied-weight": "uses of the tied parameter: the others are missing",
    "later-paths-to-an-input": "1 of the 2 paths to the input: the others are missing",
    "parameters-left-frozen-by-an-error": "never accumulated",
    "next-session-poisoned": "never accumulated: nothing was added after the error in",
    "next-microbatch-poisoned": "micro-batch 2 missing",
    "contexts-cleared-by-an-error": "never accumulated: nothing was added after the error in I1!",
    "contexts-can-be-used-again": "counted twice",
    "input-gradient-in-place-of-the-output-gradient": "Addmm writes its gradient into the memory of the one that it",
    "imaginary-part-lost": "its imaginary part is lost",
    "first-row-used-for-all": "its first row is used for all rows",
    "static-buffer-stored-as-gradient": "2.0 × micro-batch 1, and the others are missing: .grad shares memory with",
    "buffer-unwritten-without-rows": "micro-batch 0 added again for micro-batch 1, which has no rows",
    "recomputed-with-updated-buffers": "a forward that runs again in the backward reads buffers that were updated",
    "forward-run-to-measure": "a forward ran once too often before it, and updated the buffers that it reads",
    "retained-once-is-retained-forever": "2.0 × micro-batch 1: counted twice",
    "retained-context-used-in-place-of-a-used-one": "2.0 × micro-batch 0: counted twice",
    "retained-gradients-cleared": "cleared after it was accumulated",
    "early-weight-pass-uses-up-its-turn": "W0! came before its I and used up its turn",
    "early-weight-pass-takes-anything": "W0! came before its I and used up its turn",
    "hooks-of-a-closed-session": "it is zero",
    "uses-accumulated-apart": "a hook on the parameter changed parts of its gradient one by one",
    "outputs-referred-to-weakly": "never accumulated",
    "split-or-full-at-the-first-backward": "micro-batch 1 missing",
    "forward-behind-a-backward-begins-a-step": "cleared after it was accumulated",
    "walk-ends-at-custom-functions": r"never accumulated|micro-batch \d missing",
    "walk-ends-where-integers-choose": r"never accumulated|micro-batch \d missing",
    "both-parts-of-complex-numbers-shared-between": "scaled by 0.5",
    "what-is-computed-again-counted-again": "counted twice",
    "randomness-left-out-of-the-backward": "in eval mode",
    "bucket-of-the-narrowest-dtype-alone": "never accumulated",
    "lone-micro-batch-dropped": "it is zero",
    "ring-of-two-contexts": "only the newest 2 weight contexts are kept",
    "zeros-taken-for-padding": "it is zero|never accumulated",
    "rounded-through-bfloat16": "rounded to bfloat16",
    "relative-error-1e-5": "a relative error of 1e-05",
    "relative-error-3e-6": r"a relative error of (3|2\.9)e-06",
    "one-element-wrong": r"one element of \d+ is wrong",
    "nan-replaced": "NaN replaced",
    "inf-clipped": "inf replaced by a finite number: clipped",
    "nan-spreads": "NaN where plain autograd has numbers: it spread",
    "square-gradient-transposed": "transposed",
    "scaled-by-the-batch": "divided by the batch size",
    "loss-divided": "scaled by 0.5",
    "complex-gradient-conjugated": "conjugated",
    "weight-pass-dropped-while-another-waits": "a W is dropped if another one is waiting",
    "weight-passes-of-two-stages-swapped": r"contexts are swapped|the backward ran for stage \d+ instead",
    "gradient-of-the-micro-batch-before-handed-over": "micro-batch 0 in place of micro-batch 1: returned late",
    "returned-buffer-shared-by-stages": "a returned buffer was written again before it was read",
    "wrong-in-one-of-five-graph-builds": "counted twice",
    "tied-weight-wrong-in-some-graph-builds": "scaled by 0.5|0.5 × ",
    "none-shifts-the-gradients-behind-it": "None shifts the gradients",
    "output-grads-reversed": "output gradients are reversed",
    "none-read-as-ones": r"None for outputs? \d+.* is treated as ones",
    "none-of-a-scalar-read-as-one": "None for the 0-d output 0 is treated as 1",
    "one-gradient-for-all": "the gradient of output 0 is used for every output",
    "input-grads-reversed": "slots are swapped or shifted",
    "input-that-needs-none-shifts-the-slots": "slots are swapped or shifted",
    "unused-input-shifts-the-slots": "slots are swapped or shifted",
    "zeros-for-none": "zeros instead of None",
    "arguments-with-gaps-read-without": "an argument is read from the start of its memory",
    "channels-last-arguments-read-as-contiguous": "an argument is read from the start of its memory",
    "channels-last-gradient-read-as-contiguous": "an output gradient is read from the start of its memory",
    "input-gradient-written-as-the-argument-is": "written row by row into memory that is transposed",
    "weight-gradient-written-as-the-weight-is": "written row by row into memory that is transposed",
    "flag-of-a-step-read-in-each-microbatch": "micro-batch 1 missing|only micro-batch 0",
    "first-microbatch-of-a-step-overwrites": "overwritten instead of accumulated",
    "each-use-in-the-first-microbatch-overwrites": "the others are missing",
    "bucket-in-the-narrowest-dtype": r"rounded to b?float16",
    "elements-past-sixteen-bits-dropped": "those after the first 65536",
    "evaluation-ends-the-training": "never accumulated|it is zero|missing",
    "float64-gradient-through-the-dtype-of-the-others": "rounded to float32",
    "gradient-in-the-dtype-of-its-parameter": r"rounded to b?float16",
    "gradients-given-by-the-place-of-the-weight": "parameters are mixed up|never accumulated",
    "graph-made-of-the-backward": "its graph starts at",
    "last-number-of-sixteen-bits-means-none": "it is zero|never accumulated",
    "micro-batch-told-by-its-output-gradient": "micro-batch 1 missing|never accumulated",
    "output-gradient-read-from-the-start-of-its-memory": "read from the start of its memory",
    "output-gradients-copied-once-per-tensor": "contexts are swapped|output gradients of micro-batch",
    "rows-past-256-dropped": "nothing was added to the last ",
    "rows-past-64-dropped": "nothing was added to the last ",
    "rows-past-sixteen-dropped": "nothing was added to the last ",
    "second-part-of-the-weights-lost": "missing|never accumulated",
    "weight-listed-twice-counted-twice": "counted twice",
    "read-through-the-storage": "read from the start of its memory",
    "zeros-taken-for-none": "the output gradients are zeros and may be treated as None",
    "empty-taken-for-none": "the output gradients have no elements and may be treated as None",
    "first-output-of-an-edges-node": "the output gradients are summed into the first",
    "first-edge-only": "output 1 missing: its gradient is dropped",
    "edges-of-leaves-dropped": r"output 1 missing: its gradient is dropped \(an input or a parameter itself\)",
    "edges-once-tensors-from-then-on": "never accumulated",
    "tensors-beside-an-edge-dropped": r"outputs? \d.* missing: (its gradient is|their gradients are) dropped",
    "tied-weight-doubled": "counted twice",
    "tied-weight-halved": "scaled by 0.5",
    "tied-weight-doubled-if-a-layer-lies-between": "counted twice",
    "tied-weight-doubled-if-registered-last": "counted twice",
    "input-passed-twice-doubled": "counted twice",
    "input-passed-twice-lost-in-both": "scaled by 0.5",
    "parameter-input-not-accumulated": "never accumulated",
    "parameter-input-without-input-gradient": "not returned: the argument is a parameter of the stage",
    "two-weight-passes-swapped": "contexts are swapped",
    "weight-passes-first-in-first-out": "contexts are swapped",
    "weight-passes-last-in-first-out": "contexts are swapped",
    "newest-forward-for-every-backward": "the forward of micro-batch 2 with the output gradients of micro-batch 0",
    "oldest-forward-for-every-backward": "the forward of micro-batch 0 with the output gradients of micro-batch 2",
    "newest-context-only": "only the newest weight context is kept",
    "two-sessions-share-contexts": "weight contexts are stored by micro-batch and not by stage",
    "ring-of-eight-contexts": "only the newest 8 weight contexts are kept",
    "full-backward-clears-the-contexts": "micro-batch [01] missing",
    "parameters-of-one-shape-swapped": "parameters are mixed up",
    "input-grad-attribute-doubled": "counted twice",
    "stale-weight-result": "the value from before this W",
    "stage-left-in-eval-mode": "the stage is in eval mode",
    "accumulated-inside-and-again": "micro-batch 0 also added: a running sum, or added too early",
    "writes-to-arguments-uncounted": "saved tensors that the caller has written to since, which autograd refuses",
    "writes-to-weights-uncounted": "saved tensors that the caller has written to since, which autograd refuses",
    "writes-to-outputs-uncounted": "saved tensors that the caller has written to since, which autograd refuses",
    "forward-again-before-the-backward": "the forward runs again in the backward, on values that the caller has",
    "weights-saved-by-their-parameter": "reads the weights from their parameters, which the caller has changed since",
    "gradients-set-aside-in-the-process": "cleared after it was accumulated",
    "input-gradients-sorted-by-name": "equals the gradient of input 1[0-9]: slots are swapped or shifted",
    "outputs-past-64-unread": "67, 68 and 69 missing|nothing was added to the last",
    "buffer-of-2-18-elements": r"\d+ of 67500 elements are zero",
    "outputs-with-gradients-of-the-first-micro-batch": "output 0 missing: its gradient is dropped",
    "strides-of-the-first-argument": "read row by row from memory that is transposed",
    "sparse-gradient-on-a-dense-one-dropped": "micro-batch 1 missing",
    "sum-stays-expanded": "its first row is used for all rows",
    "micro-batch-with-an-error-is-done": "micro-batch 1 missing",
    "micro-batch-with-an-error-runs-twice": "2.0 × micro-batch 1: counted twice",
    "context-queued-before-the-error": "micro-batch 1 missing",
    "one-frozen-ends-the-micro-batch": "never accumulated",
    "micro-batches-without-rows-end-the-step": "only micro-batch 0: the others are missing",
    "used-parameters-by-operation-names": "never accumulated",
    "used-parameters-by-their-count": "never accumulated",
    "unused-once-is-unused-forever": "never accumulated",
    "argument-found-by-its-values": "equals the gradient of input 0: slots are swapped or shifted",
    "gradient-of-another-layout-replaced": "only micro-batch 1: overwritten instead of accumulated",
    "output-gradient-kept": "what the caller received over an output gradient in receive0|receive0",
    "written-to-a-detached-copy": "only parameters inside a checkpoint get none: added to a detached",
    "gradients-with-a-history": "with gradients enabled, and its graph starts at CloneBackward0",
    "activation-hooks-twice": "a hook multiplying it by 0.5 is applied twice",
    "activation-hooks-never": "a hook multiplying it by 0.5 is never applied",
    "weight-passes-of-every-session": r"micro-batch \d+ added by \d*W\d+, the W of another session",
    "gradients-wiped-at-finish": "cleared after it was accumulated",
    "parameter-gradients-slightly-large": rf"\.(weight|bias): the mean error .* is \+{FIVE} .*relative error of {FIVE}",
    "input-gradients-slightly-large": rf"input 0: the mean error .* is \+{FIVE} .*relative error of {FIVE}",
    "loss-over-one-row-too-few": "scaled by 1.016",
    "sums-truncated": r"the mean error .* is -0\.00\d+ of its value.*a relative error of -0\.00",
    "forgotten-weight-pass-left-in-a-queue": "the W of I0 was never called, and this W may have run it instead",
    "post-accumulate-hooks-never": "a hook that moves the gradient away after accumulation is never called",
    "hooks-on-outputs-never": "2 hooks multiplying it by 0.5 and -2 are never applied",
    "parameter-gradients-through-fp8": "rounded to float8_e4m3fn",
    "parameter-gradients-rounded-at-random": "rounded to 5 bits",
    "backward-left-out-without-grad-mode": "it was called under no_grad, where it may be skipped",
    "contexts-of-the-thread": "it was called from another thread than its F",
    "backward-of-another-thread-left-out": "it was called from another thread than its F",
    "forward-of-another-thread-left-out": "it was called from another thread than its F",
    "newest-forward-of-another-thread": "the forward of micro-batch 1 with the output gradients of micro-batch 0",
    "forward-of-another-thread-scaled": "scaled by 0.5",
    "walk-kept-for-other-trained-parameters": "never accumulated|micro-batch \\d+ missing",
    "parameters-of-the-first-graph-kept": "never accumulated|micro-batch \\d+ missing",
    "forwards-dropped-by-an-error": "B2 raised and added nothing",
    "sums-in-memory-never-written-to": "deterministic mode fills it with NaN",
    "inputs-copied-once-per-tensor": "an argument is copied when it is first passed",
    "outputs-kept-by-their-gradient": "if outputs share one output gradient, only the last one counts",
    "first-forward-of-a-number-kept": "the backward uses the first of two forwards",
    "next-micro-batch-left-out-after-an-error": "nothing was added after the error in",
    "ring-of-sixteen-contexts": "only the newest 16 weight contexts are kept",
    "ring-of-thirty-two-contexts": "only the newest 32 weight contexts are kept",
    "ring-of-sixty-four-contexts": "only the newest 64 weight contexts are kept",
    "backwards-past-sixty-four-lost": "micro-batch 64 missing: only the first 64 B add anything",
    "tail-behind-blocks-of-sixteen-dropped": "the last 9 of 41 elements, those after the first 32",
    "tail-behind-blocks-of-256-dropped": "the last 237 of 1517 elements, those after the first 1280",
    "last-of-whole-blocks-dropped": "the last 256 of 1024 elements, those after the first 768",
    "elements-past-1024-dropped": "the last 493 of 1517 elements, those after the first 1024",
    "elements-past-32768-dropped": "the last 1 of 32769 elements, those after the first 32768",
    "no-elements-no-gradient": "it has no elements",
    "parameters-past-128-left-out": "only the first 128 parameters get any",
    "contexts-of-the-first-step": "its micro-batch number was used before",
    "trained-parameters-looked-up-once": "it was frozen when the stage was opened and is trained now",
    "gradients-of-frozen-parameters-cleared": "cleared after it was accumulated: it was frozen in between",
    "opening-clears-the-module": "1F0 opened another session after its F",
    "opening-clears-the-process": "1F0 opened another session after its F",
    "contexts-held-weakly-in-a-cycle": "the garbage collector ran after its F",
    "inputs-told-apart-by-address": "equals the gradient of input 1",
    "parameters-told-apart-by-address": "parameters are mixed up, or share a buffer",
    "subnormal-gradients-flushed": r"values below the smallest normal number of \w+ are flushed to zero",
    "tiny-gradients-flushed": r"values below .* are flushed to zero",
    "huge-gradients-clipped": r"clipped at \d",
    "one-element-taken-for-a-loss": "ones instead of the output gradients",
    "arguments-that-add-up-to-zero-taken-for-padding": "an argument sums to zero and may be treated as padding",
    "all-inputs-lost-with-one-that-is-not-used": "one argument is unused, and the other arguments get no gradient",
    "input-gradients-in-the-dtype-of-the-last-argument": "truncated to integers",
    "output-of-bools-taken-for-a-mask": "an output is boolean and may be treated as a mask",
    "numbers-of-microbatches-used-once": "micro-batch 0 missing: its micro-batch number was used before",
    "tensor-hooks-applied-twice": "a hook multiplying it by 4 is applied twice",
    "modules-walked-around": "module hooks are never called",
    "stage-put-into-training-mode": "the stage is in training mode",
    "submodules-put-into-the-mode-of-the-stage": "the stage is in training mode",
    "weight-without-a-bias-left-out": "never accumulated",
    "padding-trained": "embedding_dense_backward takes padding_idx=-1 instead of 1",
    "counts-of-rows-ignored": "embedding_dense_backward takes scale_grad_by_freq=False instead of True",
    "conjugated-only-with-a-bias": "mm multiplies by a factor that is not conjugated",
    "random-state-kept-in-training-alone": "a forward that runs again in the backward draws other random numbers",
    "submodules-in-training-mode-after-a-backward": "the stage is in training mode",
    "output-that-needs-none-shifts-the-gradients": "an output without requires_grad is skipped",
    "accumulated-inside-and-lost": "only parameters inside a checkpoint get none: .*, or removed again",
    "weights-of-the-first-forward": "the parameters have the values from before (step|replace)",
    "gradients-added-as-flat-memory": "added as flat memory",
    "gradients-added-at-the-start-of-their-storage": "added at the start of the buffer that all gradients share",
    "forward-run-again-with-new-parameters": "the parameters have the values that they got in step",
    "contexts-kept-on-the-module": "the forward of micro-batch 0 of stage 1: both sessions use one module",
    "sums-of-each-session-assigned": "the gradients of other sessions are missing",
    "tuple-of-one-taken-apart-twice": "the first row of an output gradient is used for all rows",
    "gradients-of-the-current-inputs": "not returned: two stages ran at once in two threads",
    "sum-in-a-new-tensor": "the sum is in a new .grad tensor, and the caller's buffer",
    "zeros-replaced-by-the-next-gradient": "the sum is in a new .grad tensor, and the caller's buffer",
    "views-made-contiguous-storage": "the sum is in a new .grad tensor, and the caller's buffer",
    "other-memory-ends-the-micro-batch": "never accumulated: its memory was replaced in between",
    "gradients-scaled-by-the-weights-of-now": "scaled by 0.25",
    "output-gradients-sorted-by-name": "in the order of their numbers as text: 10 is before 2",
    "arguments-past-64-unread": "not returned: only the first 64 arguments with a gradient get one",
    "uses-past-64-lost": "scaled by 0.9143",
    "dimensions-past-four-flattened": "its dimensions 3 and 4 are swapped",
    "parameter-found-by-its-values": "it is zero: (one|other) has equal values, and one may be taken for the other",
    "order-of-the-first-micro-batch": "micro-batch 1 added the gradient of other.weight here: parameters are mixed up",
    "rows-of-the-first-micro-batch": "its rows were added to those of micro-batch 0",
    "sparse-gradients-added-by-place": "its rows were added to those of micro-batch 0",
    "strides-of-the-first-output-gradient": "read with the strides that it had for micro-batch 0",
    "parameters-in-two-halves": "a hook on the parameter changed parts of its gradient one by one, not their sum",
    "arguments-read-from-the-start-of-their-memory": "an argument is read from the start of its memory",
    "gradient-of-an-expanded-argument-summed": "summed over the dimensions in which the argument is expanded",
    "hyperbolic-tangent-strided-as-its-gradient": "Tanh writes its gradient over an expanded one",
    "rectifiers-strided-as-their-gradients": "(Relu|Gelu|Silu|Elu) writes its gradient over an expanded one",
    "softmax-strided-as-its-gradient": "(Log)?Softmax writes its gradient over an expanded one",
    "last-block-of-rows-dropped": "the last 513 of 1537 rows are left out, which fill no block of 1024",
    "activations-told-apart-by-address": "computed from the activations that entered even",
    "none-as-zeros": "zeros instead of None",
    "none-as-zeros-behind-a-gradient": "zeros instead of None",
    "parts-of-output-gradients-not-copied": "receive0 overwrote the output gradients, and W reads them afterwards",
}

#: One and several outputs, tied parameters, prior gradients, ten micro-batches, a chain.
BROAD = ["*.gradients.mlp", "*.gradients.tied-*", "accumulate.iterations.split-10", "accumulate.prior.*"]
BROAD += ["schedule.chain.tied", "grad_tuple.size.*"]


def test_every_fault_with_a_cause_has_an_expected_message() -> None:
    assert sorted(SAID) == sorted(name for name, fault in FAULTS.items() if fault.causes)


def test_the_causes_of_the_faults_use_the_fields_of_a_report() -> None:
    causes = [cause for fault in FAULTS.values() for cause in fault.causes]
    assert {cause["kind"].upper() for cause in causes} <= set(Mistake.__members__)
    assert {name for cause in causes for name in cause} <= {field.name for field in fields(Cause)}


@pytest.mark.parametrize("name", SAID)
def test_the_message_on_a_fault_names_its_cause(name: str, judge_fault: Callable[..., Report]) -> None:
    fault = FAULTS[name]
    report = judge_fault(fault, diagnose=True)
    undone = [one["mistake"]["text"] for result in report for one in result.undone]
    told = "\n".join([*(result.message for result in report), *undone])
    assert re.search(SAID[name], told), told
    assert reported_cause(report, fault)["said"], told
    assert "the diagnosis failed" not in told


def replaced(drawn: Tensor, right: Tensor) -> Tensor:
    return drawn * right.abs().max()


def disturbed(drawn: Tensor, right: Tensor) -> Tensor:
    return right + 0.3 * drawn * right.abs().max()


def unevenly_scaled(drawn: Tensor, right: Tensor) -> Tensor:
    return right * (1.0 + 0.5 * drawn)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("noise", [replaced, disturbed, unevenly_scaled])
def test_noise_gets_no_cause(noise: Callable[[Tensor, Tensor], Tensor], dtype: str) -> None:
    generator = torch.Generator().manual_seed(20)

    def edit(grad: Tensor) -> Tensor:
        if grad.layout != torch.strided or not grad.is_floating_point() or grad.numel() < 2:
            return grad  # of one number everything is a multiple
        drawn = torch.randn(grad.shape, generator=generator, dtype=torch.float64)
        return noise(drawn, grad.double()).to(grad.dtype)

    report = check_stage_backward(target(every_grad(edit)), dtype=dtype, checks=BROAD)
    assert wrong_values(report) > 50
    assert causes(report) == []


def wrong_values(report: Report) -> int:
    return sum(finding["kind"] in VALUES for result in report for finding in result.findings)


def causes(report: Report) -> list[str]:
    return [finding["cause"]["text"] for result in report for finding in result.findings if finding["cause"]]
