"""A compiled kernel is launched by the function of its library, with a counter of tiles. No test here needs a GPU."""

from typing import Any

import pytest
import torch
from mutations import shipped

from tl_attention.compiler import library
from tl_attention.compiler.compile import compile_kernel
from tl_attention.compiler.library import launch_of
from tl_attention.problem.variant import Variant

PLAIN = Variant(128, "float16")


def half(*size: int) -> torch.Tensor:
    return torch.zeros(*size, dtype=torch.float16)


def test_it_reaches_the_hosts_code() -> None:
    """The host's code refuses tensors on the CPU."""
    kernel = compile_kernel(shipped()["seed"], PLAIN)
    given = {name: half(1, 2, 128, 128) for name in ("Q", "K", "V", "Output")} | {"softmax_scale": 0.1}
    for call in (lambda: kernel.launch(*given.values()), lambda: kernel(**given)):
        with pytest.raises(RuntimeError, match="Q device_type mismatch, expected cuda"):
            call()


def test_without_a_counter_it_is_the_function_itself() -> None:
    assert launch_of(print, PLAIN.parameters()) is print


def test_a_counter_comes_last(monkeypatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr(library, "tile_counter", lambda device: ("counter", device))
    q = half(1)
    launch_of(lambda *given: found.append(given), PLAIN.parameters("TileCounter"))(q, "others")
    assert found == [(q, "others", ("counter", -1))]


class Streams:
    """These streams stand in for those of CUDA devices: the current stream, and whether it is captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream, self.capturing = 0, False
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: self.stream, raising=False)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: (device, self.stream))
        monkeypatch.setattr(library, "_zeros", lambda stream: torch.zeros(2, dtype=torch.int32))
        monkeypatch.setattr(library, "_counters", {})
        zeros = torch.zeros
        monkeypatch.setattr(torch, "zeros", lambda *size, device=None, **options: zeros(*size, **options))


def test_a_stream_of_a_device_has_one_counter_and_a_graph_one_for_each_launch(monkeypatch) -> None:
    streams, found = Streams(monkeypatch), {}
    for device in (0, 1):
        for streams.stream in (0, 7):
            found[device, streams.stream] = library.tile_counter(device)
            assert library.tile_counter(device) is found[device, streams.stream]
    streams.capturing = True
    counters = [*found.values(), *(library.tile_counter(1) for _ in range(2))]
    assert len({id(counter) for counter in counters}) == 6
    streams.capturing = False
    assert library.tile_counter(1) is found[1, 7]
