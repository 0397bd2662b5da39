"""The wheel's calls are calls of `warm`; a wheel has their kernels, and runs without a compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import wheel
from conftest import ROOT
from on_cpu import on_cpu

from tl_attention import attention_varlen
from tl_attention.compiler import archive, store
from tl_attention.compiler.store import Finished
from tl_attention.errors import InputError
from tl_attention.problem.card import HOPPER

__all__ = ["on_cpu"]

KERNEL = Finished(b"cubin", "source", "{}", None)
# Eleven kernels: of any strides, and of heads that share K and V; with few queries, in parts and without.
FEW = """
calls:
- words: --head-dim {size} --no-causal --dtype bf16 --strided
  size: [64]
- words: --shape 1,4/1,128,64 --no-causal --dtype bf16
"""
# Says what a package in which only the wheel's own files can be found computes without a compiler.
ALONE = """
import sys
sys.modules.update(dict.fromkeys(("tilelang", "tvm", "tvm_ffi", "click", "rich", "pebble", "simpy", "pynvml")))
from tl_attention.compiler import toolchain
toolchain.nvccs = lambda: iter(())
import tl_attention
from tl_attention import InputError, load_schedule
from tl_attention.compiler.archive import shipped
from tl_attention.compiler.compile import compile_kernel
from tl_attention.problem.variant import Variant
print(tl_attention.__file__.startswith(sys.argv[1]), len(shipped()))
schedule = load_schedule("d64")
for dtype in ("bfloat16", "float16"):
    try:
        print(len(compile_kernel(schedule, Variant(64, dtype, strided=True)).cubin) > 9999)
    except InputError as error:
        print(error)
"""


def test_the_calls_that_ship_have_as_many_kernels_as_their_file_says() -> None:
    kernels, calls = wheel.wanted(wheel.CALLS, HOPPER), [*wheel.calls(wheel.CALLS)]
    assert f"# These are {len(kernels)} kernels, of at most {wheel.MOST_KERNELS}.\n" in wheel.CALLS.read_text()
    assert len({*map(tuple, calls)}) == len(calls)


@pytest.fixture
def few(tmp_path) -> Path:
    (calls := tmp_path / "calls.yaml").write_text(FEW)
    return calls


def test_more_kernels_than_may_ship_are_refused(few, monkeypatch) -> None:
    monkeypatch.setattr(wheel, "MOST_KERNELS", 10)
    with pytest.raises(InputError, match="calls.yaml names 11 kernels, expected 1 to 10"):
        wheel.wanted(few, HOPPER)


def test_a_package_ships_the_kernels_that_a_store_has(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(wheel, "PARTS", ("LICENSE", "tl_attention"))
    wheel.copy_with([("b", store.packed(KERNEL)), ("a", store.packed(KERNEL))], tmp_path)
    package = tmp_path / "tl_attention"
    found = archive.Archive(package / archive.FILE, (package / "shipped_kernels.py").read_text().split('"')[-2])
    assert [store.unpacked(found.kernel(key) or b"") for key in "ab"] == [KERNEL] * 2
    assert (package / archive.FILE).with_suffix(".licences").read_text() == wheel.licences()
    assert not [*package.rglob("*.so")] and not (ROOT / "tl_attention" / archive.FILE).exists()


def test_a_kernel_that_is_not_in_the_store_is_told(few, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path))
    with pytest.raises(InputError, match=r".kernel is damaged or gone, expected it whole: build again"):
        next(wheel.made(wheel.wanted(few, HOPPER)))


def test_licences_of_all_that_is_compiled_in_travel_each_once() -> None:
    text = wheel.licences()
    for words in ("tilelang\n\n", "CUTLASS\n\n/***", "nvidia-cuda-nvcc, nvidia-cuda-crt, nvidia-cuda-runtime, nvidia-"):
        assert text.count(words) == 1


def test_setuptools_packs_the_archive_and_the_licences() -> None:
    assert f'"{archive.FILE}", "kernels.licences"' in (ROOT / "pyproject.toml").read_text()


def test_what_vllm_asks_for_ships(on_cpu, monkeypatch) -> None:
    """Beside vLLM there is another TileLang, so the kernels of the plug-in must ship (op/integrations/vllm.py)."""
    calls = [words for words in wheel.calls(wheel.CALLS) if any("192/128" in word for word in words)]
    monkeypatch.setattr(wheel, "calls", lambda file: iter(calls))
    made = {(one.ours.schedule, one.variant) for one in wheel.wanted(wheel.CALLS, HOPPER)}
    for length in (9, 300):
        ends = torch.tensor([0, length], dtype=torch.int32)
        q, k, projected = (torch.randn(length, 2, size).bfloat16() for size in (192, 192, 256))
        for causal in (False, True):
            options = {"causal": causal, "scale": 0.1, "return_lse": True}
            attention_varlen(q, k, projected[..., 128:], ends, ends, length, length, **options)
    assert len(on_cpu.asked) == 4 and on_cpu.asked <= made


@pytest.mark.exhaustive
def test_a_wheel_of_eleven_kernels_needs_no_compiler(few, tmp_path) -> None:
    tool = [sys.executable, ROOT / "tools/wheel.py", "--calls", few, "--output", tmp_path, "--cache", tmp_path / "k"]
    done = subprocess.run(tool, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [file] = tmp_path.glob("tl_attention-*-cp311-abi3-manylinux_2_17_x86_64.whl")
    assert done.stdout.endswith(f"11 kernels, in {file}\n")
    unpacked = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", file, unpacked], check=True)
    alone = [sys.executable, "-c", ALONE, str(unpacked)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(unpacked), "HOME": str(tmp_path / "home")}
    done = subprocess.run(alone, capture_output=True, text=True, cwd=tmp_path, env=environment)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["True 11", "True"], done.stderr
    assert lines[2].startswith("no kernel ships for this call (head_dim 64, float16), and TileLang")
