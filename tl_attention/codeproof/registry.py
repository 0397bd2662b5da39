"""Every lowering that has a Program has a proof here, which reads what TileLang generates of its kernels."""

from __future__ import annotations

from tl_attention.codeproof.backward.code_proof import GradientProof
from tl_attention.codeproof.mma_sync.code_proof import MmaSyncProof
from tl_attention.codeproof.pipelined.code_proof import PipelinedProof
from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.verdict import GeneratedCode, Verdict
from tl_attention.codeproof.warp_specialized.code_proof import RolesProof
from tl_attention.program.program import Program
from tl_attention.schedule.loop.loops import FORWARD, LOOPS
from tl_attention.schedule.schedule import Schedule

PROOFS: dict[str, type[Proof]] = {"pipelined": PipelinedProof, "warp_specialized": RolesProof, "mma_sync": MmaSyncProof}

# By loop.
OF_LOOPS: dict[str, dict[str, type[Proof]]] = {
    FORWARD: PROOFS,
    **{loop: {"warp_specialized": GradientProof} for loop in LOOPS if loop != FORWARD},
}


def check_generated(schedule: Schedule, program: Program, code: GeneratedCode) -> Verdict:
    """Proves that the generated code does what the Program says, without races, and returns the verdict.

    Raises ScheduleRefused otherwise. Arithmetic on registers, which scores a mask hides, and which register is which
    element, are not read: that is for the numbers to show. docs/DESIGN.md has the list.
    """
    return OF_LOOPS[schedule.loop][schedule.lowering](schedule, program, code).verdict()
