"""The tensors of `attention` are those of a batch of sequences of one length, in a layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.op import checks, compiled
from tl_attention.op.call import Call, Result
from tl_attention.op.checks import Checked, checked_output, prefixed
from tl_attention.op.few import parts_of, put_together
from tl_attention.op.in_memory import BHSD, DIMENSIONS, check_layout, empty, in_one_head, other_way, placed
from tl_attention.op.launch import Launch
from tl_attention.op.plan import LaidOut, Plan
from tl_attention.op.rows import Rows
from tl_attention.problem.features import INPUTS, keep_heads_apart
from tl_attention.problem.mask import Mask, shortened
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.backward import masks_alike
from tl_attention.schedule.files.defaults import computed

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
        """Checks nothing more: a batch has no tensors beside q, k and v."""

    def canonical(self, tensor: Any) -> Any:
        """Returns a tensor of the layout as (batch, heads, rows, columns), or such a one in the layout."""
        return other_way(tensor, self.layout) if isinstance(tensor, Tensor) and tensor.dim() == 4 else tensor

    def results(self, call: Call, has_lse: bool) -> tuple[Tensor, Tensor | None]:
        """Returns tensors for the output and, if there is one, the LSE."""
        q, v = self.canonical(call.q), self.canonical(call.v)
        output = self.canonical(empty(q, (*q.shape[:3], v.shape[3]), self.layout)) if call.out is None else call.out
        return output, q.new_empty(q.shape[:3], dtype=torch.float32) if has_lse else None

    def with_lengths(self, by: Any) -> Batch:
        """Returns this: a batch was given no lengths."""
        return self

    # --- for the operator and gradients ---

    operator: ClassVar = "forward"
    schema: ClassVar = ""
    gradient_schema: ClassVar = ""
    flag: ClassVar = "specialize"
    layout_option: ClassVar = "str layout"
    operator_arguments: ClassVar[tuple[Any, ...]] = ()
    offsets: ClassVar[tuple[Tensor, ...]] = ()
    longest: ClassVar[dict[str, int]] = {}

    @property
    def operator_options(self) -> dict[str, str]:
        """Returns the operator's options that say where tensors lie."""
        return {"layout": self.layout}

    @classmethod
    def of_operator(cls, given: Sequence[Any], options: dict[str, Any]) -> tuple[Batch, Sequence[Any]]:
        """Returns what an operator's arguments behind v, and its options, say, and the arguments that are left."""
        return batch_of(options.get("layout", BHSD)), given

    def lacks_gradient(self, call: Call, mask: Mask) -> tuple[str, str] | None:
        """Returns which mask has no gradient, and which has; None for one that has."""
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
        """Makes the plan of calls like this one. Raises InputError for what no kernel computes, or reads where it lies."""
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
        output = checked_output(call)
        common = q.device.index, head_dim**-0.5, found.asked, call.return_lse
        if shape is None or rows.hidden:
            seen = self.seen(call, rows, self.canonical(output))
            plan = self.plan(seen, found) if shape else None
            return SomeRows(plan.schedule if plan else None, *common, rows, plan)
        taken = {"q": q, "k": k, "v": v, "out": output}
        strided, tensors = placed(taken, self.layout)
        in_parts = call.invariant is not True and not call.specialize
        shape, invariant = computed(shape, card.arch, call.invariant, by_rules=call.schedule is None)
        apart = shape.group == 1 or keep_heads_apart(found.asked.features, in_parts=True)
        views = {} if apart else in_one_head(tensors, shape.heads_kv)
        # Heads whose rows cannot lie in one tile have the schedule of heads that share nothing.
        scheduled = compiled.schedule_of(
            call.schedule, shape if views else replace(shape, heads_kv=heads), card, invariant
        )
        if views and (together := put_together(shape, scheduled, in_parts)) != shape:
            shape, tensors = together, views
        sms = compiled.sms_of(q.device)
        parts = parts_of(shape, scheduled, sms) if in_parts else None
        variant = replace(
            shape.variant(call.specialize, parts=parts is not None),
            strided=strided, sms=sms, arch=card.arch, invariant=invariant,
        )  # fmt: skip
        launch = Launch.of(compiled.kernel_of(scheduled, variant).launch, scheduled, variant, shape, parts)
        as_given = self.layout == BHSD and all(_place(tensors[x]) == _place(tensor) for x, tensor in taken.items())
        return BatchPlan(
            *(scheduled, *common, launch, _place(self.canonical(output)), _is_like(self.canonical(output), call.q)),
            lse=((batch, heads, seq_q), (heads * seq_q, seq_q, 1)),
            lse_view=tuple(tensors["q"].shape[:3]),
            views=None if as_given else tuple(map(_place, tensors.values())),
        )

    def seen(self, call: Call, rows: Rows, output: Tensor) -> Call:
        """Returns the call of the queries that see a key, whose output goes to their rows of this one."""
        q, output = (self.canonical(rows.computed(self.canonical(x))) for x in (call.q, output))
        return call._replace(q=q, out=output)


@dataclass(frozen=True, slots=True)
class BatchPlan(Plan):
    """A BatchPlan holds the sizes and strides by which calls of a batch are launched.

    `output` and `lse` are those of results, in the caller's layout; `like_q` says that the output's are those of q. `views`
    are those of q, k, v and the output as the kernel takes them, None where it takes them as they are, and `lse_view` are
    the sizes of its LSE.
    """

    launch: Launch
    output: Place
    like_q: bool
    lse: Place
    lse_view: tuple[int, ...]
    views: tuple[Place, ...] | None

    def laid_out(self, call: Call, scale: float) -> LaidOut:
        """Returns the output and the LSE of a call, and the kernel that writes them with its arguments."""
        q, k, v, _, values, out, *_ = call
        if out is None:
            # This takes less of the host's time, where it gives the same.
            out = torch.empty_like(q) if self.like_q else q.new_empty_strided(*self.output)
        result = output = out
        of_rows = lse = q.new_empty_strided(*self.lse, dtype=torch.float32) if self.has_lse else None
        if self.views is not None:
            of_q, of_k, of_v, of_output = self.views
            q, k, v = q.as_strided(*of_q), k.as_strided(*of_k), v.as_strided(*of_v)
            output = result.as_strided(*of_output)
            of_rows = None if lse is None else lse.view(self.lse_view)
        launch = self.launch
        return result, lse, launch.kernel, launch.arguments((q, k, v, output), of_rows, scale, values)


@dataclass(frozen=True, slots=True)
class SomeRows(Plan):
    """A SomeRows is the plan of calls of which some rows see no key, and need no kernel.

    `seen` is that of the others, None without any.
    """

    rows: Rows
    seen: Plan | None

    def run(self, call: Call, scale: float) -> Result:
        """Computes the rows that see a key, and sets the others to 0, and their LSE to what a row without keys has."""
        where: Any = call.where
        result, lse = where.results(call, self.has_lse)
        self.rows.without_keys(where.canonical(result)).zero_()
        if lse is not None:
            self.rows.without_keys(lse).copy_(lse_without_keys(call, lse))
        if self.seen is not None:
            found = self.seen.run(where.seen(call, self.rows, result), scale)
            if lse is not None:
                self.rows.computed(lse).copy_(found[1])
        return result if lse is None else (result, lse)


def lse_without_keys(call: Call, lse: Tensor) -> Tensor:
    """Returns the LSE of rows that see no key, from features such as sinks, or -inf without any.

    It is the LSE of the features that are scores of their own, to be copied to (batch, heads, rows).
    """
    there = zip(INPUTS, call.values, strict=True)
    scores = [value[:, None] for f, value in there if f.counts_once and value is not None]
    return torch.stack(scores).logsumexp(dim=0) if scores else lse.new_tensor(-float("inf"))


def _is_like(output: Tensor, q: Tensor) -> bool:
    return q.is_contiguous() and _place(output) == _place(q)


def _place(tensor: Tensor) -> Place:
    return tuple(tensor.shape), tensor.stride()


BATCHES = {layout: Batch(layout) for layout in DIMENSIONS}


def batch_of(layout: str) -> Batch:
    """Returns the Batch of a layout. Raises InputError for a layout that there is not."""
    check_layout(layout)
    return BATCHES[layout]
