"""Tests have two tiers: `make test` runs all that are not marked exhaustive, and `make test-all` the others as well."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

exhaustive = pytest.mark.exhaustive


def sampled(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Makes parameters of a test from the cases; `make test` runs those in `kept`."""
    found = [*cases]
    assert kept and all(case in found for case in kept), f"{kept} of {found}"
    rows = [(case, case if isinstance(case, tuple) else (case,)) for case in found]
    return [pytest.param(*values, marks=() if case in kept else exhaustive) for case, values in rows]
