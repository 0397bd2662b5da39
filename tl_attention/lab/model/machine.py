"""A Machine has the numbers of one GPU that the model works with. It is a YAML file, with a source for each number."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, create_model, model_validator

from tl_attention.errors import InputError
from tl_attention.problem.card import Arch
from tl_attention.schedule.files import yaml_text
from tl_attention.schedule.files.schedule_file import OneLine
from tl_attention.schedule.key_errors import RuleBroken

FOLDER = Path(__file__).parent / "machines"
# The machine that is meant where none is named.
USUAL = "h200"
# No GPU has a quarter of so many SMs.
MOST_SMS = 1024


def _number(words: str, gt: float | None = None, le: float | None = None) -> Any:
    """Returns the field of a number of 0 or more, above `gt` and at most `le` if these are given."""
    return field(metadata={"words": words, "limits": (gt, le)})


@dataclass(frozen=True)
class Machine:
    """A Machine holds a GPU's numbers, in cycles of an SM unless their words say otherwise."""

    device: str
    driver: str
    date: str
    arch: str
    sms: int
    sources: dict[str, str] = field(repr=False)  # where each number is from

    fma: float = _number("a quarter's FMA pipe, for each FFMA, FMUL and FADD of a warp")
    imad: float = _number("the same for each IMAD")
    alu: float = _number(
        "a quarter's ALU pipe, for each maximum, selection, conversion to 16 bits or integer operation"
    )
    mufu: float = _number(
        "a quarter's special function unit, for each exponential of a warp, or rounding to an integer"
    )
    shuffle: float = _number("a quarter's share of shuffles, for each of a warp")
    uniform: float = _number("a quarter's uniform datapath, for each instruction")
    shared: float = _number("a quarter's share of loads and stores, for each of a warp")
    mma_sync: float = _number("a quarter's tensor core, for each m16n8k16 of mma.sync")
    wgmma_columns: float = _number("columns of an m64nNk16 that the tensor core multiplies in a cycle", gt=0)

    mufu_latency: float = _number("from the issue of an exponential to its result")
    shuffle_latency: float = _number("from the issue of a shuffle to its result")
    shared_latency: float = _number("from the issue of a load of shared memory to its result")
    global_latency: float = _number("from the issue of a load of global memory to its result")
    other_latency: float = _number("from the issue of any other instruction that sets a scoreboard until that is clear")
    read_latency: float = _number(
        "from the issue of an instruction until its operands have been read, where others wait for that"
    )

    taken: float = _number(
        "what an FMUL or FADD takes from the tensor core of its quarter while that multiplies, if none is close before"
    )
    taken_ffma: float = _number("the same for an FFMA")
    taken_close: float = _number("the same for each of them that is close behind another one")
    fma_beside: float = _number(
        "a quarter's issue slot, for each instruction of the FMA pipe while the tensor core multiplies"
    )
    slot_beside: float = _number("the same for each other instruction")
    alu_beside: float = _number(
        "how many times as long an instruction takes the ALU pipe while the tensor core multiplies"
    )
    mufu_beside: float = _number("the same for the special function unit")
    stall_beside: float = _number("the same for a warp's stalls")
    wgmma_queue: float = _number(
        "wgmma instructions of all warps that a tensor core has at most; the next one waits to issue", gt=0
    )
    wgmma_others: float = _number(
        "where two warps wait to issue a wgmma, the part of the places that the one gets which began later", le=1
    )
    wgmma_issue_columns: float = _number(
        "columns of a wgmma that issue in a cycle: its warp's next one issues when all have", gt=0
    )
    wgmma_start: float = _number("from the issue of a wgmma to its start on an idle tensor core")
    wgmma_done: float = _number("from the end of a group of wgmma until the warp that waits for it goes on")
    named_barrier: float = _number("from an arrival at a named barrier until who waits there goes on")
    mbarrier: float = _number("from a look at a complete mbarrier until its warp goes on")
    copy_latency: float = _number("from the commit of a group of cp.async until it has arrived, from L2")
    tma_latency: float = _number("from the issue of a load by TMA until its last byte has arrived, from L2")
    tma_bytes: float = _number("bytes that TMA brings to one SM in a cycle", gt=0)
    producer: float = _number("what a producer warp takes for the instructions of a wait or load")
    next_tile: float = _number("from the request for the number of the next tile until it has come")
    next_block: float = _number("from a thread block's exit until the next one on its SM begins")
    kernel: float = _number("what a launch takes beside its tiles")
    spread: float = _number("how much slower, as a part, the slowest SM is than the mean", le=1)

    clock_most: float = _number("MHz: the clock of a kernel without products", gt=0)
    clock_idle: float = _number("MHz: where the line of the clock over the tensor core's busy part begins, at 0", gt=0)
    clock_drop: float = _number("MHz: how much that line falls from 0 to 1")

    @property
    def title(self) -> str:
        return f"{self.device}, driver {self.driver}, {self.date}"

    def clock(self, busy: float) -> float:
        """Returns the SM clock in MHz of a kernel whose tensor core multiplies `busy` of the time, from 0 to 1.

        The card is limited in power: the more it multiplies, the lower its clock.
        """
        return min(self.clock_most, self.clock_idle - self.clock_drop * busy)


NUMBERS: dict[str, str] = {f.name: f.metadata["words"] for f in fields(Machine) if "words" in f.metadata}


# No time is so long that a sum of such is too large for a float.
Least = Field(ge=0, le=1e9, allow_inf_nan=False, strict=True)
_KEYS = ConfigDict(frozen=True, extra="forbid")


@functools.cache
def _keys_of_number(gt: float | None, le: float | None) -> type[BaseModel]:
    """Returns the model of a number within these limits, and of its source, as a machine's file has them."""
    value: Any = (Annotated[float, Least, Field(gt=gt, le=le)], ...)
    return create_model("_Number", __config__=_KEYS, value=value, source=(Annotated[str, Field(min_length=4)], ...))


_FIELDS: dict[str, Any] = {
    f.name: (_keys_of_number(*f.metadata["limits"]), ...) for f in fields(Machine) if f.name in NUMBERS
}
_Numbers = create_model("_Numbers", __config__=_KEYS, **_FIELDS)


class MachineKeys(BaseModel):
    """A MachineKeys holds the keys of a machine's file."""

    model_config = _KEYS

    device: OneLine
    driver: OneLine
    date: OneLine
    arch: Arch
    sms: Annotated[StrictInt, Field(ge=1, le=MOST_SMS)]
    numbers: _Numbers

    @model_validator(mode="after")
    def _runs(self) -> MachineKeys:
        idle, drop = (getattr(self.numbers, name).value for name in ("clock_idle", "clock_drop"))
        if drop >= idle:
            raise RuleBroken(
                f"a clock that drops by {drop:g} of {idle:g}, expected less", "numbers", "clock_drop", "value"
            )
        return self


def load(name: str = USUAL) -> Machine:
    """Returns the machine of this name that ships, or that of a file. Raises InputError with file, line and key."""
    path = Path(name) if name.endswith(".yaml") else FOLDER / f"{name}.yaml"
    if not path.suffix == ".yaml" or (path.parent == FOLDER and not os.path.isfile(path)):
        raise InputError(f"no machine {name[:40]!r}, expected {' or '.join(names())}, or a file NAME.yaml")
    file = yaml_text.read(path)
    keys = yaml_text.checked(file, MachineKeys, file.fields)
    found = {name: getattr(keys.numbers, name) for name in NUMBERS}
    return Machine(
        keys.device,
        keys.driver,
        keys.date,
        keys.arch,
        keys.sms,
        {name: number.source for name, number in found.items()},
        **{name: number.value for name, number in found.items()},
    )


def names() -> list[str]:
    """Returns the names of the machines that ship."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))
