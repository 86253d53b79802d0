"""The three functions that torch's own pipeline stages call: the registered target ``torch``."""

from gradconform.torch_releases.pipelining import functions

# When they go, look in torch/distributed/pipelining/stage.py for what perform_backward calls instead.
stage_backward, stage_backward_input, stage_backward_weight = functions().values()

__all__ = ["stage_backward", "stage_backward_input", "stage_backward_weight"]
