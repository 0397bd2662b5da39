"""The tensors of `attention_varlen` are packed: rows of sequences of any lengths, which lie one behind the other.

Where sequences lie, tensors on the GPU say, and the host never reads them.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tl_attention.errors import InputError, shown
from tl_attention.op import checks, compiled
from tl_attention.op.call import Call
from tl_attention.op.checks import Checked, checked_output, prefixed
from tl_attention.op.few import may_be_split, most_unsplit_keys, packed_heads, splits_equal
from tl_attention.op.in_memory import BHSD, check_place, whole_strides
from tl_attention.op.launch import Launch
from tl_attention.op.pages import Pages, as_rows
from tl_attention.op.plan import LaidOut, Plan, shared_fields
from tl_attention.problem.bounds import check_totals
from tl_attention.problem.mask import WIDEST, Mask, shortened
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import PAGES, Variant
from tl_attention.schedule.files.backward import packed_masks_alike
from tl_attention.schedule.files.defaults import class_of_lengths, computed_problem
from tl_attention.schedule.schedule import Schedule

NAMES = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")
LONGEST = ("max_seqlen_q", "max_seqlen_k")
# The operator's options for Pages.
OF_PAGES = ("page_size", "page_rows", "pages")
# Sequences are about equally long if the longest is so many times as long as all on average, at most.
EQUAL = 1.25
# Up to so many rows, keys and sequences together a plan's calls need no look at the bounds.
FEW = 1 << 22
# A window's sides are cut to this, or to the totals if these are more.
LONG_SIDE = 1 << 24


class PackedArguments(NamedTuple):
    """PackedArguments hold what `attention_varlen` was given of where sequences lie."""

    cu_seqlens_q: Tensor  # int32 (sequences + 1,)
    cu_seqlens_k: Tensor  # likewise
    seqused_q: Tensor | None  # int32 (sequences,)
    seqused_k: Tensor | None  # likewise
    max_seqlen_q: int
    max_seqlen_k: int
    pages: Pages | None = None
    # Writes keys, after a call is checked and before a kernel reads them.
    write: Callable[[], None] | None = None


class Packed(PackedArguments):
    """A Packed says that tensors are (rows, heads, columns), where sequences begin, and how long the longest are."""

    __slots__ = ()
    function = "attention_varlen"
    dimensions = ("total", "heads", "head_dim")
    expected_dimensions = ("total_q, heads, head_dim", "total_k, heads_kv, head_dim")
    layout = BHSD

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        """Returns the tensors that say where sequences lie by their names as arguments."""
        found: dict[str, Tensor | None] = dict(zip(NAMES, self[:4]))
        return found if self.pages is None else found | {"block_table": self.pages.table}

    # --- for a key and its checks ---

    def sizes(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor | None) -> tuple[object, ...] | None:
        """Returns the sizes of a call as its key has them, without a total and the number of sequences.

        It returns None for a call that needs more checks than those of its key.
        """
        cu_q, cu_k, used_q, used_k, most_q, most_k, pages, _ = self
        # A tensor of other dimensions raises a ValueError here, which says that there is no key.
        (total_q, heads, head_dim), (bounds,), (bounds_k,), device = q.shape, cu_q.shape, cu_k.shape, q.device
        of_pages = None
        if pages is None:
            (total_k, heads_k, columns_k), (total_v, heads_v, columns_v) = k.shape, v.shape
        else:
            pool = pages.pool or pages.pool_sizes(k, v)
            # Longer ones are checked anew in each call.
            if pool is None or pool.sequences != bounds - 1 or pool.keys > FEW - total_q:
                return None
            (total_k, heads_k, columns_k), (total_v, heads_v, columns_v) = pool.k, pool.v
            of_pages = pages.size, pages.number < 2, k.dim()
        if not (
            (type(cu_q) is type(cu_k) is Tensor and cu_q.dtype is cu_k.dtype is torch.int32)
            and (cu_q.device == cu_k.device == device and cu_q.is_contiguous() and cu_k.is_contiguous())
            and (used_q is None or (_is_plain(used_q, device) and used_q.shape[0] == bounds - 1))
            and (used_k is None or (_is_plain(used_k, device) and used_k.shape[0] == bounds - 1))
            and (type(most_q) is type(most_k) is int and most_q >= 0 and most_k >= 0)
            and (bounds == bounds_k > 1 and total_k == total_v > 0 and 0 < total_q <= FEW - total_k - bounds)
            and (out is None or out.shape[:1] == (total_q,))
        ):
            return None
        of_out = None if out is None else tuple(out.shape[1:])
        # The stride of a single row says nothing.
        single, classes = (total_q == 1, total_k == 1), class_of_lengths(most_q, most_k, heads // (heads_k or 1) or 1)
        return heads, head_dim, heads_k, columns_k, heads_v, columns_v, of_out, single, classes, of_pages

    def by_rows(self, call: Call) -> Call:
        """Returns the call with k and v (rows, heads_kv, columns), also where keys are in pages.

        Raises InputError for pages that no kernel reads where they lie.
        """
        if self.pages is None or call.k.dim() == len(self.dimensions):
            return call
        k, v = as_rows(call.k, call.v, self.pages)
        return call._replace(k=k, v=v)

    def canonical(self, tensor: Any) -> Any:
        """Returns the tensor itself, as there is one layout."""
        return tensor

    def check_offsets(self, q: Tensor) -> None:
        """Raises InputError for offsets, used lengths or longest lengths that are wrong beside such a q.

        Tensors are contiguous int32 of matching lengths on q's device. What they hold is not read.
        """
        for fault in self._faults_of_offsets(q):
            raise InputError(f"attention_varlen: {fault}")

    def _faults_of_offsets(self, q: Tensor) -> Iterator[str]:
        for name, tensor in zip(NAMES, self[:4]):
            of_used = name.startswith("seqused")
            expected = (
                f"expected contiguous torch.int32 {'(sequences,)' if of_used else '(sequences + 1,)'} on {q.device}"
            )
            if isinstance(tensor, Tensor) and not _is_plain(tensor, q.device):
                lies = "" if tensor.is_contiguous() else "not contiguous "
                yield f"{name} is {lies}{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, {expected}"
            elif not (isinstance(tensor, Tensor) or (tensor is None and of_used)):
                yield f"{name} is {type(tensor).__name__}, {expected}"
        bounds = self.cu_seqlens_q.shape[0]
        if not bounds:
            yield "cu_seqlens_q has 0 offsets, expected one more than there are sequences"
        if self.pages is not None and len(self.pages.table) != bounds - 1:
            yield f"block_table has {len(self.pages.table)} sequences, expected {bounds - 1}, as cu_seqlens_q has {bounds}"
        for name, tensor in zip(NAMES, self[:4]):
            wanted = bounds - 1 if name.startswith("seqused") else bounds
            if tensor is not None and tensor.shape[0] != wanted:
                yield f"{name} has {tensor.shape[0]} numbers, expected {wanted}, as cu_seqlens_q has {bounds}"
        for name, most in zip(LONGEST, self[4:6]):
            if not isinstance(most, (int, torch.SymInt)) or isinstance(most, bool) or most < 0:
                found, instead = shown(most), ""
                if isinstance(most, Tensor):
                    found = f"a tensor {tuple(most.shape)} on {most.device}"
                    instead = "" if most.dim() else f": pass {name}.item()"
                yield f"{name} is {found}, expected an integer of at least 0{instead}"

    def sizes_of_lse(self, q: Tensor) -> tuple[int, ...]:
        """Returns the sizes of the LSE beside such a q, (heads, rows)."""
        return tuple(q.shape[1::-1])

    def with_lengths(self, by: Callable[[Any], Any]) -> Packed:
        """Returns this with the longest lengths replaced by what `by` returns for them; itself where none changes."""
        most = by(self.max_seqlen_q), by(self.max_seqlen_k)
        return self if all(map(operator.is_, most, self[4:6])) else Packed(*self[:4], *most, *self[6:])

    # --- for the operator and gradients ---

    operator = "forward_varlen"
    _offsets, _longest = "Tensor cu_seqlens_q, Tensor cu_seqlens_k", "SymInt max_seqlen_q, SymInt max_seqlen_k"
    gradient_schema = f"{_offsets}, Tensor? seqused_q, Tensor? seqused_k, {_longest}, Tensor? d_lse=None, "
    schema = f"{_offsets}, {_longest}, Tensor? seqused_q=None, Tensor? seqused_k=None, "
    flag, layout_option = "zero_unused", "str[]? backward=None"
    # PyTorch has no gradient of an operator with tensors among its options.
    behind = "Tensor? block_table=None, "
    options_schema = f"SymInt page_size=0, SymInt page_rows=0, SymInt pages=0, {layout_option}, "

    @property
    def operator_options(self) -> dict[str, Any]:
        """Returns the operator's options that say where keys lie in pages, {} where they lie in none."""
        return {} if self.pages is None else dict(zip(OF_PAGES, self.pages[1:4]))

    @property
    def arguments_behind(self) -> tuple[Tensor | None, ...]:
        """Returns the operator's arguments behind those of features: the block table."""
        return (self.pages and self.pages.table,)

    @property
    def operator_arguments(self) -> tuple[Any, ...]:
        """Returns the operator's arguments that say where sequences lie, in the operator's order."""
        return (*self[:2], *self.longest.values(), *self[2:4])

    @property
    def offsets(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Returns the tensors that say where sequences lie, and how many rows of each count."""
        return self[:4]

    @property
    def longest(self) -> dict[str, int]:
        """Returns the longest lengths by name, as PyTorch's integers, which have 64 bits."""
        return {name: min(most, WIDEST) for name, most in zip(LONGEST, self[4:6])}

    @classmethod
    def from_operator(cls, given: Sequence[Any], behind: Sequence[Any], options: dict[str, Any]) -> Packed:
        """Makes a Packed of an operator's arguments behind v, those behind features, and its options."""
        cu_q, cu_k, most_q, most_k, *used = given
        used_q, used_k = (*used, None, None)[:2]
        numbers = [options.pop(name, 0) for name in OF_PAGES]
        pages = Pages.of(behind[0], *numbers) if behind and behind[0] is not None else None
        return cls(cu_q, cu_k, used_q, used_k, most_q, most_k, pages)

    def lacks_gradient(self, call: Call, mask: Mask) -> tuple[str, str] | None:
        """Returns words for an error if PyTorch's operators have no gradient for these lengths or mask, else None."""
        if self.pages is not None:
            return "block_table", "with keys that lie one behind the other"
        if self.seqused_q is not None or self.seqused_k is not None:
            return "seqused", "with sequences cut to their used rows"
        if packed_masks_alike(mask, self.max_seqlen_k):
            return None
        instead = "with a right side that is closed, and shorter than max_seqlen_k"
        return f"window_size {tuple(call.window_size)}", instead

    def has_gradient_at_all_lengths(self, mask: Mask) -> bool:
        """Says whether calls of the same key have PyTorch's gradients where one has, whatever the longest sequence."""
        return not mask.right

    # --- for a plan ---

    def plan(self, call: Call, found: Checked) -> Plan:
        """Makes the plan of calls like this one. Raises InputError for what no kernel computes or reads in place."""
        q, k, v = call[:3]
        (total_q, heads, head_dim), total_k, sequences = q.shape, k.shape[0], self.cu_seqlens_q.shape[0] - 1
        if self.pages is not None:
            total_k = max(total_k, self.pages.keys)
        card = checks.checked_card(q.device)
        seq_q, seq_kv = (max(1, min(most, total)) for most, total in zip(self[4:6], (total_q, total_k)))
        # Kernels add a window's sides to lengths.
        mask, shape = shortened(found.mask, max(LONG_SIDE, total_q, total_k)), None
        if total_q and heads and sequences:
            try:
                check_totals(sequences, heads, total_q, total_k, seq_kv, mask)
                # A schedule is chosen by one sequence of the longest lengths.
                shape = AttentionShape(
                    1, heads, seq_q, seq_kv, head_dim, str(q.dtype).removeprefix("torch."), mask, v.shape[2],
                    k.shape[1], found.asked, packed=True, page_size=self.pages.size if self.pages else 0,
                )  # fmt: skip
            except InputError as error:
                raise prefixed(self.function, error) from None
        for fault in self._faults_of_contents(total_q, total_k) if call.check else ():
            raise InputError(f"attention_varlen: {fault}")
        if call.out is not None:
            checked_output(call)
        for name, tensor in {"q": q, "k": k, "v": v, "out": call.out}.items():
            if tensor is not None:
                check_place(name, tensor)
        common, single = shared_fields(call, found), min(*q.shape[:2], *k.shape[:2]) <= 1
        if shape is None:
            return PackedPlan(*common, None, single)
        shape, invariant = computed_problem(shape, card.arch, call.invariant, by_rules=call.schedule is None)
        scheduled = compiled.schedule_of(call.schedule, shape, card, invariant)
        sms = compiled.sms_of(q.device)
        variant = shape.variant(tile_heads=packed_heads(shape, scheduled)[1])
        variant = variant.in_pages(shape.page_size, scheduled.block_N)
        variant = replace(variant, arch=card.arch, invariant=invariant)
        of_tiles = variant.heads_of_tiles(heads)
        # None is compiled before the first call that runs on it.
        whole = _launch(shape, scheduled, variant, sms)
        if not call.in_parts or call.invariant is True or not may_be_split(of_tiles, scheduled, sms):
            return PackedPlan(*common, scheduled, single, whole)
        split = _launch(shape, scheduled, replace(variant, parts=True), sms)
        return PackedPlan(
            *common, scheduled, single, whole, split, most_unsplit_keys(scheduled),
            functools.partial(splits_equal, heads=of_tiles, schedule=scheduled, sms=sms),
        )  # fmt: skip

    def _faults_of_contents(self, total_q: int, total_k: int) -> Iterator[str]:
        """Yields what is wrong with offsets and lengths on the GPU, for which it waits."""
        cu_q, cu_k, used_q, used_k, *longest, pages, _ = self
        if pages is not None and used_k is not None:
            yield from pages.faults(used_k.tolist())
        for side, cu, used, total, most in zip("qk", (cu_q, cu_k), (used_q, used_k), (total_q, total_k), longest):
            offsets, name = cu.tolist(), f"cu_seqlens_{side}"
            lengths = [end - begin for begin, end in itertools.pairwise(offsets)]
            if offsets[0] < 0 or offsets[-1] > total:
                yield f"{name} goes from {offsets[0]} to {offsets[-1]}, expected 0 to at most the {total} rows that there are"
            for n, (begin, end) in enumerate(itertools.pairwise(offsets)):
                if end < begin:
                    yield f"{name} falls from {begin} to {end} at sequence {n}, expected offsets that do not fall"
            for n, of_one in enumerate(lengths if used is None else used.tolist()):
                if used is not None and not 0 <= of_one <= lengths[n]:
                    yield f"seqused_{side} has {of_one} for sequence {n}, expected 0 to its {lengths[n]} rows"
                if of_one > most:
                    yield f"sequence {n} has {of_one} rows of {side}, expected at most max_seqlen_{side}, {most}"


def _launch(shape: AttentionShape, schedule: Schedule, variant: Variant, sms: int) -> Callable[[], Launch]:
    """Returns a function that gives the launch of the schedule's kernel for a variant on so many SMs, made once."""

    @functools.cache
    def made() -> Launch:
        found = compiled.that_ships(schedule, variant)
        return Launch.of(compiled.kernel_of(schedule, found).launch, schedule, found, shape, sms)

    return made


@dataclass(frozen=True, slots=True)
class PackedPlan(Plan):
    """A PackedPlan launches calls of packed sequences, whatever their lengths."""

    single: bool  # whether a tensor has a dimension of length 1, or none
    # Gives the launch that computes each sequence's keys at once; None for calls without a row of a sequence.
    whole: Callable[[], Launch] | None = None
    # Where sequences may be split, gives the launch that splits some of those with more than `keys` keys.
    in_parts: Callable[[], Launch] | None = None
    keys: int = 0
    # From a number of sequences of one length and the number of their keys to whether they are split.
    splits_equal: Callable[[int, int], bool] | None = None

    def splits(self, call: Call) -> bool:
        """Says whether one of the call's sequences may be split, as far as the host knows their lengths.

        Only sequences of few queries on many keys are. As many queries as keys, as in training, are none.
        """
        cu_q, _, used_q, used_k, _, most_k, pages, _ = call.where
        # A tensor's len() is a call of Python code.
        total_q, sequences = call.q.shape[0], cu_q.shape[0] - 1
        total_k = call.k.shape[0] if pages is None else pages.longest
        longest = min(most_k, total_k)
        if longest <= self.keys or (total_q >= total_k and used_q is None):
            return False
        are_equal = used_k is used_q is None and total_q == sequences and sequences * longest <= EQUAL * total_k
        return not are_equal or self.splits_equal is None or self.splits_equal(sequences, longest)

    def laid_out(self, call: Call, scale: float, result: Tensor, lse: Tensor | None) -> LaidOut:
        """Returns the kernel that writes a call's results, with its arguments, after what is written before it."""
        q, k, v = call.q, call.k, call.v
        cu_q, cu_k, used_q, used_k, _, _, pages, write = call.where
        if write is not None:
            write()
        if call.zero_unused:
            result.zero_()
            if lse is not None:
                lse.fill_(-float("inf"))
        if self.whole is None:
            return None, ()
        launch = self.in_parts() if self.in_parts and self.splits(call) else self.whole()
        taken: tuple[Tensor, ...] = (q, k, v, result)
        if self.single:
            taken = tuple(map(_with_a_row, taken))
        offsets = launch.offsets(cu_q, cu_k, used_q, used_k, q.shape[0])
        if pages is not None:
            offsets = (*offsets, *pages[: len(PAGES)])
        return launch.kernel, launch.arguments(taken, lse, scale, call.values, offsets)


def _with_a_row(tensor: Tensor) -> Tensor:
    """Returns a tensor with contiguous strides of dimensions of length 1; an empty one gets a row that none reads."""
    if not tensor.numel():
        return tensor.new_empty((1, *(max(size, 1) for size in tensor.shape[1:])))
    return whole_strides(tensor) if 1 in tensor.shape else tensor


def _is_plain(tensor: Any, device: torch.device) -> bool:
    """Says whether an argument is a contiguous int32 tensor with one dimension on this device, as it must be."""
    if not isinstance(tensor, Tensor) or tensor.dim() != 1 or tensor.dtype != torch.int32:
        return False
    return tensor.device == device and tensor.is_contiguous()
