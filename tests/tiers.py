"""The two tiers of the tests: `make test` runs all that are not marked exhaustive, `make test-all` the others as well."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

exhaustive = pytest.mark.exhaustive


def sampled(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """The cases as parameters of a test, of which `make test` runs those that are `kept`."""
    found = [*cases]
    assert kept and all(case in found for case in kept), f"{kept} of {found}"
    rows = [(case, case if isinstance(case, tuple) else (case,)) for case in found]
    return [pytest.param(*values, marks=() if case in kept else exhaustive) for case, values in rows]
