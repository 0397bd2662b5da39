"""A bad schedule file gives one line on stderr with file, line, key, what was found and expected, and exit code 2."""

import os
import threading
import time

import pytest

ORDER = "order: [-1,    0,      3,                              1,      -1,    2]"
STAGE = "stage: [-1,    0,      0,                              1,      -1,    1]"
SOFTMAX = "[3, 4, 5, 6, 7, 8, 9, 10, 11]"

# Replace this in the seed schedule, by this; then the line of the file and what the message says.
MISTAKES = {
    # Words that are no YAML, or more than a schedule needs.
    "python object": ("pipelined", "!!python/object/apply:os.system [id]", 3, ["tags", "os.system"]),
    "tag": ("256", "!!int 256", 6, ["tags are not allowed", "!!int"]),
    "anchor": ("256", "&threads 256", 6, ["anchors and aliases", "'threads'"]),
    "alias": ("256", "*threads", 6, ["anchors and aliases", "'threads'"]),
    "billion laughs": ("", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", 12, ["anchors and aliases", "'a'"]),
    "deep list": ("", "x: " + "[" * 20_000, 12, ["nested deeper than 8"]),
    "deep mapping": ("", "x: " + "{y: " * 10_000, 12, ["nested deeper than 8"]),
    "second document": ("", "---\nblock_M: 64\n", 12, ["second document", "one schedule per file"]),
    "merge key": ("", "<<: {threads: 256}\n", 12, ["a key must be a word", "'<<'"]),
    "number as key": ("", "1: 2\n", 12, ["a key must be a word", "1"]),
    "list as key": ("", "? [a]\n: 2\n", 12, ["a key must be a word", "a list"]),
    # Keys.
    "repeated key": ("", "block_M: 128\n", 12, ["block_M", "given on line 4 already"]),
    "unknown key": ("", "pipeline: 3\n", 12, ["pipeline: unknown key", "expected one of lowering, block_M"]),
    "case of a key": ("block_M", "block_m", 4, ["block_m: unknown key", "did you mean block_M?"]),
    "empty order": (ORDER, "order: []", 10, ["order: missing or empty"]),
    "escape sequence in a key": ("", '"\\e[31mred": 1\n', 12, ["\\x1b[31mred: unknown key"]),
    # Types of values.
    "bool for integer": ("256", "true", 6, ["threads: expected an integer", "found true"]),
    "yes for integer": ("256", "yes", 6, ["threads: expected an integer", "found true"]),
    "float for integer": ("256", "256.0", 6, ["threads: expected an integer", "found 256.0"]),
    "list for integer": ("256", "[256]", 6, ["threads: expected an integer", "found the list [256]"]),
    "mapping for integer": ("256", "{x: 256}", 6, ["threads: expected an integer", "a mapping"]),
    "date for integer": ("256", "2026-11-21", 6, ["threads: expected an integer", "2026-11-21"]),
    "no date": ("256", "2026-13-41", 6, ["threads", "cannot read", "2026-13-41"]),
    "nan": ("256", ".nan", 6, ["threads: expected an integer", "nan"]),
    "infinity": ("256", ".inf", 6, ["threads: expected an integer", "inf"]),
    "octal": ("256", "0400", 6, ["threads", "'0400' is not a decimal integer"]),
    "hexadecimal": ("256", "0x100", 6, ["threads", "'0x100' is not a decimal integer"]),
    "underscore": ("256", "2_56", 6, ["threads", "'2_56' is not a decimal integer"]),
    "base 60": ("256", "4:16", 6, ["threads", "'4:16' is not a decimal integer"]),
    "octal in a list": (STAGE, "stage: [-1, 00, 0, 1, -1, 1]", 11, ["stage", "'00' is not a decimal integer"]),
    "5000 digits": ("256", "9" * 5000, 6, ["threads", "cannot read", "999..."]),
    "full-width digits": ("256", "\uff12\uff15\uff16", 6, ["threads: expected an integer"]),
    "merge sign as value": ("256", "<<", 6, ["threads", "cannot read", "'<<'"]),
    "integer for group": ("[12]", "12", 9, ["group[3]: expected a list", "found 12"]),
    "name for group": ("[12]", "rescale", 9, ["group[3]: expected a list", "found 'rescale'"]),
    "nothing for group": ("[12]", "~", 9, ["group[3]: expected a list", "found nothing"]),
    "float in order": (ORDER, ORDER.replace("3,", "3.0,"), 10, ["order[2]: expected an integer", "found 3.0"]),
    "bool in order": (ORDER, ORDER.replace("0,", "off,"), 10, ["order[1]: expected an integer", "found false"]),
    "list in stage": (STAGE, "stage: [-1, [0], 0, 1, -1, 1]", 11, ["stage[1]: expected an integer", "[0]"]),
    # Sizes.
    "block_M too small": ("block_M: 128", "block_M: 0", 4, ["block_M: expected at least 64", "found 0"]),
    "block_M negative": ("block_M: 128", "block_M: -128", 4, ["block_M: expected at least 64", "found -128"]),
    "block_N too large": ("block_N: 128", "block_N: 512", 5, ["block_N: expected at most 256", "found 512"]),
    "no stages": ("num_stages: 2", "num_stages: 0", 7, ["num_stages: expected at least 1", "found 0"]),
    "too many stages": ("num_stages: 2", "num_stages: 99", 7, ["num_stages: expected at most 8", "found 99"]),
    # Words.
    "lowering": (
        "pipelined",
        "Pipelined",
        3,
        ["lowering: expected 'pipelined', 'warp_specialized', 'mma_sync' or 'inferred'", "'Pipelined'"],
    ),
    "kv_order": ("", "kv_order: down\n", 12, ["kv_order: expected 'ascending' or 'descending'", "'down'"]),
    "inferred with group": ("pipelined", "inferred", 9, ["group", "leaves the order to the compiler", "remove"]),
    # The statements of the groups.
    "statement 18": ("[14]", "[18]", 9, ["group[5][0]: 18 is no statement", "0 to 17", "load_k, mask"]),
    "statement -1": ("[14]", "[-1]", 9, ["group[5][0]: -1 is no statement", "0 to 17"]),
    "statement foo": ("[14]", "[foo]", 9, ["group[5][0]: 'foo' is no statement", "rescale, load_v, mma1"]),
    "statement in capitals": ("[14]", "[MMA1]", 9, ["group[5][0]: 'MMA1' is no statement, did you mean mma1?"]),
    "misspelt statement": ("[14]", "[rowmax]", 9, ["'rowmax' is no statement, did you mean row_max?"]),
    "misspelt chunk": ("[14]", "[exp_1]", 9, ["'exp_1' is no statement, did you mean exp.1?"]),
    "misspelt statement of a wait": (
        "",
        "wait_before: {mma1: Rescale}\n",
        12,
        ["wait_before.mma1: 'Rescale' is no statement, did you mean rescale?"],
    ),
    "statement true": ("[1, 2]", "[true, 2]", 9, ["group[1][0]: true is no statement"]),
    "statement 14.0": ("[14]", "[14.0]", 9, ["group[5][0]: 14.0 is no statement"]),
    "statement as text": ("[14]", '["14"]', 9, ["group[5][0]: '14' is no statement"]),
    "statement in two groups": ("[14]", "[14, 12]", 9, ["group[5]", "rescale (12) is in group 3 already"]),
    "statement twice in one group": ("[14]", "[14, mma1]", 9, ["group[5]", "mma1 (14) is twice"]),
    "statement omitted": ("[1, 2]", "[1]", 9, ["group: in no group: mma0 (2)", "each of the 15 statements"]),
    "statements omitted": (SOFTMAX, "[3, 4]", 9, ["row_max (5), max_merge (6)", "cast (11)"]),
    "empty group": ("[12]", "[]", 9, ["group[3]: an empty group", "at least one statement"]),
    # Order and stage.
    "position too large": (ORDER, ORDER.replace("3,", "4,"), 10, ["order[2]: position 4", "0 to 3 once"]),
    "position far too large": (ORDER, ORDER.replace("3,", "9" * 30 + ","), 10, ["order[2]: position 999999", "0 to 3"]),
    "position below -1": (ORDER, ORDER.replace("[-1,", "[-2,"), 10, ["order[0]: expected at least -1", "found -2"]),
    "stage gap": (STAGE, "stage: [-1, 0, 0, 2, -1, 2]", 11, ["no group has stage 1", "every stage from 0 to 2"]),
    "stage far too large": (STAGE, STAGE.replace("0,", "9" * 30 + ",", 1), 11, ["no group has stage", "every stage"]),
    "no stage 0": (STAGE, "stage: [-1, 1, 1, 1, -1, 1]", 11, ["no group has stage 0"]),
    "producer in order only": (STAGE, STAGE.replace("[-1,", "[0, "), 10, ["order[0]: -1 for load_k", "both"]),
    "producer in stage only": (ORDER, ORDER.replace("[-1,", "[4, "), 11, ["stage[0]: -1 for load_k", "both"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_schedule_is_told_in_one_line_with_file_and_line(name, error_of, changed_seed) -> None:
    old, new, line, words = MISTAKES[name]
    path = changed_seed(old, new)
    message = error_of("check", path)
    assert message.startswith(f"{path}:{line}: ")
    assert [word for word in words if word not in message] == [], message


PRODUCERS = {
    "of a product": ("[1, 2]", "order: [-1, 0, 3, 1, -1, -1]", "stage: [-1, 0, 0, 0, -1, -1]", "order[5]", "mma1"),
    "of the softmax": ("[1, 2]", "order: [-1, 0, -1, 1, -1, 2]", "stage: [-1, 0, -1, 1, -1, 1]", "order[2]", "exp"),
    "of two statements": ("[2]", "order: [-1, 0, 3, 1, -1, 2]", "stage: [-1, 0, 0, 1, -1, 1]", "order[0]", "mask"),
}


@pytest.mark.parametrize("name", PRODUCERS)
def test_a_producer_that_is_not_exactly_one_load_is_told(name, error_of, tmp_path) -> None:
    second, order, stage, key, found = PRODUCERS[name]
    first = "[0, 1]" if second == "[2]" else "[0]"
    path = tmp_path / "producer.yaml"
    path.write_text(
        "block_M: 128\nblock_N: 128\nthreads: 256\nnum_stages: 2\n"
        f"group: [{first}, {second}, {SOFTMAX}, [12], [13], [14]]\n{order}\n{stage}\n"
    )
    message = error_of("check", path)
    assert f"{path}:6: {key}: -1 marks a producer, which is exactly one load" in message and found in message


def test_a_producer_of_both_loads_is_told(error_of, tmp_path) -> None:
    path = tmp_path / "producer.yaml"
    path.write_text(
        "block_M: 128\nblock_N: 128\nthreads: 256\nnum_stages: 2\n"
        f"group: [[load_k, load_v], [1, 2], {SOFTMAX}, [12], [14]]\norder: [-1, 0, 3, 1, 2]\nstage: [-1, 0, 0, 1, 1]\n"
    )
    assert "order[0]: -1 marks a producer, which is exactly one load (load_k or load_v), found load_k+load_v" in (
        error_of("check", path)
    )


CONTENTS = {
    "empty": (b"", "the file is empty, expected a schedule's keys"),
    "blank": (b" \n\n", "the file is empty"),
    "comments": (b"# nothing\n", "only comments, expected a schedule's keys"),
    "binary": (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "1: not a text file: byte 0xff is not UTF-8"),
    "nul": (b"block_M: 128\n\0\n", "2: not a text file: character 0x0 is not allowed"),
    "utf-16": ("block_M: 128".encode("utf-16"), "1: not a text file"),
    "list": (b"- block_M\n", "1: expected a mapping of keys"),
    "word": (b"seed\n", "1: expected a mapping of keys"),
    "the generated CUDA": (b'#include <cuda.h>\nextern "C" {\n}\n', "2: expected a mapping of keys"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_that_is_no_schedule_is_told(name, error_of, tmp_path) -> None:
    data, words = CONTENTS[name]
    path = tmp_path / "file.yaml"
    path.write_bytes(data)
    for command in ("check", "list", "explain", "run", "submit"):
        message = error_of(command, path)
        assert message.startswith(f"{path}:") and words in message


def test_a_file_of_100_megabytes_is_refused_without_reading_it(error_of, tmp_path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    started = time.perf_counter()
    assert "larger than 64 KiB" in error_of("check", path)
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("command", ["check", "list", "explain", "run", "bench", "submit", "report"])
def test_a_file_that_is_missing_or_a_folder_is_told(command, error_of, tmp_path) -> None:
    # A suffix that every command accepts; the file is what is wrong.
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    missing = tmp_path / "missing.yaml"
    assert error_of(command, missing) == f"{missing}: cannot be read: No such file or directory"
    no_schedules = "a folder without schedules, expected files *.yaml in it"
    reason = f"{folder}: {no_schedules}"
    if command == "report":
        reason = f"report: no record in {folder}/, expected a file that `tl-attention run` or `bench` has written"
    assert error_of(command, folder) == reason


def test_a_name_that_no_terminal_should_see_is_escaped(error_of, tmp_path) -> None:
    assert "\\x1b[31m.yaml" in error_of("check", tmp_path / "\x1b[31m.yaml")


# What is replaced in the seed, and by what; the line and the key to blame, and the reason.
REFUSED = {
    "shared memory": (
        "num_stages: 2",
        "num_stages: 4",
        "7: refused: num_stages: ",
        ["needs 294,912 bytes of shared memory, the SM has 232,448", "(block_M 128 + (4 + 4 buffers) * block_N 128)"],
    ),
    "registers": (
        "block_N: 128\nthreads: 256\nnum_stages: 2",
        "block_N: 256\nthreads: 256\nnum_stages: 1",
        "5: refused: block_N: ",
        ["needs 266 registers per thread for fragments alone, 256 threads have 255", "acc_s 128"],
    ),
    "dependence": (
        ORDER,
        "order: [-1, 3, 0, 1, -1, 2]",
        "10: refused: order: ",
        ["row_max(t) reads acc_s before mma0(t), emitted later, has written it"],
    ),
}


@pytest.mark.parametrize("command", ["check", "run", "submit"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_schedule_that_cannot_run_is_refused_with_the_reason(name, command, error_of, changed_seed) -> None:
    old, new, blamed, words = REFUSED[name]
    path = changed_seed(old, new)
    message = error_of(command, path)
    assert message.startswith(f"{path}:{blamed}")
    assert [word for word in words if word not in message] == [], message


def test_explain_shows_a_schedule_and_then_says_of_which_file_the_refusal_is(cli, changed_seed) -> None:
    path = changed_seed(ORDER, "order: [-1, 3, 0, 1, -1, 2]")
    result = cli("explain", path)
    assert result.exit_code == 2 and "Steady state" in result.stdout
    assert result.stderr.startswith(f"error: {path}:10: refused: order: row_max(t)") and result.stderr.count("\n") == 1


def test_of_several_files_each_bad_one_gets_its_line_and_the_others_are_still_done(cli, tmp_path, seed_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("block_M: 128\n")
    result = cli("check", bad, seed_path, tmp_path / "missing.yaml")
    assert result.exit_code == 2
    assert result.stdout.count("\n") == 1 and "seed" in result.stdout
    first, second, summary = result.stderr.splitlines()
    assert first.startswith(f"error: {bad}:1: ") and second.startswith(f"error: {tmp_path / 'missing.yaml'}: ")
    assert summary == "2 of 3 schedules have errors"


def test_bench_tells_every_bad_file_before_it_starts(cli, tmp_path, seed_path) -> None:
    (tmp_path / "a.yaml").write_text("")
    (tmp_path / "b.yaml").write_text("[]")
    result = cli("bench", tmp_path / "a.yaml", seed_path, tmp_path / "b.yaml")
    assert result.exit_code == 2 and not result.stdout
    assert result.stderr.splitlines()[-1] == "2 of 3 schedules have errors" and result.stderr.count("error: ") == 2


def test_a_pipe_is_read_where_it_has_a_writer_and_not_waited_for_where_it_has_none(cli, error_of, tmp_path, seed_path):
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    assert error_of("check", pipe) == f"{pipe}: a pipe or device with nothing in it, expected a file"
    write_end = os.open(pipe, os.O_RDWR)
    writer = threading.Timer(0.3, lambda: (os.write(write_end, seed_path.read_bytes()), os.close(write_end)))
    writer.start()
    assert cli("check", pipe).exit_code == 0
    writer.join()
