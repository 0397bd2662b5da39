"""The counter from which a kernel with the dynamic tile scheduler takes its tiles.

Every launch finds it at zero and leaves it at zero, so launches that follow each other on a stream can share one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# By device and stream.
_counters: dict[tuple[int, int], torch.Tensor] = {}


def tile_counter(device: int) -> torch.Tensor:
    """The int32 (2,) counter of the current stream of a CUDA device, the current one: tiles taken, blocks done."""
    import torch  # Late: `compile.py` needs this module where no torch may be loaded.

    if torch.cuda.is_current_stream_capturing():
        # A graph may be replayed on any stream, beside what runs on this one: it gets a counter of its own.
        return torch.zeros(2, dtype=torch.int32, device=f"cuda:{device}")
    # The number of the stream alone, as PyTorch's own compiler asks for it: its object takes longer to make.
    key = device, torch._C._cuda_getCurrentRawStream(device)
    counter = _counters.get(key)
    if counter is None:
        # This thread may allocate from a pool that is given back, as where torch.compile warms up a CUDA graph. Pools
        # are a thread's, so one that has none allocates what stays.
        with ThreadPoolExecutor(1) as without_pool:
            counter = _counters[key] = without_pool.submit(_zeros, torch.cuda.current_stream(device)).result()
    return counter


def _zeros(stream: torch.cuda.Stream) -> torch.Tensor:
    import torch

    with torch.cuda.stream(stream):
        return torch.zeros(2, dtype=torch.int32, device=stream.device)
