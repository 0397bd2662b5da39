"""`diff` compares two schedules' keys, Programs and code."""

from pathlib import Path

import pytest
from tiers import exhaustive

from tl_attention.lab.machine_code.of_kernel import StaticReport
from tl_attention.lab.machine_code.sass import Loop
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.lab.show import diff
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.schedule import Schedule


def parts(cli, *arguments) -> list[str]:
    result = cli("diff", *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_the_keys_that_differ_are_shown_from_and_to(cli) -> None:
    assert parts(cli, "best", "experiments/cluster_1", "--no-code") == [
        "a: best",
        "b: experiments/cluster_1",
        "keys: 1 differs",
        "  kernel.cluster: 2 -> 1",
        "program: equal",
    ]
    lines = parts(cli, "best", "fa3_overlap", "--no-code")
    assert lines[2] == "keys: 4 differ" and "  split.exp: [48, 128] -> default" in lines
    assert "  wait_before.mma1: exp.1 -> default" in lines and "  group:" in lines
    groups = [line for line in lines if line.startswith("    ")][:2]
    assert [line[:6] for line in groups] == ["    - ", "    + "]
    assert "exp.0, exp.1" in groups[0] and "exp.0" not in groups[1]


def test_equal_schedules_are_said_to_be_equal(cli, tmp_path) -> None:
    (tmp_path / "mine.yaml").write_text("base: best\nsummary: mine\n")
    assert parts(cli, "best", tmp_path / "mine.yaml", "--no-code")[2:] == ["keys: equal", "program: equal"]


def test_every_key_in_which_two_schedules_differ_is_found() -> None:
    a, b = resolve("best_causal").schedule, resolve("experiments/exp2_polynomial").schedule
    found = {line.split(": ")[0].strip() for line in diff.keys(a, b)[1:] if line.startswith("  ") and line[2] != " "}
    fields = {name for name in Schedule.model_fields if getattr(a, name) != getattr(b, name)}
    assert {key.split(".")[0].rstrip(":") for key in found} == fields
    assert {"softmax.exp2_polynomial.every", "kernel.cluster"} <= found
    assert "  softmax.exp2_polynomial.every: none -> 8" in diff.keys(a, b)


def test_the_programs_are_compared_as_explain_shows_them(cli) -> None:
    lines = parts(cli, "seed", "prefetch", "--no-code")
    program = lines[lines.index("program: differs") :]
    assert program[1:3] == ["  --- seed", "  +++ prefetch"]
    assert "  -buffers: K_shared 2, V_shared 2" in program and "  +buffers: K_shared 3, V_shared 2" in program
    assert "  -  issue    load_k(t+1)" in program and "  +  issue    load_k(t+2)" in program
    assert "  -~ acquire  load_k(t+1)" in program
    # Of the headings, each side's own alone: the label and the options are no part of the Program.
    assert not any("pipelined_128x128" in line for line in program)


def test_what_a_kernel_does_beyond_the_loop_is_compared_too(cli) -> None:
    lines = parts(cli, "best", "experiments/no_ping_pong", "--no-code")
    changed = {line[3:] for line in lines[lines.index("program: differs") + 3 :] if line.startswith("  -")}
    turns = ("turn     waited for, to issue products", "pass     to the other warpgroup")
    assert changed == {f"{indent}{turn}" for turn in turns for indent in ("  ", "   ")}
    exact = parts(cli, "best", "experiments/waits_exact", "--no-code")
    assert "  -  hold     exp.0(t), its last exponential" in exact
    assert {"  +  hold     exp.0(t), all its exponentials", "  +  resume   exp.1(t), no exponential earlier"} <= {
        *exact
    }


@pytest.mark.parametrize(
    "a, b, words",
    [
        ("inferred", "inferred", "program: neither has one, the compiler decides the order"),
        ("seed", "inferred", "program: b has none, the compiler decides the order"),
        ("inferred", "seed", "program: a has none, the compiler decides the order"),
    ],
)
def test_a_schedule_without_a_program_is_said_to_have_none(a, b, words, cli) -> None:
    assert words in parts(cli, a, b, "--no-code")


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


def test_a_schedule_that_cannot_run_is_refused_behind_what_can_be_shown(cli, tmp_path) -> None:
    path = Path(resolve("seed_stages4").sources[0].path)
    for options in ((), ("--no-code",)):
        result = cli("diff", "seed", "seed_stages4", "--head-dim", "128", *options)
        assert result.exit_code == 2 and "  num_stages: 2 -> 4" in result.stdout and "code:" not in result.stdout
        assert result.stderr.startswith(f"error: {path}:6: refused: num_stages: needs 294,912 bytes")
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: best\nwait_before: {mma1: mma1}\n")
    result = cli("diff", "best", mine, "--no-code")
    assert result.exit_code == 2 and result.stderr.startswith(f"error: {mine}:2: refused: wait_before.mma1: ")


def test_every_schedule_that_is_refused_is_told_without_code_too(cli, tmp_path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("base: seed\norder: [-1, 0, 3, 2, -1, 1]\nstage: [-1, 0, 0, 0, -1, 0]\n")
    wide = tmp_path / "wide.yaml"
    wide.write_text("base: seed\nblock_N: 256\n")
    for a, b in ((broken, wide), (wide, broken)):
        result = cli("diff", a, b, "--no-code")
        assert result.exit_code == 2 and "program: differs" in result.stdout
        first, second, count = result.stderr.splitlines()
        assert first.startswith(f"error: {a}:2: refused: ") and second.startswith(f"error: {b}:2: refused: ")
        assert count == "2 of 2 schedules have errors"


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
