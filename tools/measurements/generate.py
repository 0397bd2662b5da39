"""Times a token of a model that generates, with our attention and with SDPA's cuDNN and flash.

    python tools/measure.py generate --output results/generate-h200.jsonl

The model is a Llama of Transformers from a config, with random weights. Its cache is there, and grows in place. Entries
are sampled in turn: as a CUDA graph of one token's step, and step by step from Python, where the host's time counts.
Before that the graph's tokens must be those of the same steps without a graph, and `what` says how many tokens are
those of Transformers' own attention, "eager". The script takes about a minute on an H200, and needs no network.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from measurements.in_turn import record, timed
from measurements.operator import Flow
from tl_attention import register_transformers
from tl_attention.errors import InputError
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.cell_records import CellRow, Timed
from tl_attention.lab.measure.machine import gpu_fields
from tl_attention.lab.measure.peers import SDPA
from tl_attention.lab.measure.records import problem_of
from tl_attention.lab.measure.timing import GraphBatch, TimedBatch
from tl_attention.problem.shape import AttentionShape

KEYS, TOKENS = (8192, 32768), 32
# What a model's config has, besides as many heads of 128 as fill its width.
SIZES = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 1000,
    "max_position_embeddings": max(KEYS) + TOKENS,
}
EAGER, PLAIN_SDPA = "eager", "sdpa_without_mask"
METHOD = (
    "one token of a Llama with {layers} layers and random weights, whose cache grows in place, {how}; {rounds} rounds, "
    "entries interleaved in one process in alternating order"
)
HOW: dict[str, tuple[type[TimedBatch], str]] = {
    "graph": (GraphBatch, "by replay of a CUDA graph"),
    "host": (Flow, "step by step from Python, while earlier steps run"),
}
Entries = Mapping[str, tuple[str, Callable[[], AbstractContextManager[Any]]]]


def entries() -> Entries:
    """Returns, by the entry's name, the attention that the model is given and the context in which it runs."""
    from transformers import AttentionInterface, AttentionMaskInterface

    # One query sees all keys. Transformers makes a mask while a graph is captured, with which flash does not run.
    AttentionInterface.register(PLAIN_SDPA, _sdpa)
    AttentionMaskInterface.register(PLAIN_SDPA, lambda *given, **more: None)
    peers = {name: (PLAIN_SDPA, functools.partial(sdpa_kernel, backend)) for name, backend in SDPA.items()}
    return {OURS: (register_transformers(), nullcontext), **peers}


def _sdpa(
    module: Any, q: Tensor, k: Tensor, v: Tensor, mask: object, scaling: float, **more: Any
) -> tuple[Tensor, None]:
    output = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scaling, enable_gqa=True)
    return output.transpose(1, 2).contiguous(), None


class Generation:
    """A Generation is a model with a cache of `keys` random keys, to which each token adds one in place."""

    def __init__(self, sizes: Mapping[str, Any], keys: int, device: str):
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(1)
        with torch.device(device):
            model: Any = LlamaForCausalLM(LlamaConfig(**sizes))
            size = (2, sizes["num_key_value_heads"], keys + TOKENS, sizes["head_dim"])
            self.caches = [torch.randn(size, dtype=torch.bfloat16)[:, None] for _ in range(sizes["num_hidden_layers"])]
        self.model, self.keys, self.device = model.to(torch.bfloat16).eval(), keys, device

    @torch.no_grad()
    def logits(self, token: Tensor, at: int, attend: tuple[str, Callable[[], AbstractContextManager[Any]]]) -> Tensor:
        """Returns the logits (vocabulary) behind the token, with number `at` of those that are generated."""
        from transformers.cache_utils import Cache

        keys, (name, context) = self.keys + at, attend
        if self.model.config._attn_implementation != name:
            self.model.set_attn_implementation(name)
        cache = Cache(layers=[_in_place(both, keys) for both in self.caches])
        place = torch.full((1, 1), keys, device=self.device)
        with context():
            return self.model(token, None, place, cache, use_cache=True).logits[0, -1]


def _in_place(both: Tensor, filled: int) -> Any:
    layer = _layer_class()()
    layer.both, layer.filled = both, filled
    return layer


@functools.cache
def _layer_class() -> type[Any]:
    from transformers.cache_utils import DynamicLayer

    class InPlace(DynamicLayer):
        """A layer of a cache has `both` keys and values, of which `filled` are there."""

        both: Tensor
        filled: int
        is_initialized = True

        def update(self, k: Tensor, v: Tensor, *given: Any, **more: Any) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            end = self.filled + k.shape[2]
            self.both[0][:, :, self.filled : end], self.both[1][:, :, self.filled : end] = k, v
            return self.both[0][:, :, :end], self.both[1][:, :, :end]

        def get_seq_length(self) -> int:
            return self.filled

    return InPlace


def equal_tokens(of: Generation, attend: Any, in_graph: bool) -> int:
    """Returns how many tokens are those of "eager", each behind eager's. Raises InputError for a graph's own tokens."""
    token, equal = torch.full((1, 1), 5, device=of.device), 0
    for at in range(TOKENS):
        wanted = of.logits(token, at, (EAGER, nullcontext)).argmax()
        found = of.logits(token, at, attend).argmax()
        if in_graph:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                replayed = of.logits(token, at, attend).argmax()
            graph.replay()
            if not torch.equal(replayed, found):
                raise InputError(f"generate: token {at} of a graph is {replayed.item()}, without one {found.item()}")
        equal += int(torch.equal(wanted, found))
        token = wanted.reshape(1, 1)
    return equal


def measured(
    sizes: Mapping[str, Any], keys: int, rounds: int, common: dict[str, Any], device: str = "cuda"
) -> Iterator[CellRow]:
    """Yields a cell of tokens as graphs and a cell of tokens from the host, ours beside SDPA's."""
    of, attends = Generation(sizes, keys, device), entries()
    told = {
        name: f"{equal_tokens(of, attend, device == 'cuda')} of {TOKENS} tokens" for name, attend in attends.items()
    }
    token = torch.full((1, 1), 5, device=device)
    heads, heads_kv = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    shape = AttentionShape(1, heads, 1, keys + 1, sizes["head_dim"], "bfloat16", heads_kv=heads_kv)
    first, flops = next(iter(SDPA)), shape.flops * sizes["num_hidden_layers"]
    order = [first, *(name for name in attends if name != first)]
    for how, (batches, words) in HOW.items():
        made = {name: batches(functools.partial(of.logits, token, 0, attend)) for name, attend in attends.items()}
        found = timed([Timed(name, told[name], flops) for name in order], made, rounds)
        yield CellRow(
            f"generate_{how}-{keys // 1024}k",
            f"generate_{how}",
            problem_of(shape),
            (found.pop(OURS), *found.values()),
            dict.fromkeys(SDPA, 1.0 if how == "graph" else None),
            method=METHOD.format(layers=sizes["num_hidden_layers"], how=words, rounds=rounds),
            **common,
        )


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("runs/generate.jsonl"), show_default=True)
@click.option("--rounds", type=click.IntRange(15), default=15, show_default=True)
def main(output: Path, rounds: int) -> None:
    """Time a token of a model that generates beside SDPA's backends, and record."""
    common = gpu_fields("generate")
    record((row for keys in KEYS for row in measured(SIZES, keys, rounds, common)), output)
