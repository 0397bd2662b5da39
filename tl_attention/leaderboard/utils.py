"""Small helpers of the harness. Stands beside the submission as utils.py."""

from collections.abc import Callable

import torch

# Writing a buffer of several times the cache's size leaves nothing of the last call in it.
L2_MULTIPLE = 4


def l2_clearer(device: str) -> Callable[[], object]:
    """A function that fills the GPU's L2 cache with zeros; it holds its buffer, and does nothing on the CPU."""
    if device == "cpu":
        return lambda: None
    size = L2_MULTIPLE * torch.cuda.get_device_properties(device).L2_cache_size
    return torch.empty(size, dtype=torch.uint8, device=device).zero_


def synchronize(device: str) -> None:
    """Wait for the GPU; nothing to wait for on the CPU."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def poison_like(tensor: torch.Tensor) -> None:
    """Leave NaN in the memory that the allocator hands out next, so that values never written do not look right."""
    torch.full_like(tensor, float("nan"))
