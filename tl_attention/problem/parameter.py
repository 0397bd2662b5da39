"""What a parameter of a kernel is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: `dims` are a tensor's dimensions by name, outermost first, contiguous.

    An input or an output is a tensor of the caller's, a scalar a number; a counter is a tensor that a launch finds and
    leaves zero, so the caller need not see it. The dtype is the variant's where it is empty. An `optional` parameter
    is there where the variant, or the schedule, asks for it.
    """

    name: str
    kind: str
    dims: tuple[str | int, ...] = ()
    dtype: str = ""
    optional: bool = False

    @property
    def strides(self) -> tuple[str, ...]:
        """The names of its strides in a strided variant, in elements, outermost first; the last dimension's is 1."""
        if len(self.dims) < 4 or self.kind not in ("input", "output"):
            return ()
        return tuple(f"{self.name}_{dim}_stride" for dim in ("batch", "head", "row"))
