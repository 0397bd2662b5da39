"""vLLM computes the prompts of MLA models on the kernels: tests run the plug-in in a stand-in for vLLM, on the CPU."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
import warnings
from abc import abstractmethod, update_abstractmethods
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import ROOT, python
from on_cpu import on_cpu
from torch import Tensor
from vllm_stand_in import PREFILL, MLADimensions, vllm

from tl_attention import InputError, attention_varlen, merge, register_vllm
from tl_attention.op.integrations.vllm import plug_in

__all__ = ["on_cpu", "vllm"]
NOPE, ROPE, VALUE, HEADS = 128, 64, 128, 3
# Of each request the tokens behind its context, and the tokens of its context in each of two chunks.
NEW, CHUNKS = [5, 1, 9], [[7, 0, 4], [0, 0, 6]]


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def chunk_of(context: list[int]) -> SimpleNamespace:
    """Makes a chunk of the context, with what the plug-in reads of one."""
    return SimpleNamespace(
        query_start_loc=offsets(NEW), max_query_len=max(NEW), cu_seq_lens=offsets(context), max_seq_len=max(context)
    )


def keys_and_values(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Makes k and v as vLLM does: both come from one projection, and v stays a part of it."""
    projected = torch.randn(rows, HEADS, NOPE + VALUE, generator=generator).bfloat16()
    k_nope, v = projected.split([NOPE, VALUE], dim=-1)
    k_rope = torch.randn(rows, 1, ROPE, generator=generator).bfloat16().expand(-1, HEADS, -1)
    return torch.cat([k_nope, k_rope], dim=-1), v


@pytest.fixture
def backend(vllm, on_cpu) -> Any:
    """Makes a layer's backend as vLLM does, prepared for the requests above."""
    assert register_vllm() == "CUSTOM"
    backend = vllm.backends.CUSTOM.get_class()(
        num_heads=HEADS, scale=0.11, kv_lora_rank=512, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE, v_head_dim=VALUE,
        vllm_config=None,
    )  # fmt: skip
    backend.prepare_metadata(SimpleNamespace(query_start_loc=offsets(NEW), max_query_len=max(NEW)))
    return backend


@pytest.fixture
def inputs() -> Any:
    """Makes q, k, v of the new tokens, and k, v of each chunk."""
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(sum(NEW), HEADS, NOPE + ROPE, generator=generator).bfloat16()
    chunks = [keys_and_values(sum(context), generator) for context in CHUNKS]
    return SimpleNamespace(q=q, new=keys_and_values(sum(NEW), generator), chunks=chunks)


def test_new_tokens_are_causal_and_give_an_lse_if_asked(backend, inputs) -> None:
    k, v = inputs.new
    assert v.stride(1) == NOPE + VALUE
    lengths = (offsets(NEW), offsets(NEW), max(NEW), max(NEW))
    expected = attention_varlen(inputs.q, k, v, *lengths, causal=True, scale=0.11, return_lse=True)
    output, lse = backend.run_prefill_new_tokens(q=inputs.q, k=k, v=v, return_softmax_lse=True)
    assert output.equal(expected[0]) and lse.equal(expected[1])
    assert output.shape == (sum(NEW), HEADS, VALUE) and (lse.shape, lse.dtype) == ((HEADS, sum(NEW)), torch.float32)
    # As vLLM calls it.
    with torch.inference_mode():
        alone = backend.run_prefill_new_tokens(q=inputs.q, k=k, v=v, return_softmax_lse=False)
    assert isinstance(alone, Tensor) and alone.equal(output)


def test_a_chunk_is_unmasked_and_a_request_without_keys_in_it_weighs_nothing(backend, inputs) -> None:
    for context, (k, v) in zip(CHUNKS, inputs.chunks, strict=True):
        output, lse = backend.run_prefill_context_chunk(chunk=chunk_of(context), q=inputs.q, k=k, v=v)
        assert output.shape == (sum(NEW), HEADS, VALUE) and (lse.shape, lse.dtype) == ((HEADS, sum(NEW)), torch.float32)
        rows = lse.split(NEW, dim=1)
        assert [bool(of.isneginf().all()) for of in rows] == [not length for length in context]
        assert all(of.isfinite().all() for of, length in zip(rows, context, strict=True) if length)
        assert all(not of.any() for of, length in zip(output.split(NEW), context, strict=True) if not length)


def test_chunks_and_new_tokens_merge_into_attention_over_all_keys(backend, inputs) -> None:
    parts = [
        backend.run_prefill_context_chunk(chunk=chunk_of(context), q=inputs.q, k=k, v=v)
        for context, (k, v) in zip(CHUNKS, inputs.chunks, strict=True)
    ]
    k, v = inputs.new
    parts.append(backend.run_prefill_new_tokens(q=inputs.q, k=k, v=v, return_softmax_lse=True))
    outputs = torch.stack([output.transpose(0, 1)[None] for output, _ in parts])
    merged, lse = merge(outputs, torch.stack([of_part[None] for _, of_part in parts]))
    # Of each request the keys lie in this order: its context in both chunks, its new tokens.
    lengths = [sum(of) for of in zip(*CHUNKS, NEW)]
    split = [[x.split(of) for x in pair] for of, pair in zip([*CHUNKS, NEW], [*inputs.chunks, inputs.new], strict=True)]
    keys, values = (torch.cat([part[n][r] for r in range(len(NEW)) for part in split]) for n in (0, 1))
    whole, whole_lse = attention_varlen(
        inputs.q, keys, values, offsets(NEW), offsets(lengths), max(NEW), max(lengths), causal=True, scale=0.11,
        return_lse=True,
    )  # fmt: skip
    assert (lse[0] - whole_lse).abs().max() < 1e-4
    assert (merged[0].transpose(0, 1).float() - whole.float()).abs().max() < 0.02


def test_out_is_written_in_place_where_it_lies(backend, inputs) -> None:
    assert backend.supports_out()
    wide = torch.full((sum(NEW), HEADS, VALUE + 8), 7.0, dtype=torch.bfloat16)
    k, v = inputs.new
    calls = {
        "new tokens": lambda **out: backend.run_prefill_new_tokens(inputs.q, k, v, True, **out),
        "a chunk": lambda **out: backend.run_prefill_context_chunk(
            chunk_of(CHUNKS[0]), inputs.q, *inputs.chunks[0], **out
        ),
    }
    for call in calls.values():
        out = wide[..., :VALUE]
        expected, lse = call()
        found, found_lse = call(out=out)
        assert found.data_ptr() == out.data_ptr() and out.equal(expected) and found_lse.equal(lse)
        assert (wide[..., VALUE:] == 7).all()


def test_vllm_asks_for_the_same_bits_in_every_batch(backend, inputs, vllm, monkeypatch) -> None:
    asked: list[Any] = []
    module = sys.modules[type(backend).__module__]
    monkeypatch.setattr(module, "attention_varlen", lambda *given, **options: asked.append(options["invariant"]) or [0])
    for flag in (False, True):
        vllm.envs.VLLM_BATCH_INVARIANT = flag
        backend.run_prefill_new_tokens(inputs.q, *inputs.new, return_softmax_lse=False)
    assert asked == [None, True]


def test_vllm_is_told_what_the_kernels_have(backend) -> None:
    takes = type(backend).supports_compute_capability
    assert takes(SimpleNamespace(major=9, minor=0))
    assert not takes(SimpleNamespace(major=10, minor=0)) and not takes(None)
    sizes = {(128, 64, 128): True, (192, 64, 256): True, (64, 64, 128): True, (256, 0, 256): True}
    sizes |= {(256, 64, 256): False, (128, 64, 100): False, (0, 0, 0): False}
    names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    for size, served in sizes.items():
        assert type(backend).supports_mla_dimensions(MLADimensions(**dict(zip(names, size)))) is served
    assert type(backend).get_name() == "TL_ATTENTION"


def test_what_the_kernels_lack_is_refused_in_a_line(backend, inputs) -> None:
    with pytest.raises(InputError, match="^vllm: output_scale is given, expected None: the output has q's dtype$"):
        backend.run_prefill_new_tokens(inputs.q, *inputs.new, False, output_scale=torch.ones(1))
    eight = [x.to(torch.float8_e4m3fn) for x in (inputs.q, *inputs.new)]
    with pytest.raises(InputError, match="^attention_varlen: dtype 'float8_e4m3fn' is not supported, expected one of"):
        backend.run_prefill_new_tokens(*eight, False)


def without_vllm(vllm: Any) -> None:
    sys.modules["vllm"] = None  # type: ignore[assignment]


def with_a_chunks_number(vllm: Any) -> None:
    vllm.base.run_prefill_context_chunk = lambda self, chunk_idx, q, k, v: None


def with_a_new_method(vllm: Any) -> None:
    vllm.base.run_again = abstractmethod(lambda self: None)
    update_abstractmethods(vllm.base)


def without_a_registry(vllm: Any) -> None:
    del sys.modules[f"{PREFILL}.registry"].register_mla_prefill_backend


def with_another_plug_in(vllm: Any) -> None:
    vllm.register(vllm.backends.CUSTOM, "other.Prefill")


REFUSED = {
    without_vllm: "vllm: import of vllm halted; None in sys.modules, expected vLLM 0.33 or one with its interface",
    with_a_chunks_number: "vllm: run_prefill_context_chunk has the arguments self, chunk_idx, q, k, v, not self, chunk, q, "
    "k, v, out: expected vLLM 0.33 or one with its interface",
    with_a_new_method: "vllm: run_again is a method that is new: expected vLLM 0.33 or one with its interface",
    without_a_registry: f"vllm: cannot import name 'register_mla_prefill_backend' from '{PREFILL}.registry' (unknown "
    "location), expected vLLM 0.33 or one with its interface",
    with_another_plug_in: "vllm: the backend CUSTOM is other.Prefill already, expected none of another plug-in",
}


@pytest.mark.parametrize("change", REFUSED)
def test_another_vllm_is_refused_in_a_line_and_the_plug_in_only_warns(change, vllm, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", sys.modules["vllm"])
    change(vllm)
    with pytest.raises(InputError) as raised:
        register_vllm()
    assert str(raised.value) == REFUSED[change]
    with pytest.warns(UserWarning) as warned:
        plug_in()
    assert [str(warning.message) for warning in warned] == [f"tl_attention: {raised.value}"]


def test_vllm_may_load_its_plug_ins_twice(vllm) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plug_in()
        plug_in()
    assert vllm.backends.CUSTOM.get_path() == "tl_attention.op.integrations.vllm_prefill.Prefill"


def test_vllm_finds_the_plug_in_and_nothing_imports_vllm_before() -> None:
    [(name, value)] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        "vllm.general_plugins"
    ].items()
    point = importlib.metadata.EntryPoint(name, value, "vllm.general_plugins")
    assert (point.name, point.load()) == ("tl_attention", plug_in)
    found = python(
        "-c", "import sys, tl_attention.op.integrations.vllm; print('vllm' in sys.modules, 'torch' in sys.modules)"
    )
    assert found.stdout.strip() == "False False", found.stderr
