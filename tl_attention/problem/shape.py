"""An AttentionShape is an attention problem: its sizes, dtype and mask, and the work that they imply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from tl_attention.errors import InputError, shown
from tl_attention.problem.bounds import check_sizes, check_totals
from tl_attention.problem.features import NOTHING, FeatureValues
from tl_attention.problem.head_dims import HeadSize, check_head_dim, head_size, parse_head_size, sizes_of, tile_dim
from tl_attention.problem.lengths import LENGTHS_TEXT, Lengths, lengths_text, parse_lengths
from tl_attention.problem.mask import CAUSAL, FULL, Mask, masked, parse_window
from tl_attention.problem.variant import GRADIENT_PARAMETERS, Sizes, Variant, rows_of_box

Dtype = Literal["float16", "bfloat16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
DTYPE_NAMES: dict[str, str] = {"fp16": "float16", "bf16": "bfloat16", **{name: name for name in DTYPES}}
DTYPE_BYTES = 2
# How a shape is written, as `AttentionShape.parse` reads it.
SHAPE_TEXT = (
    "batch,heads,seq,head_dim or batch,heads,seq_q,seq_kv,head_dim, heads as 40/8 where K and V have 8; packed sequences "
    f"are lengths,heads,head_dim, {LENGTHS_TEXT}"
)
# What lengths may ask of a kernel beside sequences of one length whose rows each see a key.
Unusual = Literal["sequences of different lengths", "a sequence of length 0", "rows without a key"]
# What stands between the heads of Q and those of K and V, where these are fewer.
GROUPED = "/"


def check_dtype(dtype: str) -> None:
    """Raises InputError unless the dtype is float16 or bfloat16."""
    if dtype not in DTYPES:
        raise InputError(f"shape: dtype {shown(dtype)} is not supported, expected one of {DTYPES}")


@dataclass(frozen=True)
class AttentionShape:
    """An AttentionShape describes one attention forward by its sizes, dtype, mask and features.

    Tensors are laid out (batch, heads, seq, head_dim). A shape is a list of sequences. Any length may be 0. A query may
    see no key: then its output is 0, and its LSE is -inf, or that of the scores that have no key.
    """

    batch: int  # number of sequences
    heads: int  # of Q
    seq_q: int  # queries of each sequence, or the most where `lengths` gives those of each
    seq_kv: int  # keys, likewise
    head_dim: int  # columns of Q and K
    dtype: str = "float16"
    mask: Mask = FULL
    head_dim_v: int = 0  # columns of V and the output, by default head_dim
    heads_kv: int = 0  # of K and V, each shared by equally many heads of Q in a row; by default as many as Q has
    asked: FeatureValues = NOTHING  # the features that are asked for
    lengths: tuple[Lengths, ...] = ()  # those of each sequence, where they differ
    packed: bool = False  # whether sequences lie one behind the other, without a batch
    # Keys that a page has, where a block table says in which pages those of packed sequences lie; 0 where they lie one
    # behind the other.
    page_size: int = 0

    def __post_init__(self) -> None:
        if self.heads_kv == 0:
            object.__setattr__(self, "heads_kv", self.heads)
        for name, least in (("batch", 1), ("heads", 1), ("heads_kv", 1), ("seq_q", 0), ("seq_kv", 0), ("page_size", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"shape: {name} is {shown(value)}, expected an integer of at least {least}")
        if self.lengths and (self.batch, self.seq_q, self.seq_kv) != _all_of(self.lengths):
            raise InputError(
                f"shape: batch, seq_q, seq_kv are {self.batch}, {self.seq_q}, {self.seq_kv}, expected how many lengths "
                f"there are and the largest of them, {', '.join(map(str, _all_of(self.lengths)))}"
            )
        if self.heads % self.heads_kv:
            raise InputError(
                f"shape: {shown(self.heads)} heads, expected a multiple of K's and V's {shown(self.heads_kv)}"
            )
        object.__setattr__(self, "head_dim_v", self.head_dim_v or self.head_dim)
        try:
            if self.packed:
                check_totals(self.batch, self.heads, *self.totals, self.seq_kv, self.mask)
            else:
                check_sizes(self.batch, self.heads, self.heads_kv, self.seq_q, self.seq_kv, self.mask)
            check_head_dim(self.head_size)
        except InputError as error:
            raise InputError(f"shape: {error}") from None
        check_dtype(self.dtype)
        if self.page_size:
            self._check_pages()

    def _check_pages(self) -> None:
        least = max(rows_of_box(tile_dim(columns)) for columns in (self.head_dim, self.head_dim_v))
        expected = (
            f"{'an even number of ' if least > 1 else ''}at least {least}" if self.packed else "0: they are not packed"
        )
        if not self.packed or self.page_size < least or self.page_size % least:
            raise InputError(
                f"shape: pages have {shown(self.page_size)} keys at head_dim {self.head_size}, expected {expected}"
            )

    def check_every_row(self) -> None:
        """Raises InputError unless there are rows, each of which sees a key."""
        for name in ("seq_q", "seq_kv"):
            if getattr(self, name) == 0:
                raise InputError(f"shape: {name} is 0, expected an integer of at least 1")
        if self.mask.rows_before(self.seq_q, self.seq_kv):
            causal = self.mask == CAUSAL
            what, keys = (
                (" causal attention", "seq_kv") if causal else (self.mask.suffix, f"seq_kv + {self.mask.right}")
            )
            raise InputError(
                f"shape:{what} needs {keys} >= seq_q, got seq_q {self.seq_q} and seq_kv {self.seq_kv}: the first queries "
                "would see no key"
            )

    @property
    def sizes(self) -> Sizes:
        """Returns batch, heads, seq_q and seq_kv, which a kernel may read at run time, as Sizes."""
        return Sizes(self.batch, self.heads, self.seq_q, self.seq_kv)

    def check_one_length(self) -> None:
        """Raises InputError for sequences of different lengths, which one tensor does not hold."""
        if len(self.distinct_lengths) > 1:
            raise InputError(
                f"shape: {self} has sequences of different lengths, expected one of its sequences at a time"
            )

    @classmethod
    def ragged(cls, lengths: Sequence[Lengths], heads: int, head_dim: int, **more: Any) -> AttentionShape:
        """Returns the problem of sequences with these lengths, which may differ. Raises InputError if there is none."""
        lengths = tuple(Lengths(*of_one) for of_one in lengths)
        batch, seq_q, seq_kv = _all_of(lengths)
        return cls(batch, heads, seq_q, seq_kv, head_dim, **more, lengths=lengths)

    def sequence(self, number: int) -> AttentionShape:
        """Returns the problem of sequence `number` alone, with a batch of 1."""
        seq_q, seq_kv = self.lengths[number] if self.lengths else (self.seq_q, self.seq_kv)
        return replace(self.as_batch(), batch=1, seq_q=seq_q, seq_kv=seq_kv, lengths=())

    def as_batch(self) -> AttentionShape:
        """Returns the problem of the same sequences as a batch, whose keys are in no pages."""
        return replace(self, packed=False, page_size=0)

    @property
    def all_lengths(self) -> tuple[Lengths, ...]:
        """Returns the lengths of all sequences, in their order."""
        return self.lengths or (Lengths(self.seq_q, self.seq_kv),) * self.batch

    @property
    def totals(self) -> tuple[int, int]:
        """Returns how many queries, and how many keys, all sequences have together."""
        return sum(n.seq_q for n in self.all_lengths), sum(n.seq_kv for n in self.all_lengths)

    @property
    def distinct_lengths(self) -> tuple[Lengths, ...]:
        """Returns the different lengths of the problem's sequences, each once."""
        return tuple(dict.fromkeys(self.lengths)) or (Lengths(self.seq_q, self.seq_kv),)

    @property
    def unusual(self) -> tuple[Unusual, ...]:
        """Returns a tuple of words for what the problem has of different lengths, a length of 0 and rows without a key.

        Not every kernel computes these.
        """
        kinds: dict[Unusual, bool] = {
            "sequences of different lengths": len(self.distinct_lengths) > 1,
            "a sequence of length 0": any(0 in lengths for lengths in self.distinct_lengths),
            "rows without a key": any(self.mask.rows_before(*lengths) for lengths in self.distinct_lengths),
        }
        return tuple(words for words, is_there in kinds.items() if is_there)

    def variant(self, fixed: bool = False, parts: bool = False, tile_heads: int = 1) -> Variant:
        """Returns the variant to compile for this problem, for its sizes and window alone if `fixed`, else for all.

        Rows of `tile_heads` heads of Q share a tile.
        """
        sizes, optional = self.sizes if fixed else None, frozenset(self.asked.parameters)
        mask, columns_v = self.mask if fixed else self.mask.runtime, self.head_dim_v
        group = self.group if fixed or tile_heads > 1 else None
        found = Variant(self.head_dim, self.dtype, mask, columns_v, sizes, optional, group, packed=self.packed)
        return replace(found, parts=parts, tile_heads=tile_heads)

    def variants_of_gradients(self) -> list[Variant]:
        """Returns the variants of the kernels that compute this problem's gradients, in the order of their launches.

        One more score, such as a sink, only enters the LSE, which they are given. Where the problem asks for the LSE,
        that has a gradient too, which the first takes.
        """
        optional = frozenset(feature.name for feature in self.asked.features if feature.changes_scores)
        found = replace(self.variant(), optional=optional, group=self.group)
        first, *others = (replace(found, loop=loop) for loop in GRADIENT_PARAMETERS)
        return [replace(first, optional=optional | {"dLSE"}) if self.asked["lse"] else first, *others]

    def asking(self, **features: object) -> AttentionShape:
        """Returns a copy of the problem with these values for these features, such as softcap=30.0.

        Raises InputError for a value that is none.
        """
        try:
            return replace(self, asked=self.asked.but(**features))
        except InputError as error:
            raise InputError(f"shape: {error}") from None

    def resized(self, sizes: Sizes) -> AttentionShape:
        """Returns the problem at other sizes; as many of Q's heads share one of K and V as before."""
        return replace(self, **sizes._asdict(), heads_kv=sizes.heads // self.group, lengths=())

    def with_lengths(self, lengths: Sequence[Lengths], heads_kv: int) -> AttentionShape:
        """Returns the problem of other sequences and `heads_kv`; as many heads of Q share one of K and V as before."""
        batch, seq_q, seq_kv = _all_of(lengths)
        resized = self.resized(Sizes(batch, heads_kv * self.group, seq_q, seq_kv))
        return replace(resized, lengths=tuple(lengths))

    @classmethod
    def of(cls, variant: Variant, sizes: Sizes) -> AttentionShape:
        """Returns the problem that a kernel for the variant computes at these sizes, without features."""
        heads_kv = sizes.heads // variant.some_group
        return cls(*sizes, variant.head_dim, variant.dtype, variant.mask, variant.head_dim_v, heads_kv)

    @property
    def group(self) -> int:
        """Returns how many heads of Q share one of K and V."""
        return self.heads // self.heads_kv

    @property
    def head_size(self) -> HeadSize:
        """Returns the head size as a number, or as a text such as `192/128` where V's differs from that of Q and K."""
        return head_size(self.head_dim, self.head_dim_v)

    @property
    def past_len(self) -> int:
        """Returns how many keys precede the first query."""
        return self.seq_kv - self.seq_q

    @property
    def pairs(self) -> int:
        """Returns how many (query, key) pairs of one head are not hidden, in all sequences."""
        if not self.lengths:
            return self.batch * self.mask.pairs(self.seq_q, self.seq_kv)
        return sum(self.mask.pairs(*lengths) for lengths in self.lengths)

    @property
    def flops(self) -> int:
        """Returns the floating-point operations of the two products, without hidden pairs and without softmax."""
        return 2 * self.heads * self.pairs * (self.head_dim + self.head_dim_v)

    @classmethod
    def parse(
        cls, text: str, *, dtype: str = "float16", causal: bool = False, window: str = "-1,-1", **more: Any
    ) -> AttentionShape:
        """Returns the shape that a text such as `4,64,8192,128` names, with this dtype, mask and features.

        Raises InputError. SHAPE_TEXT is the form of the text. Each of the shape's rows must see a key. `window` is a
        text left,right, where -1 is open; `more` are features by word.
        """
        *sizes, of_head = text.split(",")
        # A single sequence is 1x4096: without the sign a number may be missing.
        if len(sizes) == 2 and not {*"x+"}.isdisjoint(sizes[0]):
            return cls._parse_packed(
                text, sizes[0], sizes[1], of_head, parse_dtype(dtype), masked(causal, parse_window(window)), **more
            )
        grouped = len(sizes) > 1 and GROUPED in sizes[1]
        if grouped:
            sizes[1:2] = sizes[1].split(GROUPED, 1)
        try:
            head_dim, head_dim_v = sizes_of(parse_head_size(of_head))
            numbers = [int(part) for part in sizes]
        except ValueError:
            numbers = []
        heads_kv = numbers.pop(2) if grouped and len(numbers) > 2 else 0
        if len(numbers) == 3:
            numbers.append(numbers[2])
        if len(numbers) != 4 or (grouped and heads_kv == 0):
            raise InputError(f"shape: {text[:80]!r} is not a shape, expected {SHAPE_TEXT}, such as 4,64,8192,128")
        mask = masked(causal, parse_window(window))
        batch, heads, seq_q, seq_kv = numbers
        shape = cls(batch, heads, seq_q, seq_kv, head_dim, parse_dtype(dtype), mask, head_dim_v, heads_kv)
        shape.check_every_row()
        return shape.asking(**more)

    @classmethod
    def _parse_packed(
        cls, text: str, lengths: str, heads: str, of_head: str, dtype: str, mask: Mask, **more: Any
    ) -> AttentionShape:
        try:
            of_q, _, of_kv = heads.partition(GROUPED)
            head_dim, head_dim_v = sizes_of(parse_head_size(of_head))
            options = {"dtype": dtype, "mask": mask, "head_dim_v": head_dim_v, "heads_kv": int(of_kv or of_q)}
            (sequences, options["page_size"]), number = parse_lengths(lengths), int(of_q)
        except ValueError:
            raise InputError(
                f"shape: {text[:80]!r} is not a shape, expected {SHAPE_TEXT}, such as 8x4096+100/300,64,128"
            ) from None
        return cls.ragged(sequences, number, head_dim, packed=True, **options).asking(**more)

    def __str__(self) -> str:
        heads = str(self.heads) if self.group == 1 else f"{self.heads}{GROUPED}{self.heads_kv}"
        asked = f", {self.asked}" if self.asked else ""
        if self.packed:
            sizes = f"{lengths_text(self.all_lengths, self.page_size)}, {heads}"
        else:
            sizes = f"{self.batch}, {heads}, {' '.join(map(str, self.lengths or self.distinct_lengths))}"
        return f"({sizes}, {self.head_size}) {self.dtype}{self.mask.suffix}{asked}"


def _all_of(lengths: Sequence[Lengths]) -> tuple[int, int, int]:
    """Returns (how many lengths there are, most queries, most keys), or raises InputError if there are none."""
    if not lengths:
        raise InputError("shape: there are no lengths, expected those of at least one sequence")
    return len(lengths), max(of_one.seq_q for of_one in lengths), max(of_one.seq_kv for of_one in lengths)


def parse_dtype(name: str) -> str:
    """Returns the full name of the dtype that `fp16`, `bf16` or a full name means. Raises InputError for others."""
    if name not in DTYPE_NAMES:
        raise InputError(f"dtype: {name[:40]!r} is not supported, expected one of {tuple(DTYPE_NAMES)}")
    return DTYPE_NAMES[name]
