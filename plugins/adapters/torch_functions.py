"""The three functions that torch's own pipeline stages call: the registered target ``torch``."""

# Private, because torch.distributed.pipelining exports no name for them, though its stages and other projects call
# them. When the module goes, look in torch/distributed/pipelining/stage.py for what perform_backward calls instead.
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight

__all__ = ["stage_backward", "stage_backward_input", "stage_backward_weight"]
