"""A small causal transformer is trained twice, with attention() and with PyTorch's, from equal weights and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from common import compare, on_a_gpu
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from tl_attention import attention

VOCABULARY, HEADS, HEADS_KV, HEAD_DIM = 16, 4, 2, 64
OURS = partial(attention, causal=True)
PYTORCHS = partial(scaled_dot_product_attention, is_causal=True, enable_gqa=True)


class Block(nn.Module):
    """Attention with grouped heads and an MLP, each of which is added to x (batch, seq, width)."""

    def __init__(self, attend: Callable[..., Tensor], heads: int, heads_kv: int, head_dim: int) -> None:
        super().__init__()
        self.attend, self.heads, self.head_dim, width = attend, (heads, heads_kv, heads_kv), head_dim, heads * head_dim
        self.qkv = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, sum(self.heads) * head_dim, bias=False))
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        # q, k and v are views of one tensor, (batch, heads, seq, head_dim).
        q, k, v = self.qkv(x).unflatten(2, (-1, self.head_dim)).transpose(1, 2).split(self.heads, dim=1)
        x = x + self.out(self.attend(rotated(q), rotated(k), v).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


def rotated(x: Tensor) -> Tensor:
    """RoPE rotates pairs of columns by an angle that grows with the position."""
    half = x.shape[3] // 2
    position, pair = (torch.arange(n, device=x.device) for n in (x.shape[2], half))
    angle = position[:, None] * 1e4 ** -(pair / half)
    turned = torch.complex(*x.float().chunk(2, dim=3)) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], dim=3).to(x.dtype)


def model_of(attend: Callable[..., Tensor], layers: int, *heads: int, seed: int, device: str) -> nn.Module:
    """A model that maps tokens (batch, seq) to logits (batch, seq, VOCABULARY); `heads`: heads, heads_kv, head_dim."""
    torch.manual_seed(seed)
    width = heads[0] * heads[2]
    blocks = (Block(attend, *heads) for _ in range(layers))
    last = nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False)
    return nn.Sequential(nn.Embedding(VOCABULARY, width), *blocks, *last).to(device)


def sequences(count: int, seq: int, seed: int) -> Tensor:
    """Tokens (count, seq): nine of ten follow from the two before them, and the tenth is random."""
    torch.manual_seed(seed)
    following = torch.randint(VOCABULARY, (VOCABULARY, VOCABULARY))
    tokens = torch.randint(VOCABULARY, (count, seq))
    for n in range(2, seq):
        known = following[tokens[:, n - 2], tokens[:, n - 1]]
        tokens[:, n] = torch.where(torch.rand(count) < 0.9, known, tokens[:, n])
    return tokens


def losses(model: nn.Module, batches: Iterable[Tensor], rate: float = 1e-3) -> Iterator[Tensor]:
    """Train, and yield the loss of each step. The weights are fp32, the products bf16."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for tokens in batches:
        with torch.autocast(tokens.device.type, torch.bfloat16):
            loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def main(device: str, steps: int = 20) -> None:
    batches = sequences(4 * steps, 129, seed=1).to(device).chunk(steps)
    found = []
    for attend in (OURS, PYTORCHS):
        model = model_of(attend, 2, HEADS, HEADS_KV, HEAD_DIM, seed=2, device=device)
        found.append(torch.stack(list(losses(model, batches))))
    for step in range(0, steps, 5):
        print(f"step {step}: loss {found[0][step]:.4f}, with PyTorch's attention {found[1][step]:.4f}")
    compare("losses", found[0], found[1], tolerance=2e-3)


if __name__ == "__main__":
    on_a_gpu(main)
