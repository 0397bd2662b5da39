"""An About says of which kernel, problem and machine a timeline is, how it was recorded, and what the marks changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from tl_attention.schedule.files.schedule_file import OneLine

Count = Annotated[int, Field(ge=0, lt=2**31)]
# More than any kernel takes, and no sum of such numbers is too large for a float.
Amount = Annotated[float, Field(gt=0, le=1e15)]
Places = int | tuple[int, ...] | None
ONLY = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Counted:
    """A Counted says how busy ncu saw the tensor pipes."""

    __pydantic_config__: ClassVar[ConfigDict] = ONLY

    counter: OneLine
    percent: Annotated[float, Field(ge=0, le=1000)]  # of the SMs' active cycles
    version: OneLine | None


@dataclass(frozen=True)
class Predicted:
    """A Predicted says of which machine a predicted timeline is, and what the model says of a launch."""

    __pydantic_config__: ClassVar[ConfigDict] = ONLY

    machine: OneLine
    ms: Amount  # of a launch
    blocks: Count  # KV blocks of a tile


@dataclass(frozen=True, kw_only=True)
class About:
    """An About holds what views tell of a timeline beside its lines. What is not known of it has its default."""

    __pydantic_config__: ClassVar[ConfigDict] = ONLY

    name: OneLine
    label: OneLine = ""
    shape: OneLine
    device: OneLine
    skip: Annotated[Count, Field(description="the iterations of each role that were left out first")] = 0
    marks: Annotated[tuple[str, ...], Field(description="what marks stood before, by kind")] = ()
    seed: int | None = None
    run: str = ""
    method: str = ""
    arch: str | None = None
    driver: str | None = None
    power_limit_w: float | None = None
    nvcc: str | None = None
    ptxas: str | None = None
    commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)

    time_with_marks: Annotated[
        tuple[Amount, Amount, Amount] | None,
        Field(description="the kernel's time as a part of that without marks: median, least and most of the rounds"),
    ] = None
    rounds: Count = 0
    tile_cycles: Annotated[
        tuple[Amount, Amount] | None, Field(description="of a tile, with the marks of tiles alone and with all")
    ] = None
    product_cycles: Annotated[
        dict[str, Amount], Field(description="of the tensor pipe, for a role's products of a KV block, by name")
    ] = field(default_factory=dict)
    blocks_of_sm: Count = 0
    machine_code: Annotated[
        dict[OneLine, tuple[Places, Places]], Field(description="what ptxas made without and with marks, by name")
    ] = field(default_factory=dict)
    ncu: Counted | None = None
    predicted: Predicted | None = None

    def known(self) -> dict[str, Any]:
        """Returns by name what is known, as plain values."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "", {}, ())}
