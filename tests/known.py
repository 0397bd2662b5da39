"""Earlier measurements are found here by the code and by all that its times depend on."""

from collections.abc import Iterable
from dataclasses import replace

from tl_attention.measure.records import Row

# A run in a record that does not name it.
UNNAMED = "an unnamed run"


class Known:
    """Rows that are known are found by their machine code, their problem, and the machine that ran them.

    Rows agree if they have the same fingerprint, arch, sizes (fixed or not), problem, nvcc, ptxas, TileLang (its
    headers are compiled too), GPU, driver and power limit. Rows without a fingerprint or a GPU are passed over: nothing
    ran. What failed on the GPU is known as well; a caller who wants that tried again leaves such rows out. The first of
    several rows counts.
    """

    def __init__(self, rows: Iterable[Row] = ()):
        self._rows: dict[tuple, Row] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Remembers what was measured."""
        if row.fingerprint and row.device:
            self._rows.setdefault(_key(row), row)

    def find(self, draft: Row) -> Row | None:
        """Returns the draft's row if its code was measured: the measurement as it is, with the names of the draft.

        `known_from` says in which run the code was measured.
        """
        found = self._rows.get(_key(draft))
        if found is None:
            return None
        return replace(
            found,
            name=draft.name,
            label=draft.label,
            run=draft.run,
            same_code_as=None,
            known_from=found.measured_in or UNNAMED,
        )


def _key(row: Row) -> tuple:
    machine = (row.device, row.driver, row.power_limit_w, row.nvcc, row.ptxas, row.versions.get("tilelang"))
    return row.fingerprint, row.arch, row.sizes, row.shape, *machine
