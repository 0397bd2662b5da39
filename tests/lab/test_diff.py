"""`diff` compares two schedules' keys, Programs and code."""

from pathlib import Path

import pytest
from tiers import exhaustive

from tl_attention.lab.machine_code.sass import Loop, StaticReport
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.lab.show import diff
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.schedule import Schedule


def parts(cli, *arguments) -> list[str]:
    result = cli("diff", *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_every_key_in_which_two_schedules_differ_is_found() -> None:
    a, b = resolve("best_causal").schedule, resolve("experiments/exp2_polynomial").schedule
    found = {line.split(": ")[0].strip() for line in diff.keys(a, b)[1:] if line.startswith("  ") and line[2] != " "}
    fields = {name for name in Schedule.model_fields if getattr(a, name) != getattr(b, name)}
    assert {key.split(".")[0].rstrip(":") for key in found} == fields
    assert {"softmax.exp2_polynomial.every", "kernel.cluster"} <= found
    assert "  softmax.exp2_polynomial.every: none -> 8" in diff.keys(a, b)


@exhaustive
def test_the_code_is_compared_by_its_fingerprint_its_counts_and_its_waits(cli) -> None:
    lines = parts(cli, "best", "experiments/wait_after_80")
    code = lines[lines.index("code: head_dim 128 float16: differs") :]
    shown = {line[2:22].strip(): line[22:] for line in code[1:]}
    assert " -> " in shown["fingerprint"] and shown["waits for products"] == "after 0, 20 -> after 0, 35"
    assert code[-1].startswith("  equal: registers, spills, shared memory, steady loop, exponentials, HGMMA, ")


@exhaustive
def test_the_code_of_equal_schedules_is_equal(cli, tmp_path) -> None:
    (tmp_path / "mine.yaml").write_text("base: best\n")
    last = parts(cli, "best", tmp_path / "mine.yaml", "--head-dim", 64, "--causal")[-1]
    assert last.startswith("code: head_dim 64 float16 causal: equal, ")


@pytest.mark.parametrize(
    "dims, options, expected",
    [
        (("", "[64]"), (), 64),
        (("[64, 128]", "[128]"), (), 128),
        (("", ""), (), 128),
        (("", ""), ("--head-dim", 64), 64),
        (("[64]", "[128]"), ("--head-dim", 128), 128),
    ],
)
def test_the_code_is_of_the_largest_head_size_that_both_are_meant_for(
    dims, options, expected, cli, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(diff, "code", lambda a, b, names, shape, card: [f"code: head_dim {shape.head_dim}"])
    assert parts(cli, *_meant_for(tmp_path, dims), *options)[-1] == f"code: head_dim {expected}"


def test_schedules_without_a_head_size_in_common_have_no_code_to_compare(cli, error_of, tmp_path) -> None:
    a, b = _meant_for(tmp_path, ("[64]", "[128]"))
    assert error_of("diff", a, b) == (
        f"{a} is meant for head_dim 64, {b} is meant for head_dim 128: no code to compare, "
        "expected --head-dim or --no-code"
    )
    assert parts(cli, a, b, "--no-code")[2:] == ["keys: equal", "program: equal"]


def _meant_for(folder: Path, dims: tuple[str, str]) -> list[Path]:
    paths = [folder / "a.yaml", folder / "b.yaml"]
    for path, meant in zip(paths, dims):
        path.write_text("base: seed\n" + (f"head_dims: {meant}\n" if meant else ""))
    return paths


def test_the_places_of_a_loop_are_facts_of_their_own() -> None:
    loop = Loop(10, {"HGMMA": 2}, 90, product_waits=(0, 20), arrives=(3,))
    report = StaticReport(registers=168, stack_bytes=0, shared_bytes=1024, loops=(loop,))
    facts = diff._facts(Compiled("f", report))
    assert facts["waits for products"] == "after 0, 20" and facts["arrives"] == "after 3"
    assert "waits on mbarriers" not in facts and facts["exponentials"] == "90"
