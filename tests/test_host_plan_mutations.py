"""Any change to the lines that launch a kernel, or that define what the launch uses, changes the plan or is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from code_mutants.kernels import KERNELS
from once import lowered

from tl_attention.errors import InputError
from tl_attention.proof.code.host_plan import parse_host_source

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


def replacements(lines: list[str], pattern: re.Pattern[str], others: list[str] | None) -> Iterator[list[str]]:
    """Yields the text with each number replaced by its neighbours and its double, or each of the names by the others."""
    group = pattern.groups
    for n in read_lines(lines):
        line = lines[n]
        for match in pattern.finditer(line):
            number = 0 if others else int(match[0])
            for other in others or {str(number + 1), str(number - 1), str(2 * number)}:
                if other != match[group]:
                    yield [*lines[:n], line[: match.start(group)] + other + line[match.end(group) :], *lines[n + 1 :]]


def literals(lines: list[str]) -> Iterator[list[str]]:
    return replacements(lines, LITERAL, None)


def names(lines: list[str]) -> Iterator[list[str]]:
    return replacements(lines, NAME, ["Q", "V_desc", "seq_q", "heads"])


def handles(lines: list[str]) -> Iterator[list[str]]:
    return replacements(lines, HANDLE, ["Q", "K", "Output"])


@pytest.fixture(scope="module", params=NAMES)
def host_lines(request: pytest.FixtureRequest) -> list[str]:
    return lowered(KERNELS[request.param]).host_source.split("\n")


@pytest.mark.parametrize(
    "mutants, least",
    [(deletions, 200), (repetitions, 200), (exchanges, 150), (literals, 500), (names, 90), (handles, 40)],
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
