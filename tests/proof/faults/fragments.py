"""These faults concern the fragments of mma.sync, in every line that loads one."""

from faults.lines import COPIES, FRAGMENTS, PRODUCTS
from faults.table import Row, each

DESCRIPTORS = "its products read tiles by descriptors: see those of other slots and of other columns"
ONE_CODE = "it is another code of mma_sync alone: see the row without"
# A fragment is another of the same tensor.
OTHER = r"is fragment ([QKV])\[0\], .*, expected one of \d+ such as fragment \1\[0\], \1_local\["
ROWS = [
    Row("no fragment", DESCRIPTORS, DESCRIPTORS, each("mma_sync_small", r"expected one of \d+ such as fragment", FRAGMENTS)),
    Row("no fragment, two buffers", ONE_CODE, ONE_CODE, each("mma_sync_double", r"expected one of \d+ such as fragment", FRAGMENTS)),
    Row("a fragment of half of the lanes", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_small", "64 of the 128 threads of a block run it", FRAGMENTS, r"(tl::ptx.*)",
            r"if ((((int)threadIdx.x) & 31) < 16) {\n\1\n}")),
    Row("a fragment into other registers", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_small", r"a block does fragment [QKV]\b.*, expected one of", FRAGMENTS, r"_local\[", "_local[2 + ")),
    Row("a fragment into those of another operand", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_small", r"a block does fragment [QKV]\b.*, expected one of", FRAGMENTS, r"K_local|Q_local|V_local", "acc_s_cast")),
    Row("a fragment that is not transposed", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_x2", r"a block does fragment V\b.*, expected one of", f"{FRAGMENTS}._trans", "_trans",
            "")),
    Row("a fragment that is", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_x2", r"a block does fragment [KQ]\b.*, expected one of", rf"{FRAGMENTS}.\(", r"(_x\d)\(",
            r"\1_trans(")),
    Row("half of a fragment", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_small", r"expected one of \d+ such as fragment", FRAGMENTS, "_x4", "_x2")),
    Row("twice a fragment", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_x2", r"a block does fragment [KV]\b.*, expected one of", f"{FRAGMENTS}2", "_x2", "_x4")),
    Row("a swizzle of fragments that is a sum", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_small", "addresses that are no rows of 8 x 8 matrices", FRAGMENTS, r" \^ ", " + "), long=True),
    Row("a swizzle of copies that is a sum", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_small", "copy of [QKV] is not of one slot, each element once", COPIES, r" \^ ", " + ")),
    Row("another row of lanes", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_small", "addresses that are no rows of 8 x 8 matrices", FRAGMENTS,
            r"threadIdx\.x\) & (7|15)\) \* 64", r"threadIdx.x) & \1) * 128")),
    Row("fragments of the next columns", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_small", r"a block does fragment [QKV]\b.*, expected one of", FRAGMENTS, r" \^ ", r" ^ 2 ^ ")),
    Row("fragments of the next rows", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_small", rf"{OTHER}|does fragment .*, expected one of|addresses that are no rows of 8 x 8 matrices",
            FRAGMENTS, r"_shared\)\[", r"_shared)[512 + ")),
    Row("a register of a fragment that is computed", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_small", "computes on a fragment", PRODUCTS, r"(tl::.*)", r"V_local[0] = acc_s_cast[0];\n\1")),
    Row("less room for fragments", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_small", "bytes of a thread's registers, expected", r"\w+ [QKV]_local\[", r"_local\[\d+\]",
            "_local[16]")),
    Row("less room for accumulators", DESCRIPTORS, DESCRIPTORS,
        each("mma_sync_small", "bytes of a thread's registers, expected", r"\w+ acc_\w+\[", r"\[\d+\]", "[16]")),
]  # fmt: skip
