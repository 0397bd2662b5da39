"""Marks say what generated code does where, do nothing but note the time, and are taken out again for the proof."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from golden_kernels import KERNELS
from once import lowered
from tiers import exhaustive

from tl_attention.codeproof.mark_places import KINDS, Mark
from tl_attention.codeproof.marks import ASKED, LIMIT, marked, unmarked
from tl_attention.codeproof.verdict import GeneratedCode
from tl_attention.compiler.compile import compile_kernel
from tl_attention.compiler.generation import without_marks
from tl_attention.errors import ScheduleRefused
from tl_attention.lab.machine_code.of_kernel import MachineCode
from tl_attention.problem.variant import Variant

OF_LOWERINGS = ["best", "mma_sync", "seed", "inferred", "inferred, asked"]
# The first line that is no declaration, by lowering: there the kernel asks for marks.
FIRST = {
    "best": "if (tl::tl_shuffle_elect<0>()) {",
    "seed": "if (tl::tl_shuffle_elect<0>()) {",
    "mma_sync": "first_row =",
    "inferred": "if (tl::tl_shuffle_elect<384>()) {",
    "inferred, asked": "if (tl::tl_shuffle_elect<384>()) {",
}


def asking(name: str) -> str:
    """Returns a kernel's golden code as it would be if the kernel asked for marks."""
    lines = (
        lowered(KERNELS[name])
        .source.replace("attention_kernel(", "attention_kernel(const int64_t* Trace, ")
        .split("\n")
    )
    body = next(n for n, line in enumerate(lines) if "__launch_bounds__" in line)
    first = next(n for n, line in enumerate(lines) if n > body and line.strip().startswith(FIRST[name]))
    return "\n".join([*lines[:first], f"  {ASKED}", *lines[first:]]).replace(
        "int64_t* Trace", "int64_t* __restrict__ Trace"
    )


def steady(name: str) -> list[tuple[str, str]]:
    """Returns what a role does in an iteration of the longest loop over KV blocks, by kind and name."""
    text, marks = marked(asking(name), KINDS)
    loop = re.search(r"\n( *)for \(int (?:t|kv) = 0; .*?\n\1\}", text, re.S)
    assert loop
    numbers = map(int, re.findall(r"tl_attention_mark<(\d+)>", loop[0]))
    return [(marks[number].kind, marks[number].name) for number in numbers]


def test_an_iteration_of_best_is_told_in_order():
    assert steady("best") == [
        ("wait", "named barrier"),
        ("wait", "K_full"),
        ("issue", "mma0"),
        ("wait", "V_full"),
        ("issue", "mma1"),
        ("wait", "mma0"),
        ("vector", "row_max+scale+exp"),
        ("wait", "mma1"),
        ("vector", "exp+row_sum+cast+rescale"),
    ]


def test_an_iteration_of_t_pipelined_is_told_in_order():
    assert steady("seed") == [
        ("load", "K"),
        ("wait", "threads"),
        ("load", "V"),
        ("vector", "mask"),
        ("wait", "copies"),
        ("wait", "threads"),
        ("issue", "mma0"),
        ("wait", "mma0"),
        ("vector", "rescale"),
        ("wait", "copies"),
        ("wait", "threads"),
        ("issue", "mma1"),
        ("wait", "mma1"),
        ("vector", "row_max+scale+exp+row_sum+cast"),
    ]


def test_an_iteration_is_told_where_tilelang_itself_gives_loads_to_a_warpgroup():
    """Its mbarriers are one array, and have the names of what is loaded by them."""
    assert steady("inferred") == [("wait", "K_empty"), ("load", "K"), ("wait", "V_empty"), ("load", "V")]
    told = [(mark.kind, mark.name) for mark in marked(asking("inferred"), KINDS)[1]]
    assert told[told.index(("vector", "mask")) :][:8] == [
        ("vector", "mask"),
        ("wait", "Q_full"),
        ("wait", "K_full"),
        ("issue", "mma0"),
        ("wait", "mma0"),
        ("vector", "row_max+scale+exp+row_sum+cast+rescale"),
        ("wait", "V_full"),
        ("issue", "mma1"),
    ]


def test_an_iteration_of_mma_sync_has_its_fragments_and_products():
    found = steady("mma_sync")
    assert found[:3] == [("wait", "copies"), ("wait", "threads"), ("load", "V")]
    assert {("fragments", name) for name in "KQV"} | {("issue", "mma0"), ("issue", "mma1")} < {*found}


@pytest.mark.parametrize("name", OF_LOWERINGS)
def test_marks_are_put_in_and_taken_out_again(name):
    source = asking(name)
    text, marks = marked(source, KINDS)
    assert unmarked(text, KINDS) == (source.replace(f"  {ASKED}\n", ""), marks)
    assert len(marks) == len(re.findall(r"tl_attention_mark<\d+>\(marks\);", text)) and marks[-1].kind == "end"


def test_marks_of_some_kinds_are_those_among_all():
    every = marked(asking("best"), KINDS)[1]
    assert marked(asking("best"), {"wait", "end"})[1] == tuple(mark for mark in every if mark.kind in ("wait", "end"))


def test_code_that_asks_for_no_marks_gets_none():
    with pytest.raises(SyntaxError, match="the code asks for no marks"):
        marked(lowered(KERNELS["best"]).source, KINDS)


def test_two_vector_statements_are_one_and_two_waits_are_two():
    exp, cast = Mark(3, "vector", "exp"), Mark(9, "vector", "cast+exp")
    assert exp.goes_on(cast) and exp.and_then(cast) == Mark(3, "vector", "exp+cast")
    assert not Mark(3, "wait", "mma0").goes_on(Mark(4, "wait", "mma1")) and not exp.goes_on(Mark(4, "wait", "mma0"))
    # What sets up a product stands before it, and never behind it.
    assert Mark(3, "issue").goes_on(Mark(4, "issue", "mma0")) and not Mark(4, "issue", "mma0").goes_on(Mark(5, "issue"))


MARK, NEXT, BEGIN = ("tl_attention_mark<1>(marks);", "tl_attention_next(marks);", "tl_attention_begin<35>(Trace);")
FAULTS = {
    "a mark stores another lane's time": ("if (thread % 128) return", "if (thread % 128 > 1) return"),
    "a mark stores beyond the records": (f'"n"({LIMIT})', f'"n"({2 * LIMIT})'),
    "a role goes on beyond the records": (f"4 * slots, {LIMIT});", f"4 * slots, {2 * LIMIT});"),
    "a thread that notes nothing begins before their end": (f"marks.at = {LIMIT};", f"marks.at = {LIMIT - 4};"),
    "a role notes in the next one's slots": (BEGIN, "tl_attention_begin<34>(Trace);"),
    "a role goes on to another's record": (NEXT, "tl_attention_next(marks, 1);"),
    "a role does not go on": (NEXT, ""),
    "marks are numbered otherwise": (MARK, "tl_attention_mark<2>(marks);"),
    "a mark is missing": ("tl_attention_mark<3>(marks);", ""),
    "a mark does more": (MARK, f"{MARK} marks.at = 9;"),
    "a line changes where marks are noted": (MARK, f"{MARK}\nmarks.at = 0;"),
    "marks begin twice": (
        "tl_attention_mark<0>(",
        "auto marks = tl_attention_begin<35>(Trace);\ntl_attention_mark<0>(",
    ),
    "a line writes to the buffer": (MARK, f"{MARK}\nTrace[3] = 0;"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_marks_that_do_anything_else_are_refused(fault):
    text, _ = marked(asking("best"), KINDS)
    before, after = FAULTS[fault]
    assert before in text
    code = GeneratedCode(text.replace(before, after, 1), "", Variant(128, "float16", trace=frozenset(KINDS)), ())
    with pytest.raises(ScheduleRefused, match="mark|tl_attention_trace"):
        without_marks(code)
    assert without_marks(GeneratedCode(text, "", code.variant, ())).source == unmarked(text, KINDS)[0]


def test_code_without_marks_is_left_alone():
    code = lowered(KERNELS["best"])
    plain = GeneratedCode(code.source, code.host_plan, code.variant, code.parameters)
    assert without_marks(plain) is plain


@exhaustive
@pytest.mark.parametrize("name", OF_LOWERINGS)
def test_a_kernel_with_marks_is_compiled_and_proved(name):
    """But for its marks it is the same text. Where there is a Program, that is proved too."""
    kernel = KERNELS[name]
    traced = compile_kernel(kernel.schedule, replace(kernel.variant, trace=frozenset(KINDS)))
    assert "tl_attention_begin<" in traced.source and MachineCode(traced).report.loops
    assert [p.name for p in traced.parameters][-1] == "Trace"
    assert traced.verdict.digest if traced.verdict else name.startswith("inferred")
    without = unmarked(traced.source, KINDS)[0]
    assert re.sub(r"const int64_t\* __restrict__ Trace(?:, |(?=\)))", "", without) == lowered(kernel).source


def test_tiles_are_seen_where_nothing_else_is_marked():
    _, marks = marked(asking("best"), {"tile", "end"})
    assert [mark.kind for mark in marks] == ["tile", "tile", "end"]
    text, marks = marked(asking("seed"), {"tile", "end"})
    assert [mark.kind for mark in marks] == ["tile", "end"] and "tl_attention_next<2>(marks);" not in text
