"""Tests check which kernels `warm` compiles for which calls, what it says of each, and what it refuses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from mutations import shipped
from pool_jobs import compile_by_name

from tl_attention.lab.measure import compilation
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.files import defaults
from tl_attention.schedule.files.defaults import default_schedule, default_schedules
from tl_attention.schedule.files.named import resolve

SEED = shipped()["seed"]


@pytest.fixture
def filled(monkeypatch, tmp_path) -> list[Candidate]:
    """Returns what the store is to be filled with; the first was there already, and the others are compiled at once."""
    asked: list[Candidate] = []

    def fill(candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, Compiled | None]]:
        asked.extend(candidates)
        for number, candidate in enumerate(candidates):
            yield candidate, Compiled("code", seconds=1.25) if number else None

    monkeypatch.setattr(compilation, "fill", fill)
    monkeypatch.setattr(compilation, "check_can_be_filled", lambda: None)
    # Without a GPU, wherever the test runs.
    monkeypatch.setattr("tl_attention.lab.measure.device.visible_gpus", lambda: ())
    return asked


ALL_THAT_IS_OPTIONAL = Variant(128, "float16", optional=frozenset({"softcap", "Sinks", "LSE"}), strided=True)
CALLS = {
    "by default": (
        "",
        {
            (name, Variant(128, dtype, mask, parts=parts))
            for dtype in ("float16", "bfloat16")
            for mask, names in (
                (FULL, ("short_keys", "short", "best")),
                (CAUSAL, ("short_keys", "short", "best_causal")),
            )
            for name in names
            for parts in (False, True)
            if not parts or name == "short"
        },
    ),
    "one dtype, causal": (
        "--dtype bf16 --causal",
        {("short", Variant(128, "bfloat16", CAUSAL, parts=True))}
        | {(name, Variant(128, "bfloat16", CAUSAL)) for name in ("short_keys", "short", "best_causal")},
    ),
    "heads that may be put together": (
        "short --dtype bf16 --causal --shape 1,8/2,4096,128",
        {
            ("short", Variant(128, "bfloat16", mask, group=group, tile_heads=group or 1, parts=parts))
            for mask, group in ((CAUSAL, None), (CAUSAL, 4), (FULL, 4))
            for parts in (False, True)
        },
    ),
    "a schedule, and a head size": (
        "seed --head-dim 128/64 --dtype fp16 --dtype float16 --no-causal",
        {("seed", Variant(128, "float16", head_dim_v=64))},
    ),
    "schedules of two head sizes": (
        "d64 d256 --dtype fp16 --no-causal",
        {("d64", Variant(64, "float16")), ("d256", Variant(256, "float16"))},
    ),
    "all that is optional": (
        "--no-causal --dtype fp16 --shape 8,32/8,4096,128 --softcap 30 --sinks --lse --strided",
        {
            (name, replace(ALL_THAT_IS_OPTIONAL, group=group, parts=parts, tile_heads=group or 1))
            for name, parts, group in (
                *(("short_keys", False, None), ("short_keys", False, 4), ("softcap", False, None)),
                *(("short", parts, group) for parts in (False, True) for group in (None, 4)),
            )
        }
        | {
            (loop, replace(ALL_THAT_IS_OPTIONAL, group=4, loop=loop, optional=frozenset({"softcap"})))
            for loop in ("dq", "dkdv")
        },
    ),
    "packed sequences": (
        "--shape 8x4096+100/300,16,128 --dtype bf16 --lse",
        {
            (name, Variant(128, "bfloat16", mask, optional=frozenset({"LSE"}), packed=True, parts=parts))
            for mask, longest in ((FULL, "ragged"), (CAUSAL, "causal_late"))
            for name in ("short_keys", "short_packed", longest)
            for parts in (False, True)
        }
        | {
            (loop, Variant(128, "bfloat16", mask, packed=True, group=1, loop=loop))
            for mask in (FULL, CAUSAL)
            for loop in ("dq", "dkdv")
        },
    ),
    "whose rows have the same bits": (
        "--no-causal --dtype fp16 --head-dim 96 --softcap 30 --invariant",
        {
            (name, Variant(96, "float16", FULL, optional=frozenset({"softcap"}), invariant=True))
            for name in ("short_keys", "short_full", "d96_2k")
        },
    ),
    "a pair of schedules": (
        "dq dkdv --dtype bf16 --causal --shape 1,8/2,4096,64",
        {(loop, Variant(64, "bfloat16", CAUSAL, group=4, loop=loop)) for loop in ("dq", "dkdv")},
    ),
    "a pair of schedules, and the LSE": (
        "dq dkdv --dtype bf16 --causal --lse --sinks",
        {
            (loop, Variant(128, "bfloat16", CAUSAL, group=1, loop=loop, optional=frozenset(optional)))
            for loop, optional in (("dq", ()), ("dq", ("dLSE",)), ("dkdv", ()))
        },
    ),
    "a window that is causal with and without the word": (
        "best_causal --dtype fp16 --window 1023,0",
        {("best_causal", Variant(128, "float16", Mask(1023, 0).runtime))},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_kernels_of_the_calls_that_the_options_name_are_compiled_each_once(name, filled, cli) -> None:
    options, kernels = CALLS[name]
    result = cli("warm", *options.split())
    assert result.exit_code == 0, result.output
    count = len(kernels)
    progress = (
        [f"compile: {count} kernels", f"  kernel {count} of {count}, 0 s"] if count > 1 else ["compile: 1 kernel"]
    )
    assert result.stderr.splitlines() == progress
    assert {(kernel.name, kernel.variant) for kernel in filled} == kernels and len(filled) == len(kernels)
    assert all(kernel.schedule == resolve(kernel.name).schedule for kernel in filled)
    first, *others = result.stdout.splitlines()
    assert first.endswith(": was there already") and all(line.endswith(": compiled in 1.2 s") for line in others)
    assert len(others) == len(kernels) - 1


@pytest.mark.parametrize("options, loops", [("--lse", ["dq", "dkdv"]), ("--lse --strided", ["dq", "dkdv"]), ("", [])])
def test_kernels_of_a_rules_pair_are_compiled_for_calls_with_a_gradient(options, loops, filled, cli) -> None:
    assert cli("warm", "--dtype", "bf16", "--causal", *options.split()).exit_code == 0
    expected = [Variant(128, "bfloat16", CAUSAL, group=1, loop=loop, strided="--strided" in options) for loop in loops]
    assert [kernel.variant for kernel in filled if kernel.variant.loop != "forward"] == expected
    assert len(filled) > len(loops)


def test_a_line_says_what_is_compiled(filled, cli) -> None:
    more = "--head-dim 192/128 --sinks --lse --strided --dtype bf16 --causal"
    assert cli("warm", "d192_128_causal", *more.split()).stdout == (
        "d192_128_causal head_dim 192/128 bfloat16 causal, LSE, Sinks, strided: was there already\n"
    )
    of_gradients = cli("warm", "dq", "--dtype", "bf16", "--causal", "--shape", "1,8/2,9,64").stdout
    assert of_gradients == "dq head_dim 64 bfloat16 causal, 4 heads of Q for each of K and V: was there already\n"


def test_schedules_that_are_not_meant_for_a_head_size_are_left_out_with_a_line(filled, cli) -> None:
    result = cli("warm", "seed", "d256", "--head-dim", "128", "--dtype", "fp16", "--causal")
    assert [kernel.name for kernel in filled] == ["seed"]
    assert result.exit_code == 0 and "left out: d256 is meant for head_dim 256, not 128" in result.stderr


def test_a_kernel_that_fails_is_told_and_the_others_are_still_compiled(filled, cli, monkeypatch) -> None:
    def fill(candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, Compiled | None]]:
        for candidate in candidates:
            causal = candidate.shape.mask == CAUSAL
            yield candidate, Compiled(status="compile_error", error="no rows") if causal else Compiled("code")

    monkeypatch.setattr(compilation, "fill", fill)
    result = cli("warm", "seed", "--dtype", "fp16")
    assert result.exit_code == 1 and result.stdout.endswith(": compiled in 0.0 s\n")
    assert "error: seed head_dim 128 float16 causal: no rows\n" in result.stderr


# --- where kernels are kept ------------------------------------------------------------------------------------------


def test_a_cache_that_nothing_can_be_kept_in_is_told(error_of, monkeypatch, tmp_path) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path / "a file/cache"))
    assert f"{tmp_path}/a file/cache: cannot be written, expected" in error_of("warm", "seed")
    monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
    assert "TILELANG_DISABLE_CACHE is set" in error_of("warm", "seed")


@pytest.fixture
def kept(monkeypatch) -> set[Variant]:
    """Returns the variants that the store is said to have; compilers are those of pool_jobs, which keep nothing."""
    there: set[Variant] = set()
    monkeypatch.setattr(compilation, "is_finished", lambda schedule, variant: variant in there)
    monkeypatch.setattr(compilation, "finish_candidate", compile_by_name)
    return there


def candidate(name: str, head_dim: int) -> Candidate:
    return Candidate(name, AttentionShape(1, 1, 1, 1, head_dim), Planned(SEED))


def test_what_is_there_is_not_compiled_and_what_cannot_be_compiled_or_kept_is_told(kept) -> None:
    there, good, dies = candidate("dies", 64), candidate("good", 96), candidate("dies", 128)
    kept.add(there.variant)
    found = dict(compilation.fill([there, good, dies]))
    assert found.pop(there) is None
    assert {kernel: compiled.status for kernel, compiled in found.items()} == dict.fromkeys(
        (good, dies), "compile_error"
    )
    assert "it could not be kept in" in found[good].error and found[dies].error == "the compiler died with exit code 7"
    assert [*compilation.fill([there])] == [(there, None)]


def test_it_compiles_into_the_cache_and_finds_the_kernel_there_the_second_time(cli) -> None:
    """The cache is this machine's, so the kernel may be there before."""
    lines = [cli("warm", "seed", "--dtype", "fp16", "--no-causal").stdout for _ in range(2)]
    assert lines[0].startswith("seed head_dim 128 float16: ")
    assert lines[1] == "seed head_dim 128 float16: was there already\n"


# --- which schedules serve a call of any lengths ----------------------------------------------------------------------


@pytest.mark.parametrize("mask", [FULL, CAUSAL, Mask(100, 0), Mask(100, 7)], ids=str)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_a_call_of_any_lengths_takes_one_of_the_schedules_that_are_named(head_dim, mask) -> None:
    named = default_schedules(AttentionShape(1, 2, 1, 1, head_dim, mask=mask))
    lengths = itertools.product((1, 64, 65, 1000, 2048, 2049, 9000), repeat=2)
    shapes = [
        AttentionShape(1, 2, *both, head_dim, mask=mask) for both in lengths if mask == FULL or both[0] <= both[1]
    ]
    assert {default_schedule(shape) for shape in shapes} == {*named} and len({*named}) == len(named)
    assert {*named} < {rule.schedule for rule in defaults.defaults().rules}
