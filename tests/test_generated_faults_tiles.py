"""Faults in which rows, heads and blocks a kernel works on, and in its launch: each is refused."""

from __future__ import annotations

import pytest
from generated_faults import Fault, fault, refused

# The producer's line and the consumers'.
ROW = r"\n( *)first_row = \(\(first_row \* 128\) \+ \(tl::block_rank_in_cluster\(\) \* 128\)\);"
ROW_1 = r"\n( *)first_row_1 = \(\(first_row_1 \* 128\) \+ \(tl::block_rank_in_cluster\(\) \* 128\)\);"
NEXT, NEXT_1 = r" tile = \(tile \+ 66\);", r" tile_1 = \(tile_1 \+ 66\);"
FIRST, FIRST_1 = (rf"( {tile} = \(\(\(int\)blockIdx\.x\) >> )1\);" for tile in ("tile", "tile_1"))
TILES, TILES_1 = (rf"\(\({tile} < (.*)\)\)\) \{{ break" for tile in ("tile", "tile_1"))
MIRROR = r"\n\1{0} = ((((seq_q + 255) >> 8) * 256) - 128 - (({0} * 128) + (tl::block_rank_in_cluster() * 128)));"
LAST_ROW = r"(tl_attention_store<.*, \(seq_q) - first_row_\d+\)\);"
OUTPUT = r"(tl_attention_store<.*\(\(int64_t\))"
FAULTS: dict[str, Fault] = {
    "the producer's first row not computed": fault("best", ROW),
    "the consumers' first row not computed": fault("best", ROW_1),
    "the first row of neither computed": Fault("best", ((ROW, ""), (ROW_1, ""))),
    "the producer's tiles mirrored": fault("best", ROW, MIRROR.format("first_row")),
    "the ranks' rows exchanged for the producer of odd heads": fault(
        "best", ROW, r"\n\1first_row = ((first_row * 128) + ((tl::block_rank_in_cluster() ^ (head & 1)) * 128));"
    ),
    "the producer's rows shifted": fault(
        "best", ROW, r"\n\1first_row = ((first_row * 128) + (tl::block_rank_in_cluster() * 64));"
    ),
    "the ranks' rows exchanged for the producer": fault(
        "best", ROW, r"\n\1first_row = ((first_row * 128) + ((1 - tl::block_rank_in_cluster()) * 128));"
    ),
    "all rows shifted by a tile": Fault(
        "best",
        (
            (ROW, r"\n\1first_row = ((first_row * 128) + (tl::block_rank_in_cluster() * 128) + 128);"),
            (ROW_1, r"\n\1first_row_1 = ((first_row_1 * 128) + (tl::block_rank_in_cluster() * 128) + 128);"),
        ),
    ),
    "the consumers on rows of another tile": fault(
        "best", r"(first_row_1 = \(\(wg_2 \* 64\) \+ first_row_1)\);", r"\1 + 128);"
    ),
    "the consumers on each other's rows": fault(
        "best", r"(first_row_1 = \(\()wg_2( \* 64\) \+ first_row_1\);)", r"\1(1 - wg_2)\2"
    ),
    "the consumers all on the first rows": fault("best", r" *first_row_1 = \(\(wg_2 \* 64\).*\n"),
    "Q of the other warpgroup's rows": fault("best", r"(tma_load\(Q_desc.*\(\()wg_1( \* 64\))", r"\1(1 - wg_1)\2"),
    "every second tile": Fault("best", ((NEXT, " tile = (tile + 132);"), (NEXT_1, " tile_1 = (tile_1 + 132);"))),
    "every second tile of the producer": fault("best", NEXT, " tile = (tile + 132);"),
    "tiles that overlap": Fault("best", ((NEXT, " tile = (tile + 65);"), (NEXT_1, " tile_1 = (tile_1 + 65);"))),
    "the producer's tile does not advance": fault("best", NEXT),
    "the consumers' tile does not advance": fault("best", NEXT_1),
    "the tile does not advance": Fault("best", ((NEXT, ""), (NEXT_1, ""))),
    "the producer's turn does not advance": fault("best", r" turn = \(turn \+ 1\);"),
    "the consumers' turn does not advance": fault("best", r" turn_1 = \(turn_1 \+ 1\);"),
    "the producer's blocks are not counted": fault("best", r" base = \(base \+ blocks\);"),
    "the consumers' blocks are not counted": fault("best", r" base_1 = \(base_1 \+ blocks_1\);"),
    "two clusters on each tile": Fault("best", ((FIRST, r"\g<1>2);"), (FIRST_1, r"\g<1>2);"))),
    "a cluster's blocks on two tiles": Fault("best", ((FIRST, r"\g<1>0);"), (FIRST_1, r"\g<1>0);"))),
    "the first tile left out": Fault("best", ((FIRST, r"\g<1>1) + 1;"), (FIRST_1, r"\g<1>1) + 1;"))),
    "the last tile left out": Fault(
        "best", ((TILES, r"((tile < (\1) - 1))) { break"), (TILES_1, r"((tile_1 < (\1) - 1))) { break"))
    ),
    "a tile beyond the last": Fault(
        "best", ((TILES, r"((tile <= \1))) { break"), (TILES_1, r"((tile_1 <= \1))) { break"))
    ),
    "tiles of one batch": Fault(
        "best",
        (
            (r"\(\(tile < (.*) \* batch\)\)\)\) \{ break", r"((tile < \1)))) { break"),
            (r"\(\(tile_1 < (.*) \* batch\)\)\)\) \{ break", r"((tile_1 < \1)))) { break"),
        ),
    ),
    "the producer loads another head": fault("best", r" int head_2 = head;", " int head_2 = 0;"),
    "the consumers store another head": fault("best", r" int head_(\d) = head_1;", r" int head_\1 = 0;"),
    "the consumers store another batch": fault("best", r" int bz_(\d) = bz_1;", r" int bz_\1 = 0;"),
    "K and V of one batch only": fault("best", r" int bz_2 = bz;", " int bz_2 = 0;"),
    "head and batch exchanged": Fault(
        "best", ((r" int head_2 = head;", " int head_2 = bz;"), (r" int bz_2 = bz;", " int bz_2 = head;"))
    ),
    "an output without its head": fault("best", r"(\(\(int64_t\))head_\d(\) \* \(\(int64_t\)seq_q)", r"\g<1>0\2"),
    "an output without its batch": fault("best", r"(Output\[\(+\(int64_t\))bz_\d\)", r"\g<1>0)"),
    "an output of other rows": fault("best", r"(tl_attention_store<.*\(\(int64_t\))first_row_\d\)", r"\g<1>0)"),
    "an output whose heads are as long as the keys": fault(
        "best", r"(\(\(int64_t\)head_\d\) \* \(\(int64_t\))seq_q", r"\1seq_kv"
    ),
    "an output beyond the rows of its head": fault("best", LAST_ROW, r"\1));"),
    "an output without its last row": fault("best", LAST_ROW, r"\1 - first_row_3 - 1));"),
    "an output by TMA of other rows": fault(
        "output_tma", r"(tma_store\(Output_desc.*, )first_row_3,", r"\g<1>(first_row_3 + 64),"
    ),
    "an output by TMA of the first batch": fault("output_tma", r"(tma_store\(Output_desc.*, )bz_3\)", r"\g<1>0)"),
    "an output that is stored twice": fault("best", r"(\n *tl_attention_store<.*;)", r"\1\1"),
    "an output that is not stored": fault("best", r"\n *tl_attention_store<.*;"),
    "a block less of the producer": fault("best", r" int blocks_2 = blocks;", " int blocks_2 = (blocks - 1);"),
    "a block less": Fault(
        "best",
        (
            (r" int blocks_2 = blocks;", " int blocks_2 = max(blocks - 1, 1);"),
            (r" int blocks_3 = blocks_1;", " int blocks_3 = max(blocks_1 - 1, 1);"),
        ),
    ),
    "no block after the hundredth": Fault(
        "best",
        (
            (r" int blocks_2 = blocks;", " int blocks_2 = min(blocks, 100);"),
            (r" int blocks_3 = blocks_1;", " int blocks_3 = min(blocks_1, 100);"),
        ),
    ),
    "a block less at the diagonal": Fault(
        "best_causal",
        (
            (r"(\n *blocks = min\(blocks, \(+seq_kv) \+ 255\)", r"\1 + 127)"),
            (r"(\n *blocks_1 = min\(blocks_1, \(+seq_kv) \+ 255\)", r"\1 + 127)"),
        ),
    ),
    "a ragged block without a mask": fault("ws_seed", r"(\n *visible = )(\(seq_kv >> 7\));", r"\1(\2 + 1);"),
    "a block at the diagonal without a mask": fault(
        "best_causal", r"(\n *visible = min\(visible, \(.*\) >> 7\))\);", r"\1 + 1);"
    ),
    "blocks at the diagonal without a mask": fault("best_causal", r"\n *visible = min\(visible, .*"),
    "a mask for one block only": fault("best_causal", r"t < max\(\(min\(.*\) - 1\), 0\)", "t < 0"),
    "sections whose rows overlap": fault("sections", r"(\n *first_row_1 = .*)\) - 1\);", r"\1) - 2);"),
    "smaller sections for the producer": fault("sections", r"(\n *int rdiv = \()65536", r"\g<1>32768"),
    "tapered tiles that begin too early for the producer": fault("best_causal", r"(\n *int rdiv = \()527", r"\g<1>395"),
    "tapered tiles mirrored for the producer": fault(
        "best_causal", r"\n *first_row = \(\(\(.*- condval\) - 1\);", "\n        first_row = condval;"
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_tiles_is_refused(name):
    refused(FAULTS[name])
