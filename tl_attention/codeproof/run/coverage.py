"""Coverage says which lines of a kernel ran: a line that did not run shows nothing.

A line that synchronises, loads, multiplies or stores and did not run is a refusal, unless the line never can run: its
condition is the same whatever the sizes, and was false for every thread of every block of a cluster; it is in a loop
that has no iteration in any tile of any problem; or sizes are fixed and no tile of that grid gets there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tl_attention.codeproof.read.nodes import Arithmetic, For, If, While
from tl_attention.codeproof.read.text import Kernel
from tl_attention.codeproof.run.run import Run
from tl_attention.codeproof.verdict import Unsafe

# What a thread's place in its block says.
OF_A_THREAD = frozenset({"threadIdx_x", "threadIdx_y", "tl__block_rank_in_cluster"})


@dataclass
class Coverage:
    """A Coverage gathers from all runs of a kernel which lines ran, and how conditions went."""

    ran: set[int] = field(default_factory=set)
    outcomes: dict[int, set[bool]] = field(default_factory=lambda: defaultdict(set))
    trips: dict[str, int] = field(default_factory=dict)  # most iterations of a loop, by its counter's name

    def note(self, run: Run) -> None:
        """Adds a run whose events were all checked."""
        self.ran |= run.ran
        for counter, trips in run.trips.items():
            self.trips[counter] = max(trips, self.trips.get(counter, 0))
        for line, outcomes in run.outcomes.items():
            self.outcomes[line] |= outcomes

    def unreached(self, kernel: Kernel, fixed: bool) -> tuple[int, ...]:
        """Returns the lines that can never run; raises Unsafe for a line that did not run but is not one of them."""
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
                # With more buffers than a mask's edge has KV blocks, no iteration is left for a loop that would repeat.
                empty = isinstance(node, For) and self.trips.get(node.variable) == 0
                self._look(node.body, never or empty, dead, fixed)
            elif isinstance(node, If):
                # The condition depends on the thread alone, so it is the same for all sizes: every such thread was run.
                plain = node.condition is not None and node.condition.names <= OF_A_THREAD
                outcomes = self.outcomes[node.line]
                self._look(node.body, never or (plain and True not in outcomes), dead, fixed)
                self._look(node.otherwise, never or (plain and False not in outcomes), dead, fixed)
