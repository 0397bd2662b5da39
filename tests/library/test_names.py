"""A user calls a schedule by a name that ships, a file, a label or a folder, from any folder."""

from __future__ import annotations

import os
import shutil
import timeit
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT
from tiers import exhaustive, sampled

import tl_attention
from tl_attention import load_schedule
from tl_attention.errors import InputError
from tl_attention.schedule.files import catalogue
from tl_attention.schedule.files.named import expand, resolve
from tl_attention.schedule.files.schedule_file import load

SCHEDULES = ROOT / "schedules"


@pytest.fixture
def empty(tmp_path, monkeypatch) -> Path:
    """Makes an empty folder, in which the test runs."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_every_schedule_file_has_the_name_that_is_its_path() -> None:
    paths = {path.relative_to(SCHEDULES).with_suffix("").as_posix(): path for path in SCHEDULES.rglob("*.yaml")}
    assert sorted(catalogue.all_names()) == sorted(paths) and len(paths) > 90
    assert {name: catalogue.path_of(name) for name in paths} == paths
    assert catalogue.names() == sorted(name for name in paths if "/" not in name)
    assert catalogue.folders() == [
        "backward",
        "experiments",
        *(f"experiments/{name}" for name in ("causal", "p_shared", "seed")),
        *(f"ladders/{name}" for name in ("fa4", "rtx3090", "rtx5090", "worklog")),
        "mma_sync",
    ]


def test_what_ships_is_what_pyproject_puts_into_the_wheel() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    covered: set[Path] = set()
    for package, patterns in tool["package-data"].items():
        assert package in tool["packages"]
        covered |= {path for pattern in patterns for path in (ROOT / package.replace(".", "/")).glob(pattern)}
        mapped = next((top for top in tool["package-dir"] if package == top or package.startswith(f"{top}.")), None)
        if mapped:
            folder = ROOT / tool["package-dir"][mapped] / package.removeprefix(mapped).strip(".").replace(".", "/")
            assert folder.is_dir(), package
            covered |= {path for pattern in patterns for path in folder.glob(pattern)}
    shipped = {*SCHEDULES.rglob("*.yaml"), *SCHEDULES.glob("*.json"), *(ROOT / "results").rglob("*.jsonl")}
    shipped |= {*(ROOT / "results").rglob("*.yaml")}
    shipped |= {*(ROOT / "tl_attention").rglob("*.cuh")}
    assert shipped <= covered, shipped - covered
    rooms = {path.parent.relative_to(ROOT) for path in (ROOT / "tl_attention").rglob("*.py")}
    assert {".".join(room.parts) for room in rooms} <= set(tool["packages"])


@pytest.mark.parametrize("name", ["best", "seed", "experiments/no_ping_pong", "experiments/causal/block_N_144"])
def test_a_name_is_the_schedule_from_any_folder(name, empty) -> None:
    found = resolve(name)
    assert found.schedule == load(SCHEDULES / f"{name}.yaml") and (found.name, found.text) == (name, name)
    assert found.sources[0].path == SCHEDULES / f"{name}.yaml"


def test_a_name_is_the_shipped_schedule_whatever_the_folder_holds(empty) -> None:
    Path("seed").mkdir()
    Path("best").write_text("no schedule")
    assert resolve("seed").schedule == load(SCHEDULES / "seed.yaml")
    assert resolve("best").schedule == load(SCHEDULES / "best.yaml")


def test_of_a_name_in_a_folder_its_last_part_is_enough_if_it_is_the_only_one(empty) -> None:
    found = resolve("seed_64x64")
    assert found.schedule == load(SCHEDULES / "experiments/seed/seed_64x64.yaml")
    assert (found.name, found.text) == ("seed_64x64", "seed_64x64")
    Path("mine.yaml").write_text("base: seed_64x64\nblock_N: 96\n")
    assert resolve("mine.yaml").schedule == resolve("seed_64x96").schedule
    # What a folder holds goes before it.
    shutil.copy(SCHEDULES / "best.yaml", "seed_64x64")
    assert resolve("./seed_64x64").schedule == load(SCHEDULES / "best.yaml")


def test_a_file_is_read_by_its_suffix_or_because_it_is_there(empty) -> None:
    for name in ("mine.yaml", "mine.yml", "mine"):
        shutil.copy(SCHEDULES / "seed.yaml", name)
        found = resolve(name)
        assert (found.name, found.text, found.schedule) == ("mine", name, load(SCHEDULES / "seed.yaml"))
    assert resolve(Path("mine.yaml")).schedule == resolve("./mine.yaml").schedule


def test_a_label_is_a_schedule_without_a_file() -> None:
    label = load(SCHEDULES / "best.yaml").label
    found = resolve(label)
    assert (found.schedule.label, found.sources, found.head_dims) == (label, (), (64, 128))


def test_a_folder_is_its_schedules_sorted_and_a_part_of_the_catalogue_is_its_names(empty) -> None:
    Path("mine").mkdir()
    for name in ("b.yaml", "a.yaml", "note.txt"):
        Path("mine", name).write_text("")
    assert expand("mine") == ["mine/a.yaml", "mine/b.yaml"]
    assert expand("experiments/causal/") == catalogue.names("experiments/causal") and len(expand("experiments")) == 35
    assert expand("best") == ["best"] and expand("none.yaml") == ["none.yaml"]
    Path("mine2").mkdir()
    with pytest.raises(InputError, match=r"mine2: a folder without schedules, expected files \*\.yaml in it"):
        expand("mine2")


def test_commands_for_many_schedules_take_a_folder(cli, empty) -> None:
    Path("mine").mkdir()
    for name in ("b.yaml", "a.yaml"):
        shutil.copy(SCHEDULES / "seed.yaml", f"mine/{name}")
    lines = cli("check", "mine", "seed").stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["mine/a.yaml", "mine/b.yaml", "seed"]


def test_a_schedule_that_was_resolved_costs_microseconds_and_an_edited_file_or_base_is_seen(empty) -> None:
    Path("base.yaml").write_text((SCHEDULES / "seed.yaml").read_text())
    Path("mine.yaml").write_text("base: base.yaml\nblock_N: 64\n")
    for text in ("best", "mine.yaml", str(empty / "mine.yaml")):
        first = resolve(text)
        assert resolve(text) is first
        assert min(timeit.repeat(lambda: resolve(text), number=1000, repeat=5)) / 1000 < 100e-6
    assert resolve("mine.yaml").schedule.num_stages == 2
    # Of the same size, and written within the same tick of a coarse clock: the time is set on.
    for path, before, after in (("base.yaml", "num_stages: 2", "num_stages: 1"), ("mine.yaml", "64", "96")):
        Path(path).write_text(Path(path).read_text().replace(before, after))
        os.utime(path, ns=(0, Path(path).stat().st_mtime_ns + 1))
    assert (resolve("mine.yaml").schedule.num_stages, resolve("mine.yaml").schedule.block_N) == (1, 96)
    Path("mine.yaml").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        resolve("mine.yaml")


def test_every_shipped_schedule_says_what_it_is() -> None:
    assert all(resolve(name).summary for name in catalogue.all_names())


SOME = ("best", "seed_stages4", "experiments/p_shared")


@pytest.mark.parametrize("names", sampled([(SOME,), (("--all",),)], [(SOME,)]), ids=["some", "all"])
def test_shipped_schedules_are_safe_where_they_are_meant_for(names, cli, empty) -> None:
    result = cli("check", *names)
    assert result.exit_code == 0 and not result.stderr, result.output
    lines = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    some = ["best", "seed_stages4", *catalogue.names("experiments/p_shared")]
    assert list(lines) == (catalogue.all_names() if names == ("--all",) else some)
    [stages4] = [said for name, said in lines.items() if name.endswith("seed_stages4")]
    assert stages4 == "proved safe at head_dim 64"
    assert lines["best"] == "proved safe at head_dim 64 and 128"


def test_bench_leaves_out_aloud_what_is_not_meant_for_the_head_size(cli, empty, monkeypatch) -> None:
    from tl_attention.lab.measure import bench

    names: list[str] = []
    monkeypatch.setattr(
        bench, "measure", lambda candidates, *others, **options: names.extend(c.name for c in candidates) or []
    )
    result = cli("bench", "seed", "seed_stages4", "experiments/no_ping_pong", "--dtype", "fp16")
    assert names == ["seed", "experiments/no_ping_pong"]
    assert result.stderr.splitlines()[0] == "left out: seed_stages4 is meant for head_dim 64, not 128"
    names.clear()
    cli("bench", *catalogue.names(), "--dtype", "fp16", "--shape", "1,1,64,64")
    assert names == [name for name in catalogue.names() if 64 in resolve(name).head_dims]


@exhaustive
def test_submit_packs_a_shipped_name_from_an_empty_folder(cli, empty) -> None:
    result = cli("submit", "experiments/no_ping_pong")
    assert result.exit_code == 0, result.output
    assert "no_ping_pong" in Path("leaderboard_submit.py").read_text()[:1000]


def test_what_a_file_is_called_and_says_reaches_the_terminal_printable(cli, empty) -> None:
    red = "\x1b[31mred.yaml"
    shutil.copy(SCHEDULES / "seed.yaml", red)
    for arguments in (["list", red], ["check", red], ["diff", red, "best", "--no-code"]):
        result = cli(*arguments)
        assert result.exit_code == 0 and "\\x1b[31mred" in result.stdout and "\x1b" not in result.output


def test_what_is_imported_late_is_among_the_packages_names() -> None:
    assert [name for name in dir(tl_attention) if not name.startswith("__")] == tl_attention.__all__
    assert "__version__" in dir(tl_attention)


def test_a_schedule_is_loaded_by_its_name_or_its_file() -> None:
    path = SCHEDULES / "experiments/sections.yaml"
    assert load_schedule("experiments/sections") == load_schedule(path) == load_schedule(str(path))
    with pytest.raises(InputError, match=r"^no schedule is named 'bets': did you mean best\?"):
        load_schedule("bets")
