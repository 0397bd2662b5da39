"""Verdicts kept beside the kernels: what is not proved again, and what always is."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import pytest
from mutations import shipped
from overlap import overlap
from pool_jobs import failed_reads
from test_rooms import MODULES, imported

from tl_attention.build import verdicts
from tl_attention.build.verdicts import PACKAGE, PROOF, VERSION, key, verdict_of, version
from tl_attention.errors import ScheduleRefused
from tl_attention.lowering.warp_specialized.lowering import WarpSpecialized
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.program.derivation import derive
from tl_attention.proof.generated.verdict import GeneratedCode, Verdict
from tl_attention.schedule.schedule import Schedule

ROOT = PACKAGE.parent
SCHEDULE = overlap("overlap", cluster=1)
PROGRAM = derive(SCHEDULE)
VARIANT = Variant(128, "float16")
CODE = GeneratedCode("device\n", "host\n", VARIANT, VARIANT.parameters())
VERDICT = Verdict(("", "wait", "numbers: exponential") * 1000, (1, 2), "abc")
INPUT = SCHEDULE, PROGRAM, CODE


@pytest.fixture
def proofs(monkeypatch) -> list[str]:
    """The device code of each proof that is run; all of them accept, with the same verdict."""
    proved: list[str] = []

    def check(self, schedule, program, code) -> Verdict:
        proved.append(code.source)
        return VERDICT

    monkeypatch.setattr(WarpSpecialized, "check_generated", check)
    return proved


@pytest.fixture
def kernel(tmp_path) -> SimpleNamespace:
    """What TileLang's kernel says of itself."""
    folder = tmp_path / "kernel"
    folder.mkdir()
    return SimpleNamespace(**{verdicts.KERNEL_FOLDER: str(folder)})


@pytest.fixture
def entry(kernel, proofs) -> Path:
    """The one file that is kept of INPUT."""
    assert verdict_of(kernel, *INPUT) == VERDICT
    (file,) = Path(kernel._tilelang_cache_path).iterdir()
    proofs.clear()
    return file


def test_a_kept_verdict_is_not_proved_again(kernel, entry, proofs) -> None:
    assert [verdict_of(kernel, *INPUT) for _ in range(3)] == [VERDICT] * 3
    assert not proofs


def test_a_kernel_in_no_disk_cache_is_proved_every_time(proofs) -> None:
    for kernel in (SimpleNamespace(), SimpleNamespace(**{verdicts.KERNEL_FOLDER: None})):
        assert verdict_of(kernel, *INPUT) == verdict_of(kernel, *INPUT) == VERDICT
    assert len(proofs) == 4


# --- the key -----------------------------------------------------------------------------------------------------


def other_variant(**changes: object) -> tuple[Schedule, object, GeneratedCode]:
    return SCHEDULE, PROGRAM, replace(CODE, variant=replace(VARIANT, **changes))


ALTERED = {
    "device code": (SCHEDULE, PROGRAM, replace(CODE, source="device \n")),
    "launch plan": (SCHEDULE, PROGRAM, replace(CODE, host_source="host \n")),
    "both, cut elsewhere": (SCHEDULE, PROGRAM, replace(CODE, source="device\nhost\n", host_source="")),
    "rings": (SCHEDULE, replace(PROGRAM, buffers={**PROGRAM.buffers, "load_k": 3}), CODE),
    "operations": (SCHEDULE, replace(PROGRAM, consumer=PROGRAM.consumer[1:]), CODE),
    "what a pass does": (SCHEDULE, replace(PROGRAM, passes=()), CODE),
    "the table": (SCHEDULE, replace(PROGRAM, table=replace(PROGRAM.table, output=())), CODE),
    "an option of the kernel": (overlap("overlap", cluster=1, tile_order="sections"), PROGRAM, CODE),
    "another key": (SCHEDULE.model_copy(update={"kv_order": "ascending"}), PROGRAM, CODE),
    "mask": other_variant(mask=CAUSAL),
    "dtype": other_variant(dtype="bfloat16"),
    "head_dim": other_variant(head_dim=64),
    "head_dim_v": other_variant(head_dim_v=64),
    "sizes": other_variant(sizes=Sizes(1, 2, 3, 4)),
    "optional": other_variant(optional=frozenset({"LSE"})),
    "parameters": (SCHEDULE, PROGRAM, replace(CODE, parameters=VARIANT.parameters("TileCounter"))),
}


@pytest.mark.parametrize("what", ALTERED)
def test_a_verdict_is_not_believed_for_anything_else(what, kernel, entry, proofs) -> None:
    verdict_of(kernel, *ALTERED[what])
    assert proofs == [ALTERED[what][2].source]
    verdict_of(kernel, *ALTERED[what])
    verdict_of(kernel, *INPUT)
    assert len(proofs) == 1, "each has an entry of its own"


def test_a_verdict_is_not_believed_by_another_proof(kernel, entry, proofs, monkeypatch) -> None:
    monkeypatch.setattr(verdicts, "VERSION", VERSION[::-1])
    verdict_of(kernel, *INPUT)
    assert len(proofs) == 1


def shipped_keys() -> list[str]:
    return [key(schedule, derive(schedule), CODE) for schedule in shipped().values()]


def test_every_process_has_the_same_keys() -> None:
    script = "import test_verdicts; print(*test_verdicts.shipped_keys())"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PYTHONHASHSEED": seed},
        )
        assert done.stdout.split() == shipped_keys()
    # Some files say only for which other head size a schedule is meant.
    assert len({*shipped_keys()}) == len({*shipped().values()}) > 40


# --- the proof's version -----------------------------------------------------------------------------------------


def below(module: str) -> set[str]:
    """The module, and all of the package that it imports, whatever is between."""
    found, new = set(), {module}
    while new:
        found |= new
        new = {other for name in new for other in imported(name)} - found
    return found


def test_the_version_is_of_all_that_decides_a_verdict() -> None:
    decides = {name for name in MODULES if name.startswith("tl_attention.lowering")}
    decides = set().union(*(below(name) for name in decides))
    assert {MODULES[name].relative_to(PACKAGE).parts[0] for name in decides} == {*PROOF}


def test_every_file_of_it_changes_the_version(tmp_path) -> None:
    copy = tmp_path / "tl_attention"
    shutil.copytree(PACKAGE, copy)
    assert version(copy) == VERSION
    for file in [copy / "errors.py", *(file for room in PROOF for file in (copy / room).rglob("*.py"))]:
        text = file.read_text()
        file.write_text(text + "\n")
        assert version(copy) != VERSION, file
        file.write_text(text)
    for changed in ("show/report.py", "lowering/__pycache__/base.cpython-311.pyc"):
        (copy / changed).parent.mkdir(exist_ok=True)
        (copy / changed).write_text("x")
    # As an editor leaves it.
    (copy / "proof/.#races.py").symlink_to("nobody@nowhere")
    assert version(copy) == VERSION
    (copy / "proof/races.py").rename(copy / "proof/races_.py")
    assert version(copy) != VERSION


# --- what may be found, and what may go wrong --------------------------------------------------------------------


def test_a_bad_entry_is_proved_again_and_replaced(kernel, entry, proofs) -> None:
    good = entry.read_bytes()
    half = len(good) // 2
    bad = [b"", b"\n", b"\xff\xfe\n\x00", good[:half], good[:-1], good + b"\n", good[:70], good.partition(b"\n")[2]]
    bad += [good.replace(b"wait", b"Wait", 1), good[:half] + b"\0" * (len(good) - half)]
    for text in bad:
        entry.write_bytes(text)
        assert verdict_of(kernel, *INPUT) == VERDICT
        assert proofs.pop() == CODE.source and entry.read_bytes() == good, text[:80]
        assert verdict_of(kernel, *INPUT) == VERDICT and not proofs


def test_the_entry_of_other_code_is_not_believed(kernel, entry, proofs) -> None:
    verdict_of(kernel, *ALTERED["device code"])
    (other,) = {*entry.parent.iterdir()} - {entry}
    shutil.copy(other, entry)
    proofs.clear()
    verdict_of(kernel, *INPUT)
    assert proofs == [CODE.source]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"kinds": [1], "unreached": [], "digest": ""}', b"\xff"])
def test_an_entry_of_another_form_is_not_believed_even_if_it_is_sealed(text, kernel, entry, proofs) -> None:
    entry.write_bytes(verdicts._seal(entry, text) + b"\n" + text)
    assert verdict_of(kernel, *INPUT) == VERDICT and len(proofs) == 1


def test_a_refusal_is_not_kept(kernel, monkeypatch) -> None:
    refused: list[str] = []

    def check(self, schedule, program, code) -> Verdict:
        refused.append(code.source)
        raise ScheduleRefused("it is not safe")

    monkeypatch.setattr(WarpSpecialized, "check_generated", check)
    for _ in range(2):
        with pytest.raises(ScheduleRefused, match="it is not safe"):
            verdict_of(kernel, *INPUT)
    assert len(refused) == 2 and not [*Path(kernel._tilelang_cache_path).iterdir()]


@pytest.mark.parametrize("place", ["nowhere", "a file", "an entry that is a folder"])
def test_where_nothing_can_be_kept_it_is_proved_and_nothing_is_left(place, kernel, tmp_path, entry, proofs) -> None:
    if place == "an entry that is a folder":
        entry.unlink()
        (entry / "inside").mkdir(parents=True)
    else:
        (tmp_path / "a file").write_text("")
        kernel = SimpleNamespace(**{verdicts.KERNEL_FOLDER: str(tmp_path / place)})
    before = {*tmp_path.rglob("*")}
    assert verdict_of(kernel, *INPUT) == VERDICT and len(proofs) == 1
    assert {*tmp_path.rglob("*")} == before


def test_a_full_disk_leaves_nothing_behind(kernel, entry, proofs, monkeypatch) -> None:
    entry.unlink()
    write = Path.write_bytes

    def half(file: Path, text: bytes) -> int:
        write(file, text[: len(text) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", half)
    assert verdict_of(kernel, *INPUT) == VERDICT and len(proofs) == 1
    assert not [*entry.parent.iterdir()]


def test_processes_that_keep_the_same_at_once_do_not_disturb_each_other(tmp_path) -> None:
    file = tmp_path / "verdict-0"
    with ProcessPoolExecutor(4, get_context("spawn")) as pool:
        assert [*pool.map(failed_reads, [file] * 4, [VERDICT] * 4)] == [0] * 4
    assert [*tmp_path.iterdir()] == [file]


# --- with TileLang's own cache -----------------------------------------------------------------------------------

COMPILE = """
import sys
from mutations import shipped
from tl_attention.build.compile import compile_kernel
from tl_attention.lowering.pipelined.lowering import Pipelined
from tl_attention.problem.variant import Variant

check, proofs = Pipelined.check_generated, []
Pipelined.check_generated = lambda *arguments: proofs.append(1) or check(*arguments)
compiled = compile_kernel(shipped()["seed"], Variant(128, "float16"))
print(len(proofs), compiled.kernel._tilelang_cache_path, hash(compiled.verdict), sep="\\n")
"""


def test_a_second_process_takes_the_kernel_and_its_verdict_from_the_cache(tmp_path) -> None:
    def run() -> list[str]:
        environment = {"TILELANG_CACHE_DIR": str(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        done = subprocess.run(
            [sys.executable, "-c", COMPILE],
            capture_output=True,
            text=True,
            timeout=300,
            env=os.environ | environment | {"PYTHONHASHSEED": "0"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-3:]

    proofs, folder, verdict = run()
    assert proofs == "1" and Path(folder).is_relative_to(tmp_path) and (Path(folder) / "manifest.json").is_file()
    assert len([*Path(folder).glob("verdict-*")]) == 1
    assert run() == ["0", folder, verdict]
