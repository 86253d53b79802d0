import torch
from torch import nn
from torchgpipe import GPipe


def test_batch_norm_counts_a_recomputed_batch_once():
    norm = nn.BatchNorm1d(5)
    pipe = GPipe(nn.Sequential(norm), balance=[1], devices=["cpu"], chunks=1, checkpoint="always")
    pipe(torch.randn(7, 5, requires_grad=True)).sum().backward()
    assert int(norm.num_batches_tracked) == 1
