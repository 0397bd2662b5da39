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
        statement("product", "s", "Q_shared K_shared", "acc_s", "acc_s = Q_shared @ K_shared^T", "transposed"),
        statement(
            "vector", "mask", "acc_s", "acc_s", "acc_s = -inf where masked", "mask_s", of_block=True, boundary_only=True
        ),
        statement("vector", "exp", "acc_s row_lse", "acc_s", "acc_s = exp2(scale acc_s - row_lse)", "exp_of_row"),
        statement("load", "load_v", "V", "V_shared", "V_shared = V[k]", "load"),
        statement("product", "dp", "dO_shared V_shared", "acc_dp", "acc_dp = dO_shared @ V_shared^T", "transposed"),
        statement("vector", "ds", "acc_s acc_dp row_d", "ds_cast", "ds_cast = acc_s (acc_dp - row_d)", "ds_of_row"),
        statement("product", "dq", "ds_cast K_shared acc_dq", "acc_dq", "acc_dq += ds_cast @ K_shared", "added"),
    ),
    (
        Buffer("Q_shared", "resident", "block_M", "head_dim", 2),
        Buffer("dO_shared", "resident", "block_M", "head_dim_v", 2),
        Buffer("K_shared", "ring", "block_N", "head_dim", 2),
        Buffer("V_shared", "ring", "block_N", "head_dim_v", 2),
        Buffer("acc_s", "fragment", "block_M", "block_N", 4),
        Buffer("acc_dp", "fragment", "block_M", "block_N", 4),
        Buffer("ds_cast", "fragment", "block_M", "block_N", 2),
        Buffer("acc_dq", "fragment", "block_M", "head_dim", 4),
        *row_vectors("row_lse", "row_d"),
    ),
    initial={"acc_dq": "0"},
    output=("acc_dq",),
    stored={"dQ": "acc_dq"},
    addresses=ADDRESSES,
    splittable={"exp": ("acc_s",), "ds": ("acc_s", "acc_dp", "ds_cast")},
)

DKDV = Table(
    (
        # A row vector comes with its tile, in the same phase of the mbarrier.
        statement("load", "load_q", "Q LSE", "Q_shared LSE_shared", "Q_shared, LSE_shared = Q[q], LSE[q]", "load"),
        statement("product", "s", "K_shared Q_shared", "acc_s", "acc_s = K_shared @ Q_shared^T", "transposed"),
        statement(
            "vector", "mask", "acc_s", "acc_s", "acc_s = -inf where masked", "mask_s", of_block=True, boundary_only=True
        ),
        statement(
            "vector", "exp", "acc_s LSE_shared", "acc_s", "acc_s = exp2(scale acc_s - LSE_shared)", "exp_of_column"
        ),
        statement("vector", "cast_p", "acc_s", "acc_s_cast", "acc_s_cast = acc_s"),
        statement("load", "load_do", "dO D", "dO_shared D_shared", "dO_shared, D_shared = dO[q], D[q]", "load"),
        statement("product", "dp", "V_shared dO_shared", "acc_dp", "acc_dp = V_shared @ dO_shared^T", "transposed"),
        statement(
            "product", "dv", "acc_s_cast dO_shared acc_dv", "acc_dv", "acc_dv += acc_s_cast @ dO_shared", "added"
        ),
        statement(
            "vector", "ds", "acc_s acc_dp D_shared", "ds_cast", "ds_cast = acc_s (acc_dp - D_shared)", "ds_of_column"
        ),
        statement("product", "dk", "ds_cast Q_shared acc_dk", "acc_dk", "acc_dk += ds_cast @ Q_shared", "added"),
    ),
    (
        Buffer("K_shared", "resident", "block_M", "head_dim", 2),
        Buffer("V_shared", "resident", "block_M", "head_dim_v", 2),
        Buffer("Q_shared", "ring", "block_N", "head_dim", 2),
        Buffer("LSE_shared", "ring", "block_N", 1, 4),
        Buffer("dO_shared", "ring", "block_N", "head_dim_v", 2),
        Buffer("D_shared", "ring", "block_N", 1, 4),
        Buffer("acc_s", "fragment", "block_M", "block_N", 4),
        Buffer("acc_dp", "fragment", "block_M", "block_N", 4),
        Buffer("acc_s_cast", "fragment", "block_M", "block_N", 2),
        Buffer("ds_cast", "fragment", "block_M", "block_N", 2),
        Buffer("acc_dk", "fragment", "block_M", "head_dim", 4),
        Buffer("acc_dv", "fragment", "block_M", "head_dim_v", 4),
    ),
    initial={"acc_dk": "0", "acc_dv": "0"},
    output=("acc_dk", "acc_dv"),
    stored={"dK": "acc_dk", "dV": "acc_dv"},
    addresses=ADDRESSES,
    splittable={"exp": ("acc_s",), "cast_p": ("acc_s", "acc_s_cast"), "ds": ("acc_s", "acc_dp", "ds_cast")},
    rows="keys",
    columns="queries",
)
