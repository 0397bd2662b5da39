"""A toy server: prompts run in chunks beside sequences that generate, and all keys lie in pages of one pool.

A step has a fixed number of rows, padded, so that a model's linear layers compute each row by the same kernel whatever
else is in the step; attention does so with `invariant=True`. So a request's logits are those of the request alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from common import compare, on_a_gpu
from torch import Tensor

from tl_attention import attention_varlen

NAME = "pages_of_a_server"
# The rows of a step, the keys of a page, and the pages that a sequence has at most.
ROWS, PAGE, MOST_PAGES = 96, 16, 24


@dataclass
class Request:
    """A Request is a prompt and how many tokens to generate, and what was generated so far."""

    prompt: list[int]
    new: int
    tokens: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)  # those that each token was taken from
    pages: list[int] = field(default_factory=list)
    keys: int = 0  # of the tokens that the model has read

    @property
    def unread(self) -> list[int]:
        """Returns the tokens that the model has not read."""
        return [*self.prompt, *self.tokens][self.keys :]


@dataclass
class Step:
    """A Step is what attention is told of the rows that all layers compute at once."""

    lengths: list[int]  # rows of each sequence
    keys: list[int]  # of each sequence, these rows' included
    pages: list[list[int]]
    device: str

    def __post_init__(self) -> None:
        numbers = {"dtype": torch.int32, "device": self.device}
        self.cu_seqlens_q = torch.tensor([0, *self.lengths], device=self.device).cumsum(0).int()
        self.seqused_k = torch.tensor(self.keys, **numbers)
        self.block_table = torch.tensor([[*of, *[0] * (MOST_PAGES - len(of))] for of in self.pages], **numbers)
        places = [(n, key) for n, rows in enumerate(self.lengths) for key in range(self.keys[n] - rows, self.keys[n])]
        self.positions = torch.tensor([key for _, key in places], device=self.device)
        self.row_pages = torch.tensor([self.pages[n][key // PAGE] for n, key in places], device=self.device)


class Server:
    """A Server runs a model of Transformers on the requests that it is given, many at a time."""

    def __init__(self, model: Any, pages: int, attend: Callable[..., Tensor] = attention_varlen, **options: Any):
        config = model.config
        sizes = (config.num_hidden_layers, pages, PAGE, config.num_key_value_heads, config.head_dim)
        self.model, self.attend, self.options = model, attend, {"invariant": True, **options}
        self.k, self.v = (torch.zeros(sizes, device=model.device, dtype=model.dtype) for _ in "kv")
        self.free, self.waiting, self.running = deque(range(pages)), deque[Request](), list[Request]()
        self.together = 0  # the most sequences of a step
        self._register()

    def _register(self) -> None:
        from transformers import AttentionInterface, AttentionMaskInterface

        AttentionInterface.register(NAME, self._attention)
        AttentionMaskInterface.register(NAME, lambda *arguments, **options: None)
        self.model.set_attn_implementation(NAME)

    def _attention(
        self, layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: None, *, scaling: float, step: Step, **others: Any
    ) -> tuple[Tensor, None]:
        """Writes a layer's keys to their pages, and computes its attention of tensors (1, heads, ROWS, head_dim)."""
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        pools, rows, number = (self.k[layer.layer_idx], self.v[layer.layer_idx]), len(step.positions), max(step.lengths)
        for pool, new in zip(pools, (k, v)):
            pool[step.row_pages, step.positions % PAGE] = new[:rows]
        where = {"seqused_k": step.seqused_k, "block_table": step.block_table}
        given = {"causal": True, "scale": scaling, "zero_unused": True, **self.options}
        output = self.attend(
            q.contiguous(), *pools, step.cu_seqlens_q, None, number, MOST_PAGES * PAGE, **where, **given
        )
        return output[None], None

    def serve(self, requests: Iterable[Request]) -> None:
        """Generates each request's tokens. Raises ValueError for one that needs more pages than there are."""
        self.waiting.extend(requests)
        while self.waiting or self.running:
            self._admit()
            self._step()
            for request in [of for of in self.running if len(of.tokens) == of.new]:
                self.running.remove(request)
                self.free.extend(request.pages)

    def _admit(self) -> None:
        """Gives pages for all their keys to the requests that come next, as long as there are some."""
        while self.waiting and len(self.running) < ROWS:
            request = self.waiting[0]
            needed = -(-(len(request.prompt) + request.new) // PAGE)
            if needed > min(MOST_PAGES, self.k.shape[1]):
                raise ValueError(f"a request needs {needed} pages, expected at most {min(MOST_PAGES, self.k.shape[1])}")
            if needed > len(self.free):
                return
            request.pages = [self.free.popleft() for _ in range(needed)]
            self.running.append(self.waiting.popleft())

    @torch.no_grad()
    def _step(self) -> None:
        """Runs a row of each request that generates, and chunks of prompts in the rows that are left."""
        left, chosen = ROWS, []
        for request in sorted(self.running, key=lambda of: len(of.unread) > 1):
            if rows := min(len(request.unread), left):
                chosen.append((request, request.unread[:rows]))
                left -= rows
        for request, tokens in chosen:
            request.keys += len(tokens)
        of_rows = [len(tokens) for _, tokens in chosen]
        step = Step(of_rows, [of.keys for of, _ in chosen], [of.pages for of, _ in chosen], str(self.model.device))
        ids = torch.tensor([token for _, tokens in chosen for token in tokens] + [0] * left, device=step.device)
        positions = torch.nn.functional.pad(step.positions, (0, left))
        logits = self.model(ids[None], position_ids=positions[None], use_cache=False, step=step).logits[0]
        self.together = max(self.together, len(chosen))
        for (request, _), end in zip(chosen, step.cu_seqlens_q[1:].tolist()):
            if not request.unread:
                request.logits.append(logits[end - 1])
                request.tokens.append(int(logits[end - 1].argmax()))


def model_on(device: str) -> Any:
    """Returns a small Llama with random weights, large enough to make the scores of a row differ."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 97}
    config = LlamaConfig(**heads, **sizes, initializer_range=0.1, pad_token_id=0)
    return LlamaForCausalLM(config).to(device, torch.bfloat16).eval()


def requests_of(number: int, seed: int = 0) -> list[Request]:
    """Draws so many requests, with prompts of 1 to 300 tokens and 1 to 40 to generate."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.rand(number, 2, generator=draw).square()
    return [
        Request(torch.randint(1, 97, (1 + int(prompt * 300),), generator=draw).tolist(), 1 + int(new * 40))
        for prompt, new in sizes.tolist()
    ]


def main(device: str, number: int = 100) -> None:
    model, requests = model_on(device), requests_of(number)
    server = Server(model, pages=200)
    server.serve(requests)
    print(f"{sum(len(of.tokens) for of in requests)} tokens, up to {server.together} sequences at once")
    assert sorted(server.free) == [*range(200)]
    model.set_attn_implementation("eager")
    below = []
    for request in requests:
        # As if the model had read all of it at once: no other token is more likely by much than the one that was taken.
        ids = torch.tensor([[*request.prompt, *request.tokens]], device=device)
        with torch.no_grad():
            logits = model(ids).logits[0, len(request.prompt) - 1 : -1]
        below.append(logits.amax(1) - logits.gather(1, torch.tensor(request.tokens, device=device)[:, None])[:, 0])
    found = torch.cat(below)
    compare("logits below the largest", found, torch.zeros_like(found), tolerance=0.25)


if __name__ == "__main__":
    on_a_gpu(main)
