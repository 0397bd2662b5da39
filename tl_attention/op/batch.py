"""The tensors of `attention` are those of a batch of sequences of one length, in a layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.op import checks, compiled
from tl_attention.op.call import Call
from tl_attention.op.checks import Checked, checked_output, prefixed
from tl_attention.op.few import packed_heads, split_plan
from tl_attention.op.in_memory import BHSD, DIMENSIONS, as_bhsd, check_layout, placed, whole_strides
from tl_attention.op.launch import Launch
from tl_attention.op.plan import LaidOut, Plan, shared_fields
from tl_attention.op.rows import Rows
from tl_attention.problem.features import INPUTS, keep_heads_apart
from tl_attention.problem.mask import Mask, shortened
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.backward import masks_alike
from tl_attention.schedule.files.defaults import computed_problem

# Sizes and strides of a tensor.
Place = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Batch:
    """A Batch says that tensors are (batch, heads, rows, columns), in the order of its layout."""

    layout: str

    function: ClassVar = "attention"
    dimensions: ClassVar = ("batch", "heads", "seq", "head_dim")
    expected_dimensions: ClassVar = ("batch, heads, seq_q, head_dim", "batch, heads_kv, seq_kv, head_dim")
    # No tensors say where it lies.
    tensors: ClassVar[dict[str, Tensor | None]] = {}

    # --- for a key and its checks ---

    def sizes(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor | None) -> tuple[object, ...]:
        """Returns the sizes of a call as its key has them."""
        return self.layout, q.shape, k.shape, v.shape, None if out is None else out.shape

    def check_offsets(self, q: Tensor) -> None:
        """Does nothing: a batch has no offsets that could be wrong."""

    def by_rows(self, call: Call) -> Call:
        """Returns the call itself, as no batch has its keys in pages."""
        return call

    def canonical(self, tensor: Any) -> Any:
        """Returns a tensor in layout bshd with heads before rows, or the other way round; in layout bhsd itself."""
        return as_bhsd(tensor, self.layout) if isinstance(tensor, Tensor) and tensor.dim() == 4 else tensor

    def sizes_of_lse(self, q: Tensor) -> tuple[int, ...]:
        """Returns the sizes of the LSE beside such a q, (batch, heads, rows)."""
        batch, one, other, _ = q.shape
        return (batch, one, other) if self.layout == BHSD else (batch, other, one)

    def with_lengths(self, by: Any) -> Batch:
        """Returns this object unchanged: a batch has no longest lengths to replace."""
        return self

    # --- for the operator and gradients ---

    operator: ClassVar = "forward"
    schema: ClassVar = ""
    gradient_schema: ClassVar = "Tensor? d_lse=None, "
    flag: ClassVar = "specialize"
    layout_option: ClassVar = "str layout, str[]? backward=None"
    options_schema: ClassVar = f"str layout={BHSD!r}, str[]? backward=None, "
    behind: ClassVar = ""
    operator_arguments: ClassVar[tuple[Any, ...]] = ()
    arguments_behind: ClassVar[tuple[Any, ...]] = ()
    offsets: ClassVar[tuple[Tensor, ...]] = ()
    pages: ClassVar[None] = None
    write: ClassVar[None] = None
    longest: ClassVar[dict[str, int]] = {}

    @property
    def operator_options(self) -> dict[str, str]:
        """Returns the operator's options that say where tensors lie."""
        return {"layout": self.layout}

    @classmethod
    def from_operator(cls, given: Sequence[Any], behind: Sequence[Any], options: dict[str, Any]) -> Batch:
        """Makes a Batch of an operator's options; no arguments say where a batch lies."""
        return batch_of(options.get("layout", BHSD))

    def lacks_gradient(self, call: Call, mask: Mask) -> tuple[str, str] | None:
        """Returns words for an error if PyTorch's operators have no gradient under the mask, else None."""
        seq_q, seq_kv = (self.canonical(x).shape[2] for x in call[:2])
        if masks_alike(mask, seq_q, seq_kv):
            return None
        return (
            f"window_size {tuple(call.window_size)}, {seq_q} queries and {seq_kv} keys",
            "with no more queries than keys",
        )

    def has_gradient_at_all_lengths(self, mask: Mask) -> bool:
        """Says whether calls of the same key have gradients where one has; a key has the lengths of a batch."""
        return True

    # --- for a plan ---

    def plan(self, call: Call, found: Checked) -> Plan:
        """Makes the plan of calls like this one. Raises InputError for what no kernel computes or reads in place."""
        q, k, v = map(self.canonical, call[:3])
        (batch, heads, seq_q, head_dim), (heads_kv, seq_kv) = q.shape, k.shape[1:3]
        rows, mask = Rows.of(found.mask, seq_q, seq_kv), shortened(found.mask, max(seq_q, seq_kv))
        try:
            shape = AttentionShape(
                batch, heads, rows.count, seq_kv, head_dim, str(q.dtype).removeprefix("torch."), mask, v.shape[3],
                heads_kv, found.asked,
            ) if batch and heads and rows.count else None  # fmt: skip
        except InputError as error:
            raise prefixed("attention", error) from None
        card = checks.checked_card(q.device)
        output, common = checked_output(call), shared_fields(call, found)
        if shape is None or rows.hidden:
            plan = self.plan(self.call_of_seen_rows(call, rows, output), found) if shape else None
            return SeenRowsPlan(*common, plan.schedule if plan else None, rows, plan)
        taken = {"q": q, "k": k, "v": v, "out": self.canonical(output)}
        strided, tensors = placed(taken, self.layout)
        in_parts = call.in_parts and call.invariant is not True and not call.specialize
        shape, invariant = computed_problem(shape, card.arch, call.invariant, by_rules=call.schedule is None)
        # Heads whose rows cannot lie in one tile have the schedule of heads that share nothing.
        apart = keep_heads_apart(found.asked.features)
        scheduled = compiled.schedule_of(
            call.schedule, replace(shape, heads_kv=heads) if apart else shape, card, invariant
        )
        shape, tile_heads = packed_heads(shape, scheduled)
        sms = compiled.sms_of(q.device)
        parts = split_plan(shape, scheduled, sms) if in_parts else None
        variant = replace(
            shape.variant(call.specialize, parts is not None, tile_heads),
            strided=strided, arch=card.arch, invariant=invariant,
        )  # fmt: skip
        variant = compiled.that_ships(scheduled, variant)
        if variant.strided and not strided:
            tensors = {name: whole_strides(tensor) for name, tensor in taken.items()}
        launch = Launch.of(compiled.kernel_of(scheduled, variant).launch, scheduled, variant, shape, sms, parts)
        as_given = self.layout == BHSD and all(_place(tensors[x]) == _place(tensor) for x, tensor in taken.items())
        return BatchPlan(
            *(*common, scheduled, launch), views=None if as_given else tuple(map(_place, tensors.values()))
        )

    def call_of_seen_rows(self, call: Call, rows: Rows, output: Tensor) -> Call:
        """Returns a call of only those queries that see a key, which writes to the same rows of the output."""
        q, output = (self.canonical(rows.computed(self.canonical(x))) for x in (call.q, output))
        return call._replace(q=q, out=output)


@dataclass(frozen=True, slots=True)
class BatchPlan(Plan):
    """A BatchPlan launches calls of a batch."""

    launch: Launch
    # Sizes and strides of q, k, v and the output as the kernel takes them; None if it takes them as they are.
    views: tuple[Place, ...] | None

    def laid_out(self, call: Call, scale: float, result: Tensor, lse: Tensor | None) -> LaidOut:
        """Returns the kernel that writes a call's results, with its arguments."""
        q, k, v, launch = call.q, call.k, call.v, self.launch
        if self.views is not None:
            of_q, of_k, of_v, of_output = self.views
            q, k, v = q.as_strided(*of_q), k.as_strided(*of_k), v.as_strided(*of_v)
            result = result.as_strided(*of_output)
        return launch.kernel, launch.arguments((q, k, v, result), lse, scale, call.values)


@dataclass(frozen=True, slots=True)
class SeenRowsPlan(Plan):
    """A SeenRowsPlan launches calls whose last rows alone see a key, and fills the other rows without a kernel."""

    rows: Rows
    seen: Plan | None  # that of the other rows, None if there are none

    def laid_out(self, call: Call, scale: float, result: Tensor, lse: Tensor | None) -> LaidOut:
        """Computes the rows that see a key, and sets the others to 0, and their LSE to what a row without keys has."""
        where: Any = call.where
        self.rows.without_keys(where.canonical(result)).zero_()
        if lse is not None:
            self.rows.without_keys(lse).copy_(lse_without_keys(call, lse))
        if self.seen is not None:
            results = self.seen.run(where.call_of_seen_rows(call, self.rows, result), scale)
            if lse is not None:
                self.rows.computed(lse).copy_(results[1])
        return None, ()


def lse_without_keys(call: Call, lse: Tensor) -> Tensor:
    """Returns the LSE of rows that see no key, from features such as sinks, or -inf without any.

    It is the LSE of the features that are scores of their own, to be copied to (batch, heads, rows).
    """
    values = zip(INPUTS, call.values, strict=True)
    scores = [value[:, None] for f, value in values if f.counts_once and value is not None]
    return torch.stack(scores).logsumexp(dim=0) if scores else lse.new_tensor(-float("inf"))


def _place(tensor: Tensor) -> Place:
    return tuple(tensor.shape), tensor.stride()


BATCHES = {layout: Batch(layout) for layout in DIMENSIONS}


def batch_of(layout: str) -> Batch:
    """Returns the Batch of a layout. Raises InputError for a layout that there is not."""
    if layout is not BHSD:
        check_layout(layout)
    return BATCHES[layout]
