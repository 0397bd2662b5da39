"""Faults in the text: lines that Python and C++ cut at other places, comments, directives, and other functions."""

import re

from faults.table import SMALL, Row, edit, edits

# Characters at which Python alone cuts lines, or that it alone takes for space.
ENDS, SPACES = "\v\f\r\x1c\x1d\x1e\x85\u2028\u2029", "\t\x1f\xa0\u3000"
BARRIER, END = r"^( *)__syncthreads\(\);$", r"^\}\n+\Z"
KERNEL = r'^extern "C" __global__ void (__launch_bounds__.*)$'
DECLARED = r'^extern "C" __global__ void (?!__).*\);$'
OTHER = r'extern "C" __global__ void __launch_bounds__(32, 1) other(int a) {\n  cudaGridDependencySynchronize();\n'
NOT_BEFORE, NOT_BEHIND = (
    r"line \d+: '{}.*' stands before the kernel, expected 'extern",
    r"line \d+: '{}', expected the kernel's last",
)


def row(name: str, found: str, text: str, pattern: str = BARRIER) -> Row:
    """Makes a fault at the first barrier of a kernel, by default, and expects that this is found in its line."""
    return Row(
        name, *edits(SMALL, rf"cannot be read: line \d+ has {found}, expected ASCII", pattern, text, which="first")
    )


ROWS = [
    *(row(f"a barrier behind {end!a} in a line of a directive", re.escape(ascii(end)), rf"\1#pragma unroll{end}\g<0>")
        for end in ENDS),
    *(row(f"a space {space!a} before a barrier", re.escape(ascii(space)), rf"{space}\g<0>") for space in SPACES),
    row("a barrier in a comment between two numbers", r"'/\*'", r"float zz_a = 0x0p+0f/*;\n\g<0>\nfloat zz_b = 1*/;"),
    row("a barrier in a comment that begins with a value", r"'/\*'",
        r"float zz_a = 0x0p+0f/*0.000000e+00;\n\g<0>\nfloat zz_b = 1*/;"),
    row("a comment in another", r"'/\*'", r"float zz_a = 0x0p+0f/*/*0.000000e+00*/;\n\g<0>"),
    row("a comment that ends a line late", r"'\*/'", r"float zz_a = 0x0p+0f*/1;\n\g<0>"),
    row("a barrier in a comment of its own", r"'/\*'", r"/*\g<0>*/"),
    row("a comment of other words than a value", r"'/\*'", r"float zz_a = 0x0p+0f/*zero*/;\n\g<0>"),
    row("a barrier in a comment of a line", "'//'", r"//\g<0>"),
    row("a comment behind a barrier", "'//'", r"\g<0>  // all"),
    row("a line of a directive that goes on", r"'\\\\'", r"#pragma unroll \\\n\g<0>"),
    row("a line that goes on behind a barrier", r"'\\\\'", r"\g<0> \\"),
    row("a line that goes on by a trigraph", r"'\?\?'", r"\1float zz_a = 1 ??/\n\g<0>"),
    row("braces by digraphs", "'<%'", r"<%\n\g<0>\n%>"),
    row("a directive by a digraph", "'%:'", r"%:if 0\n\g<0>\n%:endif"),
    row("a barrier that a directive leaves out", "'#'", r"#if 0\n\g<0>\n#endif"),
    row("a macro in a kernel", "'#'", r"#define __syncthreads()\n\g<0>"),
    row("a directive in a string", "'\"'", r'_Pragma("unroll")\n\g<0>'),
    row("an instruction in a string", "'\"'", r'\g<0>\nasm volatile("bar.sync 0;");'),
    row("a character", '"\'"', r"\g<0>\nint zz_a = 'a';"),
    *(Row(name, *edits(SMALL, NOT_BEFORE.format(re.escape(text)), KERNEL, rf"{text}\n\g<0>")) for name, text in {
        "names of a namespace": "using namespace tl;",
        "a variable before the kernel": "__device__ int other;",
        "a comment before the kernel": "// other",
        "a declaration twice": 'extern "C" __global__ void other();',
    }.items()),
    Row("a directive with a number", *edits(SMALL, "'#pragma unroll 1' is nothing that is known",
        BARRIER, r"#pragma unroll 1\n\g<0>", which="first")),
    Row("a header twice", *edits(SMALL,
        "'#include <math_constants.h>' stands before the kernel, expected '#include <tl_",
        r"^#include <math_constants.h>\n", r"\g<0>\g<0>")),
    Row("an attribute of the kernel", *edits(SMALL, r"line \d+: .* is no kernel of a form that is known",
        KERNEL, r'extern "C" __global__ __noinline__ void \1')),
    *(Row(name, *edits(SMALL, NOT_BEHIND.format(found), END, text)) for name, found, text in (
        ("a function behind the kernel", r"int other\(\) \{ return 0; \}", r"}\nint other() { return 0; }\n"),
        ("a variable behind the kernel's brace", r"\} int other;", "} int other;\n"),
        ("a brace too many", r"\}", "}\n}\n"),
    )),
    Row("another kernel before the kernel", *edits(SMALL, "another kernel, expected no kernel before the main one",
        DECLARED, r'extern "C" __global__ void other(int a);\n\g<0>',
        KERNEL, OTHER + r"}\n__device__ int another;\n\g<0>", which="first")),
    Row("another kernel behind the kernel", *edits(SMALL, "another kernel, expected no kernel behind the main one",
        DECLARED, r'\g<0>\nextern "C" __global__ void other(int a);',
        END, r"}\n" + OTHER + r"  tl_attention_merge<128, false>(a);\n}\n__device__ int another;\n", which="first")),
    Row("a wait for a kernel that is none", *edits(SMALL, r"line \d+ has cudaGridDep.*, expected no kernel before",
        BARRIER, r"\1cudaGridDependencySynchronize();\n\g<0>", which="first")),
    Row("a sign to a kernel that is none", *edits(SMALL, r"line \d+ has cudaTrigger.*, expected no kernel behind",
        BARRIER, r"\1cudaTriggerProgrammaticLaunchCompletion();\n\g<0>", which="first")),
    Row("a function behind the kernel that merges", edit("best_causal, parts", "the kernel that merges parts is",
        END, r"}\nint other() { return 0; }\n"), "it merges no parts"),
    Row("a function behind the kernel that lists", edit("best_causal, packed parts",
        "the kernel that lists the tiles is",
        r'^(extern "C" __global__ void __launch_bounds__.* attention_kernel_1\()', r"int other() { return 0; }\n\1"),
        "it lists no tiles"),
]  # fmt: skip
