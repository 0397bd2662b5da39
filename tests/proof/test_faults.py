"""Every fault of the table is refused in its words, and the kernels without a fault pass."""

import re

import pytest
from code_mutants.reading import Code, prove
from faults import LOWERINGS, TABLE, Edit
from faults.others import OTHERS
from golden_kernels import KERNELS, PROVED
from once import proved
from tiers import exhaustive, sampled

from tl_attention.errors import ScheduleRefused
from tl_attention.problem.mask import ceildiv

OF_ROW = [{name: cell for lowering in LOWERINGS for name, cell in row.faults(lowering).items()} for row in TABLE]
CELLS = {name: cell for cells in OF_ROW for name, cell in cells.items()}
# `make test` tries each fault in one lowering, these in turn, of the kernels that have golden code: not those that take
# long.
GOLDEN = [[name for name, cell in cells.items() if cell.kernel not in OTHERS] for cells in OF_ROW]
KEPT = [names[number % len(names)] for number, (row, names) in enumerate(zip(TABLE, GOLDEN)) if names and not row.long]
# Cells that make a fault of each line: `make test` tries the one in the middle.
MANY = [name for name, cell in CELLS.items() if cell.many]

WITH_PROGRAM = [name for name, kernel in KERNELS.items() if kernel.schedule.has_program]


# Of a fault of each line so many are tried, evenly.
MOST = 6


def refused(cell: Edit, faulty: list[Code]) -> None:
    """Checks that every one of these faults of a cell is refused in the cell's words."""
    for code in faulty:
        with pytest.raises(ScheduleRefused, match=cell.words):
            prove(cell.of.schedule, code)


@pytest.mark.parametrize("name", sampled(CELLS, KEPT))
def test_a_fault_is_refused(name: str) -> None:
    faulty = CELLS[name].faulty()
    refused(CELLS[name], [faulty[len(faulty) // 2]])


@exhaustive
@pytest.mark.parametrize("name", MANY)
def test_a_fault_of_any_such_line_is_refused(name: str) -> None:
    faulty = CELLS[name].faulty()
    refused(CELLS[name], faulty[:: ceildiv(len(faulty), MOST)])


@pytest.mark.parametrize("name", sampled(WITH_PROGRAM, [name for name in WITH_PROGRAM if name in PROVED]))
def test_a_kernel_as_it_is_generated_passes(name: str) -> None:
    assert proved(KERNELS[name]).digest


@exhaustive
@pytest.mark.parametrize("name", OTHERS)
def test_another_kernel_as_it_is_generated_passes(name: str) -> None:
    assert proved(OTHERS[name]).digest


def test_every_row_has_a_fault_in_some_lowering_and_a_reason_in_the_others() -> None:
    names = [row.name for row in TABLE]
    assert len(names) == len({*names})
    for row in TABLE:
        cells = [getattr(row, lowering) for lowering in LOWERINGS]
        assert all(cells) and not all(isinstance(cell, str) for cell in cells), row.name


def test_every_cell_is_of_a_kernel_of_its_lowering_and_has_words() -> None:
    for name, cell in CELLS.items():
        assert name.endswith(f", {cell.of.schedule.lowering}") and cell.words, name
        assert not re.search(cell.words, ""), f"{name}: its words are in any refusal"
