"""Schedules speak of these statements of the attention loop, as `kernels/pipelined/kernel.py` runs them.

Where another kernel does it otherwise, its folder has a table of its own.
"""

from __future__ import annotations

from tl_attention.schedule.loop.table import Buffer, Table, row_vectors, statement

_SCORES, _OUTPUT = ("acc_s", "acc_s_cast"), ("acc_o",)

SOURCE = Table(
    (
        statement("load", "load_k", "K", "K_shared", "K_shared = K[k]", "load"),
        statement("vector", "mask", "", "acc_s", "acc_s = 0, or -inf where masked", of_block=True),
        statement("product", "mma0", "Q_shared K_shared acc_s", "acc_s", "acc_s += Q_shared @ K_shared^T"),
        statement(
            "vector", "max_prev", "scores_max", "scores_max_prev", "scores_max_prev = scores_max", identity="copy"
        ),
        statement("vector", "max_init", "", "scores_max", "scores_max = -inf", constant="-inf"),
        statement("vector", "row_max", "acc_s scores_max", "scores_max", "scores_max = max_j acc_s"),
        statement(
            "vector",
            "max_merge",
            "scores_max scores_max_prev",
            "scores_max",
            "scores_max = max(scores_max, scores_max_prev)",
            identity="maximum",
        ),
        statement(
            "vector",
            "scale",
            "scores_max_prev scores_max",
            "scores_scale",
            "scores_scale = exp2(scale (scores_max_prev - scores_max))",
        ),
        statement("vector", "exp", "acc_s scores_max", "acc_s", "acc_s = exp2(scale (acc_s - scores_max))"),
        statement("vector", "row_sum", "acc_s", "scores_sum", "scores_sum = sum_j acc_s"),
        statement(
            "vector",
            "sum_merge",
            "denominator scores_scale scores_sum",
            "denominator",
            "denominator = denominator scores_scale + scores_sum",
        ),
        statement("vector", "cast", "acc_s", "acc_s_cast", "acc_s_cast = acc_s"),
        statement("vector", "rescale", "acc_o scores_scale", "acc_o", "acc_o *= scores_scale", identity="zero"),
        statement("load", "load_v", "V", "V_shared", "V_shared = V[k]", "load"),
        statement("product", "mma1", "acc_s_cast V_shared acc_o", "acc_o", "acc_o += acc_s_cast @ V_shared"),
    ),
    (
        Buffer("Q_shared", "resident", "block_M", "head_dim", 2, operand="q_operand"),
        Buffer("K_shared", "ring", "block_N", "head_dim", 2),
        Buffer("V_shared", "ring", "block_N", "head_dim_v", 2),
        Buffer("acc_s", "fragment", "block_M", "block_N", 4),
        Buffer("acc_s_cast", "fragment", "block_M", "block_N", 2, operand="p_operand"),
        Buffer("acc_o", "fragment", "block_M", "head_dim_v", 4),
        *row_vectors("scores_max", "scores_max_prev", "scores_scale", "scores_sum", "denominator"),
    ),
    initial={"acc_o": "0", "denominator": "0", "scores_max": "-inf"},
    # The maxima for the LSE, and for sinks.
    output=("acc_o", "denominator", "scores_max"),
    splittable={"exp": _SCORES, "row_sum": _SCORES, "cast": _SCORES, "rescale": _OUTPUT},
)
# The loads of fragments from shared memory, statements of loops that multiply registers, each with its product. Both
# are cut along that product's inner dimension.
FRAGMENTS = {"frag_q": "mma0", "frag_k": "mma0", "frag_v": "mma1"}
INNER = {"mma0": "head_dim", "mma1": "block_N"}
