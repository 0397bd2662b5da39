"""Faults in which rows, heads and blocks a kernel works on, and in its launch: each is refused."""

from __future__ import annotations

import pytest
from generated_faults import Fault, fault, refused

# The producer's line and the consumers'.
ROW = r"\n( *)first_row = \(\(first_row \* 128\) \+ \(tl::block_rank_in_cluster\(\) \* 128\)\);"
ROW_1 = r"\n( *)first_row_1 = \(\(first_row_1 \* 128\) \+ \(tl::block_rank_in_cluster\(\) \* 128\)\);"
LENGTH, LENGTH_1 = (rf" {blocks} = max\({blocks}, 1\);" for blocks in ("blocks", "blocks_1"))
NEXT, NEXT_1 = r" tile = \(tile \+ 66\);", r" tile_1 = \(tile_1 \+ 66\);"
FIRST, FIRST_1 = (rf"( {tile} = \(\(\(int\)blockIdx\.x\) >> )1\);" for tile in ("tile", "tile_1"))
TILES, TILES_1 = (rf"\(\({tile} < (.*)\)\)\) \{{ break" for tile in ("tile", "tile_1"))
MIRROR = r"\n\1{0} = ((((seq_q + 255) >> 8) * 256) - 128 - (({0} * 128) + (tl::block_rank_in_cluster() * 128)));"
LAST_ROW = r"(tl_attention_store<.*, \(seq_q) - first_row_\d+\)\);"
FAULTS: dict[str, Fault] = {
    "the producer's first row not computed": fault("best", ROW, words="block 1 loads rows of Q from 0 on"),
    "the consumers' first row not computed": fault(
        "best", ROW_1, words=r"warpgroup 0 of block 1 stores \(0, 0, 0\) besides"
    ),
    "the first row of neither computed": Fault(
        "best", ((ROW, ""), (ROW_1, "")), words="block 1 loads rows of Q from 0 on"
    ),
    "the producer's tiles mirrored": fault(
        "best", ROW, MIRROR.format("first_row"), words="block 0 loads rows of Q from 128 on"
    ),
    "the ranks' rows exchanged for the producer of odd heads": fault(
        "best",
        ROW,
        r"\n\1first_row = ((first_row * 128) + ((tl::block_rank_in_cluster() ^ (head & 1)) * 128));",
        words="a block loads rows of Q that are not a tile of its own",
    ),
    "the producer's rows shifted": fault(
        "best",
        ROW,
        r"\n\1first_row = ((first_row * 128) + (tl::block_rank_in_cluster() * 64));",
        words="block 1 loads rows of Q from 64 on",
    ),
    "the ranks' rows exchanged for the producer": fault(
        "best",
        ROW,
        r"\n\1first_row = ((first_row * 128) + ((1 - tl::block_rank_in_cluster()) * 128));",
        words="block 0 loads rows of Q from 128 on",
    ),
    "all rows shifted by a tile": Fault(
        "best",
        (
            (ROW, r"\n\1first_row = ((first_row * 128) + (tl::block_rank_in_cluster() * 128) + 128);"),
            (ROW_1, r"\n\1first_row_1 = ((first_row_1 * 128) + (tl::block_rank_in_cluster() * 128) + 128);"),
        ),
        words="block 0 loads rows of Q from 128 on",
    ),
    "the consumers on rows of another tile": fault(
        "best",
        r"(first_row_1 = \(\(wg_2 \* 64\) \+ first_row_1)\);",
        r"\1 + 128);",
        words=r"stores \(128, 0, 0\) as \(row, head, batch\), expected \(0, 0, 0\)",
    ),
    "the consumers on each other's rows": fault(
        "best",
        r"(first_row_1 = \(\()wg_2( \* 64\) \+ first_row_1\);)",
        r"\1(1 - wg_2)\2",
        words=r"warpgroup 0 of block 0 stores \(64, 0, 0\) .* expected \(0, 0, 0\)",
    ),
    "the consumers all on the first rows": fault(
        "best",
        r" *first_row_1 = \(\(wg_2 \* 64\).*\n",
        words=r"warpgroup 1 of block 0 stores \(0, 0, 0\) .* expected \(64, 0, 0\)",
    ),
    "Q of the other warpgroup's rows": fault(
        "best",
        r"(tma_load\(Q_desc.*\(\()wg_1( \* 64\))",
        r"\1(1 - wg_1)\2",
        words=r"loads \[\(64, 0, 0\), \(0, 0, 0\)\] as \(row, head, batch\) of Q",
    ),
    "every second tile": Fault(
        "best",
        ((NEXT, " tile = (tile + 132);"), (NEXT_1, " tile_1 = (tile_1 + 132);")),
        words="its blocks work on 660 of 1188 tiles, 660 times",
    ),
    "every second tile of the producer": fault(
        "best",
        NEXT,
        " tile = (tile + 132);",
        words=r"is wait Q_full\[0\] \(1\), expected sync named barrier\[1\] \(256\)",
    ),
    "tiles that overlap": Fault(
        "best",
        ((NEXT, " tile = (tile + 65);"), (NEXT_1, " tile_1 = (tile_1 + 65);")),
        words="its blocks work on 1188 of 1188 tiles, 1206 times",
    ),
    "the producer's tile does not advance": fault("best", NEXT, words="the producer of block 0 loads a tile twice"),
    "the consumers' tile does not advance": fault(
        "best", NEXT_1, words=r"warpgroup 0 of block 0 stores \(0, 0, 0\) .* expected \(0, 66, 0\)"
    ),
    "the tile does not advance": Fault(
        "best", ((NEXT, ""), (NEXT_1, "")), words="the producer of block 0 loads a tile twice"
    ),
    "the producer's turn does not advance": fault(
        "best", r" turn = \(turn \+ 1\);", words=r"is wait Q_empty\[0\] \(1\), expected wait Q_empty\[0\] \(0\)"
    ),
    "the consumers' turn does not advance": fault(
        "best", r" turn_1 = \(turn_1 \+ 1\);", words=r"is wait Q_full\[0\] \(0\), expected wait Q_full\[0\] \(1\)"
    ),
    "the producer's blocks are not counted": fault(
        "best", r" base = \(base \+ blocks\);", words=r"is wait K_empty\[0\] \(1\), expected wait K_empty\[1\] \(1\)"
    ),
    "the consumers' blocks are not counted": fault(
        "best", r" base_1 = \(base_1 \+ blocks_1\);", words=r"is wait K_full\[0\] \(0\), expected wait K_full\[1\]"
    ),
    "two clusters on each tile": Fault(
        "best", ((FIRST, r"\g<1>2);"), (FIRST_1, r"\g<1>2);")), words="its blocks work on 594 of 1188 tiles, 1188 times"
    ),
    "a cluster's blocks on two tiles": Fault(
        "best", ((FIRST, r"\g<1>0);"), (FIRST_1, r"\g<1>0);")), words="its blocks work on 594 of 1188 tiles, 1122 times"
    ),
    "the first tile left out": Fault(
        "best",
        ((FIRST, r"\g<1>1) + 1;"), (FIRST_1, r"\g<1>1) + 1;")),
        words="its blocks work on 1186 of 1188 tiles, 1186 times",
    ),
    "the last tile left out": Fault(
        "best",
        ((TILES, r"((tile < (\1) - 1))) { break"), (TILES_1, r"((tile_1 < (\1) - 1))) { break")),
        words="its blocks work on 1186 of 1188 tiles, 1186 times",
    ),
    "a tile beyond the last": Fault(
        "best",
        ((TILES, r"((tile <= \1))) { break"), (TILES_1, r"((tile_1 <= \1))) { break")),
        words="its blocks work on 1190 of 1188 tiles, 1190 times",
    ),
    "tiles of one batch": Fault(
        "best",
        (
            (r"\(\(tile < (.*) \* batch\)\)\)\) \{ break", r"((tile < \1)))) { break"),
            (r"\(\(tile_1 < (.*) \* batch\)\)\)\) \{ break", r"((tile_1 < \1)))) { break"),
        ),
        words="its blocks work on 30 of 60 tiles, 30 times",
    ),
    "the producer loads another head": fault(
        "best", r" int head_2 = head;", " int head_2 = 0;", words="the producer of block 0 loads a tile twice"
    ),
    "the consumers store another head": fault(
        "best",
        r" int head_(\d) = head_1;",
        r" int head_\1 = 0;",
        words=r"stores \(0, 0, 0\) as \(row, head, batch\), expected \(0, 66, 0\)",
    ),
    "the consumers store another batch": fault(
        "best",
        r" int bz_(\d) = bz_1;",
        r" int bz_\1 = 0;",
        words=r"of output of warpgroup 0 is \[0, 0, 0\], expected \[0, 0, 1\]",
    ),
    "K and V of one batch only": fault(
        "best",
        r" int bz_2 = bz;",
        " int bz_2 = 0;",
        words=r"of output of warpgroup 0 is \[0, 0, 1\], expected \[0, 0, 0\]",
    ),
    "head and batch exchanged": Fault(
        "best",
        ((r" int head_2 = head;", " int head_2 = bz;"), (r" int bz_2 = bz;", " int bz_2 = head;")),
        words=r"stores \(0, 66, 0\) as \(row, head, batch\), expected \(0, 0, 66\)",
    ),
    "an output without its head": fault(
        "best",
        r"(\(\(int64_t\))head_\d(\) \* \(\(int64_t\)seq_q)",
        r"\g<1>0\2",
        words=r"stores \(0, 0, 0\) as \(row, head, batch\), expected \(0, 66, 0\)",
    ),
    "an output without its batch": fault(
        "best",
        r"(Output\[\(+\(int64_t\))bz_\d\)",
        r"\g<1>0)",
        words=r"of output of warpgroup 0 is \[0, 0, 0\], expected \[0, 0, 1\]",
    ),
    "an output of other rows": fault(
        "best",
        r"(tl_attention_store<.*\(\(int64_t\))first_row_\d\)",
        r"\g<1>0)",
        words=r"stores \('Output', .* at another row than it has rows left from there",
    ),
    "an output whose heads are as long as the keys": fault(
        "best",
        r"(\(\(int64_t\)head_\d\) \* \(\(int64_t\))seq_q",
        r"\1seq_kv",
        words=r"stores \('Output', .* at another row than it has rows left from",
    ),
    "an output beyond the rows of its head": fault(
        "best", LAST_ROW, r"\1));", words=r"stores \('Output', .* at another row than it has rows left from there"
    ),
    "an output without its last row": fault(
        "best",
        LAST_ROW,
        r"\1 - first_row_3 - 1));",
        words=r"stores \('Output', .* at another row than it has rows left from there",
    ),
    "an output by TMA of other rows": fault(
        "output_tma",
        r"(tma_store\(Output_desc.*, )first_row_3,",
        r"\g<1>(first_row_3 + 64),",
        words=r"warpgroup 0 of block 0 stores \(64, 0, 0\) .* expected \(0, 0, 0\)",
    ),
    "an output by TMA of the first batch": fault(
        "output_tma",
        r"(tma_store\(Output_desc.*, )bz_3\)",
        r"\g<1>0)",
        words=r"of output of warpgroup 0 is \[0, 0, 0\], expected \[0, 0, 1\]",
    ),
    "an output that is stored twice": fault(
        "best",
        r"(\n *tl_attention_store<.*;)",
        r"\1\1",
        words=r"stores \(0, 0, 0\) as \(row, head, batch\), expected \(0, 66, 0\)",
    ),
    "an output that is not stored": fault(
        "best",
        r"\n *tl_attention_store<.*;",
        words=r"warpgroup 0 of block 0 stores nothing as \(row, head, batch\), expected \(0, 0, 0\)",
    ),
    "a block less of the producer": fault(
        "best",
        LENGTH,
        " blocks = max((blocks - 1), 1);",
        words="it takes KV blocks 0 to 0 for rows of Q from 0 on, expected 0 to 1",
    ),
    "a block less": Fault(
        "best",
        ((LENGTH, " blocks = max((blocks - 1), 1);"), (LENGTH_1, " blocks_1 = max((blocks_1 - 1), 1);")),
        words="it takes KV blocks 0 to 0 for rows of Q from 0 on, expected 0 to 1",
    ),
    "no block after the hundredth": Fault(
        "best",
        ((LENGTH, " blocks = min(blocks, 100);"), (LENGTH_1, " blocks_1 = min(blocks_1, 100);")),
        words="it takes KV blocks 0 to 99 for rows of Q from 0 on, expected 0 to 95325",
    ),
    "a block less at the diagonal": Fault(
        "best_causal",
        (
            (r"(\n *blocks = min\(blocks, \(+seq_kv) \+ 255\)", r"\1 + 127)"),
            (r"(\n *blocks_1 = min\(blocks_1, \(+seq_kv) \+ 255\)", r"\1 + 127)"),
        ),
        words="it takes KV blocks 0 to 0 for rows of Q from 0 on, expected 0 to 1",
    ),
    "a ragged block without a mask": fault(
        "ws_seed",
        r"(float condval;\n.*\n.*condval = )-CUDART_INF_F",
        r"\g<1>0x0p+0f",
        words="warpgroup 0 of block 0 does not mask KV block 0 of rows from 0 on",
    ),
    "a block at the diagonal without a mask": fault(
        "best_causal",
        r"(\n *visible = min\(visible, \(.*\) >> 7\))\);",
        r"\1 + 1);",
        words="warpgroup 0 of block 0 does not mask KV block 0 of rows from 0 on",
    ),
    "blocks at the diagonal without a mask": fault(
        "best_causal",
        r"\n *visible = min\(visible, .*",
        words="warpgroup 0 of block 0 does not mask KV block 0 of rows from 0 on",
    ),
    "a mask for one block only": fault(
        "best_causal",
        r"t < max\(\(min\(.*\) - 1\), 0\)",
        "t < 0",
        words=r"is arrive Q_empty\[0\] \(1\) of blocks \(0,\), expected sync named barrier\[1\] \(256\)",
    ),
    "sections whose rows overlap": fault(
        "sections",
        r"(\n *first_row_1 = .*)\) - 1\);",
        r"\1) - 2);",
        words=r"stores \(-128, 0, 0\) as \(row, head, batch\), expected \(0, 0, 0\)",
    ),
    "smaller sections for the producer": fault(
        "sections",
        r"(\n *int rdiv_24 = \()65536",
        r"\g<1>32768",
        words=r"of output of warpgroup 0 is \[0, \d+, 0\], expected \[128, \d+, 0\]",
    ),
    "tapered tiles that begin too early for the producer": fault(
        "best_causal",
        r"(\n *int rdiv = \()527",
        r"\g<1>395",
        words=r"of output of warpgroup 0 is \[384, 5, 0\], expected \[256, 5, 0\]",
    ),
    "tapered tiles mirrored for the producer": fault(
        "best_causal",
        r"\n *first_row = \(\(\(.*- condval\) - 1\);",
        "\n        first_row = condval;",
        words=r"of output of warpgroup 0 is \[512, 0, 0\], expected \[0, 0, 0\]",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_tiles_is_refused(name):
    refused(FAULTS[name])
