"""Coverage says which lines of a kernel ran, in which iterations of a period: a line that did not run shows nothing.

A line that synchronises, loads, multiplies or stores and did not run is a refusal, unless the line never can run: its
condition is the same whatever the sizes, and was false for every thread of every block of a cluster; it is in a loop
that had no iteration in any tile of any problem, drawn ones too; or sizes are fixed and no tile of that grid gets there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from tl_attention.codeproof.read.nodes import Arithmetic, For, If, While
from tl_attention.codeproof.read.text import Kernel
from tl_attention.codeproof.run.affine import Core
from tl_attention.codeproof.run.iterations import OF_A_THREAD, Iterations
from tl_attention.codeproof.run.run import Run
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.variant import Sizes


@dataclass
class Coverage:
    """A Coverage gathers from all runs of a kernel which lines ran, in which iterations, and how conditions went.

    `trips` has the most iterations that a loop had, by the name of its counter.
    """

    ran: set[int] = field(default_factory=set)
    outcomes: dict[int, set[bool]] = field(default_factory=lambda: defaultdict(set))
    reached: dict[int, tuple[Sizes, int]] = field(default_factory=dict)
    trips: dict[str, int] = field(default_factory=dict)
    residues: dict[tuple[int, Core], set[int]] = field(default_factory=lambda: defaultdict(set))
    compared: dict[tuple[int, int], set[tuple[int, tuple[str, ...]]]] = field(default_factory=lambda: defaultdict(set))

    def note_places(self, run: Run, steps: Collection[int]) -> None:
        """Adds a run of which only the places of tiles were checked; the lines in `steps` do not count as run.

        What these lines did was not seen.
        """
        self.ran |= run.ran.difference(steps)
        self._note_ways(run)

    def note(self, run: Run) -> None:
        """Adds a run whose events were all checked, with its lines, conditions, iterations and comparisons."""
        self.ran |= run.ran
        self._note_ways(run)
        for line_and_core, residues in run.residues.items():
            self.residues[line_and_core] |= residues
        for comparison, found in run.compared.items():
            self.compared[comparison] |= found

    def note_trips(self, run: Run) -> None:
        """Updates the most iterations that each loop had, by its counter's name, with those of a run.

        All tiles of a run of samples count.
        """
        for counter, trips in run.trips.items():
            self.trips[counter] = max(trips, self.trips.get(counter, 0))

    def _note_ways(self, run: Run) -> None:
        """Adds a run's loop lengths and conditions' outcomes, and the sizes and tile that first reached each line."""
        self.note_trips(run)
        for line, outcomes in run.outcomes.items():
            self.outcomes[line] |= outcomes
        for line, tile in run.reached.items():
            self.reached.setdefault(line, (run.sizes, tile))

    def wanting(self, iterations: Iterations, fixed: bool) -> list[tuple[int, Core]]:
        """Returns (line, core) for each line that ran in too few iterations of the period of a sum of counters `core`.

        For fixed sizes a loop that begins anew with each tile has no iterations other than those that ran. A loop that is
        shorter than the period for every tile, as over the KV blocks of a causal mask's edge, has no others either.
        """
        carried = {name for names in iterations.carried.values() for name in names}
        return [
            (line, core)
            for line, cores in iterations.cores.items()
            for core in cores
            if line in self.reached and not (fixed and carried.isdisjoint(name for name, _ in core))
            if len(self.residues[line, core]) < self._states(iterations, line, core)
        ]

    def _states(self, iterations: Iterations, line: int, core: Core) -> int:
        """Returns in how many iterations a line must have run, at most the loop's own if `core` is one counter."""
        states = iterations.states(line, core)
        return min(states, self.trips.get(core[0][0], states)) if len(core) == 1 else states

    def unreached(self, kernel: Kernel, iterations: Iterations, fixed: bool) -> tuple[int, ...]:
        """Returns the lines that can never run; raises Unsafe for a line that did not run but is not one of them.

        It raises Unsafe, too, for a line that did not run in every iteration of the period.
        """
        for line, core in self.wanting(iterations, fixed):
            names = " + ".join(name for name, _ in core)
            states = self._states(iterations, line, core)
            raise Unsafe(f"line {line + 1} did not run in every one of the {states} states of {names}")
        for line, comparisons in iterations.comparisons.items():
            for number in range(len(comparisons)):
                seen = self.compared[line, number]
                # A counter that is above stays above; a loop of one iteration, at any size, has no second.
                if not fixed and len({at for _, at in seen}) > 1 and max(above for above, _ in seen) <= 0:
                    raise Unsafe(f"line {line + 1} compares what is counted with what no run gets to")
        dead: list[int] = []
        self._look(kernel.body, False, dead, fixed)
        return tuple(dead)

    def _look(self, nodes: Iterable[Any], never: bool, dead: list[int], fixed: bool) -> None:
        for node in nodes:
            lines = node.lines if isinstance(node, Arithmetic) else (node.line,)
            if not self.ran.issuperset(lines):
                if not never and not fixed:
                    raise Unsafe(f"line {lines[0] + 1} does not run at any size that is tried")
                dead.extend(lines)
            if isinstance(node, (For, While)):
                # Behind more buffers than a mask's edge has KV blocks no iteration is left for a loop that would repeat.
                empty = isinstance(node, For) and self.trips.get(node.variable) == 0
                self._look(node.body, never or empty, dead, fixed)
            elif isinstance(node, If):
                # The condition depends on the thread alone, so it is the same for all sizes: every such thread was run.
                plain = node.condition is not None and node.condition.names <= OF_A_THREAD
                outcomes = self.outcomes[node.line]
                self._look(node.body, never or (plain and True not in outcomes), dead, fixed)
                self._look(node.otherwise, never or (plain and False not in outcomes), dead, fixed)
