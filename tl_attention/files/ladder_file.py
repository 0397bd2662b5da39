"""A ladder: schedules step by step, each one idea away from the step that it is measured against, and a text's figures.

`results/ladder-NAME.yaml` says what the steps are, beside the record of them; schedules that only a ladder has are in
`schedules/ladders/NAME/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from tl_attention import shipped
from tl_attention.errors import InputError
from tl_attention.files import yaml_text
from tl_attention.files.named import Named, resolve
from tl_attention.files.yaml_text import YamlFile, blamed, checked
from tl_attention.problem.shape import DTYPE_NAMES, AttentionShape
from tl_attention.schedule.key_words import KeyPath

START, SUFFIX = "ladder-", ".yaml"
Text = Annotated[str, Field(min_length=1)]
Short = Annotated[str, Field(min_length=1, max_length=40)]
Figure = Annotated[float, Field(gt=0)]
Product = Literal["matmul", "mma_sync"]


class _Keys(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StepKeys(_Keys):
    """One step as its file has it."""

    name: Annotated[Short, Field(description="unique in the ladder")]
    idea: Annotated[Text, Field(description="what it adds, in a few words")]
    schedule: Annotated[str | None, Field(description="a schedule's name; none where the step has no meaning here")] = (
        None
    )
    against: Annotated[str | None, Field(description="the step that it is measured against; the one before")] = None
    text: Annotated[Figure | None, Field(description="the text's own figure")] = None
    why: Annotated[str, Field(description="the lesson: what was in the way, and what the step does about it")] = ""
    note: Annotated[str, Field(description="what a reader must know: why there is no schedule, or no new code")] = ""


class TileKeys(_Keys):
    """A kernel that is compiled and not timed, for a table of what tiles take."""

    schedule: str
    text: Annotated[Text, Field(description="what the text has of it")]


class HeadlineKeys(_Keys):
    """What the text is known for, and the step that stands beside it here."""

    step: str
    text: Text


class LadderKeys(_Keys):
    """A ladder as its file has it."""

    title: Text
    source: Annotated[Text, Field(description="who wrote what")]
    link: Annotated[str, Field(description="Markdown: where the text or its code is, if that is known")] = ""
    story: Annotated[Text, Field(description="what a student learns here")]
    headline: HeadlineKeys
    method: Annotated[Text, Field(description="the card, problem and method of the text's figures")]
    unit: Annotated[Text, Field(description="of the text's figures")]
    shape: Annotated[str, Field(description="the problem here, as --shape has it")]
    dtype: Literal["fp16", "bf16"] = "fp16"
    causal: StrictBool = False
    fixed: Annotated[StrictBool, Field(description="compiled for exactly this problem, as the text's kernels")] = False
    product: Annotated[Product, Field(description="the plain product whose rate is 100 %")] = "matmul"
    peers: Annotated[dict[str, Figure | None], Field(description="and the text's figure of each")] = {}
    steps: Annotated[tuple[dict[str, Any], ...], Field(min_length=2)]
    tiles: tuple[dict[str, Any], ...] = ()
    choose: Annotated[StrictBool, Field(description="choose the fastest of the text's space of configurations")] = False


@dataclass(frozen=True)
class Step:
    """`schedule` is None where the step has no meaning here, which `note` then says; `against` is another step's name."""

    name: str
    idea: str
    schedule: Named | None
    against: str | None
    text: float | None
    why: str
    note: str


@dataclass(frozen=True)
class Tile:
    """A kernel whose registers and spills are shown beside the text's."""

    schedule: Named
    text: str


@dataclass(frozen=True)
class Ladder:
    """What is measured beside each other, in the order of the text; `unit` is that of the text's figures.

    `headline` is the step that stands beside what the text is known for, `tiles` are compiled and not timed. `choose` asks
    for the fastest of the space in `configurations/space.py` besides.
    """

    name: str
    title: str
    source: str
    link: str
    story: str
    headline: Step
    headline_text: str
    method: str
    unit: str
    shape: AttentionShape
    fixed: bool
    product: Product
    peers: Mapping[str, float | None]
    steps: tuple[Step, ...]
    tiles: tuple[Tile, ...]
    choose: bool

    @property
    def measured(self) -> tuple[Step, ...]:
        """The steps that have a schedule."""
        return tuple(step for step in self.steps if step.schedule)

    def step(self, name: str) -> Step:
        """The step of this name."""
        return next(step for step in self.steps if step.name == name)


def ladder_names() -> list[str]:
    """The ladders that ship, sorted."""
    return sorted(path.stem.removeprefix(START) for path in _root().glob(f"{START}*{SUFFIX}"))


def record_name(name: str) -> str:
    """The file in results/ that has the record of the ladder of this name."""
    return f"{START}{name}-h200.jsonl"


def load_ladder(name: str | Path) -> Ladder:
    """The ladder that ships under this name, or that of a file. Raises InputError with `file:line: key: message`."""
    text = str(name)
    path = Path(text) if text.endswith(SUFFIX) else _root() / f"{START}{text}{SUFFIX}"
    if not path.is_file():
        raise InputError(f"no ladder is named {text[:60]!r}, expected one of {', '.join(ladder_names())}, or a file")
    file = yaml_text.read(path)
    keys = checked(file, LadderKeys, file.fields)
    try:
        shape = AttentionShape.parse(keys.shape, dtype=DTYPE_NAMES[keys.dtype], causal=keys.causal)
    except InputError as error:
        raise blamed(file, ("shape",), str(error)) from None
    steps: list[Step] = []
    for number, fields in enumerate(keys.steps):
        steps.append(_step(file, number, checked(file, StepKeys, fields, "steps", number), steps))
    tiles = [_tile(file, number, fields) for number, fields in enumerate(keys.tiles)]
    headline = next((step for step in steps if step.schedule and step.name == keys.headline.step), None)
    if headline is None:
        where: KeyPath = ("headline", "step")
        raise blamed(file, where, f"{keys.headline.step[:40]!r} is no step that has a schedule")
    told = {
        key: getattr(keys, key)
        for key in ("title", "source", "link", "story", "method", "unit", "fixed", "product", "peers", "choose")
    }
    return Ladder(
        path.stem.removeprefix(START),
        shape=shape,
        steps=tuple(steps),
        tiles=tuple(tiles),
        headline=headline,
        headline_text=keys.headline.text,
        **told,
    )


def _step(file: YamlFile, number: int, keys: StepKeys, earlier: list[Step]) -> Step:
    where: KeyPath = ("steps", number)
    names = [step.name for step in earlier]
    if keys.name in names:
        raise blamed(file, (*where, "name"), f"{keys.name!r} is the name of an earlier step, expected another")
    if keys.schedule is None:
        if not keys.note:
            raise blamed(file, where, "a step without a schedule, expected a note that says why it has none")
        return Step(keys.name, keys.idea, None, None, keys.text, keys.why, keys.note)
    measured = [step.name for step in earlier if step.schedule]
    if keys.against is not None and keys.against not in measured:
        found = ", ".join(measured) or "none: it is the first"
        raise blamed(file, (*where, "against"), f"{keys.against[:40]!r} is no earlier step, expected one of {found}")
    named = _resolved(file, (*where, "schedule"), keys.schedule)
    against = keys.against or next(reversed(measured), None)
    return Step(keys.name, keys.idea, named, against, keys.text, keys.why, keys.note)


def _tile(file: YamlFile, number: int, fields: dict[str, Any]) -> Tile:
    keys = checked(file, TileKeys, fields, "tiles", number)
    return Tile(_resolved(file, ("tiles", number, "schedule"), keys.schedule), keys.text)


def _resolved(file: YamlFile, where: KeyPath, schedule: str) -> Named:
    try:
        return resolve(schedule)
    except InputError as error:
        raise blamed(file, where, str(error)) from None


def _root() -> Path:
    return shipped.folder("results")
