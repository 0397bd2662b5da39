"""The golden code is what TileLang generates, and its kernels are a covering set."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import golden
import pytest
from golden_kernels import KERNELS
from tiers import exhaustive

from tl_attention.files.schedule_file import load
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

BYTES = 300_000
# No kernel has both.
NEVER = {
    frozenset({"causal", "right"}): "a causal mask is a window that is closed on the right",
    frozenset({"output tma", "two sizes"}): "the output would leave through tiles of Q, which have other columns",
}
CALL = ("bf16", "causal", "left", "right", "narrow", "two sizes", "group", "strided", "softcap", "Sinks", "LSE")
PROVED = ("warp_specialized", "pipelined", "mma_sync")


@pytest.mark.parametrize("name", KERNELS)
def test_it_was_lowered_from_what_the_package_traces_now(name: str) -> None:
    assert not golden.stale(name), f"{name}: {golden.STALE}"


@exhaustive
@pytest.mark.parametrize("name", KERNELS)
def test_lowering_gives_the_same_text(name: str) -> None:
    made = golden.lowered_again(name)
    assert (made.source, made.host_source) == golden.texts()[name], f"{name}: {golden.STALE} (--all)"


def test_only_these_kernels_are_kept_in_a_file_of_a_sane_size() -> None:
    assert {*golden.index()} == {*golden.texts()} == {*KERNELS}, golden.STALE
    assert sum(file.stat().st_size for file in golden.FOLDER.iterdir()) < BYTES
    assert len(golden.names()) == len(KERNELS)


def of_call(variant: Variant) -> set[str]:
    """Returns what a call asks for."""
    asked = {
        "bf16": variant.dtype == "bfloat16",
        "causal": variant.mask.right == 0,
        "left": variant.mask.left is not None,
        "right": bool(variant.mask.right),
        "narrow": variant.narrow,
        "two sizes": variant.head_dim != variant.head_dim_v,
        "group": variant.group > 1,
        "strided": variant.strided,
    }
    return {name for name, there in asked.items() if there} | variant.optional


def of_schedule(schedule: Schedule) -> set[str]:
    """Returns the options of a schedule that are not at their defaults."""
    found = set()
    for options in (schedule.kernel, schedule.softmax, schedule.split):
        for name, field in type(options).model_fields.items():
            value = getattr(options, name)
            # How many registers is not an option of the code that is proved.
            if value != field.default and name != "registers":
                found.add(f"{name} {value}" if isinstance(value, str) else name)
    return found


def computed(lowering: str) -> list[str]:
    """Returns the features of a call that a lowering computes."""
    lacks = {"softcap", "Sinks", "narrow", "two sizes"} if lowering == "mma_sync" else set()
    return [feature for feature in CALL if feature not in lacks]


@pytest.mark.parametrize("lowering", PROVED)
def test_each_pair_of_features_is_in_some_kernel(lowering: str) -> None:
    """The pairs are two features of a call, and each feature of a call with each option that a schedule of the set has."""
    there: dict[str, set[str]] = defaultdict(set)
    for kernel in KERNELS.values():
        if kernel.schedule.lowering == lowering:
            features = of_call(kernel.variant) | of_schedule(kernel.schedule)
            for feature in features:
                there[feature] |= features
    options = set().union(*(of_schedule(k.schedule) for k in KERNELS.values() if k.schedule.lowering == lowering))
    pairs = [*combinations(computed(lowering), 2), *product(computed(lowering), options)]
    assert [pair for pair in pairs if pair[1] not in there[pair[0]] and frozenset(pair) not in NEVER] == []


def test_each_option_of_a_shipped_schedule_is_in_some_kernel(schedules_dir) -> None:
    there = {(k.schedule.lowering, option) for k in KERNELS.values() for option in of_schedule(k.schedule)}
    shipped = [load(path) for path in schedules_dir.rglob("*.yaml") if path.parent.parent.name != "ladders"]
    assert {(s.lowering, option) for s in shipped if s.has_program for option in of_schedule(s)} <= there


# --- what is stale is found -------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Puts one kernel's golden code in a folder of its own, and gives a function that writes it with something changed."""
    name = "seed"

    def write(key: str = "", before: str = "", after: str = "") -> str:
        index = json.loads(golden.INDEX.read_text())
        source, host = golden.texts()[name]
        assert not before or before in source
        files = (tmp_path / "kernels.json", tmp_path / "texts.xz")
        files[0].write_text(json.dumps({name: index[name] | ({"key": key} if key else {})}))
        files[1].write_bytes(lzma.compress(json.dumps({name: (source.replace(before, after, 1), host)}).encode()))
        monkeypatch.setattr(golden, "INDEX", files[0])
        monkeypatch.setattr(golden, "TEXTS", files[1])
        forget()
        return name

    def forget() -> None:
        for cached in (golden.index, golden.texts, golden.code):
            cached.cache_clear()

    yield write
    monkeypatch.undo()
    forget()


def test_what_is_kept_as_it_is_is_not_stale(kept) -> None:
    assert not golden.stale(kept())


def test_another_key_is_stale(kept) -> None:
    assert golden.stale(kept(key="0" * 64))


def test_a_changed_letter_is_stale(kept) -> None:
    assert golden.stale(kept(before="cp_async_wait<1>", after="cp_async_wait<2>"))


def test_a_kernel_that_is_traced_otherwise_is_stale(kept, monkeypatch) -> None:
    name = kept()
    another = replace(KERNELS[name], mask=CAUSAL)
    monkeypatch.setitem(KERNELS, name, another)
    golden.code.cache_clear()
    assert golden.stale(name)


# In a copy of the package: what is replaced in the pipelined kernel's file, and whether that makes it stale.
@exhaustive
@pytest.mark.parametrize(
    "old,new,is_stale",
    [('    """', '    """Another docstring. ', False), ("T.fill(s.acc_o, 0)", "T.fill(s.acc_o, 1)", True)],
    ids=["docstring", "statement"],
)
def test_a_changed_kernel_is_stale_and_a_changed_docstring_is_not(tmp_path, old, new, is_stale) -> None:
    root = Path(__file__).parents[1]
    for part in ("tl_attention", "tests", "tools", "schedules"):
        shutil.copytree(root / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "tl_attention/lowering/pipelined/kernel.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    asked = "import golden; print(golden.stale('seed'))"
    here = {"PYTHONPATH": f"{tmp_path}:{tmp_path / 'tests'}", "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, env=here, capture_output=True, text=True)
    assert found.stdout == f"{is_stale}\n", found.stderr
