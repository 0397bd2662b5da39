"""This module compares the kernels that list tiles and merge parts, to the letter, with what `launches.py` says.

It gives that module texts in the place of TileLang's tensors and numbers, so that what comes back is the text that
TileLang generates.
"""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace
from typing import Any

from tl_attention.codeproof.frame import POINTERS, TRIGGER, WAIT
from tl_attention.codeproof.read.text import Kernel
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.kernels.warp_specialized.launches import LISTING, MERGING, DeviceCall, listing_call, merging_call
from tl_attention.launch.plan import HostPlan, Listing, Merging
from tl_attention.problem.features import Parameter
from tl_attention.problem.variant import KERNEL_PARAMETERS, Variant

SMALL = 'extern "C" __global__ void __launch_bounds__({threads}, 1) {kernel}({parameters}) {{\n  {synchronize}();\n{body}}}\n'
FIRST_BLOCK = "  if (((int)blockIdx.x) == 0) {{\n    {call}  }}\n"
NAME = re.compile(r"[A-Za-z_]\w*")


class IntText(str):
    """An IntText is the C text that TileLang writes for a number of 32 bits."""

    def __mul__(self, other: Any) -> IntText:
        return IntText(f"({self} * {other})")


class LongText(IntText):
    """A LongText is the C text for a number of 64 bits, where TileLang casts factors of 32 bits to 64."""

    def __mul__(self, other: Any) -> LongText:
        if self == "1":
            return LongText(other) if isinstance(other, int) else LongText(f"((int64_t){other})")
        cast = f"(int64_t){other}" if isinstance(other, int) else f"((int64_t){other})"
        return LongText(f"({self} * {cast})")


TEXTS = SimpleNamespace(
    int64=LongText, truncdiv=lambda a, b: IntText(f"({a} / {b})"), address_of=lambda element: IntText(f"(&({element}))")
)


class TensorText:
    """A TensorText is what TileLang writes for a tensor: its address, its sizes, its strides and its first element."""

    def __init__(self, parameter: Parameter, variant: Variant):
        columns = {"head_dim": variant.head_dim, "head_dim_v": variant.head_dim_v}
        self.data = IntText(parameter.name)
        self.shape = [columns.get(str(dim), IntText(dim)) for dim in parameter.dims]
        self.strides = [IntText(stride) for stride in parameter.strides if variant.strided]

    def __getitem__(self, first: tuple[int, ...]) -> IntText:
        return IntText(f"{self.data}[{'(int64_t)0' if self.strides else '0'}]")


class SmallKernel:
    """A SmallKernel is a kernel of calls of device functions, as TileLang writes it, with its parameters."""

    def __init__(self, variant: Variant, threads: int, synchronize: str, restrict: str, blocks: str = ""):
        self._variant, self._threads, self._synchronize, self._restrict = variant, threads, synchronize, restrict
        parameters = {parameter.name: parameter for parameter in variant.parameters("workers")}
        self._tensors = {name: parameter for name, parameter in parameters.items() if parameter.kind != "scalar"}
        tensors = {name: TensorText(parameter, variant) for name, parameter in self._tensors.items()}
        numbers = {name: IntText(name) for name in parameters.keys() - self._tensors.keys()}
        absent = dict.fromkeys(parameter.name for parameter in KERNEL_PARAMETERS)
        self.given = SimpleNamespace(**absent | tensors | numbers)
        # How many blocks it has is made of these names, which TileLang passes too.
        self._arguments = [blocks]

    def call(self, call: DeviceCall) -> str:
        """Returns the line of C that calls a device function, and notes the parameters that the call names."""
        self._arguments += map(str, call.arguments)
        return f"{call.function}({', '.join(map(str, call.arguments))});\n"

    @property
    def parameters(self) -> tuple[str, ...]:
        """Returns the names of what the calls are called with, in the order in which TileLang takes it."""
        return tuple(itertools.chain(*self._parameters))

    @property
    def _parameters(self) -> tuple[list[str], list[str], list[str]]:
        """Returns the names of the tensors, the strides and the other numbers that the calls are called with."""
        names = {*NAME.findall(" ".join(self._arguments))} - {"int64_t"}
        tensors = names & self._tensors.keys()
        strides = names & {stride for parameter in self._tensors.values() for stride in parameter.strides}
        return sorted(tensors), sorted(strides), sorted(names - tensors - strides)

    def text(self, name: str, body: str) -> str:
        """Returns the text of the whole kernel, with this name and with these lines as its body."""
        tensors, strides, numbers = self._parameters
        pointers = map(self._pointer, tensors)
        parameters = [*pointers, *(f"int64_t {stride}" for stride in strides), *(f"int {number}" for number in numbers)]
        return SMALL.format(
            threads=self._threads,
            kernel=name,
            parameters=", ".join(parameters),
            synchronize=self._synchronize,
            body=body,
        )

    def _pointer(self, name: str) -> str:
        """Returns the parameter that is a tensor's address; TileLang knows of a tensor passed whole that it is read."""
        const = "const " if name in self._arguments else ""
        return f"{const}{POINTERS[self._tensors[name].dtype or self._variant.dtype]} {self._restrict}{name}"


def check_listing(kernel: Kernel, plan: HostPlan, tile: tuple[int, int, int], variant: Variant) -> None:
    """Raises Unsafe unless the kernel that lists tiles is the stated one, called for these numbers, and launched so.

    TileLang gives it the main kernel's clusters, of which the first block lists.
    """
    cluster = tile[1]
    wanted = SmallKernel(variant, LISTING, TRIGGER, "__restrict__ ")
    call = wanted.call(listing_call(wanted.given, variant, tile, TEXTS))
    body = FIRST_BLOCK.format(call=call) if cluster > 1 else f"  {call}"
    name = kernel.signature.name.removesuffix("_1")
    if kernel.listing != wanted.text(name, body):
        raise Unsafe(f"the kernel that lists the tiles is {kernel.listing[-200:]!r}")
    launch = (*((cluster, 1, 1) if cluster > 1 else ()), cluster, LISTING, 1, 1)
    if plan.listing != Listing(name, wanted.parameters, launch):
        raise Unsafe(f"the tiles are listed by {plan.listing}, expected {launch} of {name}")


def check_merging(kernel: Kernel, plan: HostPlan, variant: Variant, block_M: int) -> None:
    """Raises Unsafe unless the kernel that merges parts is the stated one, called for its tensors and numbers."""
    main, packed = kernel.signature.name, variant.packed
    name = f"{main.removesuffix('_1')}_2" if packed else f"{main}_1"
    wanted = SmallKernel(variant, MERGING, WAIT, "", "workers" if packed else "")
    text = wanted.text(name, f"  {wanted.call(merging_call(wanted.given, variant, block_M, TEXTS))}")
    if kernel.merging.rstrip("\n") != text.rstrip("\n"):
        raise Unsafe(f"the kernel that merges parts is {kernel.merging[-200:]!r}")
    taken = wanted.parameters
    if plan.merging is None or plan.merging != Merging(name, taken, plan.merging.blocks, (MERGING, 1, 1)):
        raise Unsafe(f"parts are merged by {plan.merging}, expected {name} of {', '.join(taken)}")
