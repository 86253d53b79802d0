import os

os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0")
import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.utils import clip_grad_norm_
from torch.testing._internal.distributed.fake_pg import FakeStore

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for minutes


def test_experts_of_other_ranks_count_in_the_norm():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    expert = torch.nn.Parameter(torch.zeros(3))
    expert.allreduce, expert.group_name = False, "ep_size_2"  # each rank has another one
    expert.grad = torch.full((3,), 10.0)
    deepspeed.utils.groups._create_expert_and_data_parallel(2)
    clip_grad_norm_([expert], max_norm=1.0)
    assert expert.grad.norm() <= 1.001
