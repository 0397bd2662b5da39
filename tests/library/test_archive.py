"""An archive gives the kernels that were packed, or says that it is damaged; a call takes them without a compiler."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from on_cpu import Kernels, on_cpu

from tl_attention import InputError, attention, attention_varlen
from tl_attention.compiler import archive, compile, store, toolchain
from tl_attention.compiler.archive import BLOCK, Archive, write
from tl_attention.compiler.compile import compile_kernel, is_finished
from tl_attention.compiler.store import Finished, packed, unpacked
from tl_attention.op import compiled
from tl_attention.problem.variant import Variant
from tl_attention.schedule.files.named import load

__all__ = ["on_cpu"]

COUNT = 2 * BLOCK + 3
SCHEDULE, VARIANT = load("inferred"), Variant(128, "float16")
KERNEL = Finished(b"\x7fELF of a kernel", "__global__ void kernel();", "{}", None)


@pytest.fixture
def bodies() -> dict[str, bytes]:
    rng = random.Random(1)
    return {f"{n:064x}": rng.randbytes(50) * rng.randrange(1, 30) for n in range(COUNT)}


@pytest.fixture
def written(tmp_path, bodies) -> tuple[Path, str]:
    """Returns an archive's file and the SHA-256 of its index."""
    file = tmp_path / "kernels.archive"
    return file, write(file, bodies.items())


def test_each_kernel_is_what_was_packed_and_blocks_are_opened_when_asked_for(written, bodies, monkeypatch) -> None:
    opened = list[int]()
    one = Archive._open
    monkeypatch.setattr(Archive, "_open", lambda self, number: opened.append(number) or one(self, number))
    found = Archive(*written)
    assert len(found) == COUNT and not opened
    last = [*bodies][-1]
    assert found.kernel(last) == bodies[last] and opened == [COUNT // BLOCK]
    assert found.kernel("none") is None and "none" not in found and last in found
    assert {key: found.kernel(key) for key in bodies} == bodies and sorted(opened) == [0, 1, 2]


def test_a_flipped_byte_is_never_a_wrong_kernel(written, bodies) -> None:
    file, index = written
    data, rng, told = file.read_bytes(), random.Random(2), 0
    for at in (*range(30), *rng.sample(range(len(data)), 200), *range(len(data) - 40, len(data))):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
        try:
            found = Archive(file, index)
            assert {key: found.kernel(key) for key in bodies} == bodies
        except InputError as error:
            told += 1
            assert "it is not what was packed" in str(error) and "\n" not in str(error)
    assert told > 200


@pytest.mark.parametrize(
    "change", [lambda data: b"", lambda data: data[:9], lambda data: data[:-1], lambda data: data * 2]
)
def test_a_file_of_another_length_is_told(written, change, bodies) -> None:
    file, index = written
    file.write_bytes(change(file.read_bytes()))
    try:
        # Twice the same archive ends as one does.
        first = next(iter(bodies))
        assert Archive(file, index).kernel(first) == bodies[first]
    except InputError as error:
        assert str(error).startswith(f"{file}: it is not what was packed")


def test_the_archive_of_another_version_is_told(written) -> None:
    with pytest.raises(InputError, match="expected the file of this version"):
        Archive(written[0], "0" * 64)


@pytest.fixture
def alone(monkeypatch) -> None:
    """Takes all compilers and TileLang away."""
    monkeypatch.setattr(toolchain, "nvccs", lambda: iter(()))
    monkeypatch.setattr(compile, "tilelang_folder", lambda: None)
    monkeypatch.setattr(compile, "chosen_nvcc", lambda *of: pytest.fail("asked for a compiler"))


def test_a_kernel_that_ships_needs_no_compiler(tmp_path, monkeypatch, alone) -> None:
    file = tmp_path / "kernels.archive"
    index = write(file, [(store.kernel_key(SCHEDULE, VARIANT), packed(KERNEL))])
    monkeypatch.setattr(compile, "shipped", lambda: Archive(file, index))
    found = compile_kernel(SCHEDULE, VARIANT)
    assert (found.cubin, found.source, found.host_plan) == (KERNEL.cubin, KERNEL.source, KERNEL.host_plan)
    assert is_finished(SCHEDULE, VARIANT)


def test_one_that_does_not_ship_says_what_to_install(monkeypatch, alone) -> None:
    monkeypatch.setattr(compile, "shipped", lambda: None)
    monkeypatch.setattr(compile, "cache_enabled", lambda: False)
    with pytest.raises(
        InputError, match=r"128, float16\), and TileLang, .*, is not installed, expected what `pip install 'tl-at"
    ):
        compile_kernel(SCHEDULE, VARIANT)


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("strided", [False, True])
def test_a_kernel_that_ships_serves_contiguous_tensors_and_calls_without_an_lse(
    strided, lse, on_cpu: Kernels, monkeypatch
) -> None:
    monkeypatch.setattr(compiled, "ships", lambda _, one: one.strided is strided and ("LSE" in one.optional) is lse)
    q, k, v = (torch.randn(1, 2, 70, 64).bfloat16() for _ in "qkv")
    # The stride of the one sequence says nothing.
    found = attention(q.as_strided(q.shape, (13, *q.stride()[1:])), k, v)
    [(_, variant)] = on_cpu.asked
    assert (variant.strided, "LSE" in variant.optional) == (strided, lse)
    torch.testing.assert_close(found, torch.nn.functional.scaled_dot_product_attention(q, k, v), atol=0.02, rtol=0)


def test_a_packed_kernel_that_writes_the_lse_serves_calls_without_it(on_cpu: Kernels, monkeypatch) -> None:
    monkeypatch.setattr(compiled, "ships", lambda _, one: "LSE" in one.optional)
    q, k, v = (torch.randn(70, 2, 64).bfloat16() for _ in "qkv")
    offsets = torch.tensor([0, 70], dtype=torch.int32)
    found = attention_varlen(q, k, v, offsets, offsets, 70, 70)
    assert [variant.optional for _, variant in on_cpu.asked] == [{"LSE"}]
    dense = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(0, 1) for x in (q, k, v)))
    torch.testing.assert_close(found, dense.transpose(0, 1), atol=0.02, rtol=0)


@pytest.mark.parametrize("page_size, box", [(128, 16), (32, 16), (16, 16), (8, 8), (1, 1)])
def test_a_kernel_that_ships_serves_larger_pages_in_its_boxes(page_size, box, on_cpu: Kernels, monkeypatch) -> None:
    monkeypatch.setattr(compiled, "ships", lambda _, one: one.key_box == 16)
    q, pages = torch.randn(3, 2, 64).bfloat16(), torch.randn(128 // page_size, page_size, 2, 64).bfloat16()
    offsets, used = torch.tensor([0, 3], dtype=torch.int32), torch.tensor([100], dtype=torch.int32)
    table = torch.arange(len(pages), dtype=torch.int32)[None]
    found = attention_varlen(q, pages, pages, offsets, None, 3, 128, seqused_k=used, block_table=table)
    assert [variant.key_box for _, variant in on_cpu.asked] == [box]
    keys = pages.flatten(0, 1)[:100].transpose(0, 1)
    expected = torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1), keys, keys)
    torch.testing.assert_close(found, expected.transpose(0, 1), atol=0.02, rtol=0)


@pytest.mark.parametrize("variable", [store.OPTION, *store.HEADERS])
def test_an_environment_that_changes_kernels_takes_none_that_ships(variable, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(variable, f"{tmp_path}")
    monkeypatch.setattr(compile, "shipped", lambda: pytest.fail("asked for what ships"))
    assert not is_finished(SCHEDULE, Variant(128, "float16", group=77)) and store.environment() == {
        variable: f"{tmp_path}"
    }


def test_a_checkout_has_none_and_a_package_whose_file_is_gone_says_so(tmp_path, monkeypatch) -> None:
    assert archive.shipped() is None and unpacked(packed(KERNEL)) == KERNEL
    (tmp_path / "some_shipped_kernels.py").write_text('INDEX_SHA256 = "0"\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(archive, "MODULE", "some_shipped_kernels")
    archive.shipped.cache_clear()
    with pytest.raises(
        InputError, match=r"kernels.archive: No such file or directory, expected the file of this version"
    ):
        archive.shipped()
    archive.shipped.cache_clear()


def test_what_is_packed_is_a_stores_file_without_its_seal(tmp_path: Path) -> None:
    file: Any = tmp_path / f"key-maker{store.SUFFIX}"
    store.keep(file, KERNEL)
    assert file.read_bytes()[: -store.SEAL] == packed(KERNEL) and store.read(file) == KERNEL
