"""The library works without the laboratory, and without the packages that no caller of a kernel that ships has."""

from conftest import python
from test_rooms import MODULES, imported, room

# What only `tl_attention.lab`, submissions, pictures and the making of kernels import.
NOT_OF_A_CALLER = ("click", "rich", "pebble", "simpy", "pynvml", "matplotlib", "tilelang", "tvm", "tvm_ffi")
CALLS = """
import sys
from importlib.abc import MetaPathFinder

BLOCKED = {blocked!r}
# The reference computes in the place of kernels.
STAND_IN = ("tl_attention.lab", "tl_attention.lab.oracle")

class Block(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        of_the_lab = name.startswith("tl_attention.lab") and not name.startswith(STAND_IN[1]) and name != STAND_IN[0]
        if of_the_lab:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Block())
sys.modules.update(dict.fromkeys(BLOCKED))
import pytest, torch
from on_cpu import Kernels, take_for_a_gpu

from tl_attention import attention, attention_varlen

with pytest.MonkeyPatch.context() as monkeypatch:
    kernels = Kernels()
    take_for_a_gpu(monkeypatch, kernels.kernel_of)
    q, k, v = (torch.randn(1, heads, 70, 64).bfloat16() for heads in (4, 2, 2))
    whole = attention(q, k, v, causal=True)
    offsets = torch.tensor([0, 70], dtype=torch.int32)
    rows = (x[0].transpose(0, 1).contiguous() for x in (q, k, v))
    packed = attention_varlen(*rows, offsets, offsets, 70, 70, causal=True)
    torch.testing.assert_close(packed.transpose(0, 1)[None], whole)
    print(len(kernels.asked), sorted(name for name in sys.modules if name.startswith("tl_attention.lab.") and STAND_IN[1] not in name))
"""


def test_nothing_in_the_library_imports_the_laboratory() -> None:
    for name in MODULES:
        if name != "tl_attention.__main__" and name.count(".") and not room(name).startswith("lab"):
            assert not [other for other in imported(name) if room(other).startswith("lab")], name


def test_calls_run_without_the_laboratory_and_its_packages() -> None:
    done = python("-c", CALLS.format(blocked=NOT_OF_A_CALLER))
    assert done.stdout.split() == ["2", "[]"], done.stderr
