"""The rules of defaults.yaml are held here to serve every case, and to name schedules and records that exist."""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tl_attention.files import catalogue
from tl_attention.files.defaults import KEYS, NONE_YET, Case, Defaults, Rule, edges, read
from tl_attention.files.named import resolve
from tl_attention.files.yaml_text import blamed
from tl_attention.hardware.card import ARCHS, HOPPER
from tl_attention.problem.features import BY_WORD
from tl_attention.problem.head_dims import TILE_SIZES, is_meant
from tl_attention.problem.mask import MASK_KINDS
from tl_attention.problem.shape import DTYPES
from tl_attention.shipped import folder

EITHER = (False, True)
RECORD = re.compile(r"([\w.-]+\.jsonl) says .+")


def load(path: Path) -> Defaults:
    """Read a file of rules. Raises InputError with `file:line: key: message` unless they serve every case, each some."""
    found = read(path)
    for number, rule in enumerate(found.rules):
        schedule, record = (("rules", number, key) for key in ("schedule", "record"))
        if catalogue.path_of(rule.schedule) is None:
            raise blamed(found.file, schedule, str(catalogue.unknown(rule.schedule)))
        named = resolve(rule.schedule)
        for size in rule.head_dims:
            if not is_meant(size, named.head_dims):
                raise blamed(found.file, schedule, f"{rule.schedule} {named.meant_for}, the rule is for {size} too")
        said = RECORD.fullmatch(rule.record)
        if rule.record != NONE_YET and not (said and (folder("results") / said[1]).is_file()):
            raise blamed(found.file, record, f"no record in results/ and what it says: {rule.record}")
    serving = set()
    for case in told_apart(found.rules):
        serving.add(found.find(case))
        if None in serving and case.arch == HOPPER.arch:
            raise blamed(found.file, ("rules",), f"no rule serves {case}, expected one for every case")
        serving.discard(None)
    for number in {*range(len(found.rules))} - serving:
        raise blamed(found.file, ("rules", number), "never serves a case: the rules above it serve all of its own")
    return found


def told_apart(rules: Sequence[Rule]) -> Iterator[Case]:
    """One case of each kind that the rules tell apart: of values for which all rules say the same, the first."""
    values: dict[str, Sequence[Any]] = {"head_dims": TILE_SIZES, "dtypes": DTYPES, "masks": MASK_KINDS, "archs": ARCHS}
    values |= dict.fromkeys(BY_WORD, EITHER) | {key: edges(rules, key) for key in ("seq_q", "seq_kv", "group")}
    apart: dict[str, dict[tuple[bool, ...], Any]] = {key: {} for key in KEYS}
    for key, first in apart.items():
        for value in values[key]:
            first.setdefault(tuple(rule.holds(key, value) for rule in rules), value)
    for case in itertools.product(*(first.values() for first in apart.values())):
        *first, archs = case
        asked = frozenset(word for word, there in zip(BY_WORD, first[6:]) if there)
        yield Case(*first[:6], asked, archs)
