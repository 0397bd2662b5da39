"""TileLang's code for gradients of packed sequences is proved, and code with a fault in it is refused in words."""

from __future__ import annotations

import pytest
from test_gradient_code import code, hold_refused, of, proved

from tl_attention.problem.mask import CAUSAL

BY_LOOP = {"dq": (128, "bfloat16", CAUSAL, 1, "packed"), "dkdv": (128, "bfloat16", CAUSAL, 4, "packed")}


@pytest.mark.parametrize("loop, case", BY_LOOP.items(), ids=str)
def test_the_generated_code_of_a_packed_gradient_is_proved_and_all_of_it_can_run(loop, case):
    verdict = proved(code(of(loop, *case)))
    assert not verdict.unreached and verdict.digest


# By loop. The kernel of dK and dV exchanges queries and keys: a sequence's keys begin at its q_begin.
ENTRY_FREED = r"(\n *if \(tl::tl_shuffle_elect<32>\(\)\) \{\n *tile_empty.*\n *\})"
FAULTS = {
    "dq": {
        "the tiles of another length are listed": (
            r"list_tiles<128, 1, 64",
            r"list_tiles<64, 1, 64",
            "lists the tiles",
        ),
        "keys are listed": (
            r"\(CuSeqlensQ, CuSeqlensK, SeqUsedQ, SeqUsedK",
            r"(CuSeqlensK, CuSeqlensQ, SeqUsedK, SeqUsedQ",
            "lists the tiles",
        ),
        "entries lack their sequences": (r"INT_MAX, n\)", r"INT_MAX, 0)", "stands before the kernel, expected"),
        "the list is read while it is made": (
            r"\n *cudaGridDependencySynchronize.*\n",
            r"\n",
            "is read while another kernel may",
        ),
        "the first tile is the second": (r"(number = \(\(int\)blockIdx.x\))", r"\1 + 1", "where it does take, take is"),
        "a tile is computed twice": (
            r"number = \(number \+ workers\)",
            r"number = (number + workers) - 1",
            "where it does take|the entry of take",
        ),
        "the next tile is handed over twice": (r"if \(j == 0\)", r"if (j < 2)", "where it does fence, wait"),
        "the rows' words are freed first": (
            r"(\n *first_row_1 = next_tile(?:.*\n){5})((?: *if .*\n)?.*tile_empty.*\n(?: *\}\n))",
            r"\n\2\1",
            "does arrive tile_empty.*, expected read tile",
        ),
        "an entry is not freed": (ENTRY_FREED, r"", "expected arrive tile_empty"),
        "O of the row behind": (r"(\(&\(O\[.*?q_begin_3\))", r"\1 + 1", "place of O of row facts"),
        "dO of the sequence behind": (r"(\(&\(dO\[.*?\(int64_t\))q_begin_3", r"\1(q_begin_3 + seq_q_4)", "place of dO"),
        "the LSE of a batch": (r"(\(&\(LSE\[.*?\(int64_t\))q_begin_3", r"\g<1>0", "place of LSE"),
        "LSE is stored over another sequence's": (
            r"(RowLSE\[.*?result\) \* \(int64_t\))128",
            r"\g<1>64",
            "place of RowLSE",
        ),
        "D is stored over another sequence's": (r"(RowD\[.*?\(int64_t\))result", r"\g<1>0", "place of RowD"),
        "the number of another word": (r"(sequence_1 = .*\+ )7", r"\g<1>6", "place of RowLSE"),
        "rows of O are as far apart as dO's": (r"(\(seq_q_4 - row\), )O_row", r"\1dO_row", "distance of O"),
        "rows of dO are as far apart as a head's": (
            r"O_row_stride, dO_row_stride\)",
            r"O_row_stride, 128)",
            "distance of dO",
        ),
        "K of the sequence behind": (r"(tma_load\(K_desc.*)k_begin_2", r"\1(k_begin_2 + seq_kv_2)", "load K"),
        "K's rows behind the sequence's last": (r"(tma_load\(K_desc.*k_begin_2 \+ seq_kv_2)", r"\1 + 1", "load K"),
        "K's rows counted from the first": (r"(tma_load\(K_desc.*?) - seq_kv_2", r"\1", "the row of load K"),
        "V's box ends with no sequence": (
            r"(tma_load\(V_desc.*)1073741824\)",
            r"\g<1>0)",
            "a box of a ragged view at 0",
        ),
        "Q of where keys lie": (r"(tma_load\(Q_desc.*)q_begin_2", r"\1k_begin_2", "load Q"),
        "dO of the neighbour's end": (r"(tma_load\(dO_desc.*q_begin_2 \+ seq_)q_3", r"\1kv_2", "load dO"),
        "rows are stored past the end": (r"(acc_dq, .*\(seq_q_5 - first_row_3)", r"\1 + 1", "output dQ"),
        "dQ is stored at the neighbour's": (r"(dQ\[.*?\(int64_t\))q_begin_4", r"\1(q_begin_4 + seq_q_5)", "output dQ"),
        "dQ's rows are as far apart as Q's": (
            r", dQ_row_stride\);",
            r", Q_row_stride);",
            "distance of rows of output dQ",
        ),
        "hidden keys by another sequence's length": (r"(visible = min\(visible, .*)seq_q_2", r"\1seq_q", "hidden keys"),
    },
    "dkdv": {
        "queries are listed": (
            r"\(CuSeqlensK, CuSeqlensQ, SeqUsedK, SeqUsedQ",
            r"(CuSeqlensQ, CuSeqlensK, SeqUsedQ, SeqUsedK",
            "lists the tiles",
        ),
        "the mask is not transposed": (r"SeqUsedQ, 0, -1", r"SeqUsedQ, -1, 0", "lists the tiles"),
        "totals are not exchanged": (r"seq_kv, seq_q, workers", r"seq_q, seq_kv, workers", "lists the tiles"),
        "heads of Q are listed": (r"workers, \(heads / 4\)", r"workers, heads", "lists the tiles"),
        "tiles of heads of Q": (
            r"(number\w*) < \((row_tiles\w*) \* \(heads >> 2\)\)",
            r"\1 < (\2 * heads)",
            "does not fit 32 bits",
        ),
        "handed over for each member": (
            r"\(j \+ member\) == 0",
            r"j == 0",
            "the producer of block 0 does fence, wait.* where",
        ),
        "an entry is freed by each member": (
            r"(base_1 = \(base_1 \+ blocks_1\);\n)((?: *head_1.*\n)? *\}\n(?:.*\n)*?.*first_row_1 = \(\(first.*\n)( *if .*\n.*tile_empty.*\n *\}\n)",
            r"\1\3\2",
            "arrive tile_empty",
        ),
        "LSE of another sequence": (r"(RowLSE_desc, .*)result \* 128", r"\1result * 64", "the row of load LSE"),
        "D without padding": (r"(RowD_desc, .*)\(result \* 128\)", r"\g<1>0", "the row of load D"),
        "LSE of the row before": (
            r"(RowLSE_desc, .*k_begin_1)\) -",
            r"\1 - 1) -",
            "a load of RowLSE from row 3 of each 4",
        ),
        "LSE of four rows before": (r"(RowLSE_desc, .*k_begin_1)\) -", r"\1 - 4) -", "the row of load LSE"),
        "D from where queries begin": (r"(RowD_desc, .*) - \(k_begin_1 & 3\)", r"\1", "a load of RowD from row"),
        "LSE from an even place": (r"(RowLSE_desc, .*k_begin_1 & )3", r"\g<1>1", "a load of RowLSE from row"),
        "D of another batch": (r"(RowD_desc, .*head_2, )0\)", r"\g<1>1)", "the batch of load D"),
        "the number of another word": (r"(\n *sequence = .*\+ )7", r"\g<1>6", "does not fit 32 bits"),
        "Q of where keys lie": (r"(tma_load\(Q_desc.*)k_begin_1", r"\1q_begin_2", "load Q"),
        "K of where queries lie": (r"(tma_load\(K_desc.*)q_begin_2", r"\1k_begin_1", "load K"),
        "V of the sequence behind": (r"(tma_load\(V_desc.*)q_begin_2", r"\1(q_begin_2 + seq_q_2)", "load V"),
        "dO's rows behind the last": (r"(tma_load\(dO_desc.*k_begin_1 \+ seq_kv_2)", r"\1 + 1", "load dO"),
        "dK is stored past the end": (r"(acc_dk, .*\(seq_q_4 - first_row_6)", r"\1 + 1", "output dK"),
        "dV is stored at the neighbour's": (r"(dV\[.*?\(int64_t\))q_begin_3", r"\1(q_begin_3 + seq_q_4)", "output dV"),
        "dK of a head of Q": (r"(dK\[.*\(int64_t\))head_3", r"\1(head_3 * 4)", "output dK"),
        "dV's rows are as far apart as dK's": (
            r", dV_row_stride\);",
            r", dK_row_stride);",
            "distance of rows of output dV",
        ),
    },
}


@pytest.mark.parametrize("loop, name", [(loop, name) for loop, faults in FAULTS.items() for name in faults])
def test_a_fault_in_the_code_of_a_packed_gradient_is_refused(loop, name):
    hold_refused(of(loop, *BY_LOOP[loop]), FAULTS[loop][name])
