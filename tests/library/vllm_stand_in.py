"""This stand-in has as much of vLLM 0.33 as the plug-in meets: the base class of MLA's prefill, and its registry.

Names, signatures and defaults are vLLM's; what they do is written from how vLLM uses them.
"""

import importlib
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

PREFILL = "vllm.v1.attention.backends.mla.prefill"
PLUGIN = "tl_attention.op.integrations.vllm_prefill"


@dataclass(frozen=True, kw_only=True)
class MLADimensions:
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


def make_base() -> type:
    """Makes a base class, which a test may change."""

    class MLAPrefillBackend(ABC):
        supported_dtypes = (torch.float16, torch.bfloat16)

        @staticmethod
        @abstractmethod
        def get_name() -> str:
            raise NotImplementedError

        @classmethod
        def supports_compute_capability(cls, device_capability: Any) -> bool:
            return True

        @classmethod
        def supports_mla_dimensions(cls, mla_dimensions: MLADimensions) -> bool:
            return True

        def supports_out(self) -> bool:
            return False

        def __init__(
            self, num_heads, scale, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, vllm_config
        ) -> None:
            self.scale = scale

        def prepare_metadata(self, prefill_metadata: Any) -> None:
            self._prefill_metadata = prefill_metadata

        @abstractmethod
        def run_prefill_new_tokens(self, q, k, v, return_softmax_lse, out=None, output_scale=None):
            raise NotImplementedError

        @abstractmethod
        def run_prefill_context_chunk(self, chunk, q, k, v, out=None):
            raise NotImplementedError

    return MLAPrefillBackend


def make_registry() -> tuple[type[Enum], Any]:
    """Makes the backends, of which CUSTOM has no class yet, and the function that gives one its class."""
    paths: dict[Enum, str] = {}

    class MLAPrefillBackendEnum(Enum):
        FLASH_ATTN = f"{PREFILL}.flash_attn.FlashAttnPrefillBackend"
        CUSTOM = None

        def get_path(self) -> str:
            return paths.get(self, self.value)

        def get_class(self) -> type:
            module, _, name = self.get_path().rpartition(".")
            return getattr(importlib.import_module(module), name)

        def is_overridden(self) -> bool:
            return self in paths

    def register_mla_prefill_backend(backend: Enum, class_path: str) -> None:
        paths[backend] = class_path

    return MLAPrefillBackendEnum, register_mla_prefill_backend


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Installs the stand-in; gives its `base`, `backends`, `register` and `envs`."""
    base, (backends, register) = make_base(), make_registry()
    envs = SimpleNamespace(VLLM_BATCH_INVARIANT=False)
    names = [".".join(PREFILL.split(".")[:count]) for count in range(1, 7)]
    modules = {name: ModuleType(name) for name in [*names, f"{PREFILL}.base", f"{PREFILL}.registry"]}
    vars(modules["vllm"])["envs"] = envs
    vars(modules[f"{PREFILL}.base"])["MLAPrefillBackend"] = base
    vars(modules[f"{PREFILL}.registry"]).update(MLAPrefillBackendEnum=backends, register_mla_prefill_backend=register)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    forget_plug_in(monkeypatch)
    return SimpleNamespace(base=base, backends=backends, register=register, envs=envs)


def forget_plug_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the plug-in's class made again, of the base class that is there now, and forgotten with the test."""
    monkeypatch.setitem(sys.modules, PLUGIN, ModuleType(PLUGIN))
    del sys.modules[PLUGIN]
