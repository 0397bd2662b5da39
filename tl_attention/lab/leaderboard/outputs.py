"""This file says what a submission may return, and holds some of it. It stands beside the submission."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tl_attention.lab.leaderboard.inputs import Inputs

# An output has these as the first input has them.
AS_INPUTS = ("shape", "dtype", "device", "layout", "requires_grad")


class Outputs:
    """The outputs of a test's calls: plain tensors, each in memory that no input and no output held has."""

    def __init__(self, inputs: Inputs) -> None:
        self.tensor, self.inputs = torch.Tensor, inputs
        self.taken = {tensor.untyped_storage().data_ptr(): "an input" for tensor in inputs.data}
        # The first output, the timed one that is held, and its copy.
        self.first: Any = None
        self.kept: Any = None
        self.copy: Any = None

    def call(self, kernel: Callable) -> Any:
        """Calls the submission once, checks the output and returns it. The first one is held from then on."""
        self.poison(1)
        output = kernel(self.inputs.data)
        self.check(output)
        self.first = output if self.first is None else self.first
        return output

    def poison(self, count: int) -> None:
        """Fills the memory that the allocator hands out next, so values that are never written do not look right."""
        # All of them are held until the last is there.
        [torch.full_like(self.inputs.data[0], float("nan")) for _ in range(count)]

    def check(self, output: Any) -> None:
        """Raises TypeError for what is no plain tensor like the inputs, ValueError for one in memory that is taken."""
        if type(output) is not self.tensor:
            raise TypeError(f"custom_kernel returned {type(output).__name__}, expected a torch.Tensor, no subclass")
        for name in AS_INPUTS:
            found, expected = getattr(output, name), getattr(self.inputs.data[0], name)
            if found != expected:
                raise TypeError(f"the output's {name} is {found}, expected {expected}")
        address = output.untyped_storage().data_ptr()
        held = [tensor.untyped_storage().data_ptr() for tensor in (self.first, self.kept) if tensor is not None]
        taken = self.taken | dict.fromkeys(held, "an earlier output")
        if address in taken:
            raise ValueError(f"the output is in the memory of {taken[address]}, expected new memory for each call")

    def keep(self, output: Any) -> None:
        """Holds a timed output in the place of another one, and copies it."""
        if self.copy is None:
            self.copy = self.inputs.data[0].clone()
        self.copy.copy_(output)
        self.kept = output

    def check_kept(self) -> None:
        """Raises ValueError if the timed output that is held is not what it was when its call had ended."""
        # As integers, as NaN is not equal to itself.
        if self.kept is not None and not torch.equal(self.kept.view(torch.int16), self.copy.view(torch.int16)):
            raise ValueError("a timed output changed after its call had ended")

    @staticmethod
    def write(output: Any, folder: str, name: str) -> None:
        """Writes a tensor's bytes to a file of the folder."""
        output.cpu().contiguous().numpy().tofile(Path(folder, f"{name}.bin"))
