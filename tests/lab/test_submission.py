"""The packed file: what it holds, how it launches, which form it runs, and that `submit --check` makes it again."""

from __future__ import annotations

import ast
import base64
import hashlib
import lzma
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import torch
from on_gpu import check, fresh
from packaging.requirements import Requirement
from submissions import COMMITTED, ROOT, SCHEDULES, import_file, run_beside, text
from test_packed_program import undefined
from tiers import exhaustive, sampled

from tl_attention.compiler.compile import compile_kernel
from tl_attention.errors import InputError
from tl_attention.lab.leaderboard import machine_code, submission
from tl_attention.lab.leaderboard.contract import MAX_BYTES, constants, read_device_code
from tl_attention.lab.leaderboard.program import packed_program
from tl_attention.lab.leaderboard.python_text import WIDTH, enclosed, literal
from tl_attention.lab.leaderboard.submission import VARIANT
from tl_attention.lab.machine_code.sass import cuobjdump
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.schedule_file import load

SIZES = {"batch": 2, "heads": 3, "seq_q": 200, "seq_kv": 300}
TILELANG = ("tilelang", "tvm", "tvm_ffi")
FORMS = {"by_tilelang": (), "by_cubin": TILELANG}
PACKED = COMMITTED.read_text(encoding="utf-8")
DEVICE_CODE = (read_device_code(PACKED.encode()) or {})["device_code"]
# e_ident of a CUDA 12 cubin: the OS/ABI that its drivers know, and its version. CUDA 13 writes 0x41 and 8.
CUDA_12_ABI = (0x33, 7)

# For a machine without a GPU: tensors on the CPU, and machine code that only says that it was called.
ON_THE_CPU = """
import contextlib, torch
torch.cuda.device = lambda device: contextlib.nullcontext()
q = torch.zeros(1, 1, 128, 128, dtype=torch.float16)
calls = []
submission.MachineCode = lambda device_index, cubin: lambda q, k, v, output, scale: calls.append(scale)
"""


# --- the text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sampled(SCHEDULES, ["best"]))
def test_it_keeps_the_rules_of_the_servers_and_reads_as_code_of_ours(name):
    packed = text(name)
    assert packed.startswith("#!POPCORN leaderboard flashattention\n#!POPCORN gpu H100\n#\n")
    assert packed.count("#!POPCORN") == 2 and "stream" not in packed.lower() and len(packed.encode()) <= MAX_BYTES
    assert undefined(packed).strip() == "All checks passed!"
    paths = (str(ROOT), sys.prefix, str(Path.home()) + "/", tempfile.gettempdir() + "/", "site-packages")
    assert [path for path in paths if path in packed] == []
    body = ast.parse(packed).body
    defined = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    defined += [
        node.targets[0].id for node in body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ]
    assert [found for found, times in Counter(defined).items() if times > 1] == []
    imported = {
        alias.name for node in ast.walk(ast.parse(packed)) if isinstance(node, ast.Import) for alias in node.names
    }
    assert not {"subprocess", "os", "tl_attention"} & imported


def test_it_is_small_enough_to_be_read():
    packed = text("best")
    assert len(packed.encode()) <= 100_000
    assert len(packed.splitlines()) - len(constants(packed.encode())["CUBIN_XZ"].splitlines()) <= 1500
    assert packed_program(Planned(SCHEDULES["best"]), VARIANT).text in packed


@pytest.mark.parametrize(
    "parts, text",
    [
        ((), "f()"),
        (("a", "b=1"), "f(a, b=1)"),
        (("a" * 60, "b" * 60, "c"), f"f(\n        {'a' * 60},\n        {'b' * 60}, c,\n    )"),
        (("a", "g(\n        )", "c", "d"), "f(\n        a,\n        g(\n        ),\n        c, d,\n    )"),
    ],
)
def test_a_call_stands_on_one_line_if_it_fits(parts, text):
    assert enclosed("f(", parts, ")", indent=4) == text and max(map(len, text.splitlines())) < WIDTH


def test_values_are_written_as_python_reads_them():
    assert (
        literal({"a": [1, 2.5, None], "b": ("c\n", (True,), ())}) == '{"a": [1, 2.5, None], "b": ("c\\n", (True,), ())}'
    )
    for value in ("'", '"', "\"'", ["it's", "a"], ["'a'", "b"], "\\'"):
        assert eval(literal(value)) == value


@exhaustive
def test_the_committed_file_is_what_another_process_makes(tmp_path):
    code = (
        "from pathlib import Path\nfrom tl_attention.schedule.files.schedule_file import load\n"
        "from tl_attention.lab.leaderboard.submission import pack\n"
        f"Path('packed.py').write_text(pack('best', load({str(ROOT / 'schedules/best.yaml')!r})), 'utf-8')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, cwd=tmp_path)
    assert (tmp_path / "packed.py").read_text(encoding="utf-8") == text("best") == COMMITTED.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sampled(SCHEDULES, ["best"]))
def test_it_launches_as_planned(name, tmp_path):
    module = import_file(tmp_path / "packed.py", text(name))
    plan = compile_kernel(SCHEDULES[name], VARIANT).generated.plan
    q, k, output = (torch.zeros(2, 3, rows, 1, dtype=torch.float16) for rows in (200, 300, 200))
    tensors = {"Q": q, "K": k, "V": k, "Output": output}
    grid, arguments = module.launch_plan(lambda *tensor, **given: (tensor, given), *tensors.values(), 0.5)
    assert grid == tuple(extent.at(SIZES) for extent in plan.grid)
    assert (plan.block, plan.shared_bytes) == (module.BLOCK, module.SHARED_BYTES)
    planned = {descriptor.name: descriptor for descriptor in plan.descriptors}
    for found, parameter in zip(arguments, plan.parameters, strict=True):
        if descriptor := planned.get(parameter.name):
            whole = dict(
                dtype=descriptor.dtype,
                dims=tuple(extent.at(SIZES) for extent in descriptor.dims),
                strides=tuple(extent.at(SIZES) for extent in descriptor.strides),
                box=descriptor.box,
                element_strides=descriptor.element_strides,
                **descriptor.options,
            )
            assert found[0][0] is tensors[descriptor.tensor] and found[1] == whole
            assert list(found[1])[-4:] == ["interleave", "swizzle", "l2_promotion", "oob_fill"]
        elif parameter.kind == "pointer":
            assert found.value == tensors[parameter.name].data_ptr()
        else:
            assert found.value == {**SIZES, "softmax_scale": 0.5}[parameter.name]


def test_what_it_says_of_itself_is_read_and_nothing_else():
    packed = text("best").encode()
    compiled = compile_kernel(SCHEDULES["best"], VARIANT)
    assert read_device_code(packed) == {
        "device_code": compiled.fingerprint,
        "compilers": {"tilelang": "0.1.15", "nvrtc": "12.9.86"},
        "cubin_sha256": hashlib.sha256(carried()).hexdigest(),
    }
    assert read_device_code(packed.replace(b"\nHEAD_DIM", b"\n# A comment.\nHEAD_DIM")) == read_device_code(packed)
    assert read_device_code((ROOT / "tl_attention/lab/leaderboard/baseline_cudnn.py").read_bytes()) == {}
    for nothing in (b"", b"\xff\xfe", b"def", b"DEVICE_CODE = open('x')\nCOMPILERS = {}", b"DEVICE_CODE = 1"):
        assert read_device_code(nothing) == {}


# --- what cannot be packed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, words",
    [
        *((name, "^schedule name .*expected letters") for name in ("", "a b", "a/", "/a", "a//b", "a\nb", "a`b")),
        ("best_causal", "dynamic takes a counter that a submission does not pass"),
        ("experiments/early", "kernel.early: true is a launch that a submission does not make, expected false"),
        pytest.param(
            "ws_three_stages",
            r"in NVRTC 12.9.86's machine code ptxas serialised the products: .*; ptxas says: \(C75\d\d\) .* serialized due to",
            marks=exhaustive,
        ),
    ],
)
def test_what_cannot_be_packed_is_one_clear_line(name, words):
    file = ROOT / "schedules" / f"{name}.yaml"
    with pytest.raises(InputError, match=words):
        submission.pack(name, load(file) if file.is_file() else SCHEDULES["inferred"])


def test_a_file_that_the_servers_refuse_is_not_packed():
    # A schedule's name can bring the word into the file, and so can a comment.
    said = r"one server rejects every file that holds the word 'stream', found '# An Upstream\.'$"
    for packed, words in (
        ("x = 1\n# An Upstream.\ny = 1\n", said),
        ("x" * (MAX_BYTES + 1), "1,000,001 bytes, the servers take 1,000,000$"),
    ):
        with pytest.raises(InputError, match=f"^mine: not packed, {words}"):
            submission.within_limits("mine", packed)


# --- its two forms -------------------------------------------------------------------------------------------------

COMPILED = """
class Compiled:
    def get_kernel_source(self): return "CUDA"
    def __call__(self, *arguments): calls.append("program")
if submission.NO_TILELANG == "": submission.tilelang.compile = lambda *a, **k: Compiled()
"""
CALL = "for _ in range(3): assert submission.custom_kernel((q, q, q)).shape == q.shape\n"
NAMED = "submission.DEVICE_CODE = submission.hashlib.sha256(b'CUDA').hexdigest()[:12]\n"
NO_DRIVER = "def no_driver(*_): raise RuntimeError('no driver here')\nsubmission.MachineCode = no_driver\n"
SAID = "except (RuntimeError, ValueError) as error: sys.stderr.write(str(error))\n"
NOT_FOUND = "by_tilelang: ModuleNotFoundError: No module named 'tilelang'"
# What runs, without which modules, and the last lines on stderr.
RUNS = {
    "the cubin": (
        CALL + "assert calls == [128**-0.5] * 3",
        TILELANG,
        [f"submission: not {NOT_FOUND}", "submission: runs by_cubin"],
    ),
    "the program": (
        NAMED + CALL + "assert calls == ['program'] * 3",
        (),
        ["submission: not by_cubin: it is for machines without this TileLang", "submission: runs by_tilelang"],
    ),
    "the cubin, as TileLang generates other code": (
        CALL,
        (),
        [
            f"submission: not by_tilelang: TileLang generated ab78d989ee72, expected {DEVICE_CODE}",
            "submission: runs by_cubin",
        ],
    ),
    "neither": (
        NO_DRIVER + "try: submission.custom_kernel((q, q, q))\n" + SAID,
        TILELANG,
        [f"neither form of the kernel runs: {NOT_FOUND}; by_cubin: no driver here"],
    ),
    "nothing, of wrong inputs": (
        "try: submission.custom_kernel((q, q, q.float()))\n" + SAID,
        TILELANG,
        [
            "v is torch.float32 (1, 1, 128, 128), expected fp16, contiguous, at a multiple of 16 bytes, "
            "(batch, heads, seq, 128), all of one shape"
        ],
    ),
}


@pytest.mark.parametrize("name", sampled(RUNS, [*RUNS][:1]))
def test_the_file_says_which_form_runs_and_why_not_the_other(tmp_path, name):
    code, absent, expected = RUNS[name]
    lines = run_beside(tmp_path, text("best"), ON_THE_CPU + COMPILED + code, absent).splitlines()
    assert lines[-len(expected) :] == expected and not any("Error" in line for line in lines[: -len(expected)])


@exhaustive
@pytest.mark.parametrize("name", SCHEDULES)
def test_another_tilelang_is_not_even_imported(tmp_path, name):
    packed = text(name).replace('{"tilelang": "0.1.15"', '{"tilelang": "0.1.9"')
    said = run_beside(
        tmp_path, packed, "assert 'tilelang' not in sys.modules\nsys.stderr.write(submission.NO_TILELANG)"
    )
    assert said == "ImportError: found TileLang 0.1.15, expected 0.1.9"


@exhaustive
def test_the_tilelang_form_compiles_without_standard_output(tmp_path):
    code = "import tilelang\ntilelang.disable_cache()\nassert submission.by_tilelang(0)\n"
    assert "is used as condition" not in run_beside(tmp_path, text("best"), code), "TileLang warns"


def test_tensors_on_the_cpu_are_no_forms_fault(tmp_path):
    q = torch.zeros(1, 1, 128, 128, dtype=torch.float16)
    with pytest.raises(ValueError, match="^Expected a cuda device, but got: cpu$"):
        import_file(tmp_path / "packed.py", text("best")).custom_kernel((q, q, q))


def test_a_changed_cubin_is_not_loaded(tmp_path):
    sha256 = constants(text("best").encode())["CUBIN_SHA256"]
    module = import_file(tmp_path / "changed.py", text("best").replace(sha256, "0" * 64))
    with pytest.raises(RuntimeError, match="CUBIN_XZ does not hold what CUBIN_SHA256 names"):
        module.by_cubin(0)


def test_the_cubin_is_for_drivers_of_cuda_12_and_no_slower_than_what_was_measured():
    cubin = carried()
    assert (cubin[7], cubin[8]) == CUDA_12_ABI
    usage = cuobjdump(cubin, "--dump-resource-usage")
    assert "Function attention_kernel:" in usage and "REG:168 STACK:0 " in usage


def carried() -> bytes:
    return lzma.decompress(base64.b64decode(constants(text("best").encode())["CUBIN_XZ"]))


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_each_form_computes_attention(tmp_path, form):
    shapes = [(1, 3, 200, 128), (2, 2, 1, 128), (2, 4, 1024, 128), (1, 2, 4097, 128)]
    cases = [fresh(batch, heads, seq, seq, head_dim) for batch, heads, seq, head_dim in shapes]
    torch.save(cases, tmp_path / "inputs.pt")
    code = (
        "import torch\n"
        "outputs = [submission.custom_kernel(case) for case in torch.load('inputs.pt')]\n"
        "torch.save(outputs, 'outputs.pt')\n"
    )
    # The file as committed: where it is sent there is no NVRTC to pack another.
    said = run_beside(tmp_path, COMMITTED.read_text(encoding="utf-8"), code, absent=FORMS[form])
    assert f"submission: runs {form}\n" in said
    for (q, k, v), output in zip(cases, torch.load(tmp_path / "outputs.pt"), strict=True):
        check(output, q, k, v)


# --- `submit --check` ------------------------------------------------------------------------------------------------

SHA256 = constants(PACKED.encode())["CUBIN_SHA256"]


def written(folder: Path, packed: str) -> str:
    path = folder / "packed.py"
    path.write_text(packed, encoding="utf-8")
    return str(path)


@pytest.fixture
def packed_before(monkeypatch) -> None:
    """Makes packing give the text of best that the tests of packed files share, made once."""

    def pack(name, schedule):
        assert schedule == SCHEDULES[name]
        return text(name)

    monkeypatch.setattr(submission, "pack", pack)


def test_the_committed_file_is_made_again(cli):
    result = cli("submit", "--check", str(COMMITTED))
    assert result.exit_code == 0 and result.stdout == (
        f"cubin carried     {SHA256}\ncubin made again  {SHA256}\nthe cubins are the same, and so is every other byte\n"
    )


def test_a_change_of_the_program_is_told_by_its_line(cli, tmp_path, packed_before):
    changed = PACKED.replace("release_v(t - 1, tile, s, c)", "release_v(t, tile, s, c)", 1)
    line = next(n for n, pair in enumerate(zip(PACKED.splitlines(), changed.splitlines()), 1) if pair[0] != pair[1])
    result = cli("submit", "--check", written(tmp_path, changed))
    assert result.exit_code == 1 and result.stdout.endswith(
        f"\nthe cubins are the same, the text differs from line {line} on\n"
    )


def test_another_cubin_is_told_also_where_the_file_names_its_hash(cli, tmp_path, packed_before):
    other = base64.b64encode(lzma.compress(b"another")).decode()
    changed = PACKED.replace(constants(PACKED.encode())["CUBIN_XZ"], f"\n{other}\n")
    result = cli("submit", "--check", written(tmp_path, changed))
    assert result.exit_code == 1 and "\nthe cubins differ, the text differs from line " in result.stdout
    assert f"made again  {SHA256}\n" in result.stdout and f"carried     {SHA256}" not in result.stdout


def test_a_file_is_read_and_not_executed(cli, tmp_path, packed_before):
    result = cli("submit", "--check", written(tmp_path, f"{PACKED}\nraise SystemExit('it was executed')\n"))
    assert result.exit_code == 1 and f"from line {len(PACKED.splitlines()) + 1} on" in result.stdout


@pytest.mark.parametrize(
    "changes, words",
    [
        ("x = 1\n", "no NAME, expected a file that `tl-attention submit` packed"),
        ("NAME = 3\n", "no NAME, expected a file that"),
        (f"{PACKED}\nSCHEDULE = 3\n", "no SCHEDULE, expected a file that"),
        (f"{PACKED}\nSCHEDULE = 'block_M: ['\n", "SCHEDULE is not what a packed file has"),
        (f"{PACKED}\nSCHEDULE = 'block_M: 3'\n", "SCHEDULE is not what a packed file has"),
        (f"{PACKED}\nSCHEDULE = '3'\n", "SCHEDULE is not what a packed file has"),
        (f"{PACKED}\nSCHEDULE = '" + "[" * 2000 + "'\n", "SCHEDULE is not what a packed file has"),
        (f"{PACKED}\nNAME = 'a b'\n", "schedule name 'a b', expected letters"),
        (f"{PACKED}\nCUBIN_XZ = 'no base64'\n", "CUBIN_XZ is not what a packed file has"),
        (f"{PACKED}\nCUBIN_XZ = 'AAAA'\n", "CUBIN_XZ is not what a packed file has"),
        (f"{PACKED}\nCUBIN_XZ = ''\n", "CUBIN_XZ is not what a packed file has"),
    ],
)
def test_a_file_that_holds_something_else_is_one_clear_line(error_of, tmp_path, changes, words):
    assert words in error_of("submit", "--check", written(tmp_path, changes))


# --- what the cubin is made by -------------------------------------------------------------------------------------


def test_cuda_that_nvrtc_refuses_is_one_clear_line():
    words = r"^NVRTC 12\.9\.86 cannot compile the generated CUDA: kernel\.cu\(1\): error: .*$"
    with pytest.raises(InputError, match=words):
        machine_code.build("not_cuda;\n", ("--gpu-architecture=sm_90a",))


def test_the_extra_installs_exactly_what_packs():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    # The first is the extra that makes kernels.
    required = {requirement.name: str(requirement.specifier) for requirement in map(Requirement, extras["submit"][1:])}
    assert {name: version.removeprefix("==") for name, version in required.items()} == machine_code.PACKAGES
    assert "tl-attention[submit]" in extras["test"]
