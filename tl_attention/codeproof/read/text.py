"""This module reads the body of a generated kernel as a tree of statements.

Every line is a statement that is read (`calls`), an integer assignment, a loop, a branch, or arithmetic on registers.
Loops and branches around nothing but arithmetic are arithmetic too. What is none of these is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from tl_attention.codeproof.read.declarations import Declarations, declared_by
from tl_attention.codeproof.read.expression import arguments
from tl_attention.codeproof.read.lines import lines_of
from tl_attention.codeproof.read.nodes import (
    PER_HEAD,
    Arithmetic,
    Assign,
    Break,
    CallNode,
    Declare,
    Effect,
    For,
    If,
    Registers,
    While,
    assigned_by,
    is_arithmetic,
    joined,
    only_numbers,
)
from tl_attention.problem.warpgroup import WARP

# for (int t = 0; t < (blocks_3 - 1); ++t) {
FOR = re.compile(r"for \(int (\w+) = 0; \1 < (.+); \+\+\1\) \{$")
# if (((int)threadIdx.y) == 2) {
IF = re.compile(r"if \((.+)\) \{$")
# if (tl::tl_shuffle_elect<32>()) {
ELECT = re.compile(r"tl::tl_shuffle_elect<(\d+)>\(\)$")
# if (!((tile < 16))) { break; }
LEAVE = re.compile(r"if \((.+)\) \{ break; \}$")
# int rmod = (tile % ((seq_q + 127) >> 7));
ASSIGNED = re.compile(r"(?:int )?(\w+) = (.+);$")
# A loop that hides scores has both:  condval_4 = -CUDART_INF_F;    float broadcast_var_2 = -CUDART_INF_F;
# and  acc_s[i] = condval_4;    *(float4*)(acc_s + (i * 4)) = condval;
TAGS = {
    "hidden": re.compile(r"(?:(?:float )?(?:condval|broadcast_var)(?:_\d+)?|acc_s\[.+\]) = -CUDART_INF_F;$"),
    "scores": re.compile(r"(?:acc_s\[.+\]|\*\(float\d\*\)\(acc_s \+ .+\)) = "),
}
# The first lines of the kernel that merges parts.
MERGES = re.compile(r" *cudaGridDependencySynchronize\(\); *tl_attention_merge(?:_listed)?<")
# The types of variables that a run follows: integers, elements of global memory on their way, and zeros.
FOLLOWED = ("int ", "uint", "half_t ", "bfloat16_t ")
# The kinds of lines that are a product's own.
OF_PRODUCTS = {"product", "operand fence", "descriptor"}
SIGNATURE = re.compile(r'extern "C" __global__ void __launch_bounds__\((\d+), (\d+)\) (\w+)\((.*)\) \{$')
# __grid_constant__ const CUtensorMap K_desc    const half_t* __restrict__ K    int* Tiles    int seq_q
# float softmax_scale    int64_t Output_row_stride
PARAMETER = re.compile(
    r"(?:(__grid_constant__ const CUtensorMap)|(?:const )?(\w+\*)(?: __restrict__)?|(int|int64_t|float)) (\w+)$"
)


@dataclass(frozen=True)
class Form:
    """A Form is a kind of line that a kernel may have: a pattern, and a function that makes a match's Effect."""

    kind: str
    pattern: re.Pattern[str]
    build: Callable[[re.Match[str], Declarations], Effect | None]  # of a match, and what the kernel declares


@dataclass(frozen=True)
class KernelSignature:
    """A KernelSignature is a kernel's name, its parameters in order and by kind, and its launch bounds."""

    threads: int
    blocks: int  # of an SM: ptxas gives each thread no more registers than leave room for so many
    name: str
    parameters: tuple[tuple[str, str], ...]  # by kind: descriptors, tensors by address, integers and numbers
    pointers: tuple[tuple[str, str], ...]  # the types in C++ of the tensors by address

    def of(self, kind: str) -> tuple[str, ...]:
        """Returns the names of the parameters of a kind (descriptor, address, int, int64_t or float)."""
        return tuple(name for found, name in self.parameters if found == kind)


@dataclass
class Kernel:
    """A Kernel is generated code: its lines, and these parsed into declarations and statements."""

    lines: Sequence[str]
    listing: str  # the kernel that lists tiles, before the main one, "" where there is none
    signature: KernelSignature
    declared: Declarations
    body: tuple[Any, ...]
    kinds: dict[int, str]  # of lines, by number
    merging: str = ""  # the kernel that merges parts, behind the main one


def read(source: str, calls: Sequence[Form]) -> Kernel:
    """Parses the kernel in generated CUDA; raises SyntaxError for a line that is none of what a kernel may have."""
    lines = lines_of(source)
    kernels = [n for n, line in enumerate(lines) if "__launch_bounds__" in line] or [len(lines)]
    end = kernels.pop() if len(kernels) > 1 and MERGES.match("".join(lines[kernels[-1] + 1 :][:2])) else len(lines)
    first = kernels[-1]
    signature = _signature(first + 1, "".join(lines[first : first + 1]))
    body = lines[first + 1 : end]
    declared = Declarations.of(body, (*signature.of("int"), *signature.of("int64_t")))
    reader = _Reader(calls, declared, {name for _, name in signature.parameters})
    numbered = iter(enumerate(map(str.strip, body), first + 1))
    block = reader.block(numbered)
    ending = [(block.line, block.closing), *((number, text) for number, text in numbered if text)]
    if [text for _, text in ending] != ["}"]:
        number, text = ending[:2][-1]
        raise SyntaxError(f"line {number + 1}: {text[:80]!r}, expected the kernel's last brace and nothing behind it")
    listing = "\n".join(lines[kernels[0] : first])
    return Kernel(lines, listing, signature, declared, block.nodes, reader.kinds, "\n".join(lines[end:]))


def _signature(number: int, line: str) -> KernelSignature:
    match = SIGNATURE.match(line)
    parameters = [PARAMETER.match(text) for text in arguments(match[4])] if match else []
    if not match or not all(parameters):
        raise SyntaxError(f"line {number}: {line[:100]!r} is no kernel of a form that is known")
    kinds = ["descriptor" if p[1] else "address" if p[2] else p[3] for p in parameters if p]
    named = tuple((kind, p[4]) for kind, p in zip(kinds, parameters) if p)
    pointers = tuple((p[4], p[2]) for p in parameters if p and p[2])
    return KernelSignature(int(match[1]), int(match[2]), match[3], named, pointers)


class _Block(NamedTuple):
    """A _Block is the statements up to a closing brace, the line that has the brace, and that line's number."""

    nodes: tuple[Any, ...]
    closing: str
    line: int


class _Reader:
    """A _Reader parses the lines of a generated CUDA kernel into statements, and keeps the kind of each line."""

    def __init__(self, calls: Sequence[Form], declared: Declarations, parameters: Set[str]):
        self.calls, self.declared = calls, declared
        self.scopes = [set(parameters)]  # variables in reach, the function's own first; no name has two of them
        self.kinds: dict[int, str] = {}
        self.unrolled = False
        self.tags: dict[int, set[str]] = {}
        self.of_head: set[str] = set()  # registers that have a number of a tile's head

    def block(self, lines: Iterator[tuple[int, str]], *variables: str) -> _Block:
        """Parses the statements up to a closing brace; `variables` are declared in front of them."""
        nodes: list[Any] = []
        self.scopes.append(set())
        self.declare(variables)
        for number, text in lines:
            if text.startswith("}"):
                self.kinds[number] = "control"
                self.scopes.pop()
                return _Block(joined(nodes), text, number)
            try:
                nodes += self.statement(number, text, lines)
            except SyntaxError as error:
                raise error if "line " in str(error) else SyntaxError(f"line {number + 1}: {error}") from None
        raise SyntaxError("no brace ends the kernel")

    def declare(self, names: Iterable[str]) -> None:
        """Puts variables in reach from here on; raises SyntaxError where another of the same name is in reach."""
        for name in names:
            if any(name in scope for scope in self.scopes):
                raise SyntaxError(f"{name} is declared where another {name} is in reach")
            self.scopes[-1].add(name)

    def closed(self, number: int, lines: Iterator[tuple[int, str]], *variables: str) -> _Block:
        """Parses the statements up to a closing brace; raises SyntaxError if the block has an else."""
        block = self.block(lines, *variables)
        if block.closing != "}":
            raise SyntaxError(f"line {number + 1} opens a block that ends with {block.closing!r}")
        return block

    def statement(self, number: int, text: str, lines: Iterator[tuple[int, str]]) -> list[Any]:
        unrolled, self.unrolled = self.unrolled, text == "#pragma unroll"
        if not text or self.unrolled:
            self.kinds[number] = "numbers: unrolling" if text else ""
            return []
        loop, leave, branch = FOR.match(text), LEAVE.match(text), IF.match(text)
        if loop:
            return [self.loop(number, loop[1], loop[2], lines, unrolled)]
        if branch:
            return [self.branch(number, branch[1], lines)]
        if text == "while (1) {" or text == "{" or leave:
            self.kinds[number] = "control"
        if text == "while (1) {":
            body = self.closed(number, lines).nodes
            return [While(number, body, assigned_by(body))]
        if leave:
            return [Break(number, self.declared.expression(leave[1]))]
        return list(self.closed(number, lines).nodes) if text == "{" else self.line(number, text)

    def loop(self, number: int, variable: str, trips: str, lines: Iterator[tuple[int, str]], unrolled: bool) -> Any:
        body, _, last = self.closed(number, lines, variable)
        if is_arithmetic(body) and trips.isdecimal():
            return self.arithmetic((number, last), body)
        self.control((number, last), body)
        return For(number, variable, self.declared.expression(trips), body, assigned_by(body) | {variable}, unrolled)

    def branch(self, number: int, condition: str, lines: Iterator[tuple[int, str]]) -> Any:
        body, closing, middle = self.block(lines)
        if closing not in ("}", "} else {"):
            raise SyntaxError(f"line {number + 1} opens a block that ends with {closing!r}")
        otherwise, _, last = self.closed(number, lines) if closing == "} else {" else _Block((), closing, middle)
        elected, both, brackets = ELECT.match(condition), (*body, *otherwise), (number, middle, last)
        if elected and int(elected[1]) % WARP:
            raise SyntaxError(f"one of {elected[1]} threads is elected, expected warps")
        if not elected and is_arithmetic(both) and not self.decides(condition, both):
            if not self.declared.pure(condition):
                raise SyntaxError(f"line {number + 1}: the condition {condition[:80]!r} is nothing that is known")
            return self.arithmetic(brackets, both, self.declared.registers_in(condition))
        self.control(brackets, both)
        tree = None if elected else self.declared.expression(condition)
        return If(number, tree, int(elected[1]) if elected else None, body, otherwise, assigned_by(both))

    def decides(self, condition: str, body: Sequence[Any]) -> bool:
        """Says whether a branch decides, for all threads alike, whether a number of a head counts in the tile."""
        touched = Registers().union(*(node.registers for node in body if isinstance(node, Arithmetic))).touched
        of_thread = "threadIdx" in condition or self.declared.registers_in(condition)
        return not of_thread and not self.of_head.isdisjoint(touched)

    def control(self, brackets: Sequence[int], body: Sequence[Any]) -> None:
        """Marks a loop's or branch's own lines as control, and also as arithmetic if its body only computes numbers.

        How often it runs is read by what it orders, loads, multiplies or masks; a body that does none of these leaves
        the lines to the numbers.
        """
        for line in brackets:
            self.kinds[line] = "control, numbers: arithmetic" if only_numbers(body) else "control"

    def arithmetic(self, brackets: Sequence[int], body: Sequence[Any], read: Set[str] = frozenset()) -> Arithmetic:
        """Joins a loop or branch of arithmetic into one statement; the condition reads the registers `read`."""
        body = [node for node in body if isinstance(node, Arithmetic)]
        inner = tuple(line for node in body for line in node.lines)
        mask = set().union(*(self.tags.get(line, set()) for line in inner)) == TAGS.keys()
        for line in (*brackets, *inner):
            self.kinds[line] = "numbers: mask" if mask else "numbers: arithmetic"
        registers = Registers(frozenset(read)).union(*(node.registers for node in body))
        return Arithmetic((*brackets, *inner), mask, registers)

    def line(self, number: int, text: str) -> list[Any]:
        self.declare(declared_by(text))
        for call in self.calls:
            match = call.pattern.match(text)
            self.declared.used.clear()
            made = call.build(match, self.declared) if match else None
            if made is not None:
                self.kinds[number] = call.kind
                self.of_head |= self.declared.registers_in(text) if call.kind == PER_HEAD else set()
                found = Registers() if call.kind in OF_PRODUCTS else Registers.of(self.declared.registers_in(text))
                return [CallNode(number, call.kind, made.act, made.changes, tuple(self.declared.used), found)]
        assigned = ASSIGNED.match(text)
        if assigned and assigned[1] in self.declared.integers:
            self.kinds[number] = "integer"
            return [Assign(number, assigned[1], self.declared.expression(assigned[2]))]
        self.tags[number] = {tag for tag, pattern in TAGS.items() if pattern.match(text)}
        kind = self.declared.kind_of(text)
        if kind is None:
            raise SyntaxError(f"{text[:100]!r} is nothing that is known")
        self.kinds[number] = kind
        if kind == "numbers: declaration":
            return [Declare(number, name) for name in declared_by(text) if text.startswith(FOLLOWED)]
        if kind != "numbers: arithmetic":
            return []
        registers = Registers(self.declared.registers_in(text), frozenset({self.declared.written_by(text)}))
        return [Arithmetic((number,), False, registers)]
