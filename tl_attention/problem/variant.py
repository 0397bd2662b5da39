"""What is compiled: everything that one kernel is made for beside its schedule, and the kernel's parameters."""

from dataclasses import dataclass
from typing import NamedTuple

from tl_attention.problem.head_dims import HeadSize, head_size, tile_dim
from tl_attention.problem.mask import FULL, Mask


class Sizes(NamedTuple):
    """The sizes that a kernel may read at run time."""

    batch: int
    heads: int
    seq_q: int
    seq_kv: int


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: `dims` are a tensor's dimensions by name, outermost first, contiguous.

    An input or an output is a tensor of the caller's, a scalar a number; a counter is a tensor that a launch finds and
    leaves zero, so the caller need not see it. The dtype is the variant's where it is empty. An `optional` parameter
    is there where the variant, or the schedule, asks for it.
    """

    name: str
    kind: str
    dims: tuple[str | int, ...] = ()
    dtype: str = ""
    optional: bool = False


# In the order in which a kernel takes them.
KERNEL_PARAMETERS = (
    Parameter("Q", "input", ("batch", "heads", "seq_q", "head_dim")),
    Parameter("K", "input", ("batch", "heads", "seq_kv", "head_dim")),
    Parameter("V", "input", ("batch", "heads", "seq_kv", "head_dim_v")),
    Parameter("Output", "output", ("batch", "heads", "seq_q", "head_dim_v")),
    Parameter("softmax_scale", "scalar", dtype="float32"),
    Parameter("TileCounter", "counter", (2,), "int32", optional=True),
)


@dataclass(frozen=True)
class Variant:
    """What a kernel computes: attention of these head sizes, in this dtype, under this mask.

    `head_dim` is that of Q and K, `head_dim_v` that of V and the output: the same unless given. `sizes` None leaves
    them to run time. `optional` names the optional inputs and outputs that there are. These are the tensors' sizes: a
    kernel's tiles have `tile_dim` and `tile_dim_v` columns, of which those beyond the tensors' are 0.
    """

    head_dim: int
    dtype: str
    mask: Mask = FULL
    head_dim_v: int = 0
    sizes: Sizes | None = None
    optional: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "head_dim_v", self.head_dim_v or self.head_dim)

    @property
    def head_size(self) -> HeadSize:
        """Both."""
        return head_size(self.head_dim, self.head_dim_v)

    @property
    def tile_dim(self) -> int:
        """Columns of the tiles of Q and K."""
        return tile_dim(self.head_dim)

    @property
    def tile_dim_v(self) -> int:
        """Columns of the tiles of V and the output."""
        return tile_dim(self.head_dim_v)

    @property
    def narrow(self) -> bool:
        """Whether a tensor has fewer columns than its tile."""
        return (self.head_dim, self.head_dim_v) != (self.tile_dim, self.tile_dim_v)

    def parameters(self, *of_schedule: str) -> tuple[Parameter, ...]:
        """What a kernel for this variant takes, with the optional ones that its schedule asks for by name."""
        return tuple(p for p in KERNEL_PARAMETERS if not p.optional or p.name in self.optional | {*of_schedule})
