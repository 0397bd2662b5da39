"""The attention problem: sizes, dtype, masking, and the work that they imply."""

from __future__ import annotations

from dataclasses import dataclass

from tl_attention.errors import InputError
from tl_attention.problem.head_dims import HeadSize, check_head_dim, head_size, parse_head_size, sizes_of
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.variant import Sizes, Variant

DTYPES = ("float16", "bfloat16")
DTYPE_NAMES = {"fp16": "float16", "bf16": "bfloat16", **{name: name for name in DTYPES}}
DTYPE_BYTES = 2
# How a shape is written, as `AttentionShape.parse` reads it.
SHAPE_TEXT = "batch,heads,seq,head_dim or batch,heads,seq_q,seq_kv,head_dim"
# CUDA's limit for a grid's y (heads) and z (batch).
MAX_GRID_YZ = 65_535


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention forward, tensors laid out (batch, heads, seq, head_dim).

    V and the output have `head_dim_v` columns: as many as Q and K unless given.
    """

    batch: int
    heads: int
    seq_q: int
    seq_kv: int
    head_dim: int
    dtype: str = "float16"
    mask: Mask = FULL
    head_dim_v: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "seq_q", "seq_kv"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"shape: {name} is {value!r}, expected an integer of at least 1")
        if max(self.batch, self.heads) > MAX_GRID_YZ:
            raise InputError(
                f"shape: batch {self.batch} and heads {self.heads}, expected at most {MAX_GRID_YZ} of each"
            )
        object.__setattr__(self, "head_dim_v", self.head_dim_v or self.head_dim)
        try:
            check_head_dim(self.head_size)
        except InputError as error:
            raise InputError(f"shape: {error}") from None
        if self.dtype not in DTYPES:
            raise InputError(f"shape: dtype {self.dtype!r} is not supported, expected one of {DTYPES}")
        if self.mask == CAUSAL and self.seq_kv < self.seq_q:
            raise InputError(
                f"shape: causal attention needs seq_kv >= seq_q, got seq_q {self.seq_q} and seq_kv {self.seq_kv}: "
                "the first queries would see no key"
            )

    @property
    def sizes(self) -> Sizes:
        """What a kernel may read at run time."""
        return Sizes(self.batch, self.heads, self.seq_q, self.seq_kv)

    def variant(self, fixed: bool = False) -> Variant:
        """What is compiled for it: for its sizes alone if `fixed`, else for all."""
        return Variant(self.head_dim, self.dtype, self.mask, self.head_dim_v, self.sizes if fixed else None)

    @classmethod
    def of(cls, variant: Variant, sizes: Sizes) -> AttentionShape:
        """The problem that a kernel for the variant computes at these sizes."""
        return cls(*sizes, variant.head_dim, variant.dtype, variant.mask, variant.head_dim_v)

    @property
    def head_size(self) -> HeadSize:
        """That of Q and K, and of V where it is another."""
        return head_size(self.head_dim, self.head_dim_v)

    @property
    def past_len(self) -> int:
        """Keys that precede the first query."""
        return self.seq_kv - self.seq_q

    @property
    def pairs(self) -> int:
        """Unmasked (query, key) pairs of one head."""
        return self.mask.pairs(self.seq_q, self.seq_kv)

    @property
    def flops(self) -> int:
        """Floating-point operations of the two products, masked pairs left out; softmax is not counted."""
        return 2 * self.batch * self.heads * self.pairs * (self.head_dim + self.head_dim_v)

    @classmethod
    def parse(cls, text: str, *, dtype: str = "float16", causal: bool = False) -> AttentionShape:
        """The shape that a text in the form of SHAPE_TEXT names."""
        *sizes, of_head = text.split(",")
        try:
            head_dim, head_dim_v = sizes_of(parse_head_size(of_head))
            numbers = [int(part) for part in sizes]
        except ValueError:
            numbers = []
        if len(numbers) == 3:
            numbers.append(numbers[2])
        if len(numbers) != 4:
            raise InputError(f"shape: {text[:80]!r} is not a shape, expected {SHAPE_TEXT}, such as 4,64,8192,128")
        batch, heads, seq_q, seq_kv = numbers
        mask = CAUSAL if causal else FULL
        return cls(batch, heads, seq_q, seq_kv, head_dim, parse_dtype(dtype), mask, head_dim_v)

    def __str__(self) -> str:
        seq = str(self.seq_q) if self.seq_q == self.seq_kv else f"{self.seq_q}/{self.seq_kv}"
        return f"({self.batch}, {self.heads}, {seq}, {self.head_size}) {self.dtype}{self.mask.suffix}"


def parse_dtype(name: str) -> str:
    """`fp16`, `bf16` or the full name, to the full name."""
    if name not in DTYPE_NAMES:
        raise InputError(f"dtype: {name[:40]!r} is not supported, expected one of {tuple(DTYPE_NAMES)}")
    return DTYPE_NAMES[name]
