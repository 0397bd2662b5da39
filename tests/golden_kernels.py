"""Tests read the generated code of these kernels: one covering set, which tests/golden/ keeps as text.

Every kernel that stands here as it is shipped has another that is asked for everything at once. So each two features of
a call are in one kernel, and each feature of a call with each option of a schedule. proof/test_golden.py checks that.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from code_mutants.kernels import KERNELS as MUTATED

from tl_attention.kernels.registry import lowering_of
from tl_attention.problem.head_dims import HeadSize, sizes_of
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.schedule.files.defaults import defaults
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.options import Exp2Polynomial
from tl_attention.schedule.schedule import Schedule

# (kernel or softmax, its keys with values).
Options = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]


@dataclass(frozen=True)
class GoldenKernel:
    """A golden kernel is a shipped schedule, by its name, with some options changed, and what it is compiled for."""

    name: str
    mask: Mask = FULL
    dtype: str = "float16"
    size: HeadSize = 128
    group: int | None = None
    optional: frozenset[str] = frozenset()
    strided: bool = False
    sizes: Sizes | None = None
    sms: int | None = None
    options: Options = ()
    packed: bool = False
    invariant: bool = False
    parts: bool = False
    tile_heads: int = 1
    key_box: int = 0

    @cached_property
    def schedule(self) -> Schedule:
        given = resolve(self.name).schedule.model_dump()
        return Schedule(**given | {key: given[key] | dict(values) for key, values in self.options})

    @property
    def variant(self) -> Variant:
        head_dim, head_dim_v = sizes_of(self.size)
        there = {"group": self.group, "optional": self.optional, "strided": self.strided, "sms": self.sms}
        there |= {"packed": self.packed, "invariant": self.invariant}
        there |= {"parts": self.parts, "tile_heads": self.tile_heads, "key_box": self.key_box}
        return Variant(head_dim, self.dtype, self.mask, head_dim_v, self.sizes, **there)


def asked(
    name: str, mask: Mask, dtype: str, size: HeadSize, *lacks: str, options: Options = (), invariant: bool = False
) -> GoldenKernel:
    """Returns the kernel with everything that a call can ask for, but for what its lowering `lacks`."""
    optional = frozenset({"softcap", "Sinks", "LSE"} - {*lacks})
    return GoldenKernel(name, mask, dtype, size, optional=optional, strided=True, options=options, invariant=invariant)


FP16, BF16 = "float16", "bfloat16"
# Windows whose sides the kernel reads.
LEFT, RIGHT, BOTH = (mask.runtime for mask in (Mask(left=1), Mask(right=1), Mask(1, 1)))
# mma_sync does not compute these features.
NO_CAP = ("softcap", "Sinks")
# Vector statements in another form than any of the fast schedules has.
STATEMENTS = (("softmax", (("fused_scale", False), ("row_sum", "row"), ("exp2_polynomial", Exp2Polynomial(every=8)))),)
OF_GROUP = (("kernel", (("rows_of", "group"),)),)
IN_PARTS = (("kernel", (("part_blocks", 2),)),)
THREE_BLOCKS = (("kernel", (("blocks_per_sm", 3),)),)
EARLY = (("kernel", (("early", True),)),)
EARLY_PARTS = (("kernel", (("early", True), ("part_blocks", 2))),)
ROWS_X2 = (("kernel", (("swizzle", False), ("ldmatrix", "x2"))), ("softmax", (("fused_scale", False),)))
PLAIN: dict[str, GoldenKernel] = {
    **{
        name: GoldenKernel(kernel.file, CAUSAL if kernel.causal else FULL, kernel.dtype, kernel.head_dim)
        for name, kernel in MUTATED.items()
    },
    "early": GoldenKernel("best", options=EARLY),
    "fa3_overlap": GoldenKernel("fa3_overlap", CAUSAL),
    "inferred": GoldenKernel("inferred"),
    "k_stages_3": GoldenKernel("experiments/causal/k_stages_3", CAUSAL),
    "mma_sync_x2": GoldenKernel("mma_sync/x2"),
    "mma_sync_rows_x2": GoldenKernel("mma_sync/eager", CAUSAL, options=ROWS_X2),
    "one_tile_causal": GoldenKernel("experiments/one_tile", CAUSAL),
    "output_direct": GoldenKernel("experiments/output_direct", CAUSAL),
    "output_tma_causal": GoldenKernel("experiments/output_tma", CAUSAL),
    "p_shared_causal": GoldenKernel("experiments/p_shared/block_N_176", CAUSAL, size=64),
    "prefetch_late": GoldenKernel("prefetch_late"),
    "q_registers_causal": GoldenKernel("experiments/q_registers", CAUSAL),
    "short": GoldenKernel("short_d64", CAUSAL, size=64),
    "softcap_causal": GoldenKernel("softcap_causal", CAUSAL),
    "statements": GoldenKernel("experiments/cast_in_chunks", CAUSAL, options=STATEMENTS),
    "waits_exact": GoldenKernel("experiments/waits_exact", CAUSAL),
    "waits_free": GoldenKernel("experiments/waits_free", CAUSAL),
}
ASKED: dict[str, GoldenKernel] = {
    "best, asked": asked("best", BOTH, BF16, 128),
    "best_causal, asked": asked("best_causal", CAUSAL, FP16, 104),
    "causal_late, asked": asked("causal_late", CAUSAL, BF16, "104/72"),
    "cluster_1, asked": asked("experiments/cluster_1", LEFT, BF16, "64/128"),
    "d192_128_causal, asked": asked("d192_128_causal", CAUSAL, FP16, "136/104"),
    "d256, asked": asked("d256", LEFT, FP16, 200),
    "d96_causal, asked": asked("d96_causal", CAUSAL, BF16, 72),
    "dynamic, asked": asked("experiments/dynamic", BOTH, BF16, "96/104"),
    "early, asked": asked("best", BOTH, BF16, "104/72", options=EARLY),
    "fa3_pipelined, asked": asked("fa3_pipelined", CAUSAL, FP16, "64/40"),
    "inferred, asked": asked("inferred", CAUSAL, BF16, 104),
    "k_stages_3, asked": asked("experiments/causal/k_stages_3", BOTH, BF16, "96/104"),
    "mma_sync, asked": asked("mma_sync", BOTH, BF16, 128, *NO_CAP),
    "mma_sync_d64, asked": asked("mma_sync_d64", CAUSAL, BF16, 64, *NO_CAP),
    "mma_sync_double, asked": asked("mma_sync/double_both", RIGHT, BF16, 128, *NO_CAP),
    "mma_sync_rows_x2, asked": asked("mma_sync/eager", BOTH, BF16, 128, *NO_CAP, options=ROWS_X2),
    "mma_sync_small, asked": asked("mma_sync_small", BOTH, FP16, 128, *NO_CAP),
    "one_tile, asked": asked("experiments/one_tile", BOTH, BF16, "104/72"),
    "output_direct, asked": asked("experiments/output_direct", BOTH, BF16, "40/64"),
    "output_tma, asked": asked("experiments/output_tma", BOTH, BF16, 104),
    "p_shared, asked": asked("experiments/p_shared/block_N_192", BOTH, BF16, "64/40"),
    "prefetch, asked": asked("prefetch", LEFT, BF16, "72/104"),
    "q_registers, asked": asked("experiments/q_registers", BOTH, BF16, "104/40"),
    "sections, asked": asked("experiments/causal/sections", BOTH, BF16, "128/104"),
    "seed, asked": asked("seed", BOTH, BF16, "104/128"),
    "seed_64x64, asked": asked("seed_64x64", CAUSAL, BF16, "192/128"),
    "short, asked": asked("short_d64", BOTH, BF16, "64/40"),
    "softcap, asked": asked("softcap", BOTH, BF16, "104/96"),
    "softcap, invariant": asked("softcap_causal", BOTH, BF16, "104/96", invariant=True),
    "statements, asked": asked("experiments/cast_in_chunks", BOTH, BF16, "104/72", options=STATEMENTS),
    "short_full, asked": asked("short_full", FULL, BF16, "104/72"),
    "three_blocks, asked": asked("short_keys", BOTH, BF16, "64/40", options=THREE_BLOCKS),
    "threshold, asked": asked("experiments/causal/rescale_threshold", BOTH, BF16, "104/64"),
    "waits_exact, asked": asked("experiments/waits_exact", BOTH, BF16, "128/104"),
    "waits_free, asked": asked("experiments/waits_free", BOTH, BF16, "104/72"),
    "ws_fa3_192x96, asked": asked("ws_fa3_192x96", BOTH, BF16, "64/72"),
    "ws_seed, asked": asked("ws_seed", CAUSAL, BF16, "40/64"),
    "ws_three_stages, asked": asked("ws_three_stages", BOTH, BF16, "72/64"),
}
# Sizes fixed when the kernel is compiled, with more tiles than clusters and with fewer, and the SMs; both with how many
# heads share K and V.
OTHERS: dict[str, GoldenKernel] = {
    "best, fixed": GoldenKernel("best", CAUSAL, group=3, sizes=Sizes(2, 9, 1000, 2000)),
    "mma_sync, fixed": GoldenKernel("mma_sync", CAUSAL, group=1, sizes=Sizes(1, 6, 200, 700)),
    "seed, fixed": GoldenKernel("seed", group=1, sizes=Sizes(1, 2, 100, 200)),
    "best, 114 SMs": GoldenKernel("best", group=1, sms=114),
    "best_causal, 114 SMs": GoldenKernel("best_causal", CAUSAL, group=1, sms=114),
}
# Packed sequences: by a counter and by turns, in a cluster, with each mask and kind of store.
PACKED: dict[str, GoldenKernel] = {
    "ragged, packed": GoldenKernel("ragged", dtype=BF16, packed=True),
    "best, packed": GoldenKernel("best", CAUSAL, packed=True),
    "best_causal, packed": replace(asked("best_causal", CAUSAL, BF16, 128), group=5, packed=True, tile_heads=5),
    "early, packed": GoldenKernel("best_causal", CAUSAL, packed=True, options=EARLY),
    "output_tma, packed": replace(asked("experiments/output_tma", LEFT, BF16, 104), packed=True),
    "output_direct, packed": replace(asked("experiments/output_direct", RIGHT, FP16, "40/64"), packed=True),
}
# Rows of several heads in a tile.
OF_HEADS: dict[str, GoldenKernel] = {
    "short, heads": GoldenKernel("short", BOTH, BF16, 72, 7, frozenset({"LSE", "softcap"}), tile_heads=7),
    "best_causal, heads": GoldenKernel("best_causal", CAUSAL, group=4, strided=True, tile_heads=4, options=OF_GROUP),
}
# Keys in parts.
PARTS: dict[str, GoldenKernel] = {
    "short, parts": GoldenKernel("short", BOTH, BF16, 104, 3, frozenset({"Sinks"}), parts=True, tile_heads=3),
    "best_causal, parts": GoldenKernel("best_causal", CAUSAL, strided=True, parts=True, options=IN_PARTS),
    "d64, parts": GoldenKernel(
        "d64", RIGHT, size="64/40", optional=frozenset({"softcap"}), parts=True, options=IN_PARTS
    ),
    "early, parts": GoldenKernel("best_causal", CAUSAL, parts=True, options=EARLY_PARTS),
    "short, parts, no mask": GoldenKernel("short", parts=True),
}
# Packed sequences that may be split, with rows of several heads in a tile and of one.
PACKED_PARTS: dict[str, GoldenKernel] = {
    "short, packed parts": replace(asked("short", BOTH, BF16, 128), group=4, packed=True, parts=True, tile_heads=4),
    "short, packed subgroups": GoldenKernel(
        "short", CAUSAL, BF16, group=7, optional=frozenset({"Sinks"}), packed=True, parts=True, tile_heads=4
    ),
    "grouped, packed parts": GoldenKernel("grouped", CAUSAL, BF16, group=8, packed=True, parts=True, tile_heads=8),
    "best_causal, packed parts": GoldenKernel(
        "best_causal", LEFT, size=96, optional=frozenset({"Sinks"}), packed=True, parts=True
    ),
}
# Keys in pages, one or several in a KV block.
PAGES: dict[str, GoldenKernel] = {
    "grouped, pages": GoldenKernel(
        "grouped", CAUSAL, BF16, group=8, packed=True, parts=True, tile_heads=8, key_box=128
    ),
    "best_causal, pages": replace(
        asked("best_causal", BOTH, BF16, 104), group=5, packed=True, tile_heads=5, key_box=64
    ),
    "short, pages": GoldenKernel("short", LEFT, size="64/128", packed=True, parts=True, key_box=32),
}
OF_FORMS = {**PLAIN, **ASKED, **OTHERS, **PACKED, **OF_HEADS, **PARTS, **PACKED_PARTS, **PAGES}


def served() -> Iterator[GoldenKernel]:
    """Yields each schedule that a default rule names, in the form of the calls that the rule serves, with GQA."""
    for rule, packed in itertools.product(defaults().rules, (False, True)):
        schedule = resolve(rule.schedule).schedule
        if rule.packed not in (None, packed) or (packed and not lowering_of(schedule).computes_packed(schedule)):
            continue
        kernel, mask = schedule.kernel, FULL if "full" in rule.masks else CAUSAL
        optional = frozenset({name for name, there in (("softcap", rule.softcap), ("LSE", rule.lse)) if there})
        grouped = schedule.groups_heads if packed else kernel.rows_of == "group"
        yield GoldenKernel(
            *(rule.schedule, mask, BF16, rule.head_dims[0], 4 if grouped else None, optional),
            packed=packed,
            parts=schedule.splits_sequences if packed else kernel.part_blocks is not None,
            tile_heads=4 if grouped else 1,
        )


def form(kernel: GoldenKernel) -> tuple[object, ...]:
    """Returns what kernels of one schedule have in common that have one form."""
    return kernel.name, kernel.packed, kernel.parts, kernel.tile_heads > 1


# What the default rules serve in a form that no kernel before has: `make test-all` alone reads them.
SERVED = {
    f"{kernel.name}, served{' packed' * kernel.packed}": kernel
    for kernel in served()
    if form(kernel) not in map(form, OF_FORMS.values())
}
KERNELS: dict[str, GoldenKernel] = OF_FORMS | SERVED
# The proofs of these kernels take longer than a second.
LONG = (
    *("mma_sync, asked", "mma_sync_double", "mma_sync_double, asked", "mma_sync_rows_x2", "mma_sync_rows_x2, asked"),
    *("mma_sync_small, asked", "mma_sync_x2", "output_direct, asked", "output_tma, asked", "seed_64x64, asked"),
    *("statements, asked", "waits_free, asked", "ws_fa3_192x96, asked", "ws_seed, asked"),
)
# `make test` proves every sixth one of the others, `make test-all` all.
PROVED = [name for name in OF_FORMS if name not in LONG][::6]
