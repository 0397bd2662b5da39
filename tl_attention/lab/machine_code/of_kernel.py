"""A compiled kernel's machine code is disassembled, and reported on."""

from __future__ import annotations

import contextlib
import hashlib
import re
import zlib
from dataclasses import dataclass
from functools import cached_property

from tl_attention.codeproof.marks import threads_in
from tl_attention.compiler import store
from tl_attention.compiler.compile import CompiledKernel
from tl_attention.compiler.toolchain import cache_enabled, cache_folder
from tl_attention.lab.machine_code.nvcc import compiler_messages, serialised_because
from tl_attention.lab.machine_code.sass import StaticReport, check_not_serialised, code_name, cuobjdump, parse

# What the name of a disassembly in the store's folder ends with.
DISASSEMBLY = ".sass.z"


@dataclass(frozen=True)
class MachineCode:
    """A MachineCode reads the machine code of one compiled kernel, each part of it once."""

    kernel: CompiledKernel

    @cached_property
    def disassembly(self) -> str:
        """Returns the disassembly of the machine code, from the cache or, which takes a second, made anew."""
        name = f"{hashlib.sha256(self.kernel.cubin).hexdigest()}{DISASSEMBLY}"
        file = cache_folder() / store.FOLDER / name if cache_enabled() else None
        if file:
            with contextlib.suppress(OSError, zlib.error, UnicodeDecodeError):
                return zlib.decompress(file.read_bytes()).decode()
        text = cuobjdump(self.kernel.cubin, "--dump-sass")
        if file:
            store.write(file, zlib.compress(text.encode(), 1))
        return text

    @cached_property
    def report(self) -> StaticReport:
        """Returns a StaticReport of registers, spills and loops, read off the cubin, and shared memory, off the launch.

        Raises ScheduleRefused for serialised products. `compile_kernel` does not: such a kernel is slow but right, and
        disassembling a kernel would take half a second of each process that calls it.
        """
        usage = cuobjdump(self.kernel.cubin, "--dump-resource-usage")
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
