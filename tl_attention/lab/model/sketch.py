"""A sketch is the machine code that a tile of a warp-specialised kernel may have, made of its Program alone.

Nothing is compiled for it, so a search can rank a hundred schedules by it in the time that one takes to compile. Each
operation has the instructions that ptxas makes of it in kernels that ship, one after another in the Program's order.
What ptxas moves, spills or serialises is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tl_attention.errors import InputError
from tl_attention.lab.model.instructions import ScheduledInstruction
from tl_attention.lab.model.machine import Machine
from tl_attention.lab.model.steps import WarpMark, WarpStep, step
from tl_attention.problem.head_dims import HeadSize, sizes_of
from tl_attention.program.planned import Planned
from tl_attention.program.program import Operation
from tl_attention.schedule.loop.table import whole

K_OF_PRODUCT = 16
# A warp keeps two rows of a lane's accumulators: two maxima, two sums and two scales.
ROWS_OF_LANE = 2
POLYNOMIAL = 8  # instructions of an exponential without the MUFU

# Cycles until the warp's next instruction, in the mean over loops of kernels that ship and that a search has found.
STALLS = {"MUFU": 4, "FMNMX": 3, "F2FP": 4, "FADD": 2, "UMOV": 4, "HGMMA": 4}

Code = list[ScheduledInstruction]


def _one(
    opcode: str, operands: str = "", write: int | None = None, waits: tuple[int, ...] = ()
) -> ScheduledInstruction:
    return ScheduledInstruction(0, "", opcode, operands, STALLS.get(opcode.split(".")[0], 1), write, None, waits)


WAITED = [_one("SYNCS.PHASECHK.TRANS64.TRYWAIT", write=5), _one("BRA", waits=(5,))]
ARRIVED = [_one("SYNCS.ARRIVE.TRANS64.A1T0")]
MET = [_one("BAR.SYNC")]


def _over_row(opcode: str) -> Code:
    """Returns what reduces a lane's two rows over the four lanes of each."""
    shuffles = [_one("SHFL", write=n) for n in range(ROWS_OF_LANE)]
    return 2 * [*shuffles, _one(opcode, waits=(0, 1)), _one(opcode)]


class Sketch:
    """A Sketch is the code of a tile as a consumer may run it, in the form of a TileCode.

    Raises InputError for a kernel that is not warp-specialised.
    """

    def __init__(self, planned: Planned, head_size: HeadSize, machine: Machine) -> None:
        if planned.schedule.lowering != "warp_specialized" or planned.program is None:
            raise InputError(f"{planned.schedule.label}: no sketch of its code, expected lowering: warp_specialized")
        self._schedule, self._phases, self._products = (
            planned.schedule,
            planned.program.phases,
            planned.program.table.products,
        )
        self._machine, (self._head_dim, self._head_dim_v) = machine, sizes_of(head_size)
        self._known: dict[Operation, tuple[WarpStep, ...]] = {}
        self.again = planned.schedule.kernel.tile_scheduler != "one_tile"
        self.steady = self._iteration(self._phases.steady.operations)

    def steps(self, lengths: Sequence[tuple[int, int]]) -> Iterator[WarpStep | WarpMark]:
        """Yields steps and marks of tiles with so many (KV blocks, masked ones) each, as TileCode does.

        Masks cost nothing.
        """
        first, last = self._steps(self._before_loop()), self._steps(self._behind_loop())
        for tile, (blocks, _) in enumerate(lengths):
            yield WarpMark((tile,))
            yield from first
            for iteration in self._phases.prologue:
                yield from self._iteration(iteration.operations)
            for k in range(blocks + self._phases.end - self._phases.steady.t):
                yield WarpMark((tile, k))
                yield from self.steady
            for iteration in self._phases.epilogue:
                yield from self._iteration(iteration.operations)
            yield from last
        yield WarpMark((len(lengths),))

    def _steps(self, code: Code) -> tuple[WarpStep, ...]:
        return tuple(step(instruction, self._machine) for instruction in code)

    def _iteration(self, operations: Sequence[Operation]) -> tuple[WarpStep, ...]:
        found: list[WarpStep] = []
        for op in operations:
            if op not in self._known:
                self._known[op] = self._steps(self._operation(op))
            found += self._known[op]
        return tuple(found)

    def _operation(self, op: Operation) -> Code:
        match op.kind:
            case "run":
                base = whole(op.statement)
                return VECTOR[base](self, self._columns(op.statement) // 2) if base in VECTOR else []
            case "issue" if op.statement in self._products:
                return self._product(op.statement)
            case "wait" if op.statement in self._products:
                return [_one("WARPGROUP.DEPBAR.LE", f"gsb0, {op.outstanding:#x}")]
            case "wait":
                return WAITED
            case "release":
                # Of K and V all blocks of the cluster are told.
                return ARRIVED * (self._schedule.kernel.cluster if op.statement in self._schedule.producers else 1)
            case "turn":
                return MET
            case "pass":
                return [_one("BAR.ARV")]
            case "share":
                return [_one("FENCE"), *MET]
        return []

    def _columns(self, statement: str) -> int:
        """Returns the columns of a vector statement, or of a chunk of it."""
        base, _, number = statement.partition(".")
        widest = self._head_dim_v if base == "rescale" else self._schedule.block_N
        return (self._schedule.split.columns(base) or ())[int(number)] if number else widest

    def _product(self, statement: str) -> Code:
        block_N = self._schedule.block_N
        is_first = statement == self._products[0]
        depth, columns = (self._head_dim, block_N) if is_first else (block_N, self._head_dim_v)
        count = depth // K_OF_PRODUCT
        one = f"HGMMA.64x{columns}x{K_OF_PRODUCT}.F32"
        each = [[_one("UMOV"), _one("UIADD3"), _one(one, "gsb0" * (n == count - 1))] for n in range(count)]
        return [_one("WARPGROUP.ARRIVE"), *(instruction for code in each for instruction in code)]

    def _before_loop(self) -> Code:
        kernel = self._schedule.kernel
        if kernel.q_operand == "shared":
            return WAITED
        loads = [_one("LDSM")] * (self._head_dim // K_OF_PRODUCT)
        return [*WAITED, *loads, *ARRIVED * (kernel.output != "tma")]

    def _behind_loop(self) -> Code:
        kernel, columns = self._schedule.kernel, self._head_dim_v
        code = [*[_one("MUFU")] * ROWS_OF_LANE, *[_one("FMUL")] * (columns // 2), *[_one("F2FP")] * (columns // 4)]
        match kernel.output:
            case "tma":
                code += [*MET, *[_one("STS")] * (columns // 16), *MET, _one("UTMASTG"), *MET, *ARRIVED]
            case "vector":
                code += [*[_one("SHFL")] * (columns // 4), *[_one("STG")] * (columns // 8)]
            case "direct":
                code += [_one("STG")] * (columns // 4)
        return [*code, *(WAITED + ARRIVED) * (kernel.tile_scheduler == "dynamic")]

    # --- what vector statements take of a lane, which has so many of their columns -----------------------------------

    def _max_prev(self, count: int) -> Code:
        return [_one("MOV")] * ROWS_OF_LANE

    def _row_max(self, count: int) -> Code:
        beyond = [_one("FMUL")] * 4 + [_one("FSETP")] * ROWS_OF_LANE
        return [*[_one("FMNMX")] * count, *_over_row("FMNMX"), *beyond * (self._schedule.softmax.rescale_threshold > 0)]

    def _scale(self, count: int) -> Code:
        return [*[_one("FMUL")] * 4, *[_one("MUFU", write=2)] * ROWS_OF_LANE]

    def _exp(self, count: int) -> Code:
        softmax = self._schedule.softmax
        exponent = [_one("FFMA")] if softmax.fused_scale else [_one("FADD"), _one("FMUL")]
        every = softmax.exp2_polynomial.every if softmax.exp2_polynomial else count + 1
        power = [[_one("MUFU")] if (n + 1) % every else [_one("FFMA")] * POLYNOMIAL for n in range(count)]
        code = [instruction for one in power for instruction in (*exponent, *one)]
        return [*code[:-1], _one("MUFU", write=3)]

    def _row_sum(self, count: int) -> Code:
        return [
            _one("FADD", waits=(2, 3)),
            *[_one("FADD")] * (count - 1),
            *_over_row("FADD") * (self._schedule.softmax.row_sum == "row"),
        ]

    def _cast(self, count: int) -> Code:
        stored = [_one("STS"), _one("IADD3")] * (count // 8)
        return [
            _one("F2FP", waits=(3,)),
            *[_one("F2FP")] * (count // 2 - 1),
            *stored * (self._schedule.kernel.p_operand == "shared"),
        ]

    def _rescale(self, count: int) -> Code:
        if self._schedule.softmax.rescale_threshold == 0:
            return [_one("FMUL", waits=(2,)), *[_one("FMUL")] * (count - 1)]
        # Every other block, say, has a row whose maximum grows so much.
        return [*[_one("FSETP")] * ROWS_OF_LANE, _one("BRA"), *[_one("FMUL")] * (count // 2)]


VECTOR: dict[str, Callable[[Sketch, int], Code]] = {
    "max_prev": Sketch._max_prev,
    "row_max": Sketch._row_max,
    "scale": Sketch._scale,
    "exp": Sketch._exp,
    "row_sum": Sketch._row_sum,
    "cast": Sketch._cast,
    "rescale": Sketch._rescale,
}
