import torch
from fairscale.nn import Pipe
from torch import nn


def test_batch_norm_counts_a_recomputed_batch_once():
    norm = nn.BatchNorm1d(5)
    pipe = Pipe(nn.Sequential(norm), balance=[1], devices=["cpu"], chunks=1, checkpoint="always")
    pipe(torch.randn(7, 5, requires_grad=True)).sum().backward()
    del pipe  # at exit it would wait for workers that are gone
    assert int(norm.num_batches_tracked) == 1
