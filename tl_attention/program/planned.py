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
    def buffers(self) -> tuple[int, int]:
        """Returns the numbers of buffers of (K_shared, V_shared), which are both num_stages without a Program.

        Raises ScheduleRefused as `program` does.
        """
        loads = self.schedule.table.loads
        counts = self.program.buffers if self.program else dict.fromkeys(loads, self.schedule.num_stages)
        k, v = (counts[load] for load in loads)
        return k, v
