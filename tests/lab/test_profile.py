"""Profiles: ncu and the table that it prints, runs on a stand-in, and the tables that come of what it counts."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import measure
import pytest
import torch
from click.testing import CliRunner, Result
from measurements import profile as of_profile
from ncu_sample import BF16, FP16, fake_ncu, marked

from tl_attention.errors import InputError
from tl_attention.lab.measure import counters, gpu_worker, profile
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.lab.measure.counters import METHOD, METRICS, Ncu, countable, parse, split_by_job
from tl_attention.lab.measure.profile import ProfileRow
from tl_attention.lab.measure.records import problem_of, read_all
from tl_attention.lab.measure.trials import SILENT
from tl_attention.lab.show import profile as shown
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve

SHAPE = AttentionShape.parse("4,64,8192,128")
NAMES = ("seed", "best", "fa3_overlap", "experiments/cluster_1")


def rows(*names: str) -> dict[str, ProfileRow]:
    """Returns what ncu counted of the named schedules."""
    found = {}
    for name, launch in zip(NAMES, parse(FP16)):
        label = resolve(name).schedule.label
        found[name] = ProfileRow(name, label, "runtime", problem_of(SHAPE), launch.kernel, 1, launch.metrics, run="now")
    return {name: found[name] for name in names or NAMES}


def measured(*arguments: object) -> Result:
    """Runs a measurement of tools/ in this process."""
    return CliRunner().invoke(measure.main, [str(argument) for argument in arguments])


def metric_of(what: str) -> str:
    return next(counter.metric for counter in counters.COUNTERS if counter.what == what)


# --- a run -----------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch) -> None:
    """Makes this machine look as if it had a GPU and compilers, but no ncu."""
    common = {"device": "stand-in", "run": "2026-01-01T00:00:00Z", "versions": {"torch": "2"}}
    monkeypatch.setattr(profile, "gpu_fields", lambda what: dict(common))
    monkeypatch.setattr(profile, "compile_all", lambda found: dict.fromkeys(found, Compiled("code")))
    monkeypatch.setattr(of_profile, "visible_gpus", lambda: ("a GPU",))


def test_the_command_records_each_kernel_and_shows_it_again(cli, machine, tmp_path, monkeypatch) -> None:
    (tmp_path / "sample").write_text(marked(FP16, 2))
    fake_ncu(tmp_path, monkeypatch, f"cat {tmp_path / 'sample'}")
    monkeypatch.setenv("COLUMNS", "160")
    output = tmp_path / "profile.jsonl"
    result = measured("profile", "seed", "best", "--seed", 7, "--output", output)
    assert result.exit_code == 0, result.output
    seed, best = read_all(ProfileRow, output)
    assert (seed.name, best.name) == ("seed", "best") and seed.metrics == rows()["seed"].metrics
    assert (best.sizes, best.kernel, best.launches, best.seed) == ("runtime", "attention_kernel", 1, 7)
    assert best.method == METHOD and best.device == "stand-in" and best.versions["ncu"] == "2025.3.1.0"
    assert best.shape == SHAPE and best.label == resolve("best").schedule.label
    again = cli("report", output)
    assert again.exit_code == 0 and f"{again.stdout}2 rows in {output}\n" == result.stdout
    pasted = cli("report", output, "--markdown").stdout
    assert "seed (runtime), " in pasted and "| what | measured | theory | measured / theory |" in pasted


def test_of_a_peers_launches_the_longest_counts(machine, tmp_path, monkeypatch) -> None:
    lines = marked(FP16, 2).splitlines()
    # The second mark is left out: both kernels are the peer's.
    del lines[-2]
    (tmp_path / "sample").write_text("\n".join(lines))
    fake_ncu(tmp_path, monkeypatch, f"cat {tmp_path / 'sample'}")
    recorded: list[ProfileRow] = []
    profile.measure([Candidate("cudnn", SHAPE)], recorded.append, SILENT, seed=1)
    (row,) = recorded
    assert row.launches == 2 and row.sizes == "peer" and row.metrics == rows()["seed"].metrics
    assert "the longest of 2 launches" in shown.title(row) and row.tiling is None


def test_a_hanging_ncu_costs_one_line_and_leaves_no_record(machine, tmp_path, monkeypatch) -> None:
    fake_ncu(tmp_path, monkeypatch, "sleep 600")
    monkeypatch.setattr(profile, "JOB_TIMEOUT_S", 1.0)
    monkeypatch.setattr(profile, "START_TIMEOUT_S", 0.0)
    output = tmp_path / "profile.jsonl"
    result = measured("profile", "seed", "--output", output)
    assert result.exit_code == 2 and "error: ncu: no answer within 1 s, killed" in result.stderr
    assert not output.exists()


def test_a_kernel_that_cannot_be_compiled_is_named(machine, tmp_path, monkeypatch) -> None:
    fake_ncu(tmp_path, monkeypatch, "exit 1")
    failed = Compiled(status="compile_error", error="nvcc said no")
    monkeypatch.setattr(profile, "compile_all", lambda found: dict.fromkeys(found, failed))
    result = measured("profile", "seed", "--output", tmp_path / "profile.jsonl")
    assert result.exit_code == 2 and "error: seed float16: compile_error: nvcc said no" in result.stderr


def test_without_a_gpu_it_says_so_and_theory_is_shown(monkeypatch) -> None:
    monkeypatch.setattr(of_profile, "visible_gpus", lambda: ())
    refused = measured("profile", "best")
    assert refused.exit_code == 2 and "no GPU here, expected one of compute capability" in refused.stderr
    at_its_size = "d64 (runtime), (4, 64, 8192, 64) float16, theory"
    assert measured("profile", "d64", "--theory").stdout.startswith(at_its_size)
    result = measured("profile", "best", "seed", "--peers", "fa3", "--theory")
    assert result.exit_code == 0 and "35.232 GB = 32.812 GiB" in result.stdout
    assert "arrived in SMs  69.256 GB = 64.500 GiB" in result.stdout and "stalls" not in result.stdout


def test_bad_options_are_one_line() -> None:
    wrong = (["best", "--peers", "fa9", "--theory"], "--peers: 'fa9' is no peer, expected some of fa3, cudnn, flash2")
    for words, message in (([], "profile: no schedule, expected the name or file of one, such as best"), wrong):
        result = measured("profile", *words)
        assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")


# --- the process under ncu -------------------------------------------------------------------------------------


def test_every_job_is_warm_before_the_first_is_profiled_and_has_a_mark(tmp_path, monkeypatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(gpu_worker, "load", lambda candidate, seed: done.append(("load", candidate, seed)))
    monkeypatch.setattr(gpu_worker, "call", lambda candidate: done.append(candidate.name))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: done.append("mark"))
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: done.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: done.append("stop"))
    jobs = [Candidate("best", SHAPE, Planned(resolve("best").schedule), fixed=True), Candidate("fa3", SHAPE)]
    path = tmp_path / "jobs"
    path.write_bytes(pickle.dumps((jobs, 3)))
    profile.main(os.fspath(path))
    assert done == [("load", jobs[0], 3), ("load", jobs[1], 3), "start", "mark", "best", "mark", "fa3", "stop"]


# --- ncu's table -----------------------------------------------------------------------------------------------


def test_counters_are_numbers_in_base_units_in_the_order_of_launches() -> None:
    launches = parse(FP16)
    assert [launch.kernel for launch in launches] == ["attention_kernel"] * 4
    seed = launches[0].metrics
    assert seed[counters.DURATION] == 17_981_184 and seed[counters.ARRIVED] == 69_257_368_576
    assert seed[metric_of("active warps")] == 7.97 and seed[counters.stalled("barrier")] == 48_540.95
    assert set(seed) == set(METRICS)


def test_a_peer_has_its_own_kernel_and_what_was_not_counted_is_left_out() -> None:
    *_, fa3 = parse(BF16)
    assert "FlashAttnFwdSm90" in fa3.kernel and fa3.metrics[counters.SECTORS_READ] == 1_101_006_442
    assert counters.ARRIVED not in fa3.metrics


def test_a_counter_without_a_number_is_left_out() -> None:
    text = FP16.replace('"69,257,368,576"', '"n/a"')
    seed, best, *_ = parse(text)
    assert counters.ARRIVED not in seed.metrics and counters.ARRIVED in best.metrics


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"Kernel Name"', '"Name"', "no column 'Kernel Name'"),
        ('"ns"', '"ms"', "gpu__time_duration.sum is in 'ms', expected ns"),
        ('"","","","","","","","","","",""', '"9","","","","","","","","","",""', "no row of units"),
    ],
)
def test_another_table_is_refused(old, new, message) -> None:
    assert FP16.count(old)
    with pytest.raises(InputError, match=message):
        parse(FP16.replace(old, new, 1))


def test_only_what_this_ncu_knows_is_asked_for() -> None:
    query = "Chip gh100\nsm__throughput   Throughput %\ndram__bytes_read  Counter byte\n"
    asked = ["sm__throughput.avg.pct", "lts__t_bytes.sum", "dram__bytes_read.sum", "launch__registers_per_thread"]
    assert countable(asked, query) == ["sm__throughput.avg.pct", "dram__bytes_read.sum", "launch__registers_per_thread"]
    assert countable(asked, "an ncu that lists nothing\n") == asked


def test_launches_between_two_marks_are_one_jobs() -> None:
    mark, one, two = (counters.CountedLaunch(name, {}) for name in ("at::spin_kernel(long)", "one", "two"))
    assert split_by_job([mark, one, mark, one, two], "spin_kernel", 2) == [[one], [one, two]]
    for wrong, message in (
        ([one], "one is its first launch"),
        ([mark, one], r"profiled 1 kernels \(launches: 1\), expected 2"),
        ([mark, one, mark], r"launches: 1, 0"),
        ([], "launches: none"),
    ):
        with pytest.raises(InputError, match=message):
            split_by_job(wrong, "spin_kernel", 2)


# --- ncu -------------------------------------------------------------------------------------------------------


def test_ncu_is_asked_for_the_metrics_that_it_knows(tmp_path, monkeypatch) -> None:
    (tmp_path / "sample").write_text(FP16)
    query = "gpu__time_duration x\nsm__throughput x\n"
    arguments = fake_ncu(tmp_path, monkeypatch, f"cat {tmp_path / 'sample'}", query)
    found = Ncu()
    assert found.version() == "2025.3.1.0"
    known = found.known_metrics()
    assert known == [metric_of(what) for what in ("duration", "compute throughput", "registers")]
    assert len(found.profile(["python", "-m", "job"], known, 60)) == 4
    given = arguments.read_text().splitlines()
    assert given[given.index("--metrics") + 1] == ",".join(known) and given[-3:] == ["python", "-m", "job"]
    assert given[:2] == ["--profile-from-start", "off"] and "--csv" in given


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            'echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"; exit 1',
            r"may not read the GPU's counters \(ERR_NVGPUCTRPERM\), expected a driver with NVreg_Restrict",
        ),
        (
            'echo "==ERROR== The application returned an error code (1)."; echo "a: trace" >&2; echo "OOM: 9 GB" >&2; exit 1',
            r"exit code 1, 0 launches counted: ==ERROR== The application returned an error code \(1\)\.; OOM: 9 GB",
        ),
        ('echo "==WARNING== No kernels were profiled."', "exit code 0, 0 launches counted: ==WARNING== No kernels"),
        ("exit 3", "exit code 3, 0 launches counted: it said nothing"),
    ],
)
def test_what_ncu_refuses_is_one_line(tmp_path, monkeypatch, body, message) -> None:
    fake_ncu(tmp_path, monkeypatch, body)
    with pytest.raises(InputError, match=message) as refused:
        Ncu().profile(["true"], METRICS, 60)
    assert "\n" not in str(refused.value)


def test_at_the_limit_all_that_ncu_started_is_killed(tmp_path, monkeypatch) -> None:
    fake_ncu(tmp_path, monkeypatch, f"sleep 600 & echo $! > {tmp_path / 'pid'}; wait")
    with pytest.raises(InputError, match="ncu: no answer within 1 s, killed"):
        Ncu().profile(["true"], METRICS, 1)
    assert has_ended(int((tmp_path / "pid").read_text()))


def has_ended(pid: int) -> bool:
    """Says whether a process ends within seconds; if nobody waits for a process, it stays a zombie."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_without_ncu_it_says_where_it_looked(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(counters.shutil, "which", lambda *given, **named: None)
    with pytest.raises(InputError, match="no ncu on the PATH, CUDA_HOME and /usr/local/cuda, expected NVIDIA's Nsight"):
        Ncu()
