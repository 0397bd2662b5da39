"""Tests check where a warp puts P in shared memory, and in which order with products. Faults: faults/pshared.py."""

import functools
import re

import numpy as np
import pytest
from code_mutants.reading import prove
from faults.others import OTHERS
from golden_kernels import KERNELS
from mutations import shipped
from once import lowered, proved
from tiers import sampled

from tl_attention.codeproof.tiles.tiles import Tile
from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.kernels.warp_specialized.device_code import STORE_P
from tl_attention.program.planned import Planned
from tl_attention.schedule.schedule import Schedule


def changed(**keys: object) -> Schedule:
    """Returns FlashAttention-3's order with P in shared memory, and other keys."""
    return Schedule(**shipped()["fa3_overlap"].model_dump() | {"kernel": {"p_operand": "shared"}} | keys)


PUT = "tl_attention_store_p<"


def puts(source: str) -> list[int]:
    """Returns the numbers, from 0, of the lines that put P, not of the function that they call."""
    lines = source.splitlines()
    return [number for number, line in enumerate(lines) if line.strip().startswith(PUT)]


# As many lines as put P: in the prologue and in each loop, for each chunk.
LINES = {"p_shared": 2, "p_shared_causal": 3, "p_shared, asked": 4, "p_shared, chunks": 6}


@pytest.mark.parametrize("name", sampled(LINES, [name for name in LINES if name in KERNELS]))
def test_every_line_that_puts_p_runs(name):
    kernel = KERNELS.get(name) or OTHERS[name]
    refuse_unless_safe(Planned(kernel.schedule), 64)
    code, verdict = lowered(kernel), proved(kernel)
    found = puts(code.source)
    assert len(found) == LINES[name]
    assert {verdict.kinds[number] for number in found} == {"write, numbers: registers"}
    assert not set(verdict.unreached) & set(found)
    assert "acc_s_cast" not in code.source


def test_the_wait_for_mma1_comes_before_the_cast_that_overwrites_its_operand():
    """The wait is as with P in registers, as statements read and write the same. Other orders are refused."""
    with pytest.raises(
        ScheduleRefused, match=r"^cast\(t\) overwrites acc_s_cast before mma1\(t-1\), emitted later, has"
    ):
        refuse_unless_safe(Planned(changed(order=(-1, 0, 1, 2, 4, -1, 3))), 64)


# --- the device function ---------------------------------------------------------------------------------------------


@functools.cache
def c_expression(name: str) -> str:
    """Returns, as Python, what the device function's text says that a variable, or the address, is."""
    patterns = {"row": r"row = (.*);", "place": r"place = (.*);", "address": r':: "r"\((.*)\),\n'}
    [found] = re.findall(patterns[name], STORE_P.text)
    return found.replace("threadIdx.x", "x").replace("/", "//")


@pytest.mark.parametrize("columns", range(16, 257, 16))
def test_a_lane_puts_16_bytes_of_a_row_where_products_read_them(columns):
    """Lane 8 n + r of stmatrix has the address of row r of matrix n; its rows and columns are those of registers n."""
    tile = Tile("P", 64, columns, 1)
    taken = set()
    assert "panel = columns % 64 == 0 ? 64 : columns % 32 == 0 ? 32 : 16;" in STORE_P.text
    for x in range(128):
        names = {"x": x, "lane": x % 32, "panel": tile.panel, "columns": columns}
        names["row"] = eval(c_expression("row"), {}, names)
        names["own"] = eval(c_expression("place"), {}, names)
        for column in range(0, columns, 16):
            address = eval(c_expression("address"), {}, names | {"column": column})
            matrix, row = divmod(x % 32, 8)
            # Of registers column / 2 + 2 n and the next: columns from 8 (n / 2) on of rows from 8 (n % 2) on.
            origin = x // 32 * 16 + matrix % 2 * 8 + row, column + matrix // 2 * 8
            assert address == 2 * tile.place(*map(np.array, origin))
            taken.add(address)
    assert len(taken) == 64 * columns // 8


def test_p_that_was_not_asked_for_is_refused():
    """Code is refused that puts P in shared memory although the schedule has P in registers."""
    kernel = KERNELS["p_shared"]
    plain = kernel.schedule.model_copy(
        update={"kernel": kernel.schedule.kernel.model_copy(update={"p_operand": "registers"})}
    )
    with pytest.raises(ScheduleRefused, match="'.*' stands before the kernel"):
        prove(plain, lowered(kernel))
