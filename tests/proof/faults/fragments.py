"""These faults concern the fragments of mma.sync, in every line that loads one."""

from faults.table import rows
from faults.words import HALF_OF_BLOCK

DESCRIPTORS = "its products read tiles by descriptors: see those of other slots and of other columns"
ROWS = [
    *rows(("mma_sync_small", "mma_sync_double"), DESCRIPTORS,
        ("no fragment", r"expected one of \d+ such as fragment", "each fragment ->")),
    *rows("mma_sync_small", DESCRIPTORS,
        ("a fragment of half of the lanes", HALF_OF_BLOCK, "each fragment -> if ((((int)threadIdx.x) & 31) < 16)"),
        ("a fragment into other registers", r"a block does fragment [QKV]\b.*, expected one of",
            "each fragment.1: [X] -> [2 + X]"),
        ("a fragment into those of another operand", r"a block does fragment [QKV]\b.*, expected one of",
            "each fragment.1: (Y[X]) -> (acc_s_cast[X])"),
        ("a swizzle of copies that is a sum", "copy of [QKV] is not of one slot, each element once",
            "each copy: ^ -> +"),
        ("another row of lanes", "addresses that are no rows of 8 x 8 matrices", "each fragment: * 64 -> * 128"),
        ("fragments of the next columns", r"a block does fragment [QKV]\b.*, expected one of",
            "each fragment: ^ -> ^ 2 ^"),
        ("fragments of the next rows",
            r"is fragment ([QKV])\[0\], .*, expected one of \d+ such as fragment \1\[0\], \1_local\[|does"
            " fragment .*, expected one of|addresses that are no rows of 8 x 8 matrices",
            "each fragment.0: [X] -> [512 + X]"),
        ("a register of a fragment that is computed", "computes on a fragment",
            "each multiply -> V_local[0] = acc_s_cast[0];\n$"),
        ("half of a fragment", r"expected one of \d+ such as fragment",
            "each ptx_ldmatrix_x4: ptx_ldmatrix_x4 -> ptx_ldmatrix_x2",
            "or each ptx_ldmatrix_x4_trans: ptx_ldmatrix_x4_trans -> ptx_ldmatrix_x2_trans"),
        ("less room for fragments", "bytes of a thread's registers, expected",
            "the first bfloat16_t Q_local: [X] -> [16]", "or the first bfloat16_t K_local: [X] -> [16]",
            "or the first bfloat16_t V_local: [X] -> [16]"),
        ("less room for accumulators", "bytes of a thread's registers, expected",
            "the first float acc_o: [X] -> [16]", "or the first float acc_s: [X] -> [16]",
            "or the first bfloat16_t acc_s_cast: [X] -> [16]"),
        long=[("a swizzle of fragments that is a sum", "addresses that are no rows of 8 x 8 matrices",
            "each fragment: ^ -> +")]),
    *rows("mma_sync_x2", DESCRIPTORS,
        ("a fragment that is not transposed", r"a block does fragment V\b.*, expected one of",
            "each ptx_ldmatrix_x2_trans: ptx_ldmatrix_x2_trans -> ptx_ldmatrix_x2"),
        ("a fragment that is", r"a block does fragment [KQ]\b.*, expected one of",
            "each ptx_ldmatrix_x2: ptx_ldmatrix_x2 -> ptx_ldmatrix_x2_trans",
            "or each ptx_ldmatrix_x4: ptx_ldmatrix_x4 -> ptx_ldmatrix_x4_trans"),
        ("twice a fragment", r"a block does fragment [KV]\b.*, expected one of",
            "each ptx_ldmatrix_x2: ptx_ldmatrix_x2 -> ptx_ldmatrix_x4",
            "or each ptx_ldmatrix_x2_trans: ptx_ldmatrix_x2_trans -> ptx_ldmatrix_x4_trans")),
]  # fmt: skip
