"""This module gives each launch the GPU memory that it needs beside its arguments, and has it back for the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from tl_attention.problem.features import Parameter

if TYPE_CHECKING:
    import torch

# A list of tiles is given place for at least so many numbers, and otherwise for a power of two.
LEAST_WORDS = 1 << 12
# The memory that no launch has at the moment, by device and stream.
_free: dict[tuple[int, int], list[LaunchMemory]] = {}


class LaunchMemory(NamedTuple):
    """A LaunchMemory is GPU memory of ours that one launch at a time needs: counters, and a list of tiles."""

    # Tiles taken and blocks done, int32 (2,). A kernel with the dynamic tile scheduler finds and leaves it at zero.
    counter: torch.Tensor
    tiles: torch.Tensor  # int32 (words,), for the list that a launch makes of packed sequences
    words: int


def launch_of(function: Callable[..., None], parameters: Sequence[Parameter]) -> Callable[..., None]:
    """Returns a function that launches a kernel by the launcher's `function`, and passes it memory, if it needs some.

    The arguments are the parameters in order: without the counter, and for the list of tiles how many numbers it takes.
    """
    names = [parameter.name for parameter in parameters]
    counts, lists = "TileCounter" in names, "Tiles" in names
    if not counts and not lists:
        return function
    assert "TileCounter" not in names[:-1], "expected the counter as the last parameter"
    place = names.index("Tiles") if lists else 0

    def launch(*given: Any) -> None:
        device, arguments = given[0].get_device(), [*given]
        free, memory = launch_memory(device, given[place] if lists else 0)
        if lists:
            arguments[place] = memory.tiles
        if counts:
            arguments.append(memory.counter)
        function(*arguments)
        # The next launch on this stream follows this one, and the host is through with it.
        free.append(memory)

    return launch


def launch_memory(device: int, words: int) -> tuple[list[LaunchMemory], LaunchMemory]:
    """Returns (list of free memory, a LaunchMemory of so many words from it) for a launch on the current stream.

    The device is the current device. Launches of several threads on one stream may begin before others have ended, so a
    launch takes its memory from the list of free ones and puts it back.
    """
    import torch  # Late: `compile.py` needs this module where no torch may be loaded.

    if torch.cuda.is_current_stream_capturing():
        # A graph may be replayed on any stream, beside what runs on this one: it gets memory of its own.
        return [], _allocate(device, words)
    # The number of the stream alone, as PyTorch's own compiler asks for it: its object takes longer to make.
    key = device, torch._C._cuda_getCurrentRawStream(device)
    free = _free.setdefault(key, [])
    while free:
        memory = free.pop()
        if memory.words >= words:
            return free, memory
    words = max(LEAST_WORDS, 1 << (words - 1).bit_length())
    # This thread may allocate from a pool that is given back, as where torch.compile warms up a CUDA graph. Pools
    # are a thread's, so one that has none allocates what stays.
    with ThreadPoolExecutor(1) as without_pool:
        return free, without_pool.submit(_allocate, device, words, torch.cuda.current_stream(device)).result()


def _allocate(device: int, words: int, stream: torch.cuda.Stream | None = None) -> LaunchMemory:
    """Makes a LaunchMemory on this stream of a CUDA device, or without one on the current stream."""
    import torch

    with torch.cuda.stream(stream):
        counter = torch.zeros(2, dtype=torch.int32, device=f"cuda:{device}")
        return LaunchMemory(counter, torch.empty(words, dtype=torch.int32, device=counter.device), words)
