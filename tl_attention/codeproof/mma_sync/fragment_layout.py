"""FragmentLayout says which matrices a statement loads into a thread's registers, and which registers it multiplies.

A register is two elements, named by the first. In each register a lane has what the fragment of an mma.sync m16n8k16
has of one 8 x 8 matrix (PTX ISA, mma.m16n8k16): A's first two registers are rows 0 to 7 and 8 to 15 of the first eight
columns, the last two are these rows of the next eight columns; B's two registers are its first eight rows and the next
eight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tl_attention.codeproof.tiles.tiles import SIDE, Matrix
from tl_attention.kernels.mma_sync.dialect import ROWS_OF_A_PRODUCT, rows_at_once
from tl_attention.kernels.mma_sync.resources import DEPTH, Chunk, Fragments, fragments
from tl_attention.schedule.loop.table import whole
from tl_attention.schedule.schedule import Schedule

# The elements of a register, of a fragment of A and of B, and of the accumulators that a product adds to.
PAIR, OF_A, OF_B, OF_D = 2, 8, 4, 4
KEEP_Q = "keep"

# The array of an operand's registers, where they start, and the matrix in each; no matrix where numbers made it.
Operand = tuple[str, int, dict[int, Matrix]]


class MmaOperands(NamedTuple):
    """A MmaOperands holds the operands A and B of one mma.sync, each (array, first register, matrices by register)."""

    a: Operand
    b: Operand


@dataclass(frozen=True)
class FragmentLayout:
    """A FragmentLayout gives, per statement, the 8 x 8 matrix in each register and the registers of each mma.sync."""

    schedule: Schedule
    head_dim: int

    @cached_property
    def fragments(self) -> Fragments:
        return fragments(self.schedule)

    @property
    def rows(self) -> int:
        """Returns how many rows all warps together compute at a time."""
        return rows_at_once(self.schedule.threads)

    @property
    def products(self) -> int:
        """Returns block_M divided by the number of rows that all warps together compute at a time."""
        return self.schedule.block_M // self.rows

    @cached_property
    def declared(self) -> dict[str, int]:
        """Returns how many elements each register array of a thread has, by the array's name."""
        N, D, room = self.schedule.block_N, self.head_dim, self.fragments
        steps = {
            "Q_local": room.q_steps or D // DEPTH,
            "K_local": room.k_steps or D // DEPTH,
            "V_local": room.v_steps or N // DEPTH,
        }
        of_a_step = {"Q_local": self.products * OF_A, "K_local": N // SIDE * OF_B, "V_local": D // SIDE * OF_B}
        scores = self.products * N // SIDE * OF_D
        return {
            **{name: count * of_a_step[name] for name, count in steps.items()},
            "acc_s": scores,
            "acc_s_cast": scores,
            "acc_o": self.products * D // SIDE * OF_D,
        }

    def loaded(self, statement: str) -> dict[int, Matrix]:
        """Returns the matrix that a statement loads into each register, by the register's number."""
        return self._loaded[statement]

    def multiplied(self, statement: str) -> dict[int, list[MmaOperands]]:
        """Returns lists of a statement's products, by the first of the four accumulators to which they add."""
        return self._multiplied[statement]

    def needed(self, statement: str) -> dict[tuple[str, int], Matrix]:
        """Returns, by (array, register), the matrix that must be there for a statement's products."""
        return self._needed[statement]

    @cached_property
    def _needed(self) -> dict[str, dict[tuple[str, int], Matrix]]:
        return {
            statement: {
                (name, at): matrix
                for product in (product for products in found.values() for product in products)
                for name, _, matrices in product
                for at, matrix in matrices.items()
            }
            for statement, found in self._multiplied.items()
        }

    @cached_property
    def _loaded(self) -> dict[str, dict[int, Matrix]]:
        of = {"frag_q": self._of_q, "frag_k": self._of_k, "frag_v": self._of_v}
        loads = {
            name: {at: matrix for step in self._steps(name) for at, matrix in of[whole(name)](chunk, step).items()}
            for name, chunk in self.fragments.chunks.items()
            if whole(name) in of
        }
        kept = Chunk(0, self.head_dim // DEPTH)
        every = {at: matrix for step in range(self.head_dim // DEPTH) for at, matrix in self._of_q(kept, step).items()}
        return loads | {KEEP_Q: every}

    @cached_property
    def _multiplied(self) -> dict[str, dict[int, list[MmaOperands]]]:
        operands: dict[str, dict[int, list[MmaOperands]]] = {}
        for name, chunk in self.fragments.chunks.items():
            if whole(name) not in ("mma0", "mma1"):
                continue
            of_scores = whole(name) == "mma0"
            columns = self.schedule.block_N if of_scores else self.head_dim
            into = operands[name] = {}
            for step in self._steps(name):
                b = self._of_k(chunk, step) if of_scores else self._of_v(chunk, step)
                for i in range(self.products):
                    a = _operand("Q_local", self._of_q(chunk, step), i * OF_A, OF_A)
                    for j in range(columns // SIDE):
                        at = i * (columns // SIDE * OF_D) + j * OF_D
                        into.setdefault(at, []).append(
                            MmaOperands(
                                a if of_scores else self._of_p(chunk, step, i),
                                _operand("K_local" if of_scores else "V_local", b, j * OF_B, OF_B),
                            )
                        )
        return operands

    def _steps(self, statement: str) -> range:
        """Returns the steps of a statement's chunk as a range from 0, or all steps if the statement is whole."""
        name, steps = whole(statement), self.fragments.chunks[statement].steps
        along = self.schedule.block_N if name in ("frag_v", "mma1") else self.head_dim
        return range(along // DEPTH if steps is None else steps)

    def _of_q(self, chunk: Chunk, step: int) -> dict[int, Matrix]:
        start, column = (chunk.q + step) * self.products * OF_A, (chunk.first + step) * DEPTH
        return {
            start + i * OF_A + PAIR * m: Matrix(
                i * self.rows + SIDE * (m % 2), column + SIDE * (m // 2), False, ROWS_OF_A_PRODUCT
            )
            for i in range(self.products)
            for m in range(OF_A // PAIR)
        }

    def _of_k(self, chunk: Chunk, step: int) -> dict[int, Matrix]:
        keys = self.schedule.block_N // SIDE
        start, column = (chunk.k + step) * keys * OF_B, (chunk.first + step) * DEPTH
        return {
            start + j * OF_B + PAIR * m: Matrix(j * SIDE, column + SIDE * m, False)
            for j in range(keys)
            for m in range(OF_B // PAIR)
        }

    def _of_v(self, chunk: Chunk, step: int) -> dict[int, Matrix]:
        columns = self.head_dim // SIDE
        start, key = (chunk.v + step) * columns * OF_B, (chunk.first + step) * DEPTH
        return {
            start + j * OF_B + PAIR * m: Matrix(key + SIDE * m, j * SIDE, True)
            for j in range(columns)
            for m in range(OF_B // PAIR)
        }

    def _of_p(self, chunk: Chunk, step: int, i: int) -> Operand:
        return "acc_s_cast", i * (self.schedule.block_N // SIDE * OF_D) + (chunk.first + step) * OF_A, {}


def _operand(name: str, matrices: dict[int, Matrix], offset: int, count: int) -> Operand:
    """Returns (array, first register, matrices) for the `count` elements of a step that begin at `offset`."""
    start = min(matrices) + offset
    return name, start, {at: matrices[at] for at in range(start, start + count, PAIR)}
