"""The counter from which a kernel with the dynamic tile scheduler takes its tiles.

Every launch finds it at zero and leaves it at zero, so launches that follow each other on a stream can share one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# By device and stream.
_counters: dict[tuple[int, int], torch.Tensor] = {}


def tile_counter(device: torch.device) -> torch.Tensor:
    """The int32 (2,) counter of the current stream of a CUDA device: tiles taken, blocks done."""
    import torch  # Late: `compile.py` needs this module where no torch may be loaded.

    if torch.cuda.is_current_stream_capturing():
        # A graph may be replayed on any stream, beside what runs on this one: it gets a counter of its own.
        return torch.zeros(2, dtype=torch.int32, device=device)
    key = device.index, torch.cuda.current_stream(device).cuda_stream
    if key not in _counters:
        _counters[key] = torch.zeros(2, dtype=torch.int32, device=device)
    return _counters[key]
