"""The dimensions of the space, and what of it cannot be together: one list, to be read at a glance."""

from __future__ import annotations

from gradconform.covering.dimension import Dimension, hiding, never, value

#: The orders by way. Every pair of the other values is covered in either way.
_FULL = (
    value("in-flight", "all forwards before the first backward", order="full-in-flight"),
    value("at-once", "each backward behind its forward", order="full-at-once"),
    value("reversed", "the last micro-batch backward first", "backward_order=any", order="full-reversed"),
)
_SPLIT = (
    value("split-at-once", "each W behind its I", order="split-at-once"),
    value("split-in-flight", "all F, then all I, then all W", "weight_order!=none", order="split-in-flight"),
    value("lagging", "each W behind the I that follows", "weight_order!=none", order="split-lagging"),
    value("weights-reversed", "the last W first", "weight_order=any", order="weights-reversed"),
    value("inputs-reversed", "the last I first", "weight_order=any", "backward_order=any", order="inputs-reversed"),
    value("mixed", "B for every other micro-batch", "full", "mixed", "weight_order!=none", order="mixed"),
)

#: What a second stage asks for, and what one asks for that has parameters of the first.
_BESIDE = ("global_state=False", "weight_order!=none")
_SHARED = ("shared_module", "grads_in_param_grad", "weight_when=weight", "input_pass_touches_params=False")

_OTHERS = (
    Dimension(name="count", says="how many micro-batches a step has", values=(
        value("two-mb", "two micro-batches"),
        value("one-mb", "one micro-batch", count=1),
        value("three-mb", "three micro-batches", count=3),
        value("past-64-mb", "65 micro-batches", count=65),
        value("ragged-mb", "two micro-batches, of which the second has a row less", "ragged", ragged=True),
    )),
    Dimension(name="steps", says="what comes between steps", values=(
        value("one-step", "one step"),
        value("cleared", "a second step behind gradients set to None", "grads_in_param_grad", steps="cleared"),
        value("zeroed", "a second step behind gradients of zeros with other strides", "grads_in_param_grad",
              steps="zeroed"),
        value("stepped", "a second step behind parameters changed in place", steps="stepped"),
        value("three-steps", "three steps whose micro-batches have the same numbers", steps="three"),
        value("frozen-later", "a parameter frozen for the second step", "frozen_params", "changed_params",
              steps="frozen"),
    )),
    Dimension(name="found", says="what the first action finds", values=(
        value("nothing-before", "no gradients before"),
        value("prior", "gradients that are there before", "grads_in_param_grad", prior_grads=True),
        value("same-arguments", "the same argument tensors for all micro-batches", same_args=True),
    )),
    Dimension(name="start", says="where a backward starts", values=(
        value("gradients", "gradients of the outputs"),
        value("loss", "a loss", "loss", loss=True),
        value("transposed-gradients", "output gradients that lie transposed", output_grads="layout:transposed"),
        value("strided-gradients", "output gradients with gaps between elements", output_grads="layout:strided"),
        value("expanded-gradients", "output gradients whose elements share one place", output_grads="layout:expanded"),
        hiding("zero-gradients", "output gradients of zeros", output_grads="zeros"),
        value("none-first", "None for the first output", "none_output_grad", output_grads="none:0"),
    )),
    Dimension(name="inputs", says="what the stage is fed", values=(
        value("one-input", "one argument"),
        value("two-inputs", "two arguments, one of which lies transposed", "multi_input", entry="two"),
        value("unused-input", "an argument that is not used", "multi_input", "unused_input", entry="unused"),
        value("fixed-input", "an argument without gradient before one with", "multi_input", "fixed_input",
              entry="fixed"),
        hiding("all-fixed", "no argument that needs a gradient", "fixed_input", "no_input_grads", entry="all fixed"),
        value("integer-input", "an argument of integers", "multi_input", "integer_input", entry="integers"),
        value("inputs-in-one-memory", "two arguments on one memory", "multi_input", entry="tied by memory"),
    )),
    Dimension(name="outputs", says="what the stage puts out", values=(
        value("tensor", "one output"),
        value("one-element", "an output of one element", "view_output", exit="one element"),
        value("tuple-of-one", "a tuple with one output", exit="tuple of one"),
        value("named", "a named tuple of outputs", "multi_output", "nested_output", exit="named"),
        value("dict", "a dict of outputs with None among them", "multi_output", "nested_output", exit="dict"),
        value("bools", "an output of bools", "multi_output", "nongrad_output", exit="bools"),
        value("scalar", "an output without dimensions", "multi_output", "scalar_output", exit="scalar"),
    )),
    Dimension(name="parameters", says="what parameters the stage has", values=(
        value("three-parameters", "three parameters"),
        value("many-parameters", "200 parameters", layers="many"),
        value("tied", "a weight that is used twice", "shared_params", layers="tied"),
        value("parameters-in-one-memory", "two parameters on one memory", layers="tied by memory"),
        value("frozen", "a frozen weight and a parameter that is not used", "frozen_params", "unused_params",
              layers="frozen"),
        value("sparse", "a sparse gradient", "sparse_grads", layers="sparse"),
        value("buffer", "a buffer that each forward updates", "buffers", layers="buffer"),
    )),
    Dimension(name="size", says="how many elements the weight has, those of the other tensors as they follow", values=(
        value("few-elements", "a weight of 35 elements"),
        value("one-by-one", "tensors of one element each", size="1"),
        value("past-256-elements", "a weight of 257 elements", size="257"),
        value("32x32", "a weight of 32×32 elements, whole blocks of 16, 256 and 1,024", size="1024"),
        value("37x41", "a weight of 37×41 elements", size="1517"),
        value("past-32768-elements", "a weight of 32,769 elements", size="32769"),
        value("no-elements", "an argument and a weight without elements", size="0"),
    )),
    Dimension(name="dtype", says="which dtypes the parameters have", values=(
        value("one-dtype", "one dtype"),
        value("wide-gain", "a gain in a wider dtype", wide=True),
    )),
    Dimension(name="values", says="how large the values of the arguments are", values=(
        value("usual", "usual values"),
        value("tiny", "arguments near the smallest normal number", values="tiny"),
        value("subnormal", "arguments below the smallest normal number", values="subnormal"),
        value("huge", "huge arguments", values="huge"),
        value("cancelling", "arguments whose elements add up to zero", values="cancelling"),
        value("zeros", "arguments of zeros", values="zero"),
    )),
    Dimension(name="graph", says="what lies between arguments and outputs", values=(
        value("plain", "layers alone"),
        value("deep", "2,000 nodes behind the layers", graph="deep"),
        value("custom", "a custom Function, and writes in place", graph="custom"),
        value("views", "views, integers and bools between", graph="views"),
        value("complex-between", "complex numbers between", graph="complex"),
        value("checkpoint", "a checkpoint", "recomputes", graph="checkpoint"),
        value("dropout", "dropout", "rng", graph="dropout"),
    )),
    Dimension(name="caller", says="what the caller does behind B or I", values=(
        value("keeps", "a caller that keeps all"),
        value("drops", "a caller that lets go of the micro-batch", caller="drops"),
        value("overwrites", "a caller that writes over the input gradients", caller="overwrites"),
        value("receives", "a caller that writes over the output gradients", caller="receives"),
    )),
    Dimension(name="mode", says="what the process is set to", values=(
        value("as-usual", "the usual modes"),
        value("eval", "the stage in evaluation mode", modes=frozenset({"eval"})),
        value("autocast", "forwards under autocast", "autocast", modes=frozenset({"autocast"})),
        value("no-grad", "backwards called where no gradients are recorded", "called_without_grad",
              modes=frozenset({"no_grad"})),
        value("thread", "backwards in other threads", modes=frozenset({"thread"})),
        value("deterministic", "deterministic algorithms", modes=frozenset({"deterministic"})),
        value("default-dtype", "another default dtype", modes=frozenset({"default_dtype"})),
    )),
    Dimension(name="hooks", says="what hooks on the parameters do", values=(
        value("no-hooks", "no hooks"),
        value("scaled-by-hooks", "hooks that scale each gradient", "hooks=with_grad", "hooks!=nowhere",
              "weight_when=weight", "input_pass_touches_params=False", altering="scale"),
    )),
    Dimension(name="watched", says="what is looked at beside gradients", values=(
        value("unwatched", "nothing but gradients looked at"),
        value("state", "all that must stay as it is looked at", watch=frozenset({"state"})),
    )),
    Dimension(name="received", says="which tensors the caller receives into", values=(
        value("new-tensors", "new tensors each time"),
        value("inputs-refilled", "arguments received into the tensors of an earlier micro-batch", received="inputs",
              again=True),
        value("gradients-refilled", "output gradients received into the tensors of an earlier micro-batch",
              received="grads", again=True),
        value("one-gradient-twice", "one tensor as the gradient of two outputs", received="twice"),
        value("one-gradient-for-all", "one tensor as the output gradient of all micro-batches", received="once"),
    )),
    Dimension(name="tracking", says="whether output gradients require a gradient themselves", values=(
        value("untracked", "output gradients without a history"),
        value("tracked-gradients", "output gradients that require a gradient themselves", tracked_grads=True),
    )),
    Dimension(name="lists", says="what the caller does with the lists that it passes", values=(
        value("lists-left", "lists for one call each"),
        value("lists-kept", "lists that the caller uses again", "lists", kept_lists=True),
    )),
    Dimension(name="owner", says="in whose memory the arguments are", values=(
        value("own-memory", "arguments in memory of their own"),
        value("earlier-graph", "arguments in the memory of an earlier graph, which goes on afterwards", upstream=True),
    )),
    Dimension(name="forwards", says="what forwards there are without a backward", values=(
        value("no-other-forward", "no other forward"),
        value("evaluated", "an evaluation between a forward and its backward", "evaluation", forwards="evaluated"),
        value("lost-forward", "a forward whose number is used again, without a backward", "forward_again",
              forwards="lost"),
    )),
    Dimension(name="beside", says="what else is alive", values=(
        value("alone", "one stage"),
        value("beside", "a second stage beside it", *_BESIDE, beside=True),
        value("one-module", "a second session on its module", *_BESIDE, *_SHARED, beside=True, one_module=True),
    )),
)  # fmt: skip

#: The dimensions by way, the order first.
DIMENSIONS: dict[str, tuple[Dimension, ...]] = {
    "full": (Dimension(name="order", says="the order of a step's actions", values=_FULL), *_OTHERS),
    "split": (
        Dimension(name="order", says="the order of a step's actions", values=_SPLIT),
        *_OTHERS,
        Dimension(
            name="weights",
            says="which weights W is passed",
            values=(
                value("all-in-order", "all weights in their order"),
                value("reversed-list", "the weights in reverse order for W", "lists", weights="reversed"),
                value("listed-twice", "a weight that is listed twice", "lists", weights="twice"),
                value(
                    "in-two-parts", "two W, each with a part of the weights", "lists", "param_groups", weights="parts"
                ),
            ),
        ),
    ),
}


_HEAVY = {
    "count": "past-64-mb",
    "size": "past-32768-elements",
    "graph": "deep",
    "parameters": "many-parameters",
}

#: What nothing that is slow stands with.
_RARE = {
    "order": "lagging inputs-reversed",
    "count": "three-mb ragged-mb",
    "steps": "cleared zeroed stepped three-steps frozen-later",
    "found": "same-arguments",
    "start": "transposed-gradients strided-gradients expanded-gradients zero-gradients none-first",
    "inputs": "unused-input fixed-input all-fixed integer-input inputs-in-one-memory",
    "outputs": "tuple-of-one bools scalar one-element dict",
    "parameters": "frozen parameters-in-one-memory sparse buffer",
    "size": "one-by-one past-256-elements 32x32 37x41 no-elements",
    "values": "tiny subnormal huge cancelling zeros",
    "graph": "custom complex-between dropout views checkpoint",
    "caller": "overwrites receives",
    "mode": "eval autocast no-grad deterministic default-dtype",
    "hooks": "scaled-by-hooks",
    "watched": "state",
    "received": "inputs-refilled gradients-refilled one-gradient-twice one-gradient-for-all",
    "tracking": "tracked-gradients",
    "lists": "lists-kept",
    "owner": "earlier-graph",
    "forwards": "evaluated lost-forward",
    "weights": "reversed-list listed-twice in-two-parts",
    "beside": "beside one-module",
}

CONSTRAINTS = (
    never("what is slow is not multiplied with what is slow", _HEAVY, _HEAVY),
    never("what is slow stands with a few values of each other dimension", _HEAVY, _RARE),
    never("what must stay as it is is looked at on one stage alone", {"watched": "state"},
           {"beside": "beside one-module"}),
    never("many micro-batches are to be in flight", {"count": "past-64-mb"},
           {"order": "at-once split-at-once lagging mixed"}),
    never("a lone micro-batch has no order", {"count": "one-mb"},
           {"order": "reversed lagging weights-reversed inputs-reversed mixed"}),
    never("None for one output asks for another", {"start": "none-first"},
           {"outputs": "tensor tuple-of-one one-element bools"}),
    never("a loss is taken of tensors", {"start": "loss"}, {"outputs": "dict"}),
    never("a loss has no output gradients that could be received into", {"start": "loss"}, {"caller": "receives"}),
    never("what needs no gradient has none that could be written over", {"inputs": "all-fixed"},
           {"caller": "overwrites"}),
    never("where no gradient can be anything but zero, nothing could be seen", {"start": "zero-gradients"},
           {"inputs": "all-fixed"}),
    never("hooks that alter gradients are put on parameters that stay, and on no gradient that is there before",
           {"hooks": "scaled-by-hooks"}, {"steps": "cleared zeroed", "found": "prior"}),
    never("what two stages share stays what it is for both", {"beside": "one-module"},
           {"steps": "stepped frozen-later"}),
    never("a micro-batch with a row less has a row, and arguments of its own", {"count": "ragged-mb"},
           {"size": "one-by-one", "found": "same-arguments"}),
    never("whether a loss is computed in F or later, and so in which mode, is for the implementation to say",
           {"mode": "autocast no-grad"}, {"start": "loss"}),
    never("the same arguments for all are not received, and are no outputs of a graph that goes on once",
           {"found": "same-arguments"},
           {"received": "inputs-refilled", "owner": "earlier-graph", "forwards": "lost-forward"}),
    never("an earlier graph has its outputs to itself, and is made of what needs a gradient",
           {"owner": "earlier-graph"},
           {"received": "inputs-refilled", "inputs": "inputs-in-one-memory all-fixed", "count": "ragged-mb"}),
    never("a loss has no output gradients", {"start": "loss"},
           {"received": "gradients-refilled one-gradient-twice one-gradient-for-all", "tracking": "tracked-gradients"}),
    never("a lone micro-batch receives into the tensors of no other", {"count": "one-mb"},
           {"received": "inputs-refilled gradients-refilled one-gradient-for-all"}),
    never("one gradient for all is of one shape, and nobody writes over it", {"received": "one-gradient-for-all"},
           {"count": "ragged-mb", "caller": "receives"}),
    never("what I computes itself, such as vectors and what is run again, is in one part", {"weights": "in-two-parts"},
           {"graph": "checkpoint", "parameters": "frozen", "size": "one-by-one no-elements"}),
    never("two outputs of one shape are those of a dict", {"received": "one-gradient-twice"},
           {"outputs": "tensor tuple-of-one one-element named bools scalar", "start": "none-first"}),
    never("values of which all are equal, or none is there, are those of any micro-batch",
           {"received": "inputs-refilled", "forwards": "lost-forward"},
           {"values": "zeros", "size": "no-elements one-by-one"}),
    never("huge gradients of one micro-batch more, or of one sign, have sums that float16 does not hold",
           {"received": "inputs-refilled gradients-refilled one-gradient-for-all"}, {"values": "huge"}),
    never("gradients of zeros are those of any output and micro-batch",
           {"received": "gradients-refilled one-gradient-twice one-gradient-for-all"}, {"start": "zero-gradients"}),
    never("what has no elements has no values", {"size": "no-elements"},
           {"values": "tiny subnormal huge cancelling zeros"}),
)  # fmt: skip
