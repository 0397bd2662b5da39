"""The form that carries everything: which way it takes and what it says, its cubin, and what it says of itself."""

from __future__ import annotations

import ast
import base64
import importlib.metadata
import lzma
import re
import subprocess
import sys
import tomllib
from collections import Counter

import pytest
import torch
from packaging.requirements import Requirement
from submissions import COMMITTED, ROOT, SCHEDULES, compiled, import_file, run_beside, text

from tl_attention.build.sass import cuobjdump
from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.files.schedule_file import load
from tl_attention.leaderboard import cubin, submission
from tl_attention.leaderboard.device_code import constants, read_device_code
from tl_attention.leaderboard.specialise import layout

TILELANG = ("tilelang", "tvm", "tvm_ffi")
WAYS = {"by_tilelang": (), "by_nvcc": TILELANG, "by_cubin": (*TILELANG, "nvcc")}
# e_ident of a CUDA 12 cubin: the OS/ABI that its drivers know, and its version. CUDA 13 writes 0x41 and 8.
CUDA_12_ABI = (0x33, 7)

# For a machine without a GPU: tensors on the CPU, and kernels that only say that they were called.
ON_THE_CPU = """
import contextlib, torch
torch.cuda.device = lambda device: contextlib.nullcontext()
q = torch.zeros(1, 1, 128, 128, dtype=torch.float16)
"""


def carried() -> bytes:
    return lzma.decompress(base64.b64decode(constants(text("best", "all").encode())["CUBIN_XZ"]))


# --- the choice --------------------------------------------------------------------------------------------------


def test_each_way_that_fails_says_why_and_the_last_names_them_all(tmp_path):
    code = ON_THE_CPU + (
        "def no_driver(*_): raise RuntimeError('no driver here')\n"
        "submission.Kernel = no_driver\n"
        "try: submission.custom_kernel((q, q, q))\n"
        "except RuntimeError as error: sys.stderr.write(str(error))\n"
    )
    *lines, last = run_beside(tmp_path, text("best", "all"), code, absent=WAYS["by_cubin"]).splitlines()
    assert lines == [
        "submission: not by_tilelang: ModuleNotFoundError: No module named 'tilelang'",
        "submission: not by_nvcc: nvcc 12.9 or newer was looked for on the PATH, in CUDA_HOME, in /usr/local/cuda and "
        "in NVIDIA's Python packages; found none",
        "submission: not by_cubin: no driver here",
    ]
    reasons = "; ".join(line.removeprefix("submission: not ") for line in lines)
    assert last == f"no way to run the kernel: {reasons}"


def test_the_first_way_that_works_is_taken_once_and_named(tmp_path):
    code = ON_THE_CPU + (
        "calls = []\n"
        "submission.build_cubin = lambda: calls.append('built') or b''\n"
        "submission.Kernel = lambda device_index, cubin: lambda q, k, v, output: calls.append('called')\n"
        "for _ in range(3): assert submission.custom_kernel((q, q, q)).shape == q.shape\n"
        "assert calls == ['built', 'called', 'called', 'called'], calls\n"
    )
    lines = run_beside(tmp_path, text("best", "all"), code, absent=TILELANG).splitlines()
    assert [line.split(":")[1] for line in lines] == [" not by_tilelang", " runs by_nvcc"]


def test_a_way_whose_kernel_cannot_be_launched_is_left_for_the_next(tmp_path):
    code = ON_THE_CPU + (
        "def unloadable(*_): raise RuntimeError('CUDA_ERROR_INVALID_IMAGE')\n"
        "submission.WAYS = (lambda index: unloadable, submission.by_cubin)\n"
        "submission.Kernel = lambda device_index, cubin: lambda q, k, v, output: None\n"
        "submission.custom_kernel((q, q, q))\n"
    )
    found = run_beside(tmp_path, text("best", "all"), code, absent=TILELANG)
    assert "CUDA_ERROR_INVALID_IMAGE" in found and found.splitlines()[-1] == "submission: runs by_cubin"


def test_tensors_on_the_cpu_are_no_ways_fault(tmp_path):
    module = import_file(tmp_path / "all.py", text("best", "all"))
    q = torch.zeros(1, 1, 128, 128, dtype=torch.float16)
    with pytest.raises(ValueError, match="^Expected a cuda device, but got: cpu$"):
        module.custom_kernel((q, q, q))


def test_wrong_inputs_are_the_callers_fault_and_no_ways(tmp_path):
    code = ON_THE_CPU + (
        "try: submission.custom_kernel((q, q, q.float()))\nexcept ValueError as error: sys.stderr.write(str(error))\n"
    )
    found = run_beside(tmp_path, text("best", "all"), code, absent=TILELANG)
    assert found == "v is torch.float32 (1, 1, 128, 128), expected fp16, contiguous, (batch, heads, seq, 128)"


@pytest.mark.parametrize("name", SCHEDULES)
def test_another_tilelang_is_not_even_imported(tmp_path, name):
    packed = text(name, "all").replace('TILELANG_VERSION = "0.1.15"', 'TILELANG_VERSION = "0.1.9"')
    code = "assert 'tilelang' not in sys.modules\nsys.stderr.write(submission.NO_TILELANG)\n"
    said = run_beside(tmp_path, packed, code)
    assert re.fullmatch(r"ImportError: found TileLang 0\.1\.15\S*, expected 0\.1\.9", said)


def test_the_tilelang_way_compiles_the_generated_code_that_the_file_names(tmp_path):
    code = (
        "import tilelang\n"
        "kept = []\ncompile_ = tilelang.compile\n"
        "tilelang.compile = lambda *a, **k: kept.append(compile_(*a, **k)) or kept[0]\n"
        "submission.by_tilelang(0)\n"
        "assert kept[0].get_kernel_source() == submission.KERNEL_SOURCE\n"
    )
    assert "is used as condition" not in run_beside(tmp_path, text("best", "all"), code), "TileLang warns"


def test_an_nvcc_that_serialises_the_products_is_passed_over(tmp_path, monkeypatch):
    module = import_file(tmp_path / "cuda.py", text("seed", "cuda"))
    nvccs = {}
    for release in ("12.8", "12.9", "13.0"):
        nvccs[release] = tmp_path / release / "bin" / "nvcc"
        nvccs[release].parent.mkdir(parents=True)
        nvccs[release].write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.93'\n")
        nvccs[release].chmod(0o755)
    monkeypatch.setattr(module.glob, "glob", lambda pattern: [])
    isfile = module.os.path.isfile
    monkeypatch.setattr(module.os.path, "isfile", lambda path: str(path).startswith(str(tmp_path)) and isfile(path))
    monkeypatch.setenv("PATH", str(nvccs["12.8"].parent))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    with pytest.raises(RuntimeError, match=re.escape(f"found {nvccs['12.8']} (release 12.8)")):
        module.find_nvcc()
    for release in ("12.9", "13.0"):
        monkeypatch.setenv("CUDA_HOME", str(nvccs[release].parents[1]))
        assert module.find_nvcc() == str(nvccs[release])


@pytest.mark.parametrize("name", SCHEDULES)
def test_program_and_launch_share_no_name(name):
    tree = ast.parse(text(name, "all"))
    names = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names += [part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    assert [name for name, times in Counter(names).items() if times > 1] == []


# --- the cubin -----------------------------------------------------------------------------------------------------


def test_the_cubin_is_for_drivers_of_cuda_12_and_no_slower_than_what_was_measured():
    machine_code = carried()
    assert (machine_code[7], machine_code[8]) == CUDA_12_ABI
    usage = cuobjdump(machine_code, "--dump-resource-usage")
    assert "Function attention_kernel:" in usage and "REG:168 STACK:0 " in usage


def test_the_carried_source_and_headers_alone_give_the_cubin_again():
    command = [sys.executable, "-m", "tl_attention.leaderboard.cubin", str(COMMITTED)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    sha256 = constants(COMMITTED.read_bytes())["CUBIN_SHA256"]
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"carried   {sha256}\ncompiled  {sha256}\nthe same\n"


def test_a_cubin_of_another_source_is_told(tmp_path, capsys):
    packed = COMMITTED.read_text(encoding="utf-8")
    other = 'extern "C" __global__ void attention_kernel(float* x) { x[0] = 1; }'
    path = tmp_path / "other.py"
    path.write_text(packed.replace(constants(packed.encode())["KERNEL_SOURCE"], other), encoding="utf-8")
    assert cubin.main([str(path)]) == 1
    assert capsys.readouterr().out.endswith("they differ\n")


def test_a_changed_cubin_is_not_loaded(tmp_path):
    sha256 = constants(text("best", "all").encode())["CUBIN_SHA256"]
    module = import_file(tmp_path / "changed.py", text("best", "all").replace(sha256, "0" * 64))
    with pytest.raises(RuntimeError, match="CUBIN_XZ does not hold what CUBIN_SHA256 names"):
        module.carried_cubin()


def test_machine_code_that_serialises_the_products_is_refused():
    with pytest.raises(ScheduleRefused, match="in NVRTC 12.9.86's machine code ptxas serialised the products"):
        submission.all_form(load(ROOT / "schedules" / "ws_three_stages.yaml"), name="ws_three_stages")


def test_cuda_that_nvrtc_refuses_is_one_clear_line():
    words = r"^NVRTC 12\.9\.86 cannot compile the generated CUDA: kernel\.cu\(1\): error: .*$"
    with pytest.raises(InputError, match=words):
        cubin.build("not_cuda;\n", {}, ("--gpu-architecture=sm_90a",))


@pytest.mark.parametrize("missing", cubin.PACKAGES)
def test_without_its_packages_one_line_says_how_to_get_them(monkeypatch, missing):
    def distribution(package):
        if package == missing:
            raise importlib.metadata.PackageNotFoundError(package)
        return importlib.metadata.distribution(package)

    monkeypatch.setattr(cubin, "distribution", distribution)
    pins = " ".join(f"{package}=={version}" for package, version in cubin.PACKAGES.items())
    with pytest.raises(InputError, match=f"^{missing} is not installed, .*`pip install {pins}` .*--embed tilelang or"):
        cubin.build("", {}, ())


def test_another_version_of_its_packages_is_told(monkeypatch):
    monkeypatch.setitem(cubin.PACKAGES, cubin.NVRTC, "12.9.41")
    with pytest.raises(InputError, match=f"^{cubin.NVRTC} is 12.9.86, "):
        cubin.build("", {}, ())


def test_the_extra_installs_exactly_these_packages():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    required = {requirement.name: str(requirement.specifier) for requirement in map(Requirement, extras["submit"])}
    # What makes machine code, and what formats the packed program: every machine packs the same bytes.
    expected = {**cubin.PACKAGES, "ruff": layout.RELEASE}
    assert required == {package: f"=={version}" for package, version in expected.items()}
    assert "tl-attention[submit]" in extras["test"]


@pytest.mark.parametrize(
    "content, words",
    [("x = 1\n", "no KERNEL_SOURCE, expected a file packed with --embed all"), (None, "cannot be read")],
)
def test_a_file_without_a_cubin_is_one_clear_line(tmp_path, capsys, content, words):
    path = tmp_path / "file.py"
    if content is not None:
        path.write_text(content)
    assert cubin.main([str(path)]) == 2
    assert re.fullmatch(rf"error: .*{words}.*\n", capsys.readouterr().err)


# --- what a file says of itself ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", submission.FORMS)
def test_each_form_names_its_generated_code_and_its_compilers(form):
    found = read_device_code(text("best", form).encode())
    assert found.pop("device_code") == compiled("best").fingerprint
    nvrtc = {"nvrtc": "12.9.86"} if form == "all" else {}
    assert found.pop("compilers") == {"tilelang": "0.1.15"} | nvrtc
    assert found == ({"cubin_sha256": cubin.sha256(carried())} if form == "all" else {})


def test_a_comment_changes_the_file_and_not_what_it_says():
    packed = text("best", "all")
    changed = packed.replace("\nWAYS = ", "\n# In this order.\nWAYS = ")
    assert changed != packed and read_device_code(changed.encode()) == read_device_code(packed.encode())


def test_what_a_file_does_not_say_or_says_wrongly_is_not_read():
    packed = text("best", "all")
    assert read_device_code(packed.replace("attention_kernel(", "other_kernel(").encode()) == {}
    assert read_device_code((ROOT / "tl_attention/leaderboard/baseline_cudnn.py").read_bytes()) == {}
    for nothing in (b"", b"\xff\xfe", b"def", b"DEVICE_CODE = open('x')\nCOMPILERS = {}", b"DEVICE_CODE = 1"):
        assert read_device_code(nothing) == {}


# --- on a GPU ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_each_way_computes_attention_where_the_ways_before_it_are_missing(tmp_path, way):
    from tl_attention.oracle.reference import attention_fp64, attention_same_precision, compare, make_inputs
    from tl_attention.problem.mask import FULL
    from tl_attention.problem.shape import AttentionShape

    shapes = [(1, 3, 200, 128), (2, 2, 1, 128), (2, 4, 1024, 128), (1, 2, 4097, 128)]
    cases = [
        make_inputs(AttentionShape(b, h, s, s, d), seed=number, device="cuda")
        for number, (b, h, s, d) in enumerate(shapes)
    ]
    torch.save(cases, tmp_path / "inputs.pt")
    code = (
        "import torch\n"
        "outputs = [submission.custom_kernel(case) for case in torch.load('inputs.pt')]\n"
        "torch.save(outputs, 'outputs.pt')\n"
    )
    # The file as committed: where it is sent there is no NVRTC to pack another.
    said = run_beside(tmp_path, COMMITTED.read_text(encoding="utf-8"), code, absent=WAYS[way])
    assert f"submission: runs {way}\n" in said
    assert said.count("submission: not") == list(WAYS).index(way)
    for (q, k, v), output in zip(cases, torch.load(tmp_path / "outputs.pt"), strict=True):
        peer = attention_same_precision(q, k, v, mask=FULL, scale=128**-0.5)
        report = compare(output, attention_fp64(q, k, v, mask=FULL, scale=128**-0.5), peer)
        assert report.ok, report
