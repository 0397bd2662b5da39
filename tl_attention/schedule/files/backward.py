"""The gradients of a call are computed by the first rule of backward.yaml whose conditions hold, and that serves it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from tl_attention.problem.card import HOPPER
from tl_attention.problem.mask import Mask, fitted, kind_of
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files import conditions
from tl_attention.schedule.files.conditions import KEYS, LENGTH_KEYS, Case, Conditions, Line, RuleFile

FILE = Path(__file__).with_name("backward.yaml")
FLASH2, CUDNN, PAIR = "flash2", "cudnn", "pair"
Version = Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+ with torch \d+\.\d+$")]


class BackwardRule(Conditions):
    """A rule names the operator that computes the gradients of calls that meet its conditions."""

    keys: ClassVar[tuple[str, ...]] = (*KEYS, "square", "seq_kv_mod_128", "deterministic")
    length_keys: ClassVar[tuple[str, ...]] = (*LENGTH_KEYS, "square", "seq_kv_mod_128")

    square: StrictBool | None = None
    seq_kv_mod_128: Annotated[int, Field(strict=True, ge=0, lt=128)] | None = None
    deterministic: StrictBool | None = None
    operator: Literal["flash2", "cudnn", "pair"]
    schedules: tuple[Line, ...] = ()  # the names of a pair's: of loop dq, and of loop dkdv
    after: Annotated[int, Field(strict=True, ge=0)] = 0  # calls of a shape that flash2 serves before this operator does
    versions: tuple[Version, ...] = ()  # of cuDNN and torch when the record was made, as `9.19.0 with torch 2.11`

    @model_validator(mode="after")
    def _pair_is_whole(self) -> Self:
        # No other operator computes for a pair, nor in its place for a while.
        if self.operator != PAIR and self.schedules:
            raise PydanticCustomError("pair", "it names schedules, expected operator pair")
        if self.operator == PAIR and (len(self.schedules) != 2 or self.after or self.versions):
            raise PydanticCustomError("pair", "expected of a pair two schedules, neither after nor versions")
        return self

    @property
    def words(self) -> str:
        """Returns the operator as users read it, such as `flash2`, or `pair (dq, dkdv)`."""
        return f"{self.operator} ({', '.join(self.schedules)})" if self.schedules else self.operator


class BackwardRules(RuleFile[BackwardRule]):
    """BackwardRules are the rules that choose the operator of gradients; the last meets every case."""

    def pairs(self, case: Case) -> list[tuple[str, ...]]:
        """Returns the pairs that calls which differ from a case in lengths may take, or in how their bits must be."""
        kinds = (case._replace(deterministic=deterministic).kind for deterministic in (False, True))
        numbers = sorted({number for kind in kinds for number in self.by_kind(kind)})
        return list(dict.fromkeys(rule.schedules for rule in map(self.rules.__getitem__, numbers) if rule.schedules))


@functools.cache
def backward_rules() -> BackwardRules:
    """Returns the rules that ship, read from backward.yaml once in a process."""
    return read(FILE)


def cudnn_versions() -> tuple[str, ...]:
    """Returns the versions of cuDNN that some rule's record covers."""
    return tuple(dict.fromkeys(version for rule in backward_rules().rules for version in rule.versions))


def read(path: Path) -> BackwardRules:
    """Reads a YAML file of rules of the backward. Raises InputError with `file:line: key: message`."""
    return BackwardRules(*conditions.read(path, BackwardRule))


def case_of(shape: AttentionShape, arch: str = HOPPER.arch, deterministic: bool = False) -> Case:
    """Returns the Case of a problem's gradients: under its mask without sides that hide no key, and without the LSE.

    Every gradient needs the LSE. The problem has no query that sees no key, unless sequences are packed.
    """
    case = Case.of(shape, arch)
    mask = shape.mask if shape.packed else fitted(shape.mask, shape.seq_q, shape.seq_kv)
    return case._replace(mask=kind_of(mask), asked=case.asked - {"lse"}, deterministic=deterministic)


def packed_masks_alike(mask: Mask, longest_kv: int) -> bool:
    """Says whether FlashAttention-2's backward hides the same keys as the mask, of packed sequences of any lengths.

    A right side as long as the keys is an open one to that backward. Rows before the first key tell the two apart.
    """
    open_there = mask.right is None or (mask.right > 0 and mask.right >= longest_kv)
    return not open_there or (mask.left is None and mask.right is None)


def masks_alike(mask: Mask, seq_q: int, seq_kv: int) -> bool:
    """Says whether FlashAttention-2's backward hides the same keys as the mask, for these lengths of a dense call.

    That backward takes a right side of seq_kv or more for an open side, and an open right side beside a left side for
    seq_kv. Both hide the same keys unless queries stand before the first key.
    """
    if mask.right is None and mask.left is None:
        return True
    return seq_q <= seq_kv or mask.right == 0 or (mask.right is not None and mask.right < seq_kv)
