"""What was measured before, found by the code and by all that its times depend on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tl_attention.measure.records import Row

# A run in a record that does not name it.
UNNAMED = "an unnamed run"


class Known:
    """Rows by the machine code and problem that they are of, and the machine that ran them.

    The same: fingerprint, arch, sizes fixed or not, problem, nvcc, ptxas and TileLang, whose headers are compiled too, and
    GPU, driver and power limit. Rows without a fingerprint or a GPU are passed over: nothing ran. What failed on the
    GPU is known as well; a caller who wants that tried again leaves such rows out. Of several the first counts.
    """

    def __init__(self, rows: Iterable[Row] = ()):
        self._rows: dict[tuple, Row] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Remember what was measured."""
        if row.fingerprint and row.device:
            self._rows.setdefault(_key(row), row)

    def find(self, draft: Row) -> Row | None:
        """The draft's row if its code was measured: the measurement as it is, the names those of the draft.

        `known_from` says which run it was measured in.
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
