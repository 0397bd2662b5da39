"""A compiled kernel's machine code is taken from its library, disassembled, and reported on."""

from __future__ import annotations

import contextlib
import hashlib
import re
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property

from tl_attention.codeproof.marks import threads_in
from tl_attention.compiler import store
from tl_attention.compiler.compile import FOLDER, CompiledKernel
from tl_attention.compiler.toolchain import cache_enabled, cache_folder
from tl_attention.lab.machine_code.nvcc import compiler_messages, machine_code, serialised_because
from tl_attention.lab.machine_code.sass import StaticReport, check_not_serialised, code_name, cuobjdump, parse

# What the name of a disassembly in the store's folder ends with.
DISASSEMBLY = ".sass.z"
# What ELF files begin with, and the number of NVIDIA's GPUs among their machines.
ELF, EM_CUDA = b"\x7fELF", 190


@dataclass(frozen=True)
class MachineCode:
    """A MachineCode reads the machine code of one compiled kernel, each part of it once."""

    kernel: CompiledKernel

    @cached_property
    def cubin(self) -> bytes:
        """Returns the machine code, from the kernel's library, or built again where there is no library."""
        found = cubin_in(self.kernel.library) if self.kernel.library else None
        return found or machine_code(self.kernel.source, self.kernel.variant.arch)

    @cached_property
    def disassembly(self) -> str:
        """Returns the disassembly of the machine code, from the cache or, which takes a second, made anew."""
        name = f"{hashlib.sha256(self.cubin).hexdigest()}{DISASSEMBLY}"
        file = cache_folder() / self.kernel.nvcc.cache / FOLDER / name if cache_enabled() else None
        if file:
            with contextlib.suppress(OSError, zlib.error, UnicodeDecodeError):
                return zlib.decompress(file.read_bytes()).decode()
        text = cuobjdump(self.cubin, "--dump-sass")
        if file:
            store.write(file, zlib.compress(text.encode(), 1))
        return text

    @cached_property
    def report(self) -> StaticReport:
        """Returns a StaticReport of registers, spills and loops, read off the cubin, and shared memory, off the launch.

        Raises ScheduleRefused for serialised products. `compile_kernel` does not: such a kernel is slow but right, and
        disassembling a kernel would take half a second of each process that calls it.
        """
        usage = cuobjdump(self.cubin, "--dump-resource-usage")
        found = [(int(registers), int(stack)) for registers, stack in re.findall(r"REG:(\d+) STACK:(\d+) ", usage)]
        assert found, f"cuobjdump printed no resource usage: {usage[:200]}"
        loops, kernel = parse(self.disassembly), self.kernel
        check_not_serialised(loops, lambda: serialised_because(compiler_messages(kernel.source, kernel.variant.arch)))
        # Small kernels list tiles, or merge parts.
        return StaticReport(*max(found), kernel.shared_bytes, loops, code_name(self.disassembly))

    @property
    def blocks_per_sm(self) -> int:
        """Returns how many thread blocks of the kernel an SM of its card holds at once.

        Raises ScheduleRefused as `report` does.
        """
        report, threads = self.report, threads_in(self.kernel.source)
        return self.kernel.variant.card.blocks_that_fit(threads, report.registers, report.shared_bytes)


def cubin_in(library: bytes) -> bytes | None:
    """Returns the cubin that a kernel's library holds, None where there is none.

    It is an ELF file inside an ELF file, up to the end of its last table of headers.
    """
    at = library.find(ELF, 1)
    while at > 0:
        (machine,) = struct.unpack_from("<H", library, at + 18)
        if machine == EM_CUDA:
            programs, sections = struct.unpack_from("<QQ", library, at + 32)
            *sizes, _ = struct.unpack_from("<HHHHH", library, at + 54)
            ends = programs + sizes[0] * sizes[1], sections + sizes[2] * sizes[3]
            return library[at : at + max(ends)]
        at = library.find(ELF, at + 1)
    return None
