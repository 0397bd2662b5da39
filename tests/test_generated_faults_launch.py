"""Faults in the host's code, which fills the TMA descriptors and launches: each is refused."""

from __future__ import annotations

import pytest
from generated_faults import Fault, fault, refused


def slot(number: int, value: str, after: str) -> str:
    """An argument of the call whose first is `after`, up to its value."""
    return rf"(v_ptr\) = {after};\n(?:(?!.*FunctionCall).*\n)*?.*\[{number}\]\.v_\w+\) = ){value};"


def argument(kernel: str, after: str, number: int, value: str, other: str) -> Fault:
    return fault(kernel, slot(number, value, after), rf"\g<1>{other};", host=True)


def number(value: int) -> str:
    return rf"\(\(int64_t\){value}\)"


def launch(number: int, value: str, other: str) -> Fault:
    """An argument of the kernel "best": its pointers and sizes, then cluster, grid, block and shared memory."""
    pattern = rf"(v_ptr\) = Output;\n(?:(?!.*FunctionCall).*\n)*?.*\[{number}\]\.v_\w+\) = ){value};"
    return fault("best", pattern, rf"\g<1>{other};", host=True)


# Slots of a descriptor of four dimensions: 4 sizes, 8 strides, 12 box, 16 element strides, 20 interleave, 21 swizzle,
# 22 L2 promotion, 23 fill.
FAULTS: dict[str, Fault] = {
    "a box of fewer rows": argument("best", "K_desc", 13, number(176), "((int64_t)88)"),
    "a box of more rows": argument("best", "K_desc", 13, number(176), "((int64_t)256)"),
    "a box of fewer columns": argument("best", "V_desc", 12, number(64), "((int64_t)32)"),
    "a box of two heads": argument("best", "V_desc", 14, number(1), "((int64_t)2)"),
    "a box that skips rows": argument("best", "K_desc", 17, number(1), "((int64_t)2)"),
    "K of V's address": argument("best", "K_desc", 3, "K", "V"),
    "the output's descriptor of Q": argument("output_tma", "Output_desc", 3, "Output", "Q"),
    "as many keys as queries": argument("best", "K_desc", 5, r"\(\(int64_t\)seq_kv\)", "((int64_t)seq_q)"),
    "keys beyond the last": argument("best", "K_desc", 5, r"\(\(int64_t\)seq_kv\)", "((int64_t)(seq_kv + 1))"),
    "queries of the length of the keys": argument("best", "Q_desc", 5, r"\(\(int64_t\)seq_q\)", "((int64_t)seq_kv)"),
    "head and batch exchanged": Fault(
        "best",
        (
            (slot(6, r"\(\(int64_t\)heads\)", "K_desc"), r"\g<1>((int64_t)batch);"),
            (slot(7, r"\(\(int64_t\)batch\)", "K_desc"), r"\g<1>((int64_t)heads);"),
        ),
        host=True,
    ),
    "rows that overlap": argument("best", "K_desc", 9, number(256), "((int64_t)128)"),
    "a stride of heads by queries": argument("best", "K_desc", 10, r".*seq_kv.*", "(((int64_t)seq_q) * (int64_t)256)"),
    "a stride of batches without its heads": argument(
        "best", "K_desc", 11, r".*seq_kv \* heads.*", "(((int64_t)seq_kv) * (int64_t)256)"
    ),
    "elements of another type": argument("best", "K_desc", 1, number(6), "((int64_t)7)"),
    "a fill that is not a number": argument("best", "K_desc", 23, number(0), "((int64_t)1)"),
    "another swizzle": argument("best", "K_desc", 21, number(3), "((int64_t)2)"),
    "an interleaved tensor": argument("best", "K_desc", 20, number(0), "((int64_t)1)"),
    "a descriptor that is not an address": fault(
        "best", r"(if \(K == NULL\) \{\n.*\n  \} else \{\n.*type_index\) = )4", r"\g<1>1", host=True
    ),
    "an argument that is not an integer": fault(
        "best", r"(v_ptr\) = K_desc;\n.*\[1\]\.type_index\) = )1(;\n.*\n.*int64_t\)6)", r"\g<1>3\2", host=True
    ),
    "K for V": launch(3, "V_desc", "K_desc"),
    "queries for keys": launch(6, r"\(\(int64_t\)seq_kv\)", "((int64_t)seq_q)"),
    "heads for batches": launch(4, r"\(\(int64_t\)batch\)", "((int64_t)heads)"),
    "another scale": launch(8, r"\(\(double\)softmax_scale\)", "((double)seq_q)"),
    "no cluster": launch(9, number(2), "((int64_t)1)"),
    "a cluster of four": launch(9, number(2), "((int64_t)4)"),
    "a block less": launch(12, number(132), "((int64_t)131)"),
    "a cluster less": launch(12, number(132), "((int64_t)130)"),
    "twice the blocks": launch(12, number(132), "((int64_t)264)"),
    "threads of half a warpgroup": launch(13, number(128), "((int64_t)64)"),
    "no producer": launch(14, number(3), "((int64_t)2)"),
    "a warpgroup more": launch(14, number(3), "((int64_t)4)"),
    "a block of two layers": launch(15, number(1), "((int64_t)2)"),
    "too little shared memory": launch(16, number(212992), "((int64_t)212991)"),
    "a size of another dimension": fault("best", r"(int32_t heads = .*attention_Q_shape\)\[)1", r"\g<1>2", host=True),
    "a size of another tensor": fault("best", r"(int32_t seq_kv = .*attention_)K(_shape)", r"\1Q\2", host=True),
    "a tensor of another's address": fault("best", r"(void\* K = .*)K_handle", r"\1V_handle", host=True),
    "a descriptor that is not made": fault(
        "best", r"(TVMFFIAny\* *\) stack_ffi_any, )24(, &result_2\) != 0)", r"\g<1>0\2", host=True
    ),
    "a descriptor made in another's place": fault("best", r"(void\* V_desc = stack_)2", r"\g<1>1", host=True),
    "fewer row tiles": fault("seed", r"\(seq_q \+ 127\) >> 7", "seq_q >> 7", host=True),
    "row tiles of the keys": fault("seed", r"\(seq_q \+ 127\) >> 7", "(seq_kv + 127) >> 7", host=True),
    "too little shared memory of a pipeline": fault("seed", number(163840), "((int64_t)131072)", host=True),
    "an output's box of fewer rows": argument("seed", "Output_desc", 13, number(128), "((int64_t)64)"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_launch_is_refused(name):
    refused(FAULTS[name])
