"""The launch of a compiled kernel: the one way from Python to the machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tl_attention.build.tile_counter import tile_counter
from tl_attention.problem.parameter import Parameter


def launch_of(function: Callable[..., None], parameters: Sequence[Parameter]) -> Callable[..., None]:
    """Launches a kernel with arguments in the order of its parameters; it finds the counter itself.

    `function` is that of the kernel's library.
    """
    counters = [parameter.kind for parameter in parameters].count("counter")
    if not counters:
        return function
    assert counters == 1 and parameters[-1].kind == "counter", "expected one counter, as the last parameter"
    return lambda q, *others: function(q, *others, tile_counter(q.get_device()))
