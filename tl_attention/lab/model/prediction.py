"""`predict` says without a GPU how long a schedule's kernel takes for a problem, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import mean

from tl_attention.compiler.compile import compile_kernel
from tl_attention.errors import InputError
from tl_attention.lab.machine_code.of_kernel import MachineCode
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.model.grid import Grid
from tl_attention.lab.model.instructions import read
from tl_attention.lab.model.machine import Machine
from tl_attention.lab.model.roles import run
from tl_attention.lab.model.sketch import Sketch
from tl_attention.lab.model.sm import Quarter
from tl_attention.lab.model.steps import TileCode, tile_code
from tl_attention.lab.model.tensor_core import NAME as TENSOR_CORE
from tl_attention.problem.shape import AttentionShape

# Tiles that are simulated, of which the last counts, and the most KV blocks of each: more take as long each.
TILES, MOST_BLOCKS = 2, 8
# Iterations of a tile's steady loop that do not count.
FIRST_ITERATIONS = 2
# A few cycles decide whether two warps fall into a good rhythm or a bad one. So a kernel runs on several machines,
# which differ a little in how long barriers and loads take, and the mean counts: for each number the factors that
# change it.
VARIED = {"named_barrier": (1.0, 1.3, 0.7), "mbarrier": (1.0, 0.85, 1.15), "tma_latency": (1.0, 1.1, 0.9)}


@dataclass(frozen=True)
class Prediction:
    """A Prediction is what the model says of a candidate's kernel on a machine."""

    name: str
    shape: AttentionShape
    machine: str
    cycles: float  # of the SM that works longest
    clock_mhz: float
    iteration: float  # cycles of a KV block in the steady loop
    tile: float  # cycles of a tile
    blocks: int  # KV blocks of that tile
    instructions: int
    busy: dict[str, float]  # the part of the time in which each resource is taken
    waits: dict[str, float]  # cycles of a consumer's waits and issues in a tile, by kind and name

    @property
    def ms(self) -> float:
        """Returns the predicted time of a launch in milliseconds."""
        return self.cycles / self.clock_mhz / 1000

    @property
    def limit(self) -> tuple[str, float]:
        """Returns the resource that is taken most of the time, and which part of the time that is."""
        return max(self.busy.items(), key=lambda item: item[1])


def check(candidate: Candidate, machine: Machine) -> None:
    """Raises InputError where the model knows nothing of the candidate's kernel, or the machine is another card."""
    planned = candidate.planned
    if planned is None or planned.program is None:
        raise InputError(
            f"{candidate.name}: no Program, expected a schedule whose lowering follows one: nothing is predicted"
        )
    if candidate.shape.packed:
        raise InputError(f"{candidate.name}: packed sequences, expected a batch of one length: nothing is predicted")
    if candidate.arch != machine.arch:
        raise InputError(f"{machine.device} is {machine.arch}, expected a machine file of {candidate.arch}")


def predict(candidate: Candidate, machine: Machine) -> Prediction:
    """Returns the prediction for a candidate, whose kernel is taken from the store or compiled.

    Raises InputError where nothing can be predicted, and as compile_kernel does.
    """
    return predict_code(candidate, machine, *compiled(candidate, machine))


def compiled(candidate: Candidate, machine: Machine) -> tuple[TileCode, int]:
    """Returns a tile's machine code in a candidate's kernel, and how many of its thread blocks an SM holds.

    Raises InputError where nothing can be predicted, and as compile_kernel does.
    """
    check(candidate, machine)
    planned = candidate.ours
    try:
        kernel = compile_kernel(planned.schedule, candidate.variant, planned)
        of_kernel = MachineCode(kernel)
        code, per_sm = tile_code(read(of_kernel.disassembly), machine), of_kernel.blocks_per_sm
    except InputError as error:
        raise InputError(f"{candidate.name}: {error}") from None
    # Where there is one loop alone in a kernel of several tiles, it is that of the tiles.
    of_tiles = planned.schedule.lowering == "warp_specialized" and planned.schedule.kernel.tile_scheduler != "one_tile"
    if not code.loops or (of_tiles and not code.again):
        raise InputError(
            f"{candidate.name}: no loop over KV blocks in the machine code, expected more keys or sizes of run time: "
            "nothing is predicted"
        )
    return code, per_sm


def guess(candidate: Candidate, machine: Machine) -> float:
    """Returns the milliseconds that a candidate's kernel may take, of which nothing is compiled.

    Raises InputError where nothing can be predicted, and as `Sketch` does.
    """
    check(candidate, machine)
    schedule = candidate.ours.schedule
    sketch = Sketch(candidate.ours, candidate.shape.head_size, machine)
    return predict_code(candidate, machine, sketch, schedule.kernel.blocks_per_sm, vary=False).ms


def predict_code(
    candidate: Candidate, machine: Machine, code: TileCode | Sketch, per_sm: int, vary: bool = True
) -> Prediction:
    """Returns the prediction for a candidate's kernel from a tile's code; an SM holds `per_sm` of its thread blocks.

    Unless it may `vary`, the machine is one alone, which takes a third of the time.
    """
    grid = Grid.of(candidate, per_sm)
    blocks, masked = grid.usual_tile(MOST_BLOCKS)
    tiles = TILES if code.again else 1
    lengths = [(blocks, masked)] * tiles
    quarters = [
        run(candidate.ours, code, lengths, other, candidate.shape.head_size, per_sm)
        for other in (_varied(machine) if vary else (machine,))
    ]
    tile = mean(_tile(quarter, tiles) for quarter in quarters)
    iteration = mean(_iteration(quarter, tiles - 1, blocks) for quarter in quarters)
    if not code.again:
        tile += machine.next_block

    def of_tile(number: float) -> float:
        return tile + (number - blocks) * iteration

    first = quarters[0]
    of_a_block = max(first.used[TENSOR_CORE], first.used["mma_sync"]) / (per_sm * tiles * blocks)
    # Where SMs end at different times the clock is that of the time in which all work.
    multiplies = of_a_block * grid.blocks_of_sm(candidate.sms) / grid.mean_cycles(of_tile)
    # The cycles that so many KV blocks take in the problem's tiles, which may be longer.
    usual = float(grid.blocks.mean())
    whole = per_sm * tiles * blocks * of_tile(usual) / usual
    account = next(iter(first.accounts.values()))
    return Prediction(
        candidate.name,
        candidate.shape,
        machine.title,
        machine.kernel + grid.cycles(of_tile, machine.spread),
        machine.clock(multiplies),
        iteration,
        tile,
        blocks,
        len(code.steady),
        {resource: cycles / whole for resource, cycles in first.used.items()},
        {what: waited / tiles for what, waited in account.waited.items() if waited},
    )


def _varied(machine: Machine) -> Iterator[Machine]:
    """Yields the machine, and others beside it, with some numbers changed a little."""
    for factors in zip(*VARIED.values(), strict=True):
        yield replace(machine, **{name: getattr(machine, name) * factor for name, factor in zip(VARIED, factors)})


def _tile(quarter: Quarter, tiles: int) -> float:
    """Returns the cycles of a tile, the mean over the warps and over all tiles but the first."""
    first = min(1, tiles - 1)
    return mean(
        (account.marks[(tiles,)] - account.marks[(first,)]) / (tiles - first) for account in quarter.accounts.values()
    )


def _iteration(quarter: Quarter, tile: int, blocks: int) -> float:
    """Returns the cycles of a KV block in a tile's steady loop, the mean over the warps."""
    found = []
    for account in quarter.accounts.values():
        begins = [at for label, at in account.marks.items() if len(label) == 2 and label[0] == tile]
        if len(begins) > FIRST_ITERATIONS + 1:
            found.append((begins[-1] - begins[FIRST_ITERATIONS]) / (len(begins) - 1 - FIRST_ITERATIONS))
    return mean(found) if found else _tile(quarter, tile + 1) / blocks
