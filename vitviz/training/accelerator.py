"""Set up Accelerate for devices, precision and processes."""

import atexit
from datetime import timedelta

import torch

from vitviz.extras import extra
from vitviz.training.recipes import Recipe

with extra("train"):
    from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
    from accelerate.state import AcceleratorState
    from accelerate.utils import patch_environment

_MIXED_PRECISION = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}
_TIMEOUT = timedelta(days=2)  # processes wait while one computes features


def make_accelerator(device: torch.device, recipe: Recipe) -> Accelerator:
    """Return a new accelerator; under torchrun, it is connected to the other processes."""
    AcceleratorState._reset_state(reset_partial_state=True)  # discard the state of an earlier run in this process
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    handlers = [InitProcessGroupKwargs(timeout=_TIMEOUT), DistributedDataParallelKwargs(gradient_as_bucket_view=True)]
    with patch_environment(ACCELERATE_TORCH_DEVICE=str(device)):
        accelerator = Accelerator(
            cpu=device.type == "cpu",
            mixed_precision=_MIXED_PRECISION[recipe.precision],
            gradient_accumulation_steps=recipe.accumulate,
            kwargs_handlers=handlers,
        )
    if accelerator.num_processes > 1:
        atexit.register(accelerator.end_training)  # only at exit: the group cannot be created twice
    return accelerator
