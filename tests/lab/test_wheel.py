"""The wheel's calls are calls of `warm`, and name no more kernels than may ship."""

from __future__ import annotations

from importlib import import_module

import pytest
import wheel
from conftest import ROOT

from tl_attention.compiler import archive, store
from tl_attention.compiler.store import Finished
from tl_attention.errors import InputError


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
