"""Faults in the host's code, which fills the TMA descriptors and launches: each is refused."""

from __future__ import annotations

import pytest
from generated_faults import Fault, fault, refused


def slot(number: int, value: str, after: str) -> str:
    """An argument of the call whose first is `after`, up to its value."""
    return rf"(v_ptr\) = {after};\n(?:(?!.*FunctionCall).*\n)*?.*\[{number}\]\.v_\w+\) = ){value};"


def argument(kernel: str, after: str, number: int, value: str, other: str, words: str) -> Fault:
    return fault(kernel, slot(number, value, after), rf"\g<1>{other};", words, host=True)


def address(kernel: str, after: str, number: int, value: str, other: str, words: str) -> Fault:
    """The same for an argument that is an address, which is compared with NULL first."""
    null = rf"(v_ptr\) = {after};\n(?:(?!.*FunctionCall).*\n)*?  if \(){value}( == NULL\) \{{\n"
    return fault(
        kernel, null + rf"(?:.*\n)*?.*\[{number}\]\.v_ptr\) = ){value};", rf"\g<1>{other}\g<2>{other};", words, True
    )


def number(value: int) -> str:
    return rf"\(\(int64_t\){value}\)"


def launch(number: int, value: str, other: str, words: str) -> Fault:
    """An argument of the kernel "best": its pointers and sizes, then cluster, grid, block and shared memory."""
    return argument("best", "Output", number, value, other, words)


# Slots of a descriptor of four dimensions: 4 sizes, 8 strides, 12 box, 16 element strides, 20 interleave, 21 swizzle,
# 22 L2 promotion, 23 fill.
FAULTS: dict[str, Fault] = {
    "a box of fewer rows": argument(
        "best",
        "K_desc",
        13,
        number(176),
        "((int64_t)88)",
        words=r"the box of K_desc: \(64, 88, 1, 1\), expected \(64, 176, 1, 1\)",
    ),
    "a box of more rows": argument(
        "best",
        "K_desc",
        13,
        number(176),
        "((int64_t)256)",
        words=r"the box of K_desc: \(64, 256, 1, 1\), expected \(64, 176, 1, 1\)",
    ),
    "a box of fewer columns": argument(
        "best",
        "V_desc",
        12,
        number(64),
        "((int64_t)32)",
        words=r"the box of V_desc: \(32, 176, 1, 1\), expected \(64, 176, 1, 1\)",
    ),
    "a box of two heads": argument(
        "best",
        "V_desc",
        14,
        number(1),
        "((int64_t)2)",
        words=r"the box of V_desc: \(64, 176, 2, 1\), expected \(64, 176, 1, 1\)",
    ),
    "a box that skips rows": argument(
        "best",
        "K_desc",
        17,
        number(1),
        "((int64_t)2)",
        words=r"the element strides of K_desc: \(1, 2, 1, 1\), expected \(1, 1, 1, 1\)",
    ),
    "K of V's address": address("best", "K_desc", 3, "K", "V", words="K_desc is of V"),
    "the output's descriptor of Q": address("output_tma", "Output_desc", 3, "Output", "Q", words="Output_desc is of Q"),
    "as many keys as queries": argument(
        "best",
        "K_desc",
        5,
        r"\(\(int64_t\)seq_kv\)",
        "((int64_t)seq_q)",
        words=r"the dimensions of K_desc: \(128, 253, 132, 1\), expected \(128, 294, 132, 1\)",
    ),
    "keys beyond the last": argument(
        "best",
        "K_desc",
        5,
        r"\(\(int64_t\)seq_kv\)",
        "((int64_t)(seq_kv + 1))",
        words=r"the dimensions of K_desc: \(128, 119, 132, 1\), expected \(128, 118, 132, 1\)",
    ),
    "queries of the length of the keys": argument(
        "best",
        "Q_desc",
        5,
        r"\(\(int64_t\)seq_q\)",
        "((int64_t)seq_kv)",
        words=r"the dimensions of Q_desc: \(128, 294, 132, 1\), expected \(128, 253, 132, 1\)",
    ),
    "head and batch exchanged": Fault(
        "best",
        (
            (slot(6, r"\(\(int64_t\)heads\)", "K_desc"), r"\g<1>((int64_t)batch);"),
            (slot(7, r"\(\(int64_t\)batch\)", "K_desc"), r"\g<1>((int64_t)heads);"),
        ),
        host=True,
        words=r"the dimensions of K_desc: \(128, 118, 1, 132\), expected \(128, 118, 132, 1\)",
    ),
    "rows that overlap": argument(
        "best",
        "K_desc",
        9,
        number(256),
        "((int64_t)128)",
        words=r"the strides of K_desc: \(128, \d+, \d+\), expected \(256,",
    ),
    "a stride of heads by queries": argument(
        "best",
        "K_desc",
        10,
        r".*seq_kv.*",
        "(((int64_t)seq_q) * (int64_t)256)",
        words=r"the strides of K_desc: \(256, 64768, \d+\), expected \(256, 75264,",
    ),
    "a stride of batches without its heads": argument(
        "best",
        "K_desc",
        11,
        r".*seq_kv \* heads.*",
        "(((int64_t)seq_kv) * (int64_t)256)",
        words=r"the strides of K_desc: \(256, 30208, 30208\), expected \(256, 30208, 3987456\)",
    ),
    "elements of another type": argument(
        "best", "K_desc", 1, number(6), "((int64_t)7)", words="the data type of K_desc: 7, expected 6"
    ),
    "a fill that is not a number": argument(
        "best", "K_desc", 23, number(0), "((int64_t)1)", words="the fill beyond the end of K_desc: 1, expected 0"
    ),
    "another swizzle": argument(
        "best", "K_desc", 21, number(3), "((int64_t)2)", words="the swizzle of K_desc: 2, expected 3"
    ),
    "an interleaved tensor": argument(
        "best", "K_desc", 20, number(0), "((int64_t)1)", words="the interleaving of K_desc: 1, expected 0"
    ),
    "a descriptor that is not an address": fault(
        "best",
        r"(if \(K == NULL\) \{\n.*\n  \} else \{\n.*type_index\) = )4",
        r"\g<1>1",
        host=True,
        words="argument 3 of a call, .* not in the form that TileLang 0.1.15 writes",
    ),
    "an argument that is not an integer": fault(
        "best",
        r"(v_ptr\) = K_desc;\n.*\[1\]\.type_index\) = )1(;\n.*\n.*int64_t\)6)",
        r"\g<1>3\2",
        host=True,
        words="argument 1 of a call, .* not in the form that TileLang 0.1.15 writes",
    ),
    "K for V": address(
        "best",
        "Output",
        3,
        "V_desc",
        "K_desc",
        words=r"is launched with \[\('K_desc', 'pointer'\), .*\('Q_desc', 'pointer'\), \('K_desc', 'pointer'\)",
    ),
    "queries for keys": launch(
        6,
        r"\(\(int64_t\)seq_kv\)",
        "((int64_t)seq_q)",
        words=r"\('seq_kv', 'int'\), .* is launched with .* \('seq_q', 'int'\), \('seq_q', 'int'\)",
    ),
    "heads for batches": launch(
        4,
        r"\(\(int64_t\)batch\)",
        "((int64_t)heads)",
        words=r"\('batch', 'int'\), .* is launched with .* \('heads', 'int'\), \('heads', 'int'\)",
    ),
    "another scale": launch(
        8,
        r"\(\(double\)softmax_scale\)",
        "((double)seq_q)",
        words=r"the kernel's parameter '\(\(double\)seq_q\)', expected one of softmax_scale",
    ),
    "no cluster": launch(
        9,
        number(2),
        "((int64_t)1)",
        words=r"a grid of \[132, 1, 1\] blocks in clusters of \(1, 1, 1\), expected 132 in 2",
    ),
    "a cluster of four": launch(
        9,
        number(2),
        "((int64_t)4)",
        words=r"a grid of \[132, 1, 1\] blocks in clusters of \(4, 1, 1\), expected 132 in 2",
    ),
    "a block less": launch(
        12,
        number(132),
        "((int64_t)131)",
        words=r"a grid of \[131, 1, 1\] blocks in clusters of \(2, 1, 1\), expected 132 in 2",
    ),
    "a cluster less": launch(
        12,
        number(132),
        "((int64_t)130)",
        words=r"a grid of \[130, 1, 1\] blocks in clusters of \(2, 1, 1\), expected 132 in 2",
    ),
    "twice the blocks": launch(
        12,
        number(132),
        "((int64_t)264)",
        words=r"a grid of \[264, 1, 1\] blocks in clusters of \(2, 1, 1\), expected 132 in 2",
    ),
    "threads of half a warpgroup": launch(
        13, number(128), "((int64_t)64)", words="192 threads of a block, the kernel is made for 384"
    ),
    "no producer": launch(14, number(3), "((int64_t)2)", words="256 threads of a block, the kernel is made for 384"),
    "a warpgroup more": launch(
        14, number(3), "((int64_t)4)", words="512 threads of a block, the kernel is made for 384"
    ),
    "a block of two layers": launch(
        15, number(1), "((int64_t)2)", words="768 threads of a block, the kernel is made for 384"
    ),
    "too little shared memory": launch(
        16,
        number(212992),
        "((int64_t)212991)",
        words="it has 1.99994 buffers for load_q from byte 180224 on, the Program has 2",
    ),
    "a size of another dimension": fault(
        "best",
        r"(int32_t heads = .*attention_Q_shape\)\[)1",
        r"\g<1>2",
        host=True,
        words="the size heads is dimension 2 of Q",
    ),
    "a size of another tensor": fault(
        "best",
        r"(int32_t seq_kv = .*attention_)K(_shape)",
        r"\1Q\2",
        host=True,
        words="the size seq_kv is dimension 2 of Q",
    ),
    "a tensor of another's address": fault(
        "best", r"(void\* K = .*)K_handle", r"\1V_handle", host=True, words=r"no definition 'void\* K = .*K_handle"
    ),
    "a descriptor that is not made": fault(
        "best",
        r"(TVMFFIAny\* *\) stack_ffi_any, )24(, &result_2\) != 0)",
        r"\g<1>0\2",
        host=True,
        words="argument 24 of a call, .* not in the form that TileLang 0.1.15 writes",
    ),
    "a descriptor made in another's place": fault(
        "best",
        r"(void\* V_desc = stack_)2",
        r"\g<1>1",
        host=True,
        words=r"argument 0 of a call, .* 'TL_ALIGN\(128\) TVMFFIAny stack_2\[16\];'",
    ),
    "fewer row tiles": fault(
        "seed",
        r"\(seq_q \+ 127\) >> 7",
        "seq_q >> 7",
        host=True,
        words=r"a grid of \(0, 3, 2\) blocks, expected \(1, 3, 2\)",
    ),
    "row tiles of the keys": fault(
        "seed",
        r"\(seq_q \+ 127\) >> 7",
        "(seq_kv + 127) >> 7",
        host=True,
        words=r"a grid of \(2, 3, 2\) blocks, expected \(1, 3, 2\)",
    ),
    "too little shared memory of a pipeline": fault(
        "seed",
        number(163840),
        "((int64_t)131072)",
        host=True,
        words="it has 1 buffers for load_v from byte 98304 on, the Program has 2",
    ),
    "an output's box of fewer rows": argument(
        "seed",
        "Output_desc",
        13,
        number(128),
        "((int64_t)64)",
        words=r"the box of Output_desc: \(64, 64, 1, 1\), expected \(64, 128, 1, 1\)",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_launch_is_refused(name):
    refused(FAULTS[name])
