"""Runs all of attention() on the CPU, with the reference in the place of its kernels."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tl_attention.kernels.registry import parameters_of
from tl_attention.lab.oracle.gradient_tile import row_d, row_lse
from tl_attention.lab.oracle.gradients import gradients_from
from tl_attention.lab.oracle.reference import attention_and_lse
from tl_attention.lab.oracle.tile import LOG2_E
from tl_attention.op import backward, checks, compiled, pair, plan, run
from tl_attention.op.launch import FOUND
from tl_attention.op.plan import Plans
from tl_attention.problem.card import HOPPER
from tl_attention.problem.features import INPUTS
from tl_attention.problem.mask import Mask
from tl_attention.problem.packed import words_of_list
from tl_attention.problem.variant import Variant
from tl_attention.problem.warpgroup import ROWS
from tl_attention.schedule.loop.loops import FORWARD
from tl_attention.schedule.schedule import Schedule

# What a kernel does to its tensors after it has computed.
Fault = Callable[[dict[str, Any]], None]


def mask_of(tensors: dict[str, Any], variant: Variant) -> Mask:
    """Returns the mask that a launch computes; a window's sides are among its arguments."""
    sides = (variant.mask.left, variant.mask.right)
    return Mask(*(tensors[side] if isinstance(side, str) else side for side in sides))


def launched(schedule: Schedule, variant: Variant, call: Callable[..., None]) -> Any:
    """Makes a kernel of the schedule for the variant; its launch is `call`, with arguments by name."""
    names = [parameter.name for parameter in parameters_of(schedule, variant) if parameter.kind not in FOUND]
    return SimpleNamespace(launch=lambda *given: call(**dict(zip(names, given, strict=True))))


class Kernels:
    """Kernels notes which kernels were asked for; `fault` spoils what each of them gives."""

    def __init__(self) -> None:
        self.asked: set[tuple[Schedule, Variant]] = set()
        self.fault: Fault = lambda tensors: None

    def kernel_of(self, schedule: Schedule, variant: Variant) -> Any:
        self.asked.add((schedule, variant))
        return launched(schedule, variant, lambda **tensors: self.compute(tensors, variant))

    @torch.autocast("cpu", enabled=False)
    def compute(self, tensors: dict[str, Any], variant: Variant) -> None:
        """Computes what the variant's kernel does, which knows no autocast."""
        if variant.loop != FORWARD:
            (compute_packed_gradients if variant.packed else compute_gradients)(tensors, variant)
            self.fault(tensors)
            return
        if variant.packed:
            self.compute_packed(tensors, variant)
            return
        given = (tensors[name] for name in "QKV")
        there = {feature.word: tensors[feature.name] for feature in INPUTS if feature.name in tensors}
        scale, mask = tensors["softmax_scale"], mask_of(tensors, variant)
        q, k, v = given
        output, lse = attention_and_lse(q, k, v, mask=mask, scale=scale, precise=False, **there)
        names = ("Merged", "MergedLSE") if variant.parts else ("Output", "LSE")
        if variant.parts:
            # All parts are there, and none is too many; that of all keys is what comes out.
            count = len(tensors["Output"]) // len(q)
            assert tensors["Output"].shape[1:] == tensors["Merged"].shape[1:] and count > 0
            assert (count - 1) * tensors["part_blocks"] < k.shape[2] <= count * tensors["part_blocks"] * 256
        tensors[names[0]].copy_(output.reshape(tensors[names[0]].shape))
        if names[1] in tensors:
            tensors[names[1]].copy_(lse.reshape(tensors[names[1]].shape))
        self.fault(tensors)

    def compute_packed(self, tensors: dict[str, Any], variant: Variant) -> None:
        """Computes what the variant's kernel for packed sequences does, sequence by sequence."""
        results = [tensors.get(name) for name in (("Merged", "MergedLSE") if variant.parts else ("Output", "LSE"))]
        if variant.parts:
            # Each head of a tile has two places for results of parts at least.
            places, over = divmod(len(tensors["LSE"]), tensors["Q"].shape[1] // variant.tile_heads * ROWS)
            assert places > 1 and not over and len(tensors["Output"]) == len(tensors["LSE"])
        there = {feature.word: tensors[feature.name] for feature in INPUTS if feature.name in tensors}
        tensors = tensors | {name: folded(tensors[name]) for name in "KV"}
        cu_q, cu_k, used_q, used_k = (tensors[n].tolist() for n in ("CuSeqlensQ", "CuSeqlensK", "SeqUsedQ", "SeqUsedK"))
        for n, (q_begin, k_begin) in enumerate(zip(cu_q[:-1], cu_k[:-1])):
            # Used lengths as long as the offsets stand for none.
            rows, keys = (
                used[n] if len(used) < len(cu) else cu[n + 1] - cu[n] for used, cu in ((used_q, cu_q), (used_k, cu_k))
            )
            places = {"Q": torch.arange(q_begin, q_begin + rows)}
            places |= dict.fromkeys("KV", rows_of_keys(tensors, variant, torch.arange(k_begin, k_begin + keys)))
            q, k, v = (tensors[x][place].transpose(0, 1)[None] for x, place in places.items())
            scale, mask = tensors["softmax_scale"], mask_of(tensors, variant)
            output, lse = attention_and_lse(q, k, v, mask=mask, scale=scale, precise=False, **there)
            results[0][q_begin : q_begin + rows] = output[0].transpose(0, 1).to(results[0].dtype)
            if results[1] is not None:
                results[1][:, q_begin : q_begin + rows] = lse[0]
        self.fault(tensors)


def compute_gradients(tensors: dict[str, Any], variant: Variant) -> None:
    """Computes what the variant's kernel of gradients does, of tensors that lie as it reads them.

    That of dQ leaves LSE and D for whole tiles of 128 rows, and that of dK and dV must be given these.
    """
    sizes = checked_sizes(tensors, variant)
    assert sizes["rows"] == -(-sizes["seq_q"] // 128) * 128
    compute_gradients_of(tensors, variant, sizes["seq_q"])


def checked_sizes(tensors: dict[str, Any], variant: Variant) -> dict[str | int, int]:
    """Returns the sizes, by name, of a launch's tensors, which must lie as a kernel of gradients reads them."""
    sizes: dict[str | int, int] = {}
    for parameter in variant.parameters():
        if parameter.kind != "scalar" and parameter.name != "Tiles":
            given = tensors[parameter.name]
            assert given.data_ptr() % 16 == 0 and given.dim() == len(parameter.dims)
            *outer, last = given.stride()
            strided = variant.strided and parameter.has_columns
            assert given.is_contiguous() or (strided and last == 1 and all(n and n % 8 == 0 for n in outer))
            assert str(given.dtype) == f"torch.{parameter.dtype or variant.dtype}"
            assert all(sizes.setdefault(name, size) == size > 0 for name, size in zip(parameter.dims, given.shape))
    assert sizes["heads"] == sizes["heads_kv"] * variant.some_group
    assert tensors["workers"] > 0
    return sizes


def compute_packed_gradients(tensors: dict[str, Any], variant: Variant) -> None:
    """Computes what the variant's kernel of gradients does of packed sequences, each as a batch of one.

    LSE and D of a sequence lie 128 rows further for each sequence before, so that it shares no row with another, from a
    multiple of 4 on.
    """
    sizes, rows = checked_sizes(tensors, variant), tensors["K" if variant.loop == "dkdv" else "Q"].shape[0]
    cu_q, cu_k, used_q, used_k = (tensors[n].tolist() for n in ("CuSeqlensQ", "CuSeqlensK", "SeqUsedQ", "SeqUsedK"))
    # TMA's strides are multiples of 16 bytes.
    assert (
        sizes["batch"] == 1 and sizes["rows"] % 4 == 0 and tensors["Tiles"] == words_of_list(rows, len(cu_q) - 1, 128)
    )
    for n, ((q, next_q), (k, next_k)) in enumerate(zip(pairwise(cu_q), pairwise(cu_k))):
        # Used lengths as long as the offsets stand for none.
        end_q = q + used_q[n] if len(used_q) < len(cu_q) else next_q
        end_k = k + used_k[n] if len(used_k) < len(cu_k) else next_k
        further, padded = q // 4 * 4 + 128 * n, -(-(end_q - q) // 128) * 128
        assert further + padded <= next_q // 4 * 4 + 128 * (n + 1) <= sizes["rows"]
        if q == end_q:
            # Its keys' tiles read a block of numbers of the queries that it lacks, and store zeros.
            assert not any(tensors[name][..., further : further + 128].any() for name in ("RowLSE", "RowD"))
            for name in {"dK", "dV"} & tensors.keys():
                tensors[name][k:end_k] = 0
            continue
        if k == end_k and variant.loop == "dkdv":
            continue
        of_queries, of_keys = ("Q", "dO", "O", "dQ"), ("K", "V", "dK", "dV")
        places = dict.fromkeys(of_queries, slice(q, end_q)) | dict.fromkeys(of_keys, slice(k, end_k))
        alone = {name: tensors[name][at].transpose(0, 1)[None] for name, at in places.items() if name in tensors}
        alone |= {name: tensors[name][..., further : further + padded] for name in ("RowLSE", "RowD")}
        alone |= {name: tensors[name][None, :, q:end_q] for name in ("LSE", "dLSE") if name in tensors}
        compute_gradients_of(tensors | alone, variant, end_q - q)


def compute_gradients_of(tensors: dict[str, Any], variant: Variant, seq_q: int) -> None:
    """Computes gradients of a batch of so many queries, and stores LSE and D of them, or compares both."""
    q, k, v, grad = (tensors[name] for name in ("Q", "K", "V", "dO"))
    if variant.loop == "dq":
        output, lse = tensors["O"].float(), tensors["LSE"]
        facts = row_lse(lse), row_d(grad.float(), output, lse, tensors.get("dLSE"))
        for name, padding, fact in zip(("RowLSE", "RowD"), (float("inf"), 0.0), facts):
            tensors[name].fill_(padding)[..., :seq_q] = fact
    lse, d = tensors["RowLSE"], tensors["RowD"]
    assert lse[..., seq_q:].isposinf().all() and not d[..., seq_q:].any() and not lse.isneginf().any()
    options: Any = {"mask": mask_of(tensors, variant), "scale": tensors["softmax_scale"], "precise": False}
    options |= {"softcap": tensors["softcap"]} if "softcap" in variant.optional else {}
    for name, gradient in gradients_from(lse[..., :seq_q] / LOG2_E, d[..., :seq_q], q, k, v, grad, **options).items():
        if name in tensors:
            tensors[name].copy_(gradient)


def rows_of_keys(tensors: dict[str, Any], variant: Variant, keys: torch.Tensor) -> torch.Tensor:
    """Returns in which rows of K and V keys lie, which a block table says where they are in pages."""
    if not variant.key_box:
        return keys
    size, rows = tensors["page_size"], tensors["page_rows"]
    assert size % variant.key_box == 0 and len(tensors["K"]) == max(tensors["pages"] - 1, 0) * rows + size
    return tensors["BlockTable"].flatten()[keys // size] * rows + keys % size


def folded(tensor: Tensor) -> Tensor:
    """Returns pages of rows as rows, as the launcher reads them."""
    if tensor.dim() == 3:
        return tensor
    (count, size, *sizes), (first, row, *strides) = tensor.shape, tensor.stride()
    row = first if size == 1 else row
    return tensor.as_strided((max(count - 1, 0) * (first // row) + size, *sizes), (row, *strides))


def take_for_a_gpu(monkeypatch: pytest.MonkeyPatch, kernel_of: Any, sms: int = HOPPER.sms) -> None:
    """Makes `attention` take CPU tensors for those of a Hopper GPU with so many SMs, and run these kernels."""
    forget_plans(monkeypatch)
    monkeypatch.setattr(compiled, "kernel_of", kernel_of)
    monkeypatch.setattr(compiled, "sms_of", lambda device: sms)
    monkeypatch.setattr(checks, "checked_card", lambda device: HOPPER)
    monkeypatch.setattr(plan, "current_device", lambda: None)
    monkeypatch.setattr(pair, "why_none_is_made", lambda: "")
    backward._may.cache_clear()
    monkeypatch.setattr(torch.cuda, "device", nullcontext)


def forget_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the calls of this test plans of their own, as plans hold kernels."""
    monkeypatch.setattr(run, "plans", Plans())


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Makes `attention` run on CPU tensors."""
    kernels = Kernels()
    take_for_a_gpu(monkeypatch, kernels.kernel_of)
    return kernels


@pytest.fixture
def launches(on_cpu: Kernels) -> list[dict[str, Any]]:
    """Returns a list that gets the tensors of each launch."""
    found: list[dict[str, Any]] = []
    on_cpu.fault = found.append
    return found


class Graphs(list[Any]):
    """This backend of torch.compile keeps the graphs that it is given, and runs them as they are."""

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.append(graph)
        return graph


def both(found: Any) -> tuple[Tensor, ...]:
    """Returns what a call gave as a tuple, with an LSE or without."""
    return found if isinstance(found, tuple) else (found,)


def memory_of(tensor: Tensor) -> Tensor:
    """Returns all elements of the memory that a tensor is a part of."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
