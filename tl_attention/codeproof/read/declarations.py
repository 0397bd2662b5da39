"""This module reads declarations of registers, shared memory and mbarriers, and arithmetic on registers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from tl_attention.codeproof.read.expression import Expression, parsed
from tl_attention.codeproof.read.lines import NUMBER
from tl_attention.kernels.shared.device_code import ON_SCORES
from tl_attention.problem.variant import KERNEL_PARAMETERS

TYPES = {"float": 4, "float2": 8, "float4": 16, "half_t": 2, "bfloat16_t": 2, "half2": 4, "uint1": 4, "uint2": 8}
TYPES |= {"uint4": 16, "bool": 1, "int2": 8, "int4": 16}
# float acc_s[88];    float broadcast_var = 0x0p+0f/*0.000000e+00*/;    uint4 condval;
REGISTER = re.compile(rf"\s*({'|'.join(TYPES)}) (\w+)(?:\[(\d+)\])?(?:;| = )")
PLAIN = re.compile(rf"(?:{'|'.join((*TYPES, 'int'))}) \w+(?:\[\d+\])?;$")
# int condval;    int tile = 0;    for (int t = 0; ...
INTEGER = re.compile(r"\s*(?:for \()?int (\w+)(?: =|;)")
# void* K_shared = ((void*)((char*)buf_dyn_shmem + 98304));
BUFFER = re.compile(r"\s*void\* (\w+)_shared = \(\(void\*\)\(\(char\*\)buf_dyn_shmem \+ (\d+)\)\);$")
# __shared__ __align__(16) uint64_t K_full_mem[2];    auto K_full = reinterpret_cast<Barrier*>(K_full_mem);
BARRIERS = re.compile(r"\s*__shared__ __align__\(16\) uint64_t (\w+)_mem\[(\d+)\];$")
BARRIER_NAME = re.compile(r"\s*auto (\w+) = reinterpret_cast<Barrier\*>\(\1_mem\);$")
# __shared__ __align__(16) int next_tile[2];
NUMBERS = re.compile(r"\s*__shared__ __align__\(16\) int (\w+)\[(\d+)\];$")
DYNAMIC = re.compile(r"\s*extern __shared__ __align__\(1024\) uchar buf_dyn_shmem\[\];$")
ALLOCATIONS = (BUFFER, BARRIERS, BARRIER_NAME, NUMBERS, DYNAMIC)
# tl::GmmaDescriptor desc_b;
MATRIX = re.compile(r"\s*tl::GmmaDescriptor (\w+);$")
# What no arithmetic on registers has: other statements, and operators that change a variable.
FOREIGN = re.compile(r"[;{}]|\+\+|--|(?<![<>=!])=(?!=)")
# What is assigned:  acc_s[i] = ...   __1.x = ...   *(float2*)(acc_s + (i * 2)) = ...
# ((half2*)(&__8))[0] = ...   (reinterpret_cast<__nv_bfloat162*>(&__8))[0] = ...
TARGET = re.compile(
    r"(?:(?:float\d? |int[24] |half_t |bfloat16_t |bool )?(\w+)(?:\.[xyzw]|\[.+?\])?|\*\(\w+\*\)\((\w+) \+ .+?\)|"
    r"\((?:\(\w+\*\)|reinterpret_cast<\w+\*>)\(&(\w+)\)\)\[\d+\]) = (.+);$"
)
# All registers of scores:  tl_attention_cap<88, false>(acc_s, ((softmax_scale / ...) * ...));
OF_ALL = re.compile(rf"(?:{'|'.join(ON_SCORES.values())})<(\d+), (?:true|false)>\((\w+), (.+)\);$")
# The kernel's parameters that are numbers.
SCALARS = tuple(parameter.name for parameter in KERNEL_PARAMETERS if parameter.kind == "scalar")
# Functions of registers alone.
PURE = {
    *("bool", "int", "int64_t", "uint", "float", "float2", "float4", "uint1", "uint2", "uint4", "half_t", "bfloat16_t"),
    *("int2", "int4", "make_int2", "make_int4"),
    *("half2", "__nv_bfloat162", "reinterpret_cast", "make_float2", "make_float4", "make_uint4", "x", "y", "z", "w"),
    *("max", "min", "exp2f", "fabsf", "log2f", "CUDART_INF_F", "__float22half2_rn", "__float22bfloat162_rn"),
    *("__fmaf_rn", "__pack_half2", "__pack_nv_bfloat162", "tl_attention_exp2", "tl_attention_grew"),
    *SCALARS,
    *("threadIdx.x", "blockIdx.x", "tl::block_rank_in_cluster", *(f"{name}_all_near" for name in ON_SCORES.values())),
}
WORD = re.compile(r"[A-Za-z_]\w*")
IDENTIFIER = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:::\w+)*(?:\.\w+)*")
FLOAT = re.compile(NUMBER)


@dataclass(frozen=True)
class Declarations:
    """Declarations are the registers, integers, shared buffers and mbarriers that a kernel declares, by name."""

    registers: dict[str, int]  # bytes of each variable in registers
    integers: frozenset[str]  # with the kernel's own integer parameters
    buffers: dict[str, int]  # offsets in dynamic shared memory
    barriers: dict[str, int]  # how many mbarriers each array has
    numbers: dict[str, int]  # how many integers each array in shared memory has
    dynamic: bool  # whether dynamic shared memory is declared
    # The expressions that were parsed since this list was cleared.
    used: list[Expression] = field(default_factory=list)
    # The tensor that a variable was loaded from, and how many elements of it, for lines that were read.
    loaded: dict[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Iterable[str], sizes: Iterable[str]) -> Declarations:
        """Reads the declarations of a kernel's lines; `sizes` are the kernel's own integer parameters."""
        lines = list(lines)

        def found(pattern: re.Pattern[str]) -> list[re.Match[str]]:
            return [match for line in lines if (match := pattern.match(line))]

        named = {match[1] for match in found(BARRIER_NAME)}
        return cls(
            {m[2]: TYPES[m[1]] * int(m[3] or 1) for m in found(REGISTER)},
            frozenset({m[1] for m in found(INTEGER)} | {*sizes}),
            {m[1]: int(m[2]) for m in found(BUFFER)},
            {m[1]: int(m[2]) for m in found(BARRIERS) if m[1] in named},
            {m[1]: int(m[2]) for m in found(NUMBERS)},
            bool(found(DYNAMIC)),
        )

    def kind_of(self, text: str) -> str | None:
        """Returns a word for a line that declares something or computes on registers alone, else None."""
        if any(pattern.match(text) for pattern in ALLOCATIONS):
            return "allocation"
        if PLAIN.match(text):
            return "numbers: declaration"
        match = OF_ALL.match(text)
        if match and self.registers.get(match[2]) == 4 * int(match[1]) and self.pure(match[3]):
            return "numbers: arithmetic"
        match = TARGET.match(text)
        if not match or (match[1] or match[2] or match[3]) not in self.registers:
            return None
        if not (self.pure(text[: match.start(4) - len(" = ")]) and self.pure(match[4])):
            return None
        return "numbers: arithmetic"

    def pure(self, text: str) -> bool:
        """Says whether a text is an expression that reads registers and integers alone, and changes nothing.

        What was loaded from global memory is for copies: nothing shows from where it came to others.
        """
        plain = FLOAT.sub("0", text)
        used = IDENTIFIER.findall(plain)
        known = all(name in self._pure or name.partition(".")[0] in self.registers for name in used)
        return known and not FOREIGN.search(plain) and self.loaded.keys().isdisjoint(WORD.findall(plain))

    def registers_in(self, text: str) -> frozenset[str]:
        """Returns the variables in registers that a text names."""
        return frozenset(WORD.findall(text)) & self.registers.keys()

    def written_by(self, text: str) -> str:
        """Returns the variable in registers that a line of arithmetic writes."""
        match = OF_ALL.match(text) or TARGET.match(text)
        assert match
        return match[2] if match.re is OF_ALL else match[1] or match[2] or match[3]

    @cached_property
    def _pure(self) -> frozenset[str]:
        return frozenset(self.registers.keys() | self.integers | PURE)

    def expression(self, text: str) -> Expression:
        """Parses a text of C as an integer expression and keeps it in `used`; raises SyntaxError for other text."""
        self.used.append(parsed(text))
        return self.used[-1]

    def buffer(self, name: str) -> str:
        """Returns the name unchanged; raises SyntaxError unless it is declared as a buffer of shared memory."""
        return _declared(name, self.buffers, "shared buffer")

    def barrier(self, name: str) -> str:
        """Returns the name unchanged; raises SyntaxError unless it is declared as an array of mbarriers."""
        return _declared(name, self.barriers, "mbarrier")

    def number(self, name: str) -> str:
        """Returns the name unchanged; raises SyntaxError unless it is declared as integers in shared memory."""
        return _declared(name, self.numbers, "shared number")

    def register(self, name: str) -> str:
        """Returns the name unchanged; raises SyntaxError unless it is declared as a variable in registers."""
        return _declared(name, self.registers, "variable")


def declared_by(text: str) -> list[str]:
    """Returns the C++ names of the variables that a line declares, but none for a `for` loop.

    A loop's variable is in the loop's block.
    """
    if text.startswith("for "):
        return []
    return [name.format(*match.groups()) for pattern, name in DECLARATIONS if (match := pattern.match(text))]


# Patterns of lines that declare something, and what it is called, by the pattern's groups.
DECLARATIONS = (
    (REGISTER, "{1}"),
    (INTEGER, "{0}"),
    (BUFFER, "{0}_shared"),
    (BARRIERS, "{0}_mem"),
    (BARRIER_NAME, "{0}"),
    (NUMBERS, "{0}"),
    (MATRIX, "{0}"),
)


def _declared(name: str, known: dict[str, int], what: str) -> str:
    if name not in known:
        raise SyntaxError(f"{what} {name} is not declared")
    return name
