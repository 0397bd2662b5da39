"""What stands before a generated kernel: our device functions, and the headers of TileLang 0.1.15, to the letter."""

from __future__ import annotations

from tl_attention.proof.generated.refused import Unsafe
from tl_attention.proof.generated.text import Kernel

BEGIN = """#if defined(_MSC_VER) && !defined(__clang__) && _MSC_VER < 1940
#define _tl_orig_alignas alignas
#define alignas(N) _tl_orig_alignas((N) <= 64 ? (N) : 64)
#include <cuda.h>
#undef alignas
#define alignas _tl_orig_alignas
#endif
""".splitlines()
# Those that a kernel has of what it calls.
OF_CALLS = ("instruction/wgmma", "instruction/mma", "intrin", "atomic", "barrier", "copy_sm90", "copy", "cluster")
OF_ALL = ("reduce", "scan", "ldsm", "threadblock_swizzle", "debug")
HEADERS = {"#include <math_constants.h>", *(f"#include <tl_templates/cuda/{name}.h>" for name in (*OF_CALLS, *OF_ALL))}
END = """#ifdef ENABLE_BF16
#include <tl_templates/cuda/cuda_bf16_fallbacks.cuh>
#endif

""".splitlines()


def check_prelude(kernel: Kernel, functions: str) -> None:
    """Raise Unsafe unless the kernel stands behind these device functions, TileLang's headers and its own declaration."""
    text = kernel.prelude + "\n"
    if not text.startswith(functions):
        raise Unsafe("what stands before the kernel is not its prelude")
    lines = text.removeprefix(functions).splitlines()
    end = [*END, kernel.signature.prototype]
    middle = lines[len(BEGIN) : -len(end)]
    if lines != [*BEGIN, *middle, *end] or len(middle) != len({*middle}) or not HEADERS.issuperset(middle):
        known = {*BEGIN, *HEADERS, *end}
        other = next((line for line in lines if line not in known), "a header in another place")
        raise Unsafe(f"{other[:80]!r} stands before the kernel")
