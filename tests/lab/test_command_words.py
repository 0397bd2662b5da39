"""The command line gives help in groups, with examples that work, and tells mistakes with what to type."""

import os
import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
from conftest import ROOT
from front_desk import options

from tl_attention.compiler import generation, toolchain
from tl_attention.errors import InputError
from tl_attention.lab.cli import main
from tl_attention.lab.cli.command import Command
from tl_attention.lab.leaderboard import submission
from tl_attention.lab.measure import bench
from tl_attention.schedule.files.named import expand, resolve

COMMANDS = {name: command for name, command in main.commands.items() if isinstance(command, Command)}
EXAMPLES = [(name, example) for name, command in COMMANDS.items() for example in command.examples]
# What the examples call a file of the reader's own.
MINE = ("mine.yaml", "mine.jsonl")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Makes an empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_help_lists_every_command_once_in_a_group_with_its_whole_description_and_an_example(cli) -> None:
    shown = cli("--help").stdout
    one_line = " ".join(shown.split())
    assert set(COMMANDS) == set(main.commands) and "..." not in re.sub(r"\[ARGS\]\.\.\.", "", shown)
    assert [command for group in main.groups.values() for command in group] == [*COMMANDS.values()]
    for heading in main.groups:
        assert f"\n{heading}:\n" in shown
    for name, command in COMMANDS.items():
        start = f"{name} {command.summary} $ {next(iter(command.examples))}"
        assert command.summary.endswith((".", ")")) and one_line.count(start) == 1, start


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_sentences_examples_and_words_for_each_option(name, cli) -> None:
    shown = cli(name, "--help").stdout
    assert shown.index("Options:") < shown.index("\nExamples:\n  tl-attention ")
    # Click leaves the lines of a paragraph as they are that begins with \b.
    paragraphs = [text.strip("\b\n ") for text in (COMMANDS[name].help or "").split("\n\n") if text]
    assert paragraphs and all(text[0].isupper() or text[0] in "`-" for text in paragraphs)
    assert all(text.rstrip().endswith(".") for text in paragraphs)
    for option in COMMANDS[name].params:
        assert not isinstance(option, click.Option) or (option.help and not option.help.startswith(("[", "of ")))


@pytest.mark.parametrize("option", ["--head-dim", "--shape", "--output", "--causal", "--arch", "--seed", "--ladder"])
def test_an_option_is_of_one_kind_in_every_command(option) -> None:
    found = {
        (type(one.type), "-o" in one.opts)
        for command in COMMANDS.values()
        for one in command.params
        if option in one.opts
    }
    assert len(found) == 1 and found.pop()[1] == (option == "--output")


def test_a_newcomer_meets_few_commands_and_options() -> None:
    assert len(options()) <= 14 and sum(options().values()) <= 90


@pytest.mark.parametrize("name,example", EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_an_example_is_a_command_that_can_be_typed(name, example) -> None:
    program, command, *arguments = shlex.split(example)
    assert (program, command) == ("tl-attention", name)
    given = COMMANDS[name].make_context(name, arguments).params
    texts = [given[key] for key in ("schedule", "a", "b") if given.get(key)]
    for text in [*texts, *given.get("schedules", ())]:
        assert text in MINE or [resolve(one) for one in expand(text)]
    for path in given.get("results", ()):
        assert path.name in MINE or (ROOT / path).is_file()


def test_report_takes_the_newest_record_and_says_which(cli, here) -> None:
    (here / "runs").mkdir()
    line = (ROOT / "results/bench-h200-L.jsonl").read_text().splitlines()[0]
    for age, name in enumerate(("run-b.jsonl", "run-a.jsonl", "note.txt")):
        Path("runs", name).write_text(f"{line}\n")
        os.utime(Path("runs", name), ns=(age, age))
    result = cli("report")
    assert (result.exit_code, result.stderr) == (0, "runs/run-a.jsonl, the newest of 2 in runs/\n")
    assert result.stdout == cli("report", "runs/run-a.jsonl").stdout and not cli("report", "runs/run-a.jsonl").stderr
    assert cli("report", "runs").output == result.output


def test_a_record_and_cells_that_ship_are_found_from_any_folder(cli, error_of, here) -> None:
    name = "results/bench-h200-L.jsonl"
    result = cli("report", name)
    assert result.exit_code == 0 and "best" in result.stdout
    assert result.stderr == f"{name}: not here; it ships, as {ROOT / name}\n"
    told = cli("compare", "results/decode.yaml", "--only", "nothing").stderr
    assert f"it ships, as {ROOT}/results/decode.yaml" in told and "no cell of" in told
    assert error_of("report", "results/nothing.jsonl").endswith("cannot be read: No such file or directory")
    Path("results").mkdir()
    shutil.copy(ROOT / "results/bench-h200-L-causal.jsonl", name)
    assert "causal" in cli("report", name).stdout and not cli("report", name).stderr


GONE = [(name, option) for name, command in COMMANDS.items() for option in command.gone]


@pytest.mark.parametrize("name", main.gone)
def test_a_command_that_has_gone_is_answered_with_what_stands_for_it(name, error_of) -> None:
    for more in ((), ("--causal",), ("best",)):
        assert error_of(name, *more) == f"{name} {main.gone[name]}"
    for command, *arguments in map(str.split, re.findall(r"`tl-attention (\w.+?)`", main.gone[name])):
        assert COMMANDS[command].make_context(command, arguments)


@pytest.mark.parametrize("name, option", GONE, ids=map(" ".join, GONE))
def test_an_option_that_has_gone_is_answered_with_what_stands_for_it(name, option, error_of) -> None:
    assert option not in {opt for of in COMMANDS[name].params for opt in (*of.opts, *of.secondary_opts)}
    assert error_of(name, option) == f"{name}: {option} {COMMANDS[name].gone[option]}"


@pytest.mark.parametrize(
    "arguments,size,names",
    [
        (["run", "d256"], "256", ["d256"]),
        (["run", "d192_128"], "192/128", ["d192_128"]),
        (["run", "short_d192"], "192", ["short_d192"]),
        (["run", "short"], "128", ["short"]),
        (["run", "best"], "128", ["best"]),
        (["bench", "d64", "d64_causal"], "64", ["d64", "d64_causal"]),
        (["bench", "d64", "best"], "128", ["best"]),
        (["bench", "d64", "d256"], "64", ["d64"]),
    ],
)
def test_the_head_size_is_that_of_the_schedules_file(arguments, size, names, cli, here, monkeypatch) -> None:
    asked: list = []
    monkeypatch.setattr(bench, "measure", lambda candidates, *others, **options: asked.extend(candidates) or [])
    cli(*arguments, "--dtype", "fp16")
    assert [(str(one.shape.head_size), one.name) for one in asked] == [(size, name) for name in names]


def test_where_a_compiler_is_missing_the_error_points_to_doctor(monkeypatch) -> None:
    monkeypatch.setattr(toolchain, "_homes", lambda: iter(()))
    with pytest.raises(
        InputError, match=r"^nvcc: none that can compile in .*; `tl-attention doctor` shows all that is missing$"
    ):
        toolchain.chosen_nvcc(None)
    monkeypatch.setattr(toolchain, "host_compiler", lambda: None)
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    words = r"^C\+\+ compiler: none of g\+\+, clang\+\+, c\+\+ is on the PATH; nvcc needs one: apt-get install g\+\+; `tl-attention"
    with pytest.raises(InputError, match=words):
        toolchain.check_host_compiler()
    monkeypatch.setenv("CXX", "g++-99")
    with pytest.raises(InputError, match=r"^C\+\+ compiler: CXX=g\+\+-99 is none; nvcc needs one"):
        toolchain.check_host_compiler()
    assert generation.check_host_compiler is toolchain.check_host_compiler


def test_submit_says_all_that_is_missing_at_once(error_of, here, monkeypatch) -> None:
    there = {"nvidia-cuda-cccl-cu12": "12.8.90", "nvidia-cuda-nvrtc-cu12": None}
    real = submission.package
    monkeypatch.setattr(submission, "package", lambda name: there[name] if name in there else real(name))
    packages = "nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-cccl-cu12==12.9.27"
    command = f"`pip install {packages}` (here is nvidia-cuda-cccl-cu12 12.8.90)"
    for arguments in (["submit", "best"], ["submit", "--check", str(ROOT / "leaderboard_submit.py")]):
        assert error_of(*arguments) == f"submit: missing packages: {command}"

    def missing(name: str) -> str:
        raise InputError(f"{name} was not found")

    monkeypatch.setattr(submission, "tool", missing)
    monkeypatch.setattr(toolchain, "_homes", lambda: iter(()))
    tools = "missing tools: nvcc, cuobjdump, nvdisasm; `tl-attention doctor` shows all that is missing"
    assert error_of("submit", "best") == f"submit: missing packages: {command}; {tools}"
