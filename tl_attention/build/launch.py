"""The launch of a compiled kernel: the one way from Python to the machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tl_attention.build.tile_counter import tile_counter
from tl_attention.problem.variant import Parameter


def launch_of(kernel: Any, parameters: Sequence[Parameter]) -> Callable[..., None]:
    """A function that launches a kernel with arguments in the order of its parameters; it finds the counter itself."""
    function = _function_of(kernel)
    counters = [parameter.kind for parameter in parameters].count("counter")
    if not counters:
        return function
    assert counters == 1 and parameters[-1].kind == "counter", "expected one counter, as the last parameter"
    return lambda q, *others: function(q, *others, tile_counter(q.get_device()))


def _function_of(kernel: Any) -> Callable[..., None]:
    """What TileLang's own call of a kernel calls in the end, behind lists of outputs that ours does not return.

    It takes the tensors as they are, checks them, and launches on PyTorch's current stream. A kernel that was loaded
    without TileLang is such a function already.
    """
    if not hasattr(kernel, "adapter"):
        return kernel
    executable = kernel.adapter.get_exportable_executable()
    # One that was just compiled is linked first; one from the disk cache is a module that is loaded.
    module = executable.jit() if hasattr(executable, "jit") else executable
    return module.main
