"""Trains a Llama of Transformers with SDPA's own attention and with ours, and compares step times and losses.

    python tools/measure.py llama --output results/training-llama-h200.jsonl \\
        --losses results/training-llama-losses-h200.jsonl

Models are made from a config, with random weights: 8 layers with 16 heads of 128, and with 32 heads on 8. Each is
trained eagerly and compiled, with SDPA as it is, with SDPA on our kernels (register_sdpa), and with Transformers'
layers on our kernels (register_transformers). Blocks of steps take turns. Users get the same: the backward is chosen by
rule, whose first 100 calls of a shape are over before the clock starts. `seen` has the attention's operators and
kernels of one step.

The losses of shorter trainings with ours, SDPA's flash and SDPA's cuDNN are judged as `training` does (losses.py). The
exit code is 1 if a seed fails, or if ours takes more than 1.01 times SDPA's time. The script takes about 4 minutes on
an H200.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor
from torch._functorch import config as compiling
from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from measurements import training
from measurements.backward import compile_ours
from measurements.losses import BLOCK, WARM_UP_BLOCKS, TrainingRun, judged
from measurements.steps import SDPA, Steps, ratios, seconds
from measurements.training import Setting
from tl_attention import register_sdpa, register_transformers
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.machine import gpu_fields
from tl_attention.lab.measure.peers import SDPA as BACKENDS
from tl_attention.lab.measure.records import problem_of
from tl_attention.lab.measure.results_file import ResultsFile
from tl_attention.lab.measure.trials import in_turn
from tl_attention.problem.shape import AttentionShape

BY_SDPA, BY_TRANSFORMERS = "register_sdpa", "register_transformers"
HEADS, LAYERS, VOCABULARY = ("16", "32/8"), 8, 32000
# A model's attention as Transformers names it, and the context in which the model runs.
Attend = tuple[str, Callable[[], AbstractContextManager[Any]]]
# Steps before the clock starts: the rule's 100 calls of a shape take 13.
WARM_UP, STEPS, ROUNDS = 14, 5, 10
BAR, FAILED = 1.01, 1
HOW = ("eager", "compiled")
METHOD = (
    "training steps of a Llama with random bf16 weights, AdamW fused; the host's clock around blocks of {steps} steps, "
    f"synchronised at their ends, after {WARM_UP} steps of each attention; {{rounds}} rounds, attentions interleaved in one "
    "process in alternating order"
)
OF_LOSSES = (
    f"a Llama with random bf16 weights, AdamW; steps per second: the median of blocks of {BLOCK} steps, synchronised at their "
    f"ends, without the first {WARM_UP_BLOCKS}, the attentions in another order for each seed"
)
ATTENTION = re.compile("attention|sdpa|flash|fmha", re.IGNORECASE)
# Functions around an operator, and nodes of autograd's graph.
AROUND = re.compile(
    r"aten::scaled_dot_product_attention$|aten::_fused_sdp_choice|autograd::|Backward\d*$|Module|\.py\("
)


def attends() -> dict[str, Attend]:
    """Returns the attentions whose steps are timed, by their names in the record."""
    return {
        SDPA: ("sdpa", nullcontext),
        BY_SDPA: ("sdpa", activated),
        BY_TRANSFORMERS: (register_transformers(), nullcontext),
    }


def judged_attends() -> dict[str, Any]:
    """Returns the attentions whose losses are judged, by the names that losses.py knows."""
    backends = {name: ("sdpa", functools.partial(sdpa_kernel, backend)) for name, backend in BACKENDS.items()}
    return {OURS: (register_transformers(), nullcontext), **backends}


@contextmanager
def activated() -> Iterator[None]:
    """Makes SDPA run on our kernels inside the block."""
    activate_flash_attention_impl(register_sdpa())
    try:
        yield
    finally:
        restore_flash_attention_impl()


def llama_of(shape: AttentionShape, layers: int, seed: int, device: str) -> Any:
    """Makes a model whose layers have this problem's attention, as wide as all its heads together."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width = shape.heads * shape.head_dim
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=width * 43 // 16, num_hidden_layers=layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.heads_kv, head_dim=shape.head_dim,
        max_position_embeddings=shape.seq_q,
    )  # fmt: skip
    torch.manual_seed(seed)
    with torch.device(device):
        model: Any = LlamaForCausalLM(config)
    return model.to(torch.bfloat16).train()


# --- times ------------------------------------------------------------------------------------------------------------


class Training:
    """A Training makes steps of one model, on the same tokens each time."""

    def __init__(self, shape: AttentionShape, layers: int, device: str):
        self.model = llama_of(shape, layers, 1, device)
        self.tokens = torch.randint(VOCABULARY, (shape.batch, shape.seq_q), device=device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)

    def steps(self, call: Callable[..., Any], count: int) -> None:
        """Makes so many steps, with `call` as the model."""
        for _ in range(count):
            loss = call(self.tokens, labels=self.tokens).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def compiled(model: Any, backend: str = "inductor") -> Any:
    """Compiles a model by itself: what was compiled of the same model with another attention is not taken for it.

    torch.compile looks at the backend's identity, and neither it nor its cache on the disk at what is enabled in SDPA.
    """
    # It takes seconds to import.
    from torch._dynamo import lookup_backend

    of_name = lookup_backend(backend)
    return torch.compile(model, backend=lambda graph, inputs: of_name(graph, inputs))


def timed(
    shape: AttentionShape, layers: int, how: str, among: Mapping[str, Attend], rounds: int, common: Mapping[str, Any],
    device: str = "cuda", backend: str = "inductor",
) -> list[Steps]:  # fmt: skip
    """Times blocks of steps with each attention, and returns what is recorded of each."""
    of = Training(shape, layers, device)
    calls = {name: compiled(of.model, backend) if how == "compiled" else of.model for name in among}
    seen: dict[str, tuple[str, ...]] = {}
    block_s: dict[str, list[float]] = {name: [] for name in among}

    def run(name: str, count: int, around: Callable[[Callable[[], object]], Any]) -> Any:
        implementation, context = among[name]
        of.model.set_attn_implementation(implementation)
        with context():
            return around(lambda: of.steps(calls[name], count))

    # PyTorch's cache of compiled graphs does not know which backends SDPA has.
    with compiling.patch(enable_autograd_cache=False):
        for name in among:
            run(name, WARM_UP, lambda steps: steps())
            seen[name] = run(name, 1, functools.partial(attention_in, device=device))
    for name in in_turn(list(among), rounds):
        block_s[name].append(run(name, STEPS, functools.partial(seconds, device=device)))
    method = METHOD.format(steps=STEPS, rounds=rounds)
    return [
        Steps(
            f"Llama, {how}", name, problem_of(shape), layers, STEPS, tuple(times), seen=seen[name], method=method,
            seed=1, **common,
        )
        for name, times in block_s.items()
    ]  # fmt: skip


def attention_in(run: Callable[[], object], device: str) -> tuple[str, ...]:
    """Returns the names of the attention's operators and kernels that run; a kernel's arguments are left out."""
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (device == "cuda")]
    with profile(activities=activities) as found:
        seconds(run, device)
    names = {re.split("[<(]", event.key)[0].removeprefix("void ")[:80] for event in found.key_averages()}
    return tuple(sorted(name for name in names if ATTENTION.search(name) and not AROUND.search(name)))


# --- losses -----------------------------------------------------------------------------------------------------------


class Logits(torch.nn.Module):
    """A Logits maps tokens to the logits of a model, which runs in a context."""

    def __init__(self, model: Any, attend: Attend):
        super().__init__()
        implementation, self.context = attend
        model.set_attn_implementation(implementation)
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        with self.context():
            found: Tensor = self.model(tokens, use_cache=False).logits
        return found


@dataclass(frozen=True)
class LlamaSetting(Setting):
    """A LlamaSetting says which Llama is trained."""

    method: str = OF_LOSSES

    def model(self, attend: Any, seed: int, device: str) -> torch.nn.Module:
        """Makes a model with the seed's weights, which do not depend on the attention."""
        return Logits(llama_of(self.shape, self.layers, seed, device), attend)


def problem(heads: str, seq: int) -> AttentionShape:
    """Returns the attention of a model with these heads."""
    return AttentionShape.parse(f"4,{heads},{seq},128", dtype="bfloat16", causal=True)


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("runs/llama.jsonl"), show_default=True)
@click.option("--losses", type=click.Path(path_type=Path), default=Path("runs/llama-losses.jsonl"), show_default=True)
@click.option("--part", "parts", multiple=True, type=click.Choice([*HOW, "losses"]), help="measure this part alone")
@click.option("--seed", "seeds", multiple=True, type=int, default=(1, 2, 3), show_default=True)
def main(output: Path, losses: Path, parts: tuple[str, ...], seeds: tuple[int, ...]) -> None:
    """Train a Llama with SDPA's attention and with ours, record, and judge."""
    common = gpu_fields("llama")
    parts = parts or (*HOW, "losses")
    shapes, of_losses = [problem(heads, 2048) for heads in HEADS], problem(HEADS[0], 1024)
    compile_ours([*shapes, of_losses])
    good = True
    if "losses" in parts:
        setting, among, into = LlamaSetting(of_losses, LAYERS, 100), judged_attends(), ResultsFile(losses)
        training.check_each_runs(setting, among, "cuda")

        def record(run: TrainingRun) -> None:
            into.append_json(run.to_json(), of=run.attention)
            click.echo(training.summary(run))

        for seed in judged(training.measure(setting, among, seeds, "cuda", common, record)):
            click.echo(seed.verdict)
            good &= seed.ok
    results = ResultsFile(output)
    for how in [how for how in HOW if how in parts]:
        for shape in shapes:
            rows = timed(shape, LAYERS, how, attends(), ROUNDS, common)
            for row in rows:
                results.append_json(row.to_json(), of=row.attention)
                click.echo(
                    f"{row.model}, {row.shape}, {row.attention}: {row.step_ms:.2f} ms a step, {', '.join(row.seen)}"
                )
            for name, found in ratios(rows, SDPA).items():
                click.echo(
                    f"    {name} / {SDPA}: {found:.3f}, expected at most {BAR:g}: {'ok' if found <= BAR else 'FAILED'}"
                )
                good &= found <= BAR
            torch.compiler.reset()
            torch.cuda.empty_cache()
    if not good:
        sys.exit(FAILED)
