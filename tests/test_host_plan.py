"""A kernel's launch is read off the host code that TileLang generates; any change of it changes the plan or is refused."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from code_mutants.kernels import KERNELS
from once import Given, lowered

from tl_attention.codeproof.read.host_plan import HostPlan, parse_host_source
from tl_attention.errors import InputError
from tl_attention.problem.variant import Variant
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.schedule import Schedule

INFERRED = Schedule(lowering="inferred", block_M=128, block_N=128, threads=256, num_stages=2)
SCHEDULES = {"seed": load(Path(__file__).parents[1] / "schedules" / "seed.yaml"), "inferred": INFERRED}
SIZES = {"batch": 2, "heads": 3, "seq_q": 200, "seq_kv": 300}


@pytest.fixture(scope="module")
def host_sources() -> dict[str, str]:
    return {name: lowered(Given(schedule, Variant(128, "float16"))).host_source for name, schedule in SCHEDULES.items()}


@pytest.fixture(scope="module")
def plans(host_sources: dict[str, str]) -> dict[str, HostPlan]:
    return {name: parse_host_source(source) for name, source in host_sources.items()}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_plan_is_the_launch(plans, name):
    plan = plans[name]
    assert plan.kernel == "attention_kernel"
    assert [extent.at(SIZES) for extent in plan.grid] == [2, 3, 2]
    assert plan.block == ({"seed": 256, "inferred": 384}[name], 1, 1)
    # Q once, K and V twice: 5 tiles of 128 x 128 in fp16.
    assert plan.shared_bytes == 5 * 128 * 128 * 2
    assert {size.name: (size.tensor, size.axis) for size in plan.sizes} == {
        "batch": ("Q", 0), "heads": ("Q", 1), "seq_q": ("Q", 2), "seq_kv": ("K", 2),
    }  # fmt: skip
    assert {p.name for p in plan.parameters if p.kind == "int"} == set(SIZES)
    assert [p.name for p in plan.parameters if p.kind == "float"] == ["softmax_scale"]


@pytest.mark.parametrize(
    "name, tensors", [("seed", ("Output",)), ("inferred", ("K", "Output", "Q", "V"))], ids=["seed", "inferred"]
)
def test_the_descriptors_cover_their_tensors(plans, name, tensors):
    descriptors = {descriptor.tensor: descriptor for descriptor in plans[name].descriptors}
    assert tuple(sorted(descriptors)) == tensors
    for tensor, descriptor in descriptors.items():
        rows = 300 if tensor in "KV" else 200
        assert [extent.at(SIZES) for extent in descriptor.dims] == [128, rows, 3, 2]
        assert [extent.at(SIZES) for extent in descriptor.strides] == [256, rows * 256, 3 * rows * 256]
        # 64 fp16 fill the 128 bytes of the swizzle (3); rows come 128 at a time.
        assert (descriptor.dtype, descriptor.box, descriptor.swizzle) == (6, (64, 128, 1, 1), 3)
        assert descriptor.name in {p.name for p in plans[name].parameters if p.kind == "pointer"}


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("((int64_t)((seq_q + 127) >> 7))", "((int64_t)((seq_k + 127) >> 7))", "seq_k in .* expected one of the sizes"),
        ("((int64_t)((seq_q + 127) >> 7))", "((int64_t)(seq_q - 1))", "Sub in the expression"),
        ("((int64_t)((seq_q + 127) >> 7))", "((int64_t)(seq_q > 0 ? 1 : 2))", "the expression"),
        ("  (((TVMFFIAny*)stack_ffi_any)[15].v_int64)", "    (((TVMFFIAny*)stack_ffi_any)[15].v_int64)", "argument 15"),
        ("((TVMFFIAny*)stack_ffi_any)[8].v_float64", "((TVMFFIAny*)stack_ffi_any)[8].v_bool", "argument 8 of"),
        ("(TVMFFIAny*) stack_ffi_any, 16", "(TVMFFIAny*) other, 16", "argument 16 of a call, or the call, from line"),
        ("stack_ffi_any, 16,", "stack_ffi_any, 40,", "argument 16 of a call, or the call, from line"),
        ("stack_1[16]", "stack_1[8]", r"argument 0 of a call, or the call, from line .*stack_1\[8\]"),
        ("[16].type_index", "[17].type_index", "argument 16 of"),
        ("stack[25]", "stack[24]", "an argument stack of 24 slots, expected 25"),
        ("attention_kernel", "__tvm_other", "no kernel launch after the call of __tvm_other"),
        ("__tvm_tensormap_create_tiled", "__tvm_other", "expected __tvm_set_device, any __tvm_tensormap_create_tiled"),
        ("__tvm_set_device", "__tvm_other", "expected __tvm_set_device, any __tvm_tensormap_create_tiled and one"),
        ("__tvm_tensormap_create_tiled", "__tvm_tensormap_create_im2col", "im2col TMA descriptors are not supported"),
        ("__tvm_tensormap_create_tiled", "first_kernel", "calls of __tvm_set_device, first_kernel, attention_kernel,"),
        ("((int64_t)dev_id)", "((int64_t)0)", "__tvm_set_device of "),
        ("result_2", "result_7", "not numbered as of call 2"),
        ("stack_1", "stack_7", "not numbered as of call 2"),
        ("((double)softmax_scale)", "((double)seq_q)", "seq_q.*, expected one of softmax_scale"),
        ("  void* Output_desc = stack_1;\n", "", "argument 0 of a call, or the call, from line .* stack_1"),
        ("((int64_t)2);\n  (((TVMFFIAny*)stack_ffi_any)[9]", "((int64_t)4);\n  (((TVMFFIAny*)stack_ffi_any)[9]",
         "4.* bytes apart, expected 2"),
        (" void* K = (((DLTensor*)K_handle)", " void* K = (((DLTensor*)V_handle)", r"no definition 'void\* K = "),
        ("  int32_t seq_q = ", "  int32_t heads = ", "a second definition of heads"),
        ("  int32_t seq_q = ", "  int32_t seq_q = 2 * ", "the definition 'int32_t seq_q = 2"),
        ("dev_id = (((DLTensor*)Q_handle)", "dev_id = (((DLTensor*)K_handle)", "no definition 'int32_t dev_id"),
        ("  void* Q = ", "  seq_q = 1;\n  void* Q = ", "the checks of the arguments, from line .*'seq_q = 1;'"),
        ("  void* Q = ", "  return 0;\n  void* Q = ", "the checks of the arguments, from line .*'return 0;'"),
        ("    return -1;\n  }\n  void* Q_handle", "    return 0;\n  }\n  void* Q_handle", "the checks of the"),
        ("  if (!((num_args == 5", "  if (!((num_args = 5", "the checks of the arguments, from line .*num_args = 5"),
        ("  return 0;\n}", "  seq_q = 1;\n  return 0;\n}", "argument 0 of a call, or the call, .*'seq_q = 1;'"),
        ("  return 0;\n}", "  return 1;\n}", "argument 0 of a call, or the call, from line .*'return 1;'"),
        ("((int64_t)4);", "((int64_t)3);", "rank 3 with 24 arguments"),
    ],
)  # fmt: skip
def test_host_code_of_another_form_is_refused(host_sources, old, new, message):
    source = host_sources["seed"]
    assert old in source
    with pytest.raises(InputError, match=message):
        parse_host_source(source.replace(old, new))


def test_host_code_without_a_launch_is_refused():
    with pytest.raises(InputError, match="no kernel launch: not in the form that TileLang 0.1.15 writes"):
        parse_host_source("int main() { return 0; }\n")


def test_division_rounds_as_in_c(host_sources):
    # What TileLang writes for block_M 192.
    tiles = "(((seq_q + 191) / 192) + (((seq_q + 191) % 192) >> 31))"
    extent = parse_host_source(host_sources["seed"].replace("((seq_q + 127) >> 7)", tiles)).grid[0]
    assert [extent.at({"seq_q": rows}) for rows in (1, 192, 193)] == [1, 1, 2]


# Sizes, a grid of the rows' tiles, one descriptor; a cluster, a counter, three descriptors.
NAMES = ("seed", "best_causal")
# Not the digits of int64_t, but those of stack_1.
LITERAL = re.compile(r"(?<![A-Za-z\d])\d+(?!\w)")
NAME = re.compile(r"\b(Q|K|V|Output|TileCounter|softmax_scale|batch|heads|seq_q|seq_kv|[QKV]_desc)\b(?!\")")
HANDLE = re.compile(r"\b(?:attention_)?(Q|K|V|Output)_(?:handle|shape)\b")
DEFINITION = re.compile(r"  (?:int32_t|void\*|float|bool|TL_ALIGN\(128\) TVMFFIAny) [^;]*(?: = [^;]*|\]);")


def launch_lines(lines: list[str]) -> range:
    """Returns the lines from the first argument of the first call to the function's end."""
    first = next(number for number, line in enumerate(lines) if "stack_ffi_any)[" in line)
    return range(first, lines.index("  return 0;") + 1)


def read_lines(lines: list[str]) -> list[int]:
    """Returns the lines that the launch depends on: its own, and before them the definitions, but not the checks."""
    launch = launch_lines(lines)
    start = lines.index("  void* stack_ffi_any = stack;") - 2
    return [n for n in range(start, launch.start) if n == start or DEFINITION.fullmatch(lines[n])] + [*launch]


def deletions(lines: list[str]) -> Iterator[list[str]]:
    for n in read_lines(lines):
        yield [*lines[:n], *lines[n + 1 :]]


def repetitions(lines: list[str]) -> Iterator[list[str]]:
    for n in read_lines(lines):
        yield [*lines[: n + 1], *lines[n:]]


def exchanges(lines: list[str]) -> Iterator[list[str]]:
    """Yields the text with each line and the next one exchanged."""
    for n in launch_lines(lines)[:-1]:
        if lines[n] != lines[n + 1]:
            yield [*lines[:n], lines[n + 1], lines[n], *lines[n + 2 :]]


def replacements(
    lines: list[str], pattern: re.Pattern[str] = LITERAL, others: Sequence[str] = ()
) -> Iterator[list[str]]:
    """Yields the text with each number replaced by its neighbours and its double, or each of the names by the others."""
    group = pattern.groups
    for n in read_lines(lines):
        line = lines[n]
        for match in pattern.finditer(line):
            number = 0 if others else int(match[0])
            for other in others or {str(number + 1), str(number - 1), str(2 * number)}:
                if other != match[group]:
                    yield [*lines[:n], line[: match.start(group)] + other + line[match.end(group) :], *lines[n + 1 :]]


@pytest.fixture(scope="module", params=NAMES)
def host_lines(request: pytest.FixtureRequest) -> list[str]:
    return lowered(KERNELS[request.param]).host_source.split("\n")


@pytest.mark.parametrize(
    "mutants, least",
    [
        (deletions, 200),
        (repetitions, 200),
        (exchanges, 150),
        (replacements, 500),
        (partial(replacements, pattern=NAME, others=("Q", "V_desc", "seq_q", "heads")), 90),
        (partial(replacements, pattern=HANDLE, others=("Q", "K", "Output")), 40),
    ],
)
def test_a_change_of_the_launch_changes_the_plan_or_is_refused(host_lines, mutants, least):
    plan = parse_host_source("\n".join(host_lines))
    tried, silent = 0, []
    for mutant in mutants(host_lines):
        tried += 1
        try:
            same = parse_host_source("\n".join(mutant)) == plan
        except InputError as error:
            assert "host code: " in str(error) and "\n" not in str(error)
            continue
        if same:
            silent.append([line for line in mutant if line not in host_lines])
    assert tried >= least
    assert not silent
