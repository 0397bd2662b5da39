"""The wheel's calls are calls of `warm`, and name no more kernels than may ship."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
import wheel
from conftest import ROOT
from on_cpu import on_cpu

from tl_attention import attention_varlen
from tl_attention.compiler import archive, store
from tl_attention.compiler.store import Finished
from tl_attention.errors import InputError

__all__ = ["on_cpu"]


@pytest.fixture
def made(monkeypatch) -> set[object]:
    """Returns the set that gets the kernels that `warm` would compile."""
    found: set[object] = set()
    monkeypatch.setattr(
        import_module("tl_attention.lab.cli.warm"),
        "_filled",
        lambda kernels: found.update((k.schedule, k.variant) for k in kernels) or True,
    )
    return found


def test_the_calls_that_ship_have_as_many_kernels_as_their_file_says(made, cli) -> None:
    calls = [*wheel.calls(wheel.CALLS)]
    for words in calls:
        result = cli("warm", *words, "--arch", "h100")
        assert result.exit_code == 0, (words, result.stderr)
    assert f"# These are {len(made)} kernels, of at most {wheel.MOST_KERNELS}.\n" in wheel.CALLS.read_text()
    assert len({*map(tuple, calls)}) == len(calls) and len(made) <= wheel.MOST_KERNELS


def test_a_package_ships_what_a_store_has_while_a_wheel_is_built(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(wheel, "PACKAGE", tmp_path)
    folder = tmp_path / "store"
    kernel = Finished(b"cubin", "source", "{}", None)
    for key in ("b", "a"):
        store.keep(folder / f"{key}-maker{store.SUFFIX}", kernel)
    with wheel.shipped(folder) as count:
        assert count == 2
        text = (tmp_path / "shipped_kernels.py").read_text()
        found = archive.Archive(tmp_path / archive.FILE, text.split('"')[-2])
        assert [store.unpacked(found.kernel(key) or b"") for key in "ab"] == [kernel] * 2
    assert {*tmp_path.iterdir()} == {folder}
    (folder / f"a-maker{store.SUFFIX}").write_bytes(b"half")
    with pytest.raises(InputError, match=r"a-maker.kernel is damaged, expected it whole"), wheel.shipped(folder):
        pass
    with pytest.raises(InputError, match="has 0 kernels, expected 1 to 800"), wheel.shipped(tmp_path / "none"):
        pass
    assert {*tmp_path.iterdir()} == {folder}


def test_setuptools_packs_the_archive() -> None:
    assert f'"{archive.FILE}"' in (ROOT / "pyproject.toml").read_text()


def test_what_vllm_asks_for_ships(made, cli, on_cpu) -> None:
    """Beside vLLM there is another TileLang, so the kernels of the plug-in must ship (op/integrations/vllm.py)."""
    for words in wheel.calls(wheel.CALLS):
        if "--lse" in words and any("192/128" in word for word in words):
            assert cli("warm", *words, "--arch", "h100").exit_code == 0
    for length in (9, 300):
        ends = torch.tensor([0, length], dtype=torch.int32)
        q, k, projected = (torch.randn(length, 2, size).bfloat16() for size in (192, 192, 256))
        for causal in (False, True):
            options = {"causal": causal, "scale": 0.1, "return_lse": True}
            attention_varlen(q, k, projected[..., 128:], ends, ends, length, length, **options)
    assert len(on_cpu.asked) == 4 and on_cpu.asked <= made
