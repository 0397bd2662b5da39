"""A Planned is a schedule with its Program. Whoever asks for a kernel gives it to all who make and prove the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tl_attention.program.derivation import derive
from tl_attention.program.program import Program
from tl_attention.schedule.schedule import Schedule


@dataclass(frozen=True)
class Planned:
    """A Planned is a schedule with its Program, which is derived once, when it is first asked for."""

    schedule: Schedule

    @cached_property
    def program(self) -> Program | None:
        """Returns the Program, in the lowering's own model; None where the compiler decides the order.

        Raises ScheduleRefused where none can be derived.
        """
        return derive(self.schedule) if self.schedule.has_program else None

    @property
    def rings(self) -> dict[str, int]:
        """Returns by ring, such as K_shared, how many buffers it has: num_stages without a Program.

        Raises ScheduleRefused as `program` does.
        """
        table = self.schedule.table
        return {
            ring: self.program.buffers[load] if self.program else self.schedule.num_stages
            for ring, load in table.rings.items()
        }
