"""What a kernel's host function is called with, and what it reads off that."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """A size read at run time: dimension `axis` of a tensor."""

    name: str
    tensor: str
    axis: int


@dataclass(frozen=True)
class Stride:
    """A stride read at run time, in elements: that of dimension `axis` of a tensor."""

    name: str
    tensor: str
    axis: int


@dataclass(frozen=True)
class Arguments:
    """What the host function is called with, in order, which of it are tensors, and what is read off those."""

    names: tuple[str, ...]
    tensors: frozenset[str]
    sizes: tuple[Size, ...]
    strides: tuple[Stride, ...]

    @property
    def size_names(self) -> frozenset[str]:
        return frozenset(size.name for size in self.sizes)

    @property
    def stride_names(self) -> frozenset[str]:
        return frozenset(stride.name for stride in self.strides)
