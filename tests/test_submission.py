"""The packed submissions: what they hold, that they keep the servers' rules, and that they build."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import pytest

from tl_attention.compile import CompiledKernel, compile_kernel
from tl_attention.errors import InputError
from tl_attention.leaderboard import submission
from tl_attention.leaderboard.contract import MAX_BYTES, violations
from tl_attention.leaderboard.headers import header_closure, pack
from tl_attention.host_plan import parse_host_source
from tl_attention.schedule import Schedule
from tl_attention.schedule_file import load

ROOT = Path(__file__).parents[1]
SEED_FILE = ROOT / "schedules" / "seed.yaml"
COMMITTED = ROOT / "leaderboard_submit.py"
INFERRED = Schedule(lowering="inferred", block_M=128, block_N=128, threads=256, num_stages=2)
SCHEDULES = {
    "seed": load(SEED_FILE), "inferred": INFERRED, "best": load(ROOT / "schedules" / "best.yaml"),
}
FORMS = {"tilelang": submission.tilelang_form, "cuda": submission.cuda_form}
SIZES = {"batch": 2, "heads": 3, "seq_q": 200, "seq_kv": 300}

CASES = [(name, form) for name in SCHEDULES for form in FORMS]
BUILD_LIMIT_S = 30

# Stands before a test's own lines in a fresh interpreter: the modules and the standard output that a server lacks.
PREAMBLE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
sys.stdout = None
import submission
print("print is harmless")
"""


def run_beside(folder: Path, text: str, code: str, absent: tuple[str, ...]) -> str:
    """Import the text as submission.py in a fresh interpreter without standard output, then run code; its stderr."""
    (folder / "submission.py").write_text(text, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    script = PREAMBLE.format(absent=("task", "tl_attention", *absent)) + code
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stderr


def import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def texts() -> dict[tuple[str, str], str]:
    return {(name, form): FORMS[form](SCHEDULES[name], name=name) for name, form in CASES}


def compiled(name: str) -> CompiledKernel:
    return compile_kernel(SCHEDULES[name], head_dim=128, dtype="float16", causal=False)


# --- the files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, form", CASES)
def test_meets_every_rule_of_the_servers(texts, name, form):
    text = texts[name, form]
    assert violations(text.encode()) == []
    assert len(text.encode()) < MAX_BYTES
    assert text.startswith("#!POPCORN leaderboard flashattention\n#!POPCORN gpu H100\n#\n")
    assert SCHEDULES[name].label in text


@pytest.mark.parametrize("name, form", CASES)
def test_holds_no_path_of_this_machine(texts, name, form):
    paths = (str(ROOT), sys.prefix, str(Path.home()) + "/", tempfile.gettempdir() + "/", "site-packages")
    assert [path for path in paths if path in texts[name, form]] == []


def test_the_committed_file_is_what_the_generator_makes(texts):
    assert COMMITTED.read_text(encoding="utf-8") == texts["best", "tilelang"]


def test_another_process_makes_the_same_text(texts, tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom tl_attention.leaderboard.submission import write\n"
        "for form in ('tilelang', 'cuda'):\n"
        "    assert write(Path(sys.argv[1]), Path(f'{sys.argv[2]}/{form}.py'), form) == []\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", code, str(SEED_FILE), str(tmp_path)], env=environment, check=True)
    for form in FORMS:
        assert (tmp_path / f"{form}.py").read_text(encoding="utf-8") == texts["seed", form]


@pytest.mark.parametrize("name,module", [("seed", "pipelined.py"), ("best", "warp_specialized.py")])
def test_the_tilelang_form_shows_the_program_as_it_is(texts, name, module):
    for file in ("macros.py", module):
        program = (ROOT / "tl_attention" / "kernel" / file).read_text(encoding="utf-8")
        code = program[program.index("\n\n", program.rindex("import ")):]
        assert code.strip() in texts[name, "tilelang"]


def test_the_cuda_form_shows_the_generated_kernel_as_it_is(texts):
    assert compiled("seed").source.strip() in texts["seed", "cuda"]


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_blob_holds_exactly_the_listed_headers(texts, name, tmp_path):
    path = tmp_path / "cuda.py"
    path.write_text(texts[name, "cuda"], encoding="utf-8")
    module = import_file(path)
    packed = json.loads(lzma.decompress(base64.b64decode(module.HEADERS_XZ)))
    assert {header: hashlib.sha256(text.encode()).hexdigest() for header, text in packed.items()} == module.HEADERS
    assert list(module.HEADERS) == sorted(module.HEADERS)
    assert {header.split("/")[0] for header in packed} == {"tl_templates", "cutlass", "cute"}
    assert not any(".." in header.split("/") or header.startswith("/") for header in packed)

    module.HEADERS.popitem()
    with pytest.raises(RuntimeError, match="does not hold what HEADERS lists"):
        module.unpack_headers(str(tmp_path))


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_tilelang_form_imports_without_task_and_standard_output(texts, name, tmp_path):
    run_beside(tmp_path, texts[name, "tilelang"], "assert submission.custom_kernel", absent=())


def test_the_tilelang_form_compiles_without_standard_output(texts, tmp_path):
    code = (
        "import tilelang\ntilelang.disable_cache()\n"
        "kernel = submission.compile_kernel(128)\n"
        "assert '__global__' in kernel.get_kernel_source()\n"
    )
    run_beside(tmp_path, texts["seed", "tilelang"], code, absent=())


def test_the_tilelang_form_refuses_another_tilelang(texts, tmp_path):
    text = texts["seed", "tilelang"].replace('TILELANG_VERSION = "0.1.15"', 'TILELANG_VERSION = "0.1.9"')
    with pytest.raises(AssertionError, match="this file needs TileLang 0.1.9, found 0.1.15"):
        run_beside(tmp_path, text, "", absent=())


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_cuda_form_builds_where_there_is_no_tilelang(texts, name, tmp_path):
    code = "open('kernel.cubin', 'wb').write(submission.build_cubin())"
    start = time.monotonic()
    run_beside(tmp_path, texts[name, "cuda"], code, absent=("tilelang", "tvm", "tvm_ffi"))
    assert time.monotonic() - start < BUILD_LIMIT_S
    assert (tmp_path / "kernel.cubin").read_bytes().startswith(b"\x7fELF")


def test_the_cuda_form_says_where_it_looked_for_nvcc(texts, tmp_path, monkeypatch):
    path = tmp_path / "cuda.py"
    path.write_text(texts["seed", "cuda"], encoding="utf-8")
    module = import_file(path)
    monkeypatch.setattr(module.os.path, "isfile", lambda path: False)
    with pytest.raises(RuntimeError, match="nvcc was not found on the PATH"):
        module.find_nvcc()


# --- making them -----------------------------------------------------------------------------------------------


def test_write_returns_what_is_broken_and_writes_nothing(tmp_path):
    # The one word that a schedule's name can bring into the file.
    schedule = tmp_path / "upstream.yaml"
    schedule.write_text(SEED_FILE.read_text(encoding="utf-8"), encoding="utf-8")
    broken = submission.write(schedule, tmp_path / "out.py", "tilelang")
    assert broken and all("one server rejects it" in message for message in broken)
    assert not (tmp_path / "out.py").exists()


def test_errors_are_one_clear_line(tmp_path):
    with pytest.raises(InputError, match="schedule name 'a b', expected letters"):
        submission.tilelang_form(INFERRED, name="a b")
    with pytest.raises(InputError, match="cannot be written"):
        submission.write(SEED_FILE, tmp_path / "absent" / "out.py", "tilelang")
    with pytest.raises(InputError, match="embed: 'ptx' is unknown, expected tilelang or cuda"):
        submission.write(SEED_FILE, tmp_path / "out.py", "ptx")


def test_header_closure_follows_includes_as_a_compiler_does(tmp_path):
    files = {
        "a/one.h": '#include "../b/two.h"\n#include <cuda.h>\n',
        "b/two.h": '#  include "three.h"\n',
        "b/three.h": "#if 0\n#include <a/one.h>\n#endif\n",
        "three.h": "// the one beside the includer comes first\n",
        "unused.h": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = header_closure("#include <a/one.h>\n", (tmp_path.resolve(),))
    assert found == {name: files[name] for name in ("a/one.h", "b/three.h", "b/two.h")}


def test_pack_breaks_its_lines_where_the_word_would_stand():
    headers = {"a.h": "".join(hashlib.sha256(bytes([byte])).hexdigest() for byte in range(16))}
    widest = pack(headers, avoid="stream")
    assert len(widest[0]) == 120
    # The end of the first line stands in for the word: the next narrower line breaks it.
    word = widest[0][-6:].swapcase()
    narrower = pack(headers, avoid=word)
    assert "".join(narrower) == "".join(widest)
    assert len(narrower[0]) == 119 and word.lower() not in "\n".join(narrower).lower()
    assert json.loads(lzma.decompress(base64.b64decode("\n".join(narrower)))) == headers


# --- the launch ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_cuda_form_launches_as_planned(texts, name, tmp_path):
    path = tmp_path / "cuda.py"
    path.write_text(texts[name, "cuda"], encoding="utf-8")
    module = import_file(path)
    grid, descriptors = module.launch_plan(**SIZES)
    plan = parse_host_source(compiled(name).host_source)
    assert grid == tuple(extent.at(SIZES) for extent in plan.grid)
    assert (module.BLOCK, module.SHARED_BYTES) == (plan.block, plan.shared_bytes)
    assert [parameter for parameter, _ in module.PARAMETERS] == [parameter.name for parameter in plan.parameters]
    assert descriptors == {
        planned.name: dict(
            tensor=planned.tensor,
            dtype=planned.dtype,
            dims=tuple(extent.at(SIZES) for extent in planned.dims),
            strides=tuple(extent.at(SIZES) for extent in planned.strides),
            box=planned.box,
            element_strides=planned.element_strides,
            **planned.options,
        )
        for planned in plan.descriptors
    }


# --- on a GPU --------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 3, 200, 128), (2, 2, 1, 128), (2, 4, 1024, 128)], ids=str)
@pytest.mark.parametrize("name, form", CASES)
def test_computes_attention(texts, tmp_path, name, form, shape):
    import torch

    path = tmp_path / f"{form}.py"
    path.write_text(texts[name, form], encoding="utf-8")
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, dtype=torch.float16, device="cuda") for _ in range(3))
    output = import_file(path).custom_kernel((q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert output.shape == q.shape and output.dtype == q.dtype
    torch.testing.assert_close(output.double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_the_cuda_form_refuses_what_it_was_not_built_for(texts, tmp_path):
    import torch

    path = tmp_path / "cuda.py"
    path.write_text(texts["seed", "cuda"], encoding="utf-8")
    module = import_file(path)
    q = torch.zeros(1, 1, 128, 64, dtype=torch.float16, device="cuda")
    with pytest.raises(ValueError, match="q is torch.float16 .* expected fp16, contiguous"):
        module.custom_kernel((q, q, q))
