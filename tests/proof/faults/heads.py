"""These faults concern heads of Q that share one of K and V, as many as the launch says."""

from faults.table import Row, asked, rows
from faults.words import COPY_K, COPY_V, HEAD_K

NO_HEAD_MAP = "it has no descriptors: see K's head is Q's, and K's batches"
ONE_TILE = "it has one tile: see those of others before it"
NO_SECTIONS = "its tiles come in no sections"
HEAD_V = "the head of load V of the producer"
K_PLACES, V_PLACES = (HEAD_K, COPY_K, COPY_K), (HEAD_V, COPY_V, COPY_V)


def of_all(name: str, places: tuple[str, str, str], *changes: str, long: bool = False) -> Row:
    """Makes the row of changes that are the same in all lowerings, with the words of each lowering's refusal."""
    return asked(name, *((words, *changes) for words in places), long=long)


ROWS = [
    of_all("K's and V's head is Q's", K_PLACES, "kv_head =: group -> min(group, 1)"),
    of_all("the head's place among those that share K and V", K_PLACES, "kv_head =: / -> %"),
    of_all("a ratio that is one off", K_PLACES, "kv_head =: group -> (group + 1)",
        "or kv_head =: group -> max(group - 1, 1)"),
    of_all("a ratio of other numbers", K_PLACES, "kv_head =: group -> max(group, heads)",
        "or kv_head =: group -> min(group, batch)", "or kv_head =: group -> min(group, 4)"),
    of_all("another ratio from the ninth on", K_PLACES, "kv_head =: group -> min(group, 8)", long=True),
    of_all("a head of K and V that is the next", K_PLACES, "kv_head = -> ($ + 1)"),
    of_all("heads that share K and V begin one early, or late", K_PLACES, "kv_head =: X / group -> (X + 1) / group",
        "or kv_head =: X / group -> max(X - 1, 0) / group", long=True),
    of_all("K's head is another from the fortieth on", K_PLACES, "kv_head = -> ($ + ((40 <= $) ? 1 : 0))", long=True),
    asked("V's head is the next to K's, or Q's",
        (HEAD_V, "tma_load_multicast V.head -> (kv_head + 1)", "or tma_load_multicast V.head -> head"),
        (COPY_V, "the second copy V: X * V_head_stride -> (X + (int64_t)1) * V_head_stride",
            "or the second copy V: X * V_head_stride -> (int64_t)((int)blockIdx.y) * V_head_stride"),
        (COPY_V, "each copy V: X * V_head_stride -> (X + (int64_t)1) * V_head_stride",
            "or each copy V: X * V_head_stride -> (int64_t)((int)blockIdx.y) * V_head_stride")),
    asked("K's head is the next to V's, or Q's",
        (HEAD_K, "tma_load_multicast K.head -> (kv_head + 1)", "or tma_load_multicast K.head -> head"),
        (COPY_K, "the last copy K: X * K_head_stride -> (X + (int64_t)1) * K_head_stride"),
        (COPY_K, "each copy K: X * K_head_stride -> (X + (int64_t)1) * K_head_stride")),
    *rows("best, asked", ONE_TILE,
        ("K and V are those of the tile before", "name 'kv_head' is not defined", "kv_head = => behind tma_load_multicast V")),
    *rows("best, asked", NO_HEAD_MAP,
        ("K has Q's heads", "dimensions of K_desc", "descriptors.K_desc.dims.2 := heads"),
        ("K has one head more", "dimensions of K_desc", "descriptors.K_desc.dims.2 := heads_kv + 1"),
        ("V has Q's heads", "dimensions of V_desc", "descriptors.V_desc.dims.2 := heads"),
        ("Q has K's heads", "dimensions of Q_desc", "descriptors.Q_desc.dims.2 := heads_kv")),
    *rows("sections, asked", NO_SECTIONS,
        ("a section has few heads of K", "does not fit 32 bits, which is not shown", "every producer: heads_kv -> min(heads_kv, 9)"),
        ("a section has part of the heads that share K", "does not fit 32 bits, which is not shown", "every producer: * group -> * min(group, 4)")),
    asked("K's batches are as far apart as Q's",
        ("strides of K_desc", "descriptors.K_desc.strides.2 := seq_kv * heads * 256"),
        (COPY_K, "the last copy K: K_batch_stride -> Q_batch_stride"),
        (COPY_K, "each copy K: K_batch_stride -> Q_batch_stride")),
]  # fmt: skip
