"""Scripts of tools/ compare one checkout with another: they accept what is equal, and find what is not."""

from __future__ import annotations

import subprocess
import sys

import golden
import pytest
import same_code
from checkouts import Checkout
from conftest import ROOT
from lower_case import Case, Outcome
from machine_code import normalised
from tiers import exhaustive

HERE = Checkout(ROOT)
TEXT = """
extern "C" __global__ void attention_kernel(float* __restrict__ Output, int seq);
extern "C" __global__ void __launch_bounds__(128, 1) attention_kernel(float* __restrict__ Output, int seq) {
  Output[threadIdx.x] = (float)seq * 2.0f;
}
"""
RENAMED = TEXT.replace("attention_kernel", "forward").replace("seq", "sizes_0").replace("Output", "O")
MOVED = TEXT.replace("(float)seq * 2.0f", "2.0f * (float)(seq)")
VARIABLE = TEXT.replace("  Output[", "  float row[2];\n  int other = 0;\n  row[0] = row[1];\n  Output[")
OTHER = TEXT.replace("2.0f", "3.0f")
BROKEN_TEXT = TEXT.replace("2.0f", "two")


def code(text: str, host: str = "host") -> Outcome:
    return Outcome("code", text, host)


def refused(text: str) -> Outcome:
    return Outcome("refused", text)


@pytest.mark.parametrize(("before", "after", "verdict"), [
    (code(TEXT), code(TEXT), same_code.EQUAL_TEXT),
    (code(TEXT), code(RENAMED), same_code.EQUAL_TEXT),
    (code(TEXT), code(MOVED), same_code.EQUAL_CODE),
    (code(VARIABLE), code(VARIABLE.replace("row", "total")), same_code.EQUAL_TEXT),
    (code(VARIABLE), code(VARIABLE.replace("row[0] = row[1]", "row[0] = other")), same_code.EQUAL_CODE),
    (code(TEXT), code(OTHER), same_code.DIFFERENT),
    (code(TEXT), code(BROKEN_TEXT), same_code.DIFFERENT),
    (code(TEXT), code(TEXT, "another launch"), same_code.DIFFERENT),
    (refused("too large"), refused("too large"), same_code.SAME_REFUSAL),
    (refused("too large"), refused("too wide"), same_code.DIFFERENT),
    (refused("too large"), code(TEXT), same_code.DIFFERENT),
    (Outcome("broken", "TypeError"), Outcome("broken", "TypeError"), same_code.BROKEN),
    (code(TEXT), Outcome("broken", "it took more than 300 s"), same_code.BROKEN),
])  # fmt: skip
def test_the_verdict_of_a_case(before, after, verdict):
    found, why = same_code.compared(before, after, kernel_only=False)
    assert found == verdict
    assert bool(why) == (verdict not in (same_code.EQUAL_TEXT, same_code.SAME_REFUSAL))


def test_the_host_plan_can_be_left_out_and_a_difference_is_shown_with_its_line():
    assert same_code.compared(code(TEXT), code(TEXT, "another launch"), kernel_only=True)[0] == same_code.EQUAL_TEXT
    assert same_code.first_difference("a\nb\n", "a\nc\n") == "line 2:\n- b\n+ c"
    assert same_code.first_difference("a\n", "a\nb\n") == "line 2:\n- (the end)\n+ b"


def test_names_inside_of_others_stay_and_a_text_without_a_kernel_is_none():
    assert "seq_kv[parameter_1]" in normalised(TEXT.replace("(float)seq", "seq_kv[seq]"))
    with pytest.raises(ValueError, match="no kernel in the text"):
        normalised("__device__ int f() { return 1; }")


@exhaustive
def test_a_checkout_is_lowered_to_the_text_that_was_compiled():
    cases = [
        Case("best.yaml", "float16", 128, False),
        Case("experiments/seed/seed_stages4.yaml", "float16", 128, False),
    ]
    best, too_large = same_code.lower_all(HERE, cases, jobs=1, timeout_s=300)
    assert best.kind == "code" and best.text == golden.code("best").source
    assert "attention" in best.host
    assert too_large.kind == "refused" and too_large.text.startswith("ScheduleRefused: needs ")


def test_every_schedule_file_is_a_case_in_its_masks():
    cases = same_code.all_cases(HERE)
    files = {str(path.relative_to(ROOT / "schedules")) for path in (ROOT / "schedules").rglob("*.yaml")}
    assert {case.file for case in cases} == files and len(set(map(str, cases))) == len(cases)
    assert len([case for case in cases if case.file == "best.yaml"]) == 8
    causal = {case.file for case in cases if case.causal and "/" in case.file}
    assert causal == {file for file in files if file.startswith("experiments/causal/")}


def test_a_process_has_no_package_before_it_knows_its_checkout():
    program = "import sys, same_code; sys.exit('tl_attention' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT / "tools", check=True)
