"""These two loops compute attention's gradient, each with accumulators of its own: no sum depends on an order.

P = exp2(scale S - LSE) comes again from the scores and the LSE, in base 2; D is each row's sum of dO * O. `dq` has
tiles of queries, as the forward, and goes over keys; `dkdv` has tiles of keys, goes over queries, and has all its
products transposed: for its mask queries and keys change places. Neither needs what another thread block computes.
"""

from __future__ import annotations

from tl_attention.schedule.loop.table import Buffer, Table, row_vectors, statement

# At head_dim 128 dK and dV, with the other fragments, take 224 registers: of 240 none is spilled, of 232 four are.
ADDRESSES = 16

DQ = Table(
    (
        statement("load", "load_k", "K", "K_shared", "K_shared = K[k]", "load"),
        statement("product", "s", "Q_shared K_shared", "S", "S = Q_shared @ K_shared^T", "transposed"),
        statement("vector", "mask", "S", "S", "S = -inf where masked", "mask_s", of_block=True, boundary_only=True),
        statement("vector", "exp", "S LSE", "S", "S = exp2(scale S - LSE)", "exp_of_row"),
        statement("load", "load_v", "V", "V_shared", "V_shared = V[k]", "load"),
        statement("product", "dp", "dO_shared V_shared", "dP", "dP = dO_shared @ V_shared^T", "transposed"),
        statement("vector", "ds", "S dP D", "dS", "dS = S (dP - D)", "ds_of_row"),
        statement("product", "dq", "dS K_shared dQ", "dQ", "dQ += dS @ K_shared", "added"),
    ),
    (
        Buffer("Q_shared", "resident", "block_M", "head_dim", 2),
        Buffer("dO_shared", "resident", "block_M", "head_dim_v", 2),
        Buffer("K_shared", "ring", "block_N", "head_dim", 2),
        Buffer("V_shared", "ring", "block_N", "head_dim_v", 2),
        Buffer("S", "fragment", "block_M", "block_N", 4),
        Buffer("dP", "fragment", "block_M", "block_N", 4),
        Buffer("dS", "fragment", "block_M", "block_N", 2),
        Buffer("dQ", "fragment", "block_M", "head_dim", 4),
        *row_vectors("LSE", "D"),
    ),
    initial={"dQ": "0"},
    output=("dQ",),
    addresses=ADDRESSES,
    splittable={"exp": ("S",), "ds": ("S", "dP", "dS")},
)

DKDV = Table(
    (
        # A row vector comes with its tile, in the same phase of the mbarrier.
        statement("load", "load_q", "Q LSE", "Q_shared LSE_shared", "Q_shared, LSE_shared = Q[q], LSE[q]", "load"),
        statement("product", "s", "K_shared Q_shared", "S", "S = K_shared @ Q_shared^T", "transposed"),
        statement("vector", "mask", "S", "S", "S = -inf where masked", "mask_s", of_block=True, boundary_only=True),
        statement("vector", "exp", "S LSE_shared", "S", "S = exp2(scale S - LSE_shared)", "exp_of_column"),
        statement("vector", "cast_p", "S", "P", "P = S"),
        statement("load", "load_do", "dO D", "dO_shared D_shared", "dO_shared, D_shared = dO[q], D[q]", "load"),
        statement("product", "dp", "V_shared dO_shared", "dP", "dP = V_shared @ dO_shared^T", "transposed"),
        statement("product", "dv", "P dO_shared dV", "dV", "dV += P @ dO_shared", "added"),
        statement("vector", "ds", "S dP D_shared", "dS", "dS = S (dP - D_shared)", "ds_of_column"),
        statement("product", "dk", "dS Q_shared dK", "dK", "dK += dS @ Q_shared", "added"),
    ),
    (
        Buffer("K_shared", "resident", "block_M", "head_dim", 2),
        Buffer("V_shared", "resident", "block_M", "head_dim_v", 2),
        Buffer("Q_shared", "ring", "block_N", "head_dim", 2),
        Buffer("LSE_shared", "ring", "block_N", 1, 4),
        Buffer("dO_shared", "ring", "block_N", "head_dim_v", 2),
        Buffer("D_shared", "ring", "block_N", 1, 4),
        Buffer("S", "fragment", "block_M", "block_N", 4),
        Buffer("dP", "fragment", "block_M", "block_N", 4),
        Buffer("P", "fragment", "block_M", "block_N", 2),
        Buffer("dS", "fragment", "block_M", "block_N", 2),
        Buffer("dK", "fragment", "block_M", "head_dim", 4),
        Buffer("dV", "fragment", "block_M", "head_dim_v", 4),
    ),
    initial={"dK": "0", "dV": "0"},
    output=("dK", "dV"),
    addresses=ADDRESSES,
    splittable={"exp": ("S",), "cast_p": ("S", "P"), "ds": ("S", "dP", "dS")},
    rows="keys",
    columns="queries",
)
