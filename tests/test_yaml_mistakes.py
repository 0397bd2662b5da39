"""Mistakes in a schedule file, each told at the line that its author wrote, in the author's terms, with what works."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tl_attention.errors import InputError
from tl_attention.files.named import resolve
from tl_attention.files.schedule_file import load
from tl_attention.schedule.choices import listed_keys

SIZES = "block_M: 128\nblock_N: 128\nthreads: 256\nnum_stages: 2\n"
GROUP = "group: [[0], [1, 2], [3, 4, 5, 6, 7, 8, 9, 10, 11], [12], [13], [14]]\n"
ORDER = "order: [-1, 0, 3, 1, -1, 2]\n"
STAGE = "stage: [-1, 0, 0, 1, -1, 1]\n"
WHOLE = f"{SIZES}{GROUP}{ORDER}{STAGE}"
SEVEN = "[load_k], [mask, mma0], [max_prev, max_init, row_max, max_merge, scale, exp.0]"
EIGHT_GROUPS = f"group: [{SEVEN}, [exp.1, row_sum, sum_merge], [cast], [rescale], [load_v], [mma1]]"

# The text of the file behind `base: best`, unless it begins with `+`; then line and words of each error.
TEXT = {
    "tab before a key": ("kernel:\n\tcluster: 1", (3, "not YAML: a tab ('\\t'), where YAML takes spaces alone: ")),
    "tab in a mapping": ("kernel:\n  cluster: 1\n\toutput: tma", (4, "not YAML: a tab ('\\t')")),
    "tab before a value": ("block_N:\t128", (2, "not YAML: a tab ('\\t')")),
    "tab in a list": ("order: [-1,\t0]", (2, "not YAML: a tab ('\\t')")),
    "no colon": ("num_stages 3\nblock_M: 128", (2, "not YAML: no colon behind num_stages, expected `num_stages: 3`")),
    "no colon at the end": ("num_stages 3", (2, "not YAML: no colon behind num_stages, expected `num_stages: 3`")),
    "no colon at the beginning": ("+base best\nblock_N: 128", (1, "not YAML: no colon behind base, expected `base: b")),
    "no colon in the only line": ("+base best", (1, "expected a mapping of keys, such as block_M: 128: no colon behi")),
    "no colon below": (
        "kernel:\n  cluster 1",
        (2, "kernel: expected a mapping of keys, found 'cluster 1': expected a"),
    ),
    "no colon above": ("kernel\n  cluster: 1", (2, "not YAML: no colon behind kernel, expected `kernel:`")),
    "no space": ("num_stages:3\nblock_M: 128", (2, "not YAML: no space behind the colon of num_stages, expected `num")),
    "no space in braces": ("kernel: {cluster:1}", (2, "kernel.cluster:1: unknown key, expected a colon and a space ")),
    "equals": ("num_stages = 3", (2, "not YAML: `=` behind num_stages, expected a colon and a space, `num_stages: 3`")),
    "equals in braces": ("kernel: {cluster=1}", (2, "expected a colon and a space in `cluster: 1`, found 'cluster=1'")),
    "colon in a text": (
        "summary: mine: wide",
        (2, "a text with a colon inside needs quotes, expected `summary: 'mine:"),
    ),
    "two keys on a line": ("kernel: cluster: 1", (2, "two keys on one line, expected braces around the second, `kern")),
    "two keys and a comma": ("block_N: 128, block_M: 64", (2, "two keys on one line, expected each key on a line of ")),
    "indented": ("  num_stages: 3", (2, "num_stages is indented, but the key on line 1 has a value already: remove")),
    "half indented": (
        "kernel:\n    cluster: 1\n  output: tma",
        (4, "the indentation is that of no line above, expected"),
    ),
    "open bracket": ("order: [-1, 0\nstage: [0]", (2, "not YAML: the bracket [ is not closed, expected ] at the end")),
    "open brace": ("kernel: {cluster: 1", (2, "not YAML: the bracket { is not closed, expected } at the end")),
    "open quote": ('summary: "mine\nnum_stages: 3', (2, 'not YAML: the quote " is not closed')),
    "per cent": ("summary: %5", (2, "not YAML: a text cannot begin with %: put the whole text in quotes")),
    "star": ("summary: *fast*", (2, "not YAML: a text cannot begin with *: put the whole text in quotes")),
    "text behind a bracket": (
        "summary: [a] b",
        (2, "a text that begins with a bracket or a quote needs quotes around"),
    ),
    "a list of keys": ("+- base: best\n- block_N: 128", (1, "found a list: remove the dashes or the brackets around")),
    "a dash before a key": (
        "kernel:\n  - cluster: 1",
        (2, "kernel: expected a mapping of keys, found the list", "das"),
    ),
    "no comma": (
        "order: [-1 0 1]",
        (2, "order[0]: expected an integer, found '-1 0 1': expected a comma between two e"),
    ),
    "quoted number": ('num_stages: "3"', (2, "num_stages: expected an integer, found '3': expected 3 without quotes")),
    "one size, no list": (
        "head_dims: 64",
        (2, "head_dims: expected a list, found 64: expected brackets around it, he"),
    ),
    "list for keys": ("split: [88, 88]", (2, "found the list [88, 88]: expected such as `split: {exp: [48, 128]}`")),
    "word for keys": (
        "kernel: tma",
        (2, "kernel: expected a mapping of keys, found 'tma': expected such as `kernel: {"),
    ),
}
KEYS = {
    "not indented": (
        "kernel:\ncluster: 1",
        (3, "cluster: unknown key here: cluster is a key of kernel, indent it below"),
    ),
    "one not indented": (
        "kernel:\n  cluster: 1\noutput: tma",
        (4, "output is a key of kernel", "kernel: {output: tma}`"),
    ),
    "below nothing": (
        "exp: [48, 128]",
        (2, "exp is a key of split, indent it below that key or write `split: {exp: [4"),
    ),
    "below one of two": (
        "mma1: exp.1",
        (2, "mma1 is a key of split or wait_before, indent it", "`wait_before: {mma1: ex"),
    ),
    "below another": (
        "softmax: {every: 4}",
        (2, "every is a key of softmax.exp2_polynomial", "{exp2_polynomial: {every"),
    ),
    "too deep": (
        "kernel:\n  threads: 256",
        (3, "kernel.threads: unknown key here: threads is no key of kernel, remove the"),
    ),
    "dotted": (
        "kernel.output: tma",
        (2, "kernel.output: unknown key: a key below another has no dot, expected `kernel: {"),
    ),
    "dotted and misspelt": (
        "kernel.outptu: tma",
        (2, "a key below another has no dot, expected `kernel: {output: tma}`"),
    ),
    "dotted below": ("softmax:\n  exp2_polynomial.every: 4", (3, "expected `softmax: {exp2_polynomial: {every: 4}}`")),
    "a blank that is no space": (
        "\u00a0num_stages: 3",
        (2, "a blank that is no space stands beside num_stages, remove"),
    ),
    "only an order": (
        f"+{ORDER}",
        (1, "block_M, block_N, threads, num_stages, group and stage are missing: add `base: b"),
    ),
    "only a summary": (
        "+summary: x",
        (1, "num_stages, group, order and stage are missing: add `base: best`, or give them"),
    ),
    "only sizes": (f"+{SIZES}", (1, "group, order and stage are missing: add `base: best`, or give them")),
    "sizes of a lowering": (
        f"+lowering: mma_sync\n{SIZES}",
        (1, "group, order and stage are missing: add `base: mma_sy"),
    ),
    "one key missing": (
        f"+{WHOLE.replace('threads: 256', '')}",
        (1, "threads: the key is missing: add `base: best`, or"),
    ),
    "base with a capital": ("+Base: best\nblock_N: 128", (1, "Base: unknown key, did you mean base? ")),
    "base and its suffix": (
        "+base: best.yaml",
        (1, "base: {folder}/best.yaml is no file", "did you mean `base: best`?"),
    ),
    "null of a size": (
        "block_M: null",
        (2, "block_M: expected an integer, found nothing: null means the default, and blo"),
    ),
    "null of a key below": ("softmax: {exp2_polynomial: {every: }}", (2, "null means the default, and every has none")),
    "null of the order": ("order: null", (2, "order: missing or empty", "without this line the base's holds")),
    "null of the base": (
        "+base:\nblock_N: 128",
        (1, "base: expected a schedule's name", "base has no default, remove the"),
    ),
}
TOGETHER = {
    "block_M": (
        "block_M: 192",
        (
            2,
            "block_M: 192 needs `threads: 384` and `kernel: {ping_pong: false}` too: 256 threads do not fit",
            "(base be",
        ),
    ),
    "block_M and threads": (
        "block_M: 64\nthreads: 128",
        (2, "block_M: 64 needs `kernel: {ping_pong: false}` too: two "),
    ),
    "block_M too large": ("block_M: 256", (2, "block_M: 256, expected at most 192: the registers of 3 warpgroups")),
    "block_M of a synchronous base": ("+base: seed\nblock_M: 192", (2, "block_M: 192 needs `threads: 384` too: ")),
    "threads": (
        "threads: 384",
        (2, "threads: 384 threads do not fit", "or write `block_M: 192` and `kernel: {ping_pong: f"),
    ),
    "block_N": (
        "block_N: 128",
        (2, "block_N: 128 needs `split: {exp: [48, 80]}` too: the columns of split.exp add up "),
    ),
    "a small block_N": ("block_N: 32", (2, "block_N: 32 needs `split: {exp: [16, 16]}` too: ", "on line 12)")),
    "block_N of two splits": (
        "+base: best_causal\nblock_N: 96",
        (2, "block_N: 96 needs `split: {exp: [32, 64], row_sum: [32, 64]}` too: ", "on lines 13 and 14)"),
    ),
    "columns": (
        "split: {exp: [64, 64]}",
        (2, "split.exp: 128 columns in total, expected block_N 176; or write `block_N"),
    ),
    "another chunk": ("split: {exp: [48, 64, 64]}", (2, "split.exp: [48, 64, 64] needs `group` with exp.2 too: ")),
    "a new split": (
        "split: {row_sum: [48, 128]}",
        (2, "needs `group` with row_sum.0 and row_sum.1 in place of row_sum"),
    ),
    "no split": (
        "split: null",
        (2, "split.exp: null needs `group` with exp in place of exp.0 and exp.1 and `wait_before: {mma1: exp}` too: "),
    ),
    "rows as a whole": (
        "+base: best_causal\nsoftmax: {row_sum: row}",
        (
            2,
            "softmax.row_sum: row needs `split: {row_sum: null}` and `group` with row_sum in place of row_sum.0 and ro",
        ),
    ),
    "a cluster": (
        "+base: best_causal\nkernel:\n  cluster: 2",
        (3, "kernel.cluster: 2 needs `kernel: {tile_scheduler: "),
    ),
    "dynamic": (
        "kernel: {tile_scheduler: dynamic}",
        (2, "expected with cluster: 1", "; write `kernel: {cluster: 1}` to"),
    ),
    "registers": (
        "kernel: {blocks_per_sm: 2, registers: [240, 24]}",
        (2, "kernel.registers: [240, 24] take 64,512 regi"),
    ),
    "pipelined": (
        "lowering: pipelined",
        (
            2,
            "lowering: pipelined needs `kernel: null`, `split: null`, `wait_before: null` and `group` with exp in place",
        ),
    ),
    "inferred": (
        "lowering: inferred",
        (2, "needs `group: null`, `order: null`, `stage: null`, `kernel: null`, `split: "),
    ),
    "mma_sync": ("lowering: mma_sync", (2, "needs `kernel: {ping_pong: false}`", "or start from `base: mma_sync`")),
    "an order for inferred": (
        "+base: inferred\nlowering: pipelined",
        (2, "needs `group`, `order` and `stage` too: low"),
    ),
    "producers": (
        "+base: seed\nlowering: warp_specialized",
        (2, "warp_specialized needs `kv_order: descending` too: "),
    ),
    "own key": (
        "+base: seed\nkernel: {output: tma}",
        (2, "kernel: only lowering warp_specialized or mma_sync takes it, "),
    ),
    "own key and the base's": (
        "lowering: pipelined\nkernel: {cluster: 1}",
        (2, "lowering: pipelined needs `split: null`, `wait_before: null` and `group` with exp"),
        (3, "kernel: only lowering warp_specialized or mma_sync takes it: write `kernel: null`"),
    ),
    "groups": (
        EIGHT_GROUPS,
        (2, "group: this value needs another `order` and another `stage` too: order has 7 entries, e"),
    ),
    "no producer": (
        "order: [0, 1, 2, 3, 4, 5, 6]",
        (2, "needs another `stage` too: stage[0] is -1 for load_k, expecte"),
    ),
    "head sizes of the base": (
        "+base: mma_sync",
        (1, "refused: split.mma0: ", "write `head_dims: [128]` too (from base"),
    ),
    "head sizes of its own": ("+base: mma_sync\nhead_dims: [64, 128]", (2, "refused: head_dims: split.mma0: ")),
}
SEVERAL = {
    "types and names": (
        "block_N: 100\nthreads: 200\nkernel: {cluster: 3, outptu: tma}\nsummry: x",
        (2, "block_N: expected a multiple of 16, found 100"),
        (3, "threads: expected a multiple of 128, found 200"),
        (4, "kernel.cluster: expected at most 2, found 3"),
        (4, "kernel.outptu: unknown key, did you mean output? "),
        (5, "summry: unknown key, did you mean summary? "),
    ),
    "text and types": (
        "num_stages: 3\nnum_stages: 2\nthreads: 0x80\nblock_M: 96",
        (3, "num_stages: given on line 2 already"),
        (4, "threads: '0x80' is not a decimal integer"),
        (5, "block_M: expected a multiple of 64, found 96"),
    ),
    "types and rules": (
        f"+{WHOLE.replace('128', '100', 1).replace('3,', '2,')}",
        (1, "block_M: expected a multiple of 64, found 100"),
        (6, "order[5]: position 2 is taken by group 2 already"),
    ),
    "rules": (
        f"+{SIZES.replace('256', '128')}{GROUP}order: [-1, 0, 3]\nstage: [-1, 0]\nkernel: {{cluster: 1}}",
        (3, "threads: 128 threads do not fit block_M 128"),
        (6, "order: 3 entries, expected one per group, 6"),
        (7, "stage: 2 entries, expected one per group, 6"),
        (8, "kernel: only lowering warp_specialized or mma_sync takes it, remove it from lowering pipelined"),
    ),
    "keys and what they need": (
        "block_M: 64\nblock_N: 128\nkernel: {registers: [240, 240]}",
        (2, "block_M: 64 needs `threads: 128` and `kernel: {ping_pong: false}` too: "),
        (3, "block_N: 128 needs `split: {exp: [48, 80]}` too: "),
        (4, "kernel.registers: [240, 240], expected "),
    ),
}
TABLE: dict[str, tuple[Any, ...]] = {**TEXT, **KEYS, **TOGETHER, **SEVERAL}


@pytest.fixture
def mine(tmp_path: Path) -> Callable[[str], Path]:
    """Writes mine.yaml; the text of a table."""

    def write(text: str) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(text.removeprefix("+") if text.startswith("+") else f"base: best\n{text}\n")
        return path

    return write


@pytest.mark.parametrize("name", TABLE)
def test_every_mistake_has_its_line_its_words_and_what_works(name, mine, cli, tmp_path) -> None:
    text, *errors = TABLE[name]
    path = mine(text)
    result = cli("check", path)
    assert result.exit_code == 2 and not result.stdout
    told = result.stderr.splitlines()
    assert len(told) == len(errors), result.stderr
    for found, (line, *words) in zip(told, errors):
        assert found.startswith(f"error: {path}:{line}: "), found
        missing = [word for word in words if word.replace("{folder}", str(tmp_path)) not in found]
        assert not missing, found
        # The words of PyYAML's parser and of pydantic are theirs.
        assert not re.search(r"token|scalar|block mapping|flow sequence|mapping values|pydantic", found), found


def test_the_message_of_python_has_a_line_for_each_mistake(mine) -> None:
    path = mine("block_N: 100\nthreads: 200")
    with pytest.raises(InputError) as error:
        load(path)
    lines = (
        f"{path}:2: block_N: expected a multiple of 16, found 100",
        f"{path}:3: threads: expected a multiple of 128, found 200",
    )
    assert error.value.lines == lines and str(error.value) == "\n".join(lines)


def test_a_file_of_mistakes_is_not_told_to_its_end(mine) -> None:
    with pytest.raises(InputError) as error:
        load(mine("".join(f"key_{number}: 1\n" for number in range(50))))
    assert len(error.value.lines) == 21 and error.value.lines[-1].endswith("mine.yaml: 30 more mistakes")


@pytest.mark.parametrize("line", ["kernel: null", "summary: null", "head_dims:", "lowering: ~", "softmax: {row_max: }"])
def test_null_is_the_default_in_a_file_without_a_base(line, mine) -> None:
    assert load(mine(f"+{WHOLE}{line}\n")) == load(mine(f"+{WHOLE}"))


def merged(fields: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    both = {key: merged(fields[key], more[key]) for key in fields.keys() & more if isinstance(more[key], dict)}
    return fields | more | both


@pytest.mark.parametrize("base", ["best", "best_causal", "seed"])
def test_what_a_refusal_says_to_write_too_is_taken(base, mine) -> None:
    """Every other value of every key of the base: what stands in backquotes makes the file one without mistakes."""
    followed = 0
    for path, values in listed_keys(resolve(base).schedule):
        for value in values if len(values) < 40 else ():
            own: Any = value
            for part in reversed(path):
                own = {part: own}
            fields = {"base": base, **own}
            try:
                load(mine(f"+{yaml.safe_dump(fields)}"))
                continue
            except InputError as error:
                lines = error.lines
            advised = re.search(r"(?:needs|or write|; write) (`.*`) too(?::|$)", lines[0])
            if advised and ("another" in lines[0] or "`group`" in lines[0]):
                continue
            assert advised or not lines[0].endswith(" too"), lines
            if advised:
                for written in re.findall(r"`([^`]*)`", advised[1]):
                    fields = merged(fields, yaml.safe_load(written))
                load(mine(f"+{yaml.safe_dump(fields)}"))
                followed += 1
    assert followed >= 3
