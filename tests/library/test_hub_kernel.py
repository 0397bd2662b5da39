"""The folder of examples/hub_kernel is a kernel for Hugging Face's `kernels`, and for Transformers' loader of such."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT
from models import (
    FAMILIES,
    LAYERS,
    LENGTHS,
    check_logits,
    device,
    gpt_oss,
    launches,
    logits,
    model_of,
    packed,
    padded,
    tokens,
)

from tl_attention import InputError, flash_attn_interface

__all__ = ["device", "launches"]
FOLDER = ROOT / "examples/hub_kernel"
VARIANT = FOLDER / "build/torch-cuda"
# Transformers takes a name for a kernel's by its slash, and for FlashAttention-3's by "flash" and the number.
NAME = "tl-attention/flash-attn3"


def check_functions(module: Any) -> None:
    """Checks that a module has FlashAttention's functions as this package has them."""
    assert {*module.__all__} == {"flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"}
    for name in module.__all__:
        assert getattr(module, name) is getattr(flash_attn_interface, name)


def imported() -> Any:
    """Imports the folder's kernel as `kernels` does: by a file's path, under the id that the metadata has."""
    spec = spec_from_file_location(json.loads((VARIANT / "metadata.json").read_text())["id"], VARIANT / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_the_package_one_line_says_what_is_missing(monkeypatch) -> None:
    check_functions(imported())
    monkeypatch.setitem(sys.modules, "tl_attention.flash_attn_interface", None)
    with pytest.raises(ImportError, match="expected tl_attention: `pip install .` in a checkout of it installs it$"):
        imported()


@pytest.mark.kernels
def test_kernels_loads_the_folder_where_torch_has_cuda_and_nowhere_else(monkeypatch) -> None:
    import kernels
    from packaging.version import Version

    monkeypatch.setattr(kernels.importer, "_loaded_kernels", {})
    monkeypatch.setattr(kernels.backends, "_backend", kernels.backends.CPU)
    with pytest.raises(
        FileNotFoundError, match="torch-cuda: backend \\(cuda\\) does not match system backend \\(cpu\\)"
    ):
        kernels.get_local_kernel(FOLDER)
    monkeypatch.setattr(kernels.backends, "_backend", lambda: kernels.backends.CUDA(version=Version("13.0")))
    check_functions(kernels.get_local_kernel(FOLDER))
    # A path in the environment stands for a repository, so nothing is downloaded and nobody is asked for trust.
    monkeypatch.setenv("LOCAL_KERNELS", f"{NAME}={FOLDER}")
    check_functions(kernels.get_kernel(NAME, version=1))
    [loaded] = kernels.get_loaded_kernels()
    assert (str(loaded.metadata.name), loaded.metadata.license) == ("tl-flash-attn", "MIT")
    assert loaded.metadata.backend.archs == ["9.0"]


@pytest.fixture
def name(device, monkeypatch) -> str:
    """Has Transformers take the folder's kernel for the one of a repository, and returns the repository's name."""
    from transformers import modeling_flash_attention_utils as flash
    from transformers.integrations import hub_kernels

    def kernel(repository: str, **options: Any) -> Any:
        return imported()

    # The `kernels` that this Transformers takes may not be installed.
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", kernel)
    monkeypatch.setattr(flash, "_loaded_implementation", None)
    return NAME


@pytest.mark.transformers
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_runs_on_the_folders_kernel(name, launches, device, family) -> None:
    model = model_of(family, device)
    ids = tokens(device, 2, 21)
    ours = logits(model, name, ids)
    assert len(launches) == LAYERS
    theirs = logits(model, "eager", ids)
    exact = logits(model.double(), "eager", ids)
    assert (ours - exact).norm() <= 2 * (theirs - exact).norm() < 0.2 * exact.norm()


@pytest.mark.transformers
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_and_packed_batches(name, launches, device, side) -> None:
    model = model_of("Llama", device)
    ids, mask = padded(device, side)
    counted = mask.bool()
    check_logits(model, logits(model, name, ids, mask)[counted], [of[m] for of, m in zip(ids, counted)])
    model = model_of("Llama", device)
    batch, sequences = packed(device, with_arguments=side == "left")
    check_logits(model, logits(model, name, **batch)[0], sequences)
    assert len(launches) == 2 * LAYERS and all(variant.packed for variant in launches)


@pytest.mark.transformers
def test_continuous_batching(name, launches, device) -> None:
    """Requests share packed calls, and each is continued as it is alone."""
    import transformers

    model = model_of("Llama", device)
    prompts = [*tokens(device, sum(LENGTHS)).split(LENGTHS)]
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    model.set_attn_implementation("eager")
    expected = [model.generate(ids[None], **options)[0, len(ids) :].tolist() for ids in prompts]
    model.set_attn_implementation(name)
    settings = transformers.GenerationConfig(**options, eos_token_id=-1)
    # Without a limit its cache takes 90 % of a GPU's memory.
    batching = transformers.ContinuousBatchingConfig(max_memory_percent=0.01)
    found = model.generate_batch(
        [ids.tolist() for ids in prompts], generation_config=settings, continuous_batching_config=batching
    )
    assert [found[f"req_{n}"].generated_tokens for n in range(len(prompts))] == expected
    # On a GPU it runs some steps ahead, for its CUDA graphs.
    assert len(launches) >= 4 * LAYERS and all(variant.packed for variant in launches)


@pytest.mark.transformers
@pytest.mark.parametrize("page_size", [16, 256])
def test_continuous_batching_by_its_decode_fast_path(page_size, name, launches, device, monkeypatch) -> None:
    """Steps of one query for each request read pages, and write the new keys to them."""
    import transformers
    from transformers.generation.continuous_batching import initialization

    if not hasattr(initialization, "ensure_decode_fast_path_is_available"):
        pytest.skip("this Transformers has no decode fast path")
    # It is for CUDA alone.
    monkeypatch.setattr(initialization, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True)))
    model = model_of("Llama", device)
    prompts = [*tokens(device, sum(LENGTHS)).split(LENGTHS)]
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0, "eos_token_id": 97}
    model.set_attn_implementation("eager")
    expected = [model.generate(ids[None], **options)[0, len(ids) :].tolist() for ids in prompts]
    model.set_attn_implementation(name)
    settings = transformers.GenerationConfig(**options)
    fields = transformers.ContinuousBatchingConfig.__dataclass_fields__
    # Older ones say block_size.
    batching = transformers.ContinuousBatchingConfig(
        **{"page_size" if "page_size" in fields else "block_size": page_size},
        max_blocks_per_request=4,
        use_cuda_graph=False,
        max_memory_percent=0.01,
    )
    found = model.generate_batch(
        [ids.tolist() for ids in prompts], generation_config=settings, continuous_batching_config=batching
    )
    assert [found[f"req_{n}"].generated_tokens for n in range(len(prompts))] == expected
    assert [variant.key_box for variant in launches] == [0] * LAYERS + [min(page_size, 128)] * 9 * LAYERS


@pytest.mark.transformers
def test_dropout_is_refused_and_not_left_out(name, device) -> None:
    model = model_of("Llama", device).train()
    model.set_attn_implementation(name)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with pytest.raises(InputError, match="^flash_attn: dropout_p is 0.1, expected 0.0: the kernels have no other$"):
        model(tokens(device, 1, 9))


@pytest.mark.transformers
def test_sinks_reach_the_kernels(name, launches, device) -> None:
    """Transformers leaves sinks out, in silence, for functions without an argument for them."""
    model = gpt_oss(device)
    ids = tokens(device, 2, 21)
    # Transformers takes this repository's kernel for such a model, whatever other one it is asked for.
    ours = logits(model, "kernels-community/vllm-flash-attn3", ids)
    assert [variant.optional for variant in launches] == [frozenset({"Sinks"})] * LAYERS
    theirs = logits(model, "eager", ids)
    exact = logits(model.double(), "eager", ids)
    assert (ours - exact).norm() <= 2 * (theirs - exact).norm() < 0.2 * exact.norm()
