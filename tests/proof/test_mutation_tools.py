"""Tests check the parts of `tools/mutate_code.py`: which mutants there are, and what becomes of them."""

import multiprocessing
from io import StringIO

import pytest
import torch
from code_mutants.compiled import errors_of, same_machine_code
from code_mutants.kernels import KERNELS
from code_mutants.on_gpu import NOT_FINITE, OUTSIDE, RIGHT, UNSTABLE, WRONG, on_shape
from code_mutants.operations import DELETED, DEVICE, HOST, SWAPPED, mutants
from code_mutants.proving import ACCEPTED, BROKEN, REFUSED, TIMEOUT, Answer
from code_mutants.reading import NUMBERS, Code, Verdict
from code_mutants.rewrites import CONDITIONS, REWRITES
from code_mutants.rows import EQUIVALENT, NOT_CPP, SAME, TO_JUDGE, Rows, class_of
from code_mutants.tables import table, to_judge
from mutation_jobs import text_compiled
from once import lowered
from pebble import ProcessPool
from rich.console import Console
from tiers import exhaustive

from tl_attention.lab.measure.candidate import VerifiedProblem
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant

TEXT = """void __launch_bounds__(128, 1) kernel() {
  int a = 4;
  sync(1);
  #pragma unroll
  for (int i = 0; i < 2; ++i) {
    load(i);
  }
  float x = 0x1.8p+0f/*1.500000e+00*/ + 2.5f;
  if (a < 1) {
    sync(5);
  } else {
    sync(7);
  }
}"""
KINDS = ["signature", "integer", "sync", NUMBERS + "other", "loop", "load", "block", NUMBERS + "arithmetic"]
KINDS += ["branch", "sync", "block", "sync", "block", "block"]
HOST_TEXT = '  "text": "heads // 1"\n  }'
CODE = Code(TEXT, HOST_TEXT, Variant(64, "float16"), ())
VERDICT = Verdict(tuple(KINDS), (), "of all events")


def changed(operation: str, part: str = DEVICE) -> list[str]:
    """Returns what the operation makes of the text: the lines that are other, gone or new."""
    before = getattr(CODE, part).split("\n")
    found = [m for m in mutants(CODE, VERDICT, 0, "") if (m.operation, m.part) == (operation, part)]
    texts = [getattr(m.of(CODE), part).split("\n") for m in found]
    return [" ".join(line.strip() for line in text if line not in before) for text in texts]


def test_every_line_of_body_and_launch_is_deleted_once():
    found = [m for m in mutants(CODE, VERDICT, 0, "") if m.operation == DELETED]
    # Of two closing braces beside each other one is enough.
    assert [m.line for m in found if m.part == DEVICE] == list(range(13))
    assert [m.line for m in found if m.part == HOST] == [0]
    assert "sync(1)" not in found[2].of(CODE).source


def test_integers_of_lines_that_are_read_change_and_others_do_not():
    assert changed("+1") == [
        "void __launch_bounds__(129, 1) kernel() {", "void __launch_bounds__(128, 2) kernel() {", "int a = 5;",
        "sync(2);", "for (int i = 1; i < 2; ++i) {", "for (int i = 0; i < 3; ++i) {", "if (a < 2) {", "sync(6);",
        "sync(8);",
    ]  # fmt: skip
    # Twice 0 is 0, and twice 1 one more.
    assert changed("doubled") == [
        "void __launch_bounds__(256, 1) kernel() {", "int a = 8;", "for (int i = 0; i < 4; ++i) {", "sync(10);",
        "sync(14);",
    ]  # fmt: skip
    # Only where a value steers.
    assert changed("+3") == ["int a = 7;"] and changed("-3") == ["int a = 1;"]
    assert changed("-1", HOST) == ['"text": "heads // 0"']


def test_lines_that_are_read_are_written_anew():
    line = "  heads = head + 1;"
    assert {name: len([*rewrite(line)]) for name, rewrite in REWRITES.items()} == {
        "conditional": len(CONDITIONS), "chosen": 3, "cast": 2, "declared": 1, "typed": 0, "followed": 1
    }  # fmt: skip
    assert next(REWRITES["conditional"](line)).split("\n") == ["  if (((int)blockIdx.x) < 131) {", line, "  }"]
    assert [*REWRITES["cast"](line)] == ["  heads = ((uint16_t)head) + 1;", "  heads = ((bool)head) + 1;"]
    # A condition around a declaration would end its scope.
    assert not [*REWRITES["conditional"]("  int heads = 1;")] and not [*REWRITES["declared"]("  int heads = 1;")]
    assert [*REWRITES["typed"]("  int heads = 1;")] == ["  short heads = 1;"]
    assert "load(i); __syncthreads();" in changed("followed")


def test_statements_of_a_block_that_synchronise_are_swapped_whole():
    swaps = [m for m in mutants(CODE, VERDICT, 0, "") if m.operation == SWAPPED]
    assert [(m.spans[0].start, m.spans[1].start) for m in swaps if m.spans] == [(2, 3), (3, 8)]
    lines = swaps[1].of(CODE).source.split("\n")
    assert lines[3].strip() == "if (a < 1) {" and lines[8].strip().startswith("float x")
    assert lines[9].strip() == "#pragma unroll" and len(lines) == len(TEXT.split("\n"))
    assert "<->  if (a < 1) { ... (5 lines)" in swaps[1].shown(CODE)


def test_what_is_drawn_of_the_numbers_depends_on_the_seed_alone():
    first, again, other = (
        [m.key for m in mutants(CODE, VERDICT, 4, seed) if m.drawn] for seed in ("a", "a", "another")
    )
    assert first == again and len(first) == len(set(first)) and set(first) | set(other) <= {
        f"{DEVICE}:{DELETED}:3:-1", f"{DEVICE}:{DELETED}:7:-1"
    }  # fmt: skip


def row(**fields):
    return {"outcome": ACCEPTED, "kind": "sync", "after": "sync", "digest": "changed", **fields}


@pytest.mark.parametrize(("fields", "expected"), [
    ({"outcome": REFUSED}, REFUSED),
    ({"outcome": BROKEN}, BROKEN),
    ({"outcome": TIMEOUT}, TO_JUDGE),
    ({}, TO_JUDGE),
    ({"error": "identifier"}, NOT_CPP),
    ({"digest": "own"}, EQUIVALENT),
    ({"digest": "own", "after": ""}, EQUIVALENT),
    # It shows in large problems alone.
    ({"digest": "own", "after": "", "operation": "chosen"}, TO_JUDGE),
    # What is no longer read may have been changed unseen.
    ({"digest": "own", "after": "numbers: other"}, TO_JUDGE),
    ({"machine": SAME}, EQUIVALENT),
    ({"kind": "numbers: mask", "digest": "own"}, "numbers: mask"),
    # A line that is read in part.
    ({"kind": "load, numbers: layout"}, TO_JUDGE),
    ({"kind": "load, numbers: layout", "digest": "own"}, "numbers: layout"),
])  # fmt: skip
def test_the_class_of_a_mutant(fields, expected):
    assert class_of(row(**fields), "own") == expected


def test_without_a_digest_nothing_is_equivalent():
    assert class_of(row(digest=""), "") == TO_JUDGE


def test_rows_are_kept_and_shown(tmp_path):
    rows = Rows(tmp_path / "kernel.jsonl")
    rows.begin("kernel", CODE, VERDICT, 2)
    first, second = mutants(CODE, VERDICT, 0, "")[:2]
    rows.add(first, Answer(ACCEPTED, digest="other", kind="signature"), "a change")
    rows.add(second, Answer(REFUSED, "no sync"), "another")
    rows.learn(second.key, error="more")
    again = Rows(tmp_path / "kernel.jsonl")
    again.begin("kernel", CODE, VERDICT, 2)
    assert again.found == rows.found and again.found[second.key]["error"] == "more"
    assert to_judge(again) == ["to judge: deleted, line 1 (signature): a change"]
    console = Console(width=160, file=StringIO())
    console.print(table(again))
    assert "2 of 2 mutants, 50.00 % to judge" in console.file.getvalue()


@exhaustive
def test_the_compilers_tell_what_is_no_cpp_and_what_is_the_same():
    source = lowered(KERNELS["seed"]).source
    body = source.index("__launch_bounds__")

    def other(old: str, new: str) -> str:
        assert old in source[body:]
        return source[:body] + source[body:].replace(old, new, 1)

    undefined = other("float acc_o[64];", "")
    template = other("64, 128, 16", "64, 129, 16")
    # Of two with the same error in a template both are told.
    errors = errors_of([source, undefined, template, template, other("  }\n", ""), other("exp2f(", "exp2f(2.0f * ")])
    assert [bool(error) for error in errors] == [False, True, True, True, True, False]
    assert "acc_o" in errors[1] and "unsupported configuration" in errors[3] and "braces" in errors[4]
    small = 'extern "C" __global__ void kernel(float* x) {\n  x[threadIdx.x] *= 2.0f;\n}\n'
    assert same_machine_code(small, small.replace("  x", "  int unused = 0;\n  x"))
    assert not same_machine_code(small, small.replace("2.0f", "3.0f"))


def attention(wrong=lambda output, calls: None):
    """Makes a kernel on the CPU; `wrong` spoils its output, by the number of its calls."""
    calls: list[int] = []

    def kernel(Q, K, V, Output, softmax_scale):
        from tl_attention.lab.oracle.reference import attention_same_precision

        calls.append(1)
        Output.copy_(attention_same_precision(Q, K, V, mask=CAUSAL, scale=softmax_scale))
        wrong(Output, len(calls))

    return kernel


def _outside(output, calls):
    whole = torch.as_strided(output, (1,), (1,), output.storage_offset() + output.numel())
    whole += 1


@pytest.mark.parametrize(("wrong", "outcome"), [
    (lambda output, calls: None, RIGHT),
    (lambda output, calls: output[0, 1, 5].mul_(1.5), WRONG),
    (lambda output, calls: output[0, 0, -1].fill_(float("nan")), NOT_FINITE),
    (_outside, OUTSIDE),
    (lambda output, calls: output[0, 0, 0].add_(0.05 * calls), WRONG),
    (lambda output, calls: output[0, 0, 0, 0].add_(output[0, 0, 0, 0] * 2e-3 * (calls - 1)), UNSTABLE),
])  # fmt: skip
def test_an_output_is_held_to_the_oracle_and_to_its_place(wrong, outcome):
    shape = AttentionShape(1, 2, 70, 90, 64, "float16", CAUSAL)
    assert on_shape(attention(wrong), VerifiedProblem(shape), 1, "cpu").outcome == outcome


@exhaustive
def test_a_changed_text_is_compiled_in_the_place_of_the_generated_one():
    changed = lowered(KERNELS["mma_sync_d64"]).source.replace("exp2f(", "exp2f(0.5f * ")
    # In a process of its own: no kernel that is compiled after it is as it is generated.
    with ProcessPool(1, context=multiprocessing.get_context("spawn")) as pool:
        assert pool.schedule(text_compiled, ["mma_sync_d64", changed, b"machine code"]).result() == changed
