"""This machine runs a Program's roles as processes, over any kind of value.

What may happen next is a set of events: a role takes its next step, the oldest product in flight completes, or a load
in flight arrives. A policy picks one. `LATE` and `EARLY` are the two adversaries. With `LATE`, products complete as
late as their waits allow, while loads arrive, and rings are refilled, as early as they may. `EARLY` is the other way
round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tl_attention.program.program import CONSUMER, PRODUCER, Program, Step

Choice = tuple[str, str, int]
Policy = Callable[[Sequence[Choice]], Choice]


class LoopState(Protocol):
    """A LoopState holds the values that statements read and write, and runs a statement on them."""

    def run(self, statement: str, block: int, slot: dict[str, int]) -> None:
        """Executes `statement` for `block`; `slot` gives the ring slot of each load's buffer."""


class Deadlock(Exception):
    """A Deadlock is raised where no role can go on; `blocked` holds the step that each role waits at."""

    def __init__(self, blocked: dict[str, Step]):
        waits = "; ".join(
            f"the {role} waits {'for' if step.op.kind == 'wait' else f'to {step.op.kind}'} {step.op.statement}({step.block})"
            for role, step in blocked.items()
        )
        super().__init__(f"deadlock: {waits}")
        self.blocked = blocked


def _prefer(*kinds: str) -> Policy:
    rank = {kind: index for index, kind in enumerate(kinds)}
    return lambda events: min(events, key=lambda event: rank[event[0]])


LATE: Policy = _prefer("load", PRODUCER, CONSUMER, "product")
EARLY: Policy = _prefer("product", CONSUMER, PRODUCER, "load")


def execute(program: Program, blocks: int, state: LoopState, policy: Policy) -> None:
    """Runs a Program's loop over `blocks` KV blocks on a state; `policy` picks each next event. Raises Deadlock."""
    run = _Execution(program, blocks, state)
    while not run.finished:
        events = run.events()
        if not events:
            raise Deadlock({role: steps[0] for role, steps in run.roles.items() if steps})
        run.take(policy(events))


class _Execution:
    def __init__(self, program: Program, blocks: int, state: LoopState):
        self.roles = {role: deque(steps) for role, steps in program.roles(blocks).items()}
        self.state = state
        self.buffers = program.buffers
        self.product_names = frozenset(program.table.products)
        self.products: deque[tuple[str, int]] = deque()
        self.loads: list[tuple[str, int]] = []
        self.arrived: set[tuple[str, int]] = set()
        self.released: set[tuple[str, int]] = set()

    @property
    def finished(self) -> bool:
        return not any(self.roles.values())

    def events(self) -> list[Choice]:
        ready = [role for role, steps in self.roles.items() if steps and self._ready(steps[0])]
        events: list[Choice] = [(role, "step", 0) for role in ready]
        events += [("product", *self.products[0])] if self.products else []
        return events + [("load", name, block) for name, block in self.loads]

    def take(self, event: Choice) -> None:
        kind, name, block = event
        if kind == "product":
            self.products.popleft()
            self._run(name, block)
        elif kind == "load":
            self.loads.remove((name, block))
            self.arrived.add((name, block))
            self._run(name, block)
        else:
            self._step(self.roles[kind].popleft())

    def _ready(self, step: Step) -> bool:
        name = step.op.statement
        if step.op.kind == "wait":
            product = name in self.product_names
            return len(self.products) <= step.op.outstanding if product else (name, step.block) in self.arrived
        if step.op.kind == "acquire":
            before = step.block - self.buffers[name]
            return before < 0 or (name, before) in self.released
        return True

    def _step(self, step: Step) -> None:
        name, block = step.op.statement, step.block
        if step.op.kind == "run":
            self._run(name, block)
        elif step.op.kind == "issue" and name in self.product_names:
            self.products.append((name, block))
        elif step.op.kind == "issue":
            self.loads.append((name, block))
        elif step.op.kind == "release":
            self.released.add((name, block))

    def _run(self, name: str, block: int) -> None:
        self.state.run(name, block, {load: block % count for load, count in self.buffers.items()})
