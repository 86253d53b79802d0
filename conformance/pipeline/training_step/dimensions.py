"""The dimensions of the space of training steps, and what of it cannot be together: to be read at a glance."""

from __future__ import annotations

from gradconform.covering.dimension import Dimension, never, value

DIMENSIONS = (
    Dimension(name="layout", says="how ranks are shared among stages and replicas", values=(
        value("two-stages", "two ranks in a row", pipeline_ranks=2),
        value("two-replicas", "two replicas of one rank", replicas=2),
        value("two-by-two", "two replicas of two ranks", pipeline_ranks=2, replicas=2),
        value("four-stages", "four ranks in a row", pipeline_ranks=4),
        value("four-replicas", "four replicas of one rank", replicas=4),
        value("one-stage", "one rank", "tensor"),
    )),
    Dimension(name="schedule", says="the order of actions", values=(
        value("1f1b", "1F1B", schedule="1F1B"),
        value("gpipe", "GPipe", schedule="GPipe"),
        value("interleaved-1f1b", "Interleaved1F1B", schedule="Interleaved1F1B", per_rank=2),
        value("looped-bfs", "LoopedBFS", schedule="LoopedBFS", per_rank=2),
        value("interleaved-zero-bubble", "InterleavedZeroBubble", schedule="InterleavedZeroBubble", per_rank=2),
        value("zbv-zero-bubble", "ZBVZeroBubble", schedule="ZBVZeroBubble", per_rank=2),
        value("dual-pipe-v", "DualPipeV", schedule="DualPipeV", per_rank=2),
        value("csv", "an order of a CSV file: all forwards, all input gradients, all weight gradients",
              schedule="CSV", per_rank=2),
    )),
    Dimension(name="data_parallel", says="what keeps replicas together", values=(
        value("unwrapped", "no wrapper", data_parallel="none"),
        value("ddp", "DistributedDataParallel", data_parallel="ddp"),
        value("fsdp", "fully_shard", data_parallel="fsdp"),
        value("fsdp-kept", "fully_shard without resharding", data_parallel="fsdp-kept"),
        value("hsdp", "fully_shard in each half of the replicas", data_parallel="hsdp"),
    )),
    Dimension(name="microbatches", says="how many micro-batches each replica has", values=(
        value("eight-mb", "eight micro-batches"),
        value("three-mb", "three micro-batches", microbatches=3),
        value("one-mb", "one micro-batch", microbatches=1),
    )),
    Dimension(name="rows", says="how large micro-batches are", values=(
        value("even", "micro-batches of one size"),
        value("ragged", "a last micro-batch that has a row less", "ragged", ragged=True),
        value("lengths", "sequences that are longer in one micro-batch than in the next", "lengths", lengths=True),
    )),
    Dimension(name="loss", says="what the loss of a step is", values=(
        value("mean", "the mean over micro-batches"),
        value("sum", "the sum over micro-batches", reduction="sum"),
        value("tokens", "the mean over the tokens of the whole batch, which micro-batches have unlike many of",
              reduction="tokens"),
    )),
    Dimension(name="auxiliary", says="whether stages have losses of their own", values=(
        value("one-loss", "the loss of the last stage alone"),
        value("auxiliary", "an auxiliary loss in every stage", auxiliary=True),
    )),
    Dimension(name="steps", says="what comes between steps", values=(
        value("one-step", "one step"),
        value("accumulated", "two steps whose gradients add up", steps=("train", "train")),
        value("zeroed", "two steps with zero_grad between them", steps=("train", "zero_grad", "train")),
        value("evaluated", "an evaluation between two steps whose gradients add up",
              steps=("train", "evaluate", "train")),
        value("evaluated-first", "an evaluation before the first step", steps=("evaluate", "train")),
        value("clipped", "gradients clipped by their norm and a step of SGD between two steps",
              steps=("train", "clip", "update", "zero_grad", "train")),
        value("unreduced", "two steps whose gradients are reduced once, behind the second", "unreduced",
              steps=("accumulate", "train")),
    )),
    Dimension(name="weights", says="which parameters are trained, and which are one", values=(
        value("all", "all parameters trained"),
        value("frozen-stage", "a frozen first stage", weights="frozen-stage"),
        value("frozen-layers", "frozen layers with adapters of low rank beside them", weights="frozen-layers"),
        value("tied", "one weight in the first and the last stage", "tied", weights="tied"),
    )),
    Dimension(name="layers", says="what is inside a stage", values=(
        value("plain", "LayerNorm and an MLP"),
        value("checkpoint", "activation checkpointing", layers="checkpoint"),
        value("reentrant-checkpoint", "activation checkpointing that re-enters", layers="reentrant-checkpoint"),
        value("dropout", "dropout with a seed for each micro-batch", layers="dropout"),
        value("batch-norm", "BatchNorm, whose buffers are updated", layers="batch-norm"),
        value("selective-checkpoint", "activation checkpointing that keeps the outputs of Linear layers",
              layers="selective-checkpoint"),
    )),
    Dimension(name="arguments", says="what goes into stages", values=(
        value("positional", "what the stage before put out"),
        value("keyword", "a keyword argument on every stage", keyword=True),
    )),
    Dimension(name="tensor_parallel", says="what of a stage is split over two tensor ranks", values=(
        value("whole-layers", "nothing split over tensor ranks"),
        value("column-row", "each MLP split over two tensor ranks, by columns and then by rows", "tensor",
              tensor_ranks=2, tensor_parallel="column-row"),
        value("sequence", "each MLP split over two tensor ranks, and the norm before it over the sequence", "tensor",
              tensor_ranks=2, tensor_parallel="sequence"),
        value("vocabulary", "each MLP, the embedding, the head and the loss split over two tensor ranks", "tensor",
              tensor_ranks=2, tensor_parallel="vocabulary"),
    )),
    Dimension(name="precision", says="in which precision stages run", values=(
        value("unmixed", "all in one dtype"),
        value("autocast", "stages and the loss under autocast to bfloat16", "precision", precision="autocast"),
        value("mixed", "stages in bfloat16, whose parameters and sums of gradients are kept in float32", "precision",
              precision="mixed"),
    )),
    Dimension(name="compiled", says="whether stages are compiled", values=(
        value("eager", "stages as they are written"),
        value("compiled", "every stage compiled by torch.compile, with aot_eager", "compiled", compiled="aot_eager"),
        value("inductor", "every stage compiled by torch.compile, with inductor", "compiled", compiled="inductor"),
    )),
)  # fmt: skip

CONSTRAINTS = (
    never("replicas without a wrapper are kept together by nobody",
          {"layout": "two-replicas two-by-two four-replicas"}, {"data_parallel": "unwrapped"}),
    never("halves of the replicas take four of them",
          {"layout": "two-stages two-replicas two-by-two four-stages one-stage"}, {"data_parallel": "hsdp"}),
    never("1F1B takes as many micro-batches as stages", {"schedule": "1f1b"}, {"microbatches": "one-mb"}),
    never("four ranks in 1F1B take four micro-batches", {"layout": "four-stages"}, {"microbatches": "three-mb"}),
    never("a pipeline in both directions takes as many micro-batches as stages",
          {"schedule": "dual-pipe-v"}, {"microbatches": "three-mb one-mb"}),
    never("one micro-batch is not unlike another", {"microbatches": "one-mb"}, {"rows": "ragged lengths"}),
    never("a mean over tokens says nothing of what an auxiliary loss is divided by",
          {"loss": "tokens"}, {"auxiliary": "auxiliary"}),
    never("a lone stage that is frozen has nothing to be trained",
          {"weights": "frozen-stage"}, {"layout": "two-replicas four-replicas one-stage"}),
    never("a checkpoint that re-enters gives its parameters nothing where its input needs no gradient",
          {"layers": "reentrant-checkpoint"}, {"weights": "frozen-stage"}),
    never("DistributedDataParallel refuses a module of which nothing is trained",
          {"weights": "frozen-stage"}, {"data_parallel": "ddp"}),
    never("one rank that shares nothing with another is the plain process",
          {"layout": "one-stage"}, {"tensor_parallel": "whole-layers"}),
    never("more than four processes are seldom at hand",
          {"layout": "two-by-two four-stages four-replicas"}, {"tensor_parallel": "column-row sequence vocabulary"}),
    never("a BatchNorm over a part of the sequence has other means",
          {"layers": "batch-norm"}, {"tensor_parallel": "sequence"}),
    never("layers over tensor ranks are tried as they are written, in one dtype",
          {"tensor_parallel": "column-row sequence vocabulary"}, {"precision": "autocast mixed"}),
    never("layers over tensor ranks are tried as they are written, in one dtype",
          {"tensor_parallel": "column-row sequence vocabulary"}, {"compiled": "compiled inductor"}),
    never("kernels take long to make: of what is around stages aot_eager is tried with all",
          {"compiled": "inductor"},
          {"layout": "two-by-two four-stages four-replicas", "rows": "ragged lengths",
           "schedule": "interleaved-1f1b looped-bfs interleaved-zero-bubble zbv-zero-bubble dual-pipe-v csv",
           "steps": "accumulated evaluated evaluated-first unreduced"}),
    never("kernels of less than float32 round elsewhere than the lines that they are made of",
          {"compiled": "inductor"}, {"precision": "autocast mixed"}),
    never("of torch's wrappers fully_shard alone keeps parameters in a dtype that stages do not run in",
          {"precision": "mixed"}, {"data_parallel": "unwrapped ddp"}),
    never("the statistics of a BatchNorm are no parameters, which alone are kept in another dtype",
          {"precision": "mixed"}, {"layers": "batch-norm"}),
)  # fmt: skip

#: What values claim that many runtimes have not: the rarest first, in groups that are withheld one by one.
RARE = (frozenset({"ragged", "tied", "lengths", "unreduced"}), frozenset({"tensor"}), frozenset({"precision"}))

#: The commonest compositions, on two ranks, by name: what is not plain in them.
QUICK: dict[str, dict[str, str]] = {
    "plain": {},
    "gpipe-sum": {"schedule": "gpipe", "loss": "sum", "microbatches": "three-mb"},
    "ddp": {"layout": "two-replicas", "data_parallel": "ddp"},
    "fsdp-accumulated": {"layout": "two-replicas", "data_parallel": "fsdp", "loss": "sum", "steps": "accumulated"},
    "fsdp-evaluated": {"data_parallel": "fsdp", "steps": "evaluated"},
    "zero-bubble-clipped": {"schedule": "interleaved-zero-bubble", "steps": "clipped"},
    "batch-norm": {"layers": "batch-norm", "steps": "zeroed"},
    "checkpoint-accumulated": {"schedule": "interleaved-1f1b", "layers": "checkpoint", "steps": "accumulated"},
    "ddp-tokens": {"layout": "two-replicas", "data_parallel": "ddp", "loss": "tokens", "schedule": "gpipe"},
    "low-rank-dropout": {"schedule": "zbv-zero-bubble", "weights": "frozen-layers", "layers": "dropout"},
    "auxiliary": {"auxiliary": "auxiliary", "arguments": "keyword", "loss": "sum"},
    "tied-clipped": {"weights": "tied", "steps": "clipped"},
}

#: What other values hide in the rows of pairs, by name: a defect of torch's runtime, which raises there, or what a
#: runtime does not claim.
ALONE: dict[str, dict[str, str]] = {
    "ddp-zero-bubble": {"layout": "two-replicas", "data_parallel": "ddp", "schedule": "interleaved-zero-bubble"},
    "autocast": {"precision": "autocast", "steps": "clipped"},
    "fsdp-mixed": {"layout": "two-replicas", "data_parallel": "fsdp", "precision": "mixed", "steps": "clipped"},
    "fsdp-mixed-auxiliary": {
        "layout": "two-replicas",
        "data_parallel": "fsdp",
        "microbatches": "three-mb",
        "loss": "sum",
        "auxiliary": "auxiliary",
        "precision": "mixed",
    },
    "compiled": {"compiled": "compiled", "steps": "clipped"},
    "lengths": {"rows": "lengths", "loss": "tokens", "steps": "zeroed"},
    "ddp-unreduced": {"layout": "two-replicas", "data_parallel": "ddp", "steps": "unreduced"},
    "gpipe-unreduced": {
        "layout": "two-replicas",
        "data_parallel": "ddp",
        "schedule": "gpipe",
        "loss": "sum",
        "steps": "unreduced",
    },
    "csv": {"schedule": "csv", "steps": "clipped"},
    "selective-checkpoint": {"layers": "selective-checkpoint", "loss": "sum", "steps": "accumulated"},
    "ddp-tied": {"layout": "two-by-two", "data_parallel": "ddp", "weights": "tied"},
}
