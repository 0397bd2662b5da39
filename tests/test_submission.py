"""The packed submissions: what they hold, that they keep the servers' rules, and that they build.

Which way a file takes, and the cubin that it carries: test_submission_ways.py.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from submissions import COMMITTED, INFERRED, ROOT, SCHEDULES, SEED_FILE, compiled, import_file, run_beside, text

from tl_attention.errors import InputError
from tl_attention.files.schedule_file import load
from tl_attention.leaderboard import submission
from tl_attention.leaderboard.contract import MAX_BYTES, violations
from tl_attention.leaderboard.headers import header_closure, pack
from tl_attention.leaderboard.program_text import program_text
from tl_attention.leaderboard.specialise.layout import formatted
from tl_attention.proof.generated.host_plan import parse_host_source

FORMS = tuple(submission.FORMS)
SIZES = {"batch": 2, "heads": 3, "seq_q": 200, "seq_kv": 300}

CASES = [(name, form) for name in SCHEDULES for form in FORMS]
BUILD_LIMIT_S = 30

# --- the files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, form", CASES)
def test_meets_every_rule_of_the_servers(name, form):
    packed = text(name, form)
    assert violations(packed.encode()) == []
    assert len(packed.encode()) < MAX_BYTES
    assert packed.startswith("#!POPCORN leaderboard flashattention\n#!POPCORN gpu H100\n#\n")
    assert SCHEDULES[name].label in packed


@pytest.mark.parametrize("name, form", CASES)
def test_holds_no_path_of_this_machine(name, form):
    paths = (str(ROOT), sys.prefix, str(Path.home()) + "/", tempfile.gettempdir() + "/", "site-packages")
    assert [path for path in paths if path in text(name, form)] == []


def test_the_committed_file_is_what_the_generator_makes():
    assert COMMITTED.read_text(encoding="utf-8") == text("best", "all")


def test_another_process_makes_the_same_text(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom tl_attention.leaderboard.submission import write\n"
        "from tl_attention.files.schedule_file import load\n"
        "for form in ('all', 'tilelang', 'cuda'):\n"
        "    assert write('seed', load(sys.argv[1]), Path(form), form) == []\n"
    )
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", code, str(SEED_FILE)], env=environment, check=True, cwd=tmp_path)
    for form in FORMS:
        assert (tmp_path / form).read_text(encoding="utf-8") == text("seed", form)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_program_is_shown_whole(name):
    program = program_text(SCHEDULES[name], submission.VARIANT).strip()
    assert program in text(name, "tilelang") and program in text(name, "all")


@pytest.mark.parametrize("name, form", CASES)
def test_no_name_is_defined_twice(name, form):
    # The program's names are looked up when it is traced, among those of the rest of the file.
    body = ast.parse(text(name, form)).body
    defined = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    defined += [part.id for node in body if isinstance(node, ast.Assign) for part in ast.walk(node.targets[0])
                if isinstance(part, ast.Name)]  # fmt: skip
    assert [name for name, times in Counter(defined).items() if times > 1] == []


@pytest.mark.parametrize("name, form", CASES)
def test_it_is_formatted_as_code_of_ours(name, form):
    assert formatted(text(name, form)) == text(name, form)


@pytest.mark.parametrize("form", ["all", "cuda"])
def test_the_generated_kernel_is_shown_as_it_is(form):
    assert f'r"""{compiled("seed").source}"""' in text("seed", form)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_blob_holds_exactly_the_listed_headers(name, tmp_path):
    module = import_file(tmp_path / "cuda.py", text(name, "cuda"))
    packed = json.loads(lzma.decompress(base64.b64decode(module.HEADERS_XZ)))
    assert {header: hashlib.sha256(text.encode()).hexdigest() for header, text in packed.items()} == module.HEADERS
    assert list(module.HEADERS) == sorted(module.HEADERS)
    assert {header.split("/")[0] for header in packed} == {"tl_templates", "cutlass", "cute"}
    assert not any(".." in header.split("/") or header.startswith("/") for header in packed)

    module.HEADERS.popitem()
    with pytest.raises(RuntimeError, match="does not hold what HEADERS lists"):
        module.unpack_headers(str(tmp_path))


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_tilelang_form_imports_without_task_and_standard_output(name, tmp_path):
    run_beside(tmp_path, text(name, "tilelang"), "assert submission.custom_kernel")


def test_the_tilelang_form_compiles_without_standard_output(tmp_path):
    code = (
        "import tilelang\ntilelang.disable_cache()\n"
        "import hashlib\n"
        "source = submission.compile_kernel().get_kernel_source()\n"
        "assert hashlib.sha256(source.encode()).hexdigest().startswith(submission.DEVICE_CODE)\n"
    )
    run_beside(tmp_path, text("seed", "tilelang"), code)


def test_the_tilelang_form_refuses_another_tilelang(tmp_path):
    packed = text("seed", "tilelang").replace('TILELANG_VERSION = "0.1.15"', 'TILELANG_VERSION = "0.1.9"')
    with pytest.raises(AssertionError, match="this file needs TileLang 0.1.9, found 0.1.15"):
        run_beside(tmp_path, packed, "")


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_cuda_form_builds_where_there_is_no_tilelang(name, tmp_path):
    code = "open('kernel.cubin', 'wb').write(submission.build_cubin())"
    start = time.monotonic()
    run_beside(tmp_path, text(name, "cuda"), code, absent=("tilelang", "tvm", "tvm_ffi"))
    assert time.monotonic() - start < BUILD_LIMIT_S
    assert (tmp_path / "kernel.cubin").read_bytes().startswith(b"\x7fELF")


def test_the_cuda_form_says_where_it_looked_for_nvcc(tmp_path, monkeypatch):
    module = import_file(tmp_path / "cuda.py", text("seed", "cuda"))
    monkeypatch.setattr(module.os.path, "isfile", lambda path: False)
    with pytest.raises(RuntimeError, match="nvcc 12.9 or newer was looked for on the PATH, .* found none"):
        module.find_nvcc()


# --- making them -----------------------------------------------------------------------------------------------


def test_write_returns_what_is_broken_and_writes_nothing(tmp_path):
    # The one word that a schedule's name can bring into the file.
    broken = submission.write("upstream", INFERRED, tmp_path / "out.py", "tilelang")
    assert broken and all("one server rejects it" in message for message in broken)
    assert not (tmp_path / "out.py").exists()


def test_errors_are_one_clear_line(tmp_path):
    with pytest.raises(InputError, match="schedule name 'a b', expected letters"):
        submission.tilelang_form(INFERRED, name="a b")
    with pytest.raises(InputError, match="cannot be written"):
        submission.write("seed", load(SEED_FILE), tmp_path / "absent" / "out.py", "tilelang")
    with pytest.raises(InputError, match="embed: 'ptx' is unknown, expected all, tilelang, cuda"):
        submission.write("seed", load(SEED_FILE), tmp_path / "out.py", "ptx")


def test_header_closure_follows_includes_as_a_compiler_does(tmp_path):
    files = {
        "a/one.h": '#include "../b/two.h"\n#include <cuda.h>\n',
        "b/two.h": '#  include "three.h"\n',
        "b/three.h": "#if 0\n#include <a/one.h>\n#endif\n",
        "three.h": "// the one beside the includer comes first\n",
        "unused.h": "",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
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
def test_the_cuda_form_launches_as_planned(name, tmp_path):
    module = import_file(tmp_path / "cuda.py", text(name, "cuda"))
    grid, descriptors = module.launch_plan(**SIZES)
    plan = parse_host_source(compiled(name).host_source)
    assert grid == tuple(extent.at(SIZES) for extent in plan.grid)
    assert (plan.block, plan.shared_bytes) == (module.BLOCK, module.SHARED_BYTES)
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
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("form", ["tilelang", "cuda"])
def test_computes_attention(tmp_path, name, form, shape):
    import torch

    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, dtype=torch.float16, device="cuda") for _ in range(3))
    output = import_file(tmp_path / f"{form}.py", text(name, form)).custom_kernel((q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert output.shape == q.shape and output.dtype == q.dtype
    torch.testing.assert_close(output.double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_the_cuda_form_refuses_what_it_was_not_built_for(tmp_path):
    import torch

    module = import_file(tmp_path / "cuda.py", text("seed", "cuda"))
    q = torch.zeros(1, 1, 128, 64, dtype=torch.float16, device="cuda")
    with pytest.raises(ValueError, match="q is torch.float16 .* expected fp16, contiguous"):
        module.custom_kernel((q, q, q))
