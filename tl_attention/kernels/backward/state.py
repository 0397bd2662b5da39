"""A block of a kernel of gradients has buffers, mbarriers and fragments by its loop, which its macros share as `s`."""

from dataclasses import dataclass
from types import SimpleNamespace

import tilelang.language as T

from tl_attention.kernels.shared.features import factor_of
from tl_attention.kernels.shared.rows import viewed
from tl_attention.kernels.shared.softmax import LOG2_E
from tl_attention.kernels.warp_specialized.kernel import tile_scheduler
from tl_attention.problem.warpgroup import ROWS, WARP, WARPS


@dataclass(frozen=True)
class Ring:
    """A Ring is buffers for a tensor's tiles in shared memory, each with a full and an empty mbarrier.

    Of a resident tile each warpgroup's rows have a buffer. `vector` has a ring's numbers of rows, which are loaded from
    `numbers` in the same phase.
    """

    source: object
    shared: object
    full: object
    empty: object
    depth: object = None
    numbers: object = None
    vector: object = None

    @property
    def columns(self):
        """Returns how many columns its tiles have; the tensor may have fewer."""
        return self.shared.shape[2]


@T.macro
def dq_state(given, c):
    """Allocates a block's buffers, mbarriers and fragments of loop dq, and returns them as a namespace."""
    warpgroups = c.block_M // ROWS
    Q_shared = T.alloc_shared([warpgroups, ROWS, c.head_dim], c.dtype)
    dO_shared = T.alloc_shared([warpgroups, ROWS, c.head_dim_v], c.dtype)
    K_shared = T.alloc_shared([c.kernel.k_stages, c.block_N, c.head_dim], c.dtype)
    V_shared = T.alloc_shared([c.kernel.v_stages, c.block_N, c.head_dim_v], c.dtype)
    acc_s = T.alloc_fragment([ROWS, c.block_N], "float32")
    acc_dp = T.alloc_fragment([ROWS, c.block_N], "float32")
    ds_cast = T.alloc_fragment([ROWS, c.block_N], c.dtype)
    acc_dq = T.alloc_fragment([ROWS, c.head_dim], "float32")
    row_lse = T.alloc_fragment([ROWS], "float32")
    row_d = T.alloc_fragment([ROWS], "float32")
    Q_full = T.alloc_barrier([WARP] * warpgroups)
    dO_full = T.alloc_barrier([WARP] * warpgroups)
    Q_empty = T.alloc_barrier([WARPS] * warpgroups)
    dO_empty = T.alloc_barrier([WARPS] * warpgroups)
    K_full = T.alloc_barrier([WARP] * c.kernel.k_stages)
    V_full = T.alloc_barrier([WARP] * c.kernel.v_stages)
    K_empty = T.alloc_barrier([warpgroups * WARPS] * c.kernel.k_stages)
    V_empty = T.alloc_barrier([warpgroups * WARPS] * c.kernel.v_stages)
    return SimpleNamespace(
        Q=Ring(viewed(given.Q, c), Q_shared, Q_full, Q_empty),
        dO=Ring(viewed(given.dO, c), dO_shared, dO_full, dO_empty),
        K=Ring(viewed(given.K, c), K_shared, K_full, K_empty, c.kernel.k_stages),
        V=Ring(viewed(given.V, c), V_shared, V_full, V_empty, c.kernel.v_stages),
        acc_s=acc_s, acc_dp=acc_dp, ds_cast=ds_cast, acc_dq=acc_dq, row_lse=row_lse, row_d=row_d,
        **of_problem(given, given.Q, given.K, c),
    )  # fmt: skip


@T.macro
def dkdv_state(given, c):
    """Allocates a block's buffers, mbarriers and fragments of loop dkdv, and returns them as a namespace."""
    warpgroups = c.block_M // ROWS
    K_shared = T.alloc_shared([warpgroups, ROWS, c.head_dim], c.dtype)
    V_shared = T.alloc_shared([warpgroups, ROWS, c.head_dim_v], c.dtype)
    Q_shared = T.alloc_shared([c.kernel.q_stages, c.block_N, c.head_dim], c.dtype)
    dO_shared = T.alloc_shared([c.kernel.do_stages, c.block_N, c.head_dim_v], c.dtype)
    LSE_shared = T.alloc_shared([c.kernel.q_stages, c.block_N], "float32")
    D_shared = T.alloc_shared([c.kernel.do_stages, c.block_N], "float32")
    acc_s = T.alloc_fragment([ROWS, c.block_N], "float32")
    acc_dp = T.alloc_fragment([ROWS, c.block_N], "float32")
    acc_s_cast = T.alloc_fragment([ROWS, c.block_N], c.dtype)
    ds_cast = T.alloc_fragment([ROWS, c.block_N], c.dtype)
    acc_dk = T.alloc_fragment([ROWS, c.head_dim], "float32")
    acc_dv = T.alloc_fragment([ROWS, c.head_dim_v], "float32")
    K_full = T.alloc_barrier([WARP] * warpgroups)
    V_full = T.alloc_barrier([WARP] * warpgroups)
    K_empty = T.alloc_barrier([WARPS] * warpgroups)
    V_empty = T.alloc_barrier([WARPS] * warpgroups)
    Q_full = T.alloc_barrier([WARP] * c.kernel.q_stages)
    dO_full = T.alloc_barrier([WARP] * c.kernel.do_stages)
    Q_empty = T.alloc_barrier([warpgroups * WARPS] * c.kernel.q_stages)
    dO_empty = T.alloc_barrier([warpgroups * WARPS] * c.kernel.do_stages)
    return SimpleNamespace(
        K=Ring(viewed(given.K, c), K_shared, K_full, K_empty),
        V=Ring(viewed(given.V, c), V_shared, V_full, V_empty),
        Q=Ring(viewed(given.Q, c), Q_shared, Q_full, Q_empty, c.kernel.q_stages, given.RowLSE, LSE_shared),
        dO=Ring(viewed(given.dO, c), dO_shared, dO_full, dO_empty, c.kernel.do_stages, given.RowD, D_shared),
        acc_s=acc_s, acc_dp=acc_dp, acc_s_cast=acc_s_cast, ds_cast=ds_cast, acc_dk=acc_dk, acc_dv=acc_dv,
        LSE=LSE_shared, D=D_shared, **of_problem(given, given.K, given.Q, c),
    )  # fmt: skip


STATES = {"dq": dq_state, "dkdv": dkdv_state}


@T.macro
def of_problem(given, rows, columns, c):
    """Returns by name the sizes that tiles count by, from the tensors of a tile's rows and of its columns."""
    lengths = 0 if c.packed else 2
    return {
        "given": given, "batch": None if c.packed else rows.shape[0], "heads": rows.shape[1],
        "seq_q": rows.shape[lengths], "seq_kv": columns.shape[lengths], "scale": factor_of(given, None, c) * LOG2_E,
        "rank": 0, "own": {},
        "tiles": tile_scheduler(given.TileCounter, c) if c.packed or c.kernel.tile_scheduler == "dynamic" else None,
    }  # fmt: skip
