"""Faults in every line of generated mma.sync kernels that copies, waits, meets, loads a fragment, multiplies or stores."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from code_mutants.kernels import KERNELS, Kernel
from code_mutants.reading import Code, prove
from once import lowered, proved

from tl_attention.errors import ScheduleRefused

SMALL = KERNELS["mma_sync_small"]
DOUBLE = Kernel("mma_sync/double_both", causal=True)
X2 = Kernel("mma_sync/x2")
THRESHOLD = KERNELS["mma_sync"]
STORED = Kernel("mma_sync", causal=True, optional=frozenset({"LSE"}), group=2)

WAIT, SYNC, COMMIT = r"tl::cp_async_wait<", r"__syncthreads\(\);", r"tl::cp_async_commit\(\);"
COPY, CHECKED = r"tl::cp_async_gs", r"tl::cp_async_gs_conditional"
FRAGMENT, PRODUCT, STORE = r"tl::ptx_ldmatrix_x", r"tl::mma_sync<", r"tl_attention_store(?:_lse|<)"
LOOP = r"for \(int t\w* = 0;"
EVERY = ".*"
# Kernel, which lines, what of them, and what in its place: nothing where the line goes. Each line is a fault of its own.
FAULTS: dict[str, tuple[Kernel, str, str, str | None]] = {
    **{
        f"no {name}, {kernel.file}": (kernel, line, EVERY, None)
        for name, line in {
            "wait": WAIT, "barrier": SYNC, "commit": COMMIT, "copy": COPY, "fragment": FRAGMENT, "product": PRODUCT,
            "store": STORE,
        }.items()
        for kernel in (SMALL, DOUBLE)
    },
    **{f"a copy more in flight, {k.file}": (k, WAIT, r"<(\d+)>", r"<9\1>") for k in (SMALL, DOUBLE, THRESHOLD)},
    "a barrier of half of the threads": (SMALL, SYNC, r"(__syncthreads.*)", r"if (((int)threadIdx.x) < 64) {\n\1\n}"),
    "a wait of half of the threads": (SMALL, WAIT, r"(tl::cp.*)", r"if (((int)threadIdx.x) < 64) {\n\1\n}"),
    "a fragment of half of the lanes": (SMALL, FRAGMENT, r"(tl::ptx.*)", r"if ((((int)threadIdx.x) & 31) < 16) {\n\1\n}"),
    "a product of one warp": (SMALL, PRODUCT, r"(tl::mma.*)", r"if (((int)threadIdx.x) < 32) {\n\1\n}"),
    "copies into the other slot": (DOUBLE, f"{COPY}.*& 1\\)", r"(\(t\w* \+ 1\)|\w+) & 1\) \* 8192", r"(\1 + 1) & 1) * 8192"),
    "fragments of the other slot": (DOUBLE, f"{FRAGMENT}.*& 1\\)", r"\((\w+) & 1\) \* 8192", r"((\1 + 1) & 1) * 8192"),
    "fragments of the first slot": (DOUBLE, f"{FRAGMENT}.*& 1\\)", r"\(\w+ & 1\) \* 8192", "0"),
    "a fragment into other registers": (SMALL, FRAGMENT, r"_local\[", "_local[2 + "),
    "a fragment into those of another operand": (SMALL, FRAGMENT, r"K_local|Q_local|V_local", "acc_s_cast"),
    "a fragment of another tile": (SMALL, FRAGMENT, r"\)[KQ]_shared", r")V_shared"),
    "a fragment that is not transposed": (X2, f"{FRAGMENT}._trans", "_trans", ""),
    "a fragment that is": (X2, rf"{FRAGMENT}.\(", r"(_x\d)\(", r"\1_trans("),
    "half of a fragment": (SMALL, FRAGMENT, "_x4", "_x2"),
    "twice a fragment": (X2, f"{FRAGMENT}2", "_x2", "_x4"),
    "a swizzle of fragments that is a sum": (SMALL, FRAGMENT, r" \^ ", " + "),
    "a swizzle of copies that is a sum": (SMALL, COPY, r" \^ ", " + "),
    "another row of lanes": (SMALL, FRAGMENT, r"threadIdx\.x\) & (7|15)\) \* 64", r"threadIdx.x) & \1) * 128"),
    "fragments of the next columns": (SMALL, FRAGMENT, r" \^ ", r" ^ 2 ^ "),
    "fragments of the next rows": (SMALL, FRAGMENT, r"_shared\)\[", r"_shared)[512 + "),
    "accumulators of others": (SMALL, PRODUCT, r"(acc_[so]) \+ ", r"\1 + 4 + "),
    "accumulators of the other product": (SMALL, PRODUCT, r"acc_s \+", "acc_o +"),
    "A of others": (SMALL, PRODUCT, r"(Q_local|acc_s_cast) \+ ", r"\1 + 8 + "),
    "B of others": (SMALL, PRODUCT, r"([KV]_local) \+ ", r"\1 + 4 + "),
    "B of the other product": (SMALL, PRODUCT, r"K_local", "V_local"),
    "a product of another dtype": (SMALL, PRODUCT, r"kBFloat16, tl", "kFloat16, tl"),
    "a product with K transposed": (SMALL, PRODUCT, r"false, true>", "false, false>"),
    # In the loop K is that of a block before the last.
    "a row more of the tensor": (SMALL, rf"{CHECKED}.*[QV]_shared", r"< (seq_\w+)\)\);", r"< (\1 + 1)));"),
    "a row less": (SMALL, rf"{CHECKED}.*[QV]_shared", r"< (seq_\w+)\)\);", r"< (\1 - 1)));"),
    "rows beyond the last": (SMALL, rf"{CHECKED}.*[QV]_shared", r"_conditional(<16>.*\]\)\)), .*\);", r"\1);"),
    "copies of 8 bytes": (SMALL, COPY, "<16>", "<8>"),
    "copies of another head": (SMALL, COPY, r"\(int\)blockIdx\.y", "(int)blockIdx.z"),
    "copies of another batch": (SMALL, COPY, r"\(int\)blockIdx\.z", "(int)blockIdx.x"),
    "copies of the next row": (SMALL, COPY, r"\(&\(([QKV])\[", r"(&(\1[128 + "),
    "copies of K for V": (SMALL, COPY, r"\(&\(V\[", r"(&(K["),
    "copies of a head of Q's number": (STORED, rf"{COPY}.*[KV]_shared", r"(blockIdx\.y\)\)) >> \(int64_t\)1", r"\1"),
    "rows of another head": (STORED, STORE, r"\(int\)blockIdx\.y", "(int)blockIdx.z"),
    "rows of others": (STORED, STORE, r"\(&\((Output|LSE)\[", r"(&(\1[128 + "),
    "a row more than there are": (STORED, STORE, r"(seq_q - \w+\)*(?: - 64\))?)(, \(\(int\)threadIdx.x\))?\);", r"\1 + 1\2);"),
    "registers of others": (STORED, STORE, r"(?:(acc_o)\[\d+|(scores_max)\[\d+)\]", r"\1\2[32]"),
    "rows stored twice": (STORED, STORE, r"(tl_attention.*)", r"\1\n\1"),
    "a register of a fragment that is computed": (SMALL, PRODUCT, r"(tl::.*)", r"V_local[0] = acc_s_cast[0];\n\1"),
    "less room for fragments": (SMALL, r"\w+ [QKV]_local\[", r"_local\[\d+\]", "_local[16]"),
    "less room for accumulators": (SMALL, r"\w+ acc_\w+\[", r"\[\d+\]", "[16]"),
    "scores that are not hidden": (DOUBLE, r"condval\w* = -", "-CUDART_INF_F", "0x0p+0f"),
    "a loop with an iteration less": (DOUBLE, LOOP, r"; \+\+", " - 1; ++"),
    "a loop with an iteration more": (DOUBLE, LOOP, r"; \+\+", " + 1; ++"),
    "a loop that ends at the fortieth": (DOUBLE, r"for \(int t_1 = 0;", r"< (\(.*\)); \+\+", r"< min(\1, 40); ++"),
    "another row tile": (DOUBLE, "first_row = ", r" = (.*);", r" = (\1 - 128);"),
    "a block more": (DOUBLE, "blocks = ", r" = (.*);", r" = (\1 + 1);"),
    "a masked block less": (DOUBLE, "visible = ", r" = (.*);", r" = (\1 + 1);"),
}  # fmt: skip


def faulty(code: Code, line: str, part: str, other: str | None) -> Iterator[str]:
    """The sources with one of those lines changed, or gone."""
    lines = code.source.split("\n")
    body = next(number for number, text in enumerate(lines) if "__launch_bounds__" in text)
    for number, text in enumerate(lines):
        if number > body and re.match(rf"\s*{line}", text):
            changed = "" if other is None else re.sub(part, other, text, count=1)
            if changed != text:
                yield "\n".join([*lines[:number], changed, *lines[number + 1 :]])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_any_of_these_lines_is_refused(name):
    kernel, *fault = FAULTS[name]
    code = lowered(kernel)
    assert proved(kernel).digest
    sources = list(faulty(code, *fault))
    assert sources
    for source in sources:
        with pytest.raises(ScheduleRefused):
            prove(kernel.schedule, replace(code, source=source))
