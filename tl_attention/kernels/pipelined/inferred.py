"""`lowering: inferred`: the kernel of `pipelined`, whose order, stages and waits the compiler decides."""

from __future__ import annotations

from tl_attention.kernels.pipelined.lowering import Pipelined
from tl_attention.kernels.shared.wgmma import threads_fit_the_tile
from tl_attention.schedule.dialect import Dialect


class Inferred(Pipelined):
    """Inferred makes the pipelined kernel with order and stage left to the compiler, so there is no Program to prove.

    The kernel is verified on the GPU only.
    """

    dialect = Dialect("inferred", "the compiler decides order and stage", model=None, rules=(threads_fit_the_tile,))
