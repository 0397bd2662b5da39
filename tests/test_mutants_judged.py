"""Tests check which mutants a person has judged, and which of the harmless mutants are run."""

from __future__ import annotations

from collections import Counter

from code_mutants.judged import reason
from code_mutants.packs import JUDGED, drawn
from code_mutants.proving import ACCEPTED
from code_mutants.rows import EQUIVALENT, Rows


def test_such_as_must_do_no_harm_are_drawn_too(tmp_path):
    rows = Rows(tmp_path / "rows.jsonl")
    rows.head = {"kernel": "dynamic", "digest": "own"}
    told = {"outcome": ACCEPTED, "words": "", "digest": "own", "after": "", "operation": "+1", "kind": "integer"}
    for number in range(9):
        rows.learn(f"source:+1:{number}:0", **told)
    rows.learn("host_source:+1:0:0", **told)
    rows.learn("source:deleted:9:-1", **{**told, **FENCE, "digest": "other"})
    rows.learn("source:deleted:8:-1", **{**told, "digest": "other", "shown": "nobody has judged it"})
    found = drawn([rows], 0, 0, 20, "any")
    assert Counter(row["kind"] for _, row in found) == {EQUIVALENT: 9, JUDGED: 1}
    assert all(row["key"].startswith("source:") for _, row in found)
    assert len(drawn([rows], 0, 0, 4, "any")) == 5


FENCE = {"operation": "deleted", "kind": "fence", "shown": "tl::fence_proxy_async();"}


def sign(before: str, after: str) -> dict[str, str]:
    line = "K_full[((3 & (((base + j) % {}) >> 31)) + ((base + j) % {}))].arrive();"
    shown = f"{line.format(*before.split())}  ->  {line.format(*after.split())}"
    return {"operation": "+1", "kind": "mbarrier", "shown": shown}


def test_a_judgement_is_of_its_kernels_and_of_its_change():
    assert reason("dynamic", FENCE) and not reason("output_tma", FENCE)
    assert reason("best", sign("3 3", "4 3")) and not reason("best", sign("3 3", "3 4"))
