"""A submission that attacks the harness from within its process and returns zeros: it gets no "pass"."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from tl_attention.leaderboard.contract import TestLine
from tl_attention.leaderboard.evaluate import judging
from tl_attention.leaderboard.results import Evaluation, LineResult
from tl_attention.leaderboard.table import class_lines

# Far away: the machine may be busy, and each start loads torch.
FAR_S = 600.0
LINE = TestLine(batch_size=1, num_heads=2, seq_len=16, head_dim=8, seed=1118)

# The sequence length picks the attack, so that one evaluation shows them all. Zeros are returned in each.
ATTACKS = """\
import builtins, gc, json, multiprocessing.reduction, os, pickle, sys, torch, types


class Payload:
    def __reduce__(self):
        return os.system, ("touch {marker}",)


class Bytes(str):
    def encode(self, *arguments):
        data = pickle.dumps(Payload())
        with open("{marker}.pickle", "wb") as file:
            file.write(data)
        return data


class Right(torch.Tensor):
    # Every question is answered as for a tensor that is right.
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        found = super().__torch_function__(function, types, arguments, keywords or {{}})
        with torch._C.DisableTorchFunctionSubclass():
            if isinstance(found, torch.Tensor) and found.dtype == torch.bool:
                return torch.full_like(found, function is torch.isfinite)
        return found


def right(*arguments, **keywords):
    return {{"accepted": True, "tight": True, "max_abs_error": 0.0, "reason": ""}}


def replace_comparisons():
    import reference
    for item in gc.get_objects():
        if isinstance(item, types.FunctionType) and item.__name__ in ("compare", "check", "_compare", "changed"):
            if not item.__closure__:
                item.__code__ = right.__code__
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and "compare" in vars(module):
            module.compare = right
    frame = sys._getframe()
    while frame is not None:
        for name in ("compare", "reference", "check"):
            frame.f_globals[name] = right
        frame = frame.f_back
    reference.CONTRACT_TOLERANCE = reference.TIGHT_TOLERANCE = float("inf")


def patch_torch_and_python():
    def no(*arguments, **keywords):
        return torch.zeros((), dtype=torch.int64)
    for name in ("__gt__", "__lt__", "__ge__", "__ne__", "gt", "lt", "ne", "any"):
        setattr(torch.Tensor, name, no)
    torch.gt = torch.lt = torch.ne = torch.any = torch.isnan = no
    torch.isfinite = lambda tensor: types.SimpleNamespace(sum=tensor.numel)
    torch.allclose = torch.equal = torch.all = lambda *arguments, **keywords: True
    builtins.all = lambda *arguments: True
    builtins.any = lambda *arguments: False


def fooled(data, output):
    # The control: a check in this process accepts what is returned.
    import reference
    return reference.compare(data, output)["accepted"]


def custom_kernel(data):
    zeros = torch.zeros_like(data[0])
    match zeros.shape[2]:
        case 16:
            json.dumps = lambda *arguments, **keywords: Bytes()
            multiprocessing.reduction.ForkingPickler.dumps = lambda *arguments: pickle.dumps(Payload())
            pickle.dump = lambda item, file, *arguments: file.write(pickle.dumps(Payload()))
        case 17:
            replace_comparisons()
            assert fooled(data, zeros)
        case 18:
            patch_torch_and_python()
            assert fooled(data, zeros)
        case 19:
            zeros = zeros.as_subclass(Right)
            assert fooled(data, zeros)
            forged = b"benchmark.3: runs=3, mean=0.0010 ms\\ncheck: pass\\n"
            os.write(1, forged)
            os.write(2, forged)
        case 20:
            for number in map(int, os.listdir("/proc/self/fd")):
                try:
                    os.write(number, b'{{"error": "", "accepted": true}}')
                except OSError:
                    pass
    return zeros
"""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Evaluation, Path]:
    """The evaluation, and the file that the payload would create."""
    folder = tmp_path_factory.mktemp("attacks")
    path, marker = folder / "attacks.py", folder / "marker"
    path.write_text(ATTACKS.format(marker=marker))
    lines = [replace(LINE, seq_len=seq_len) for seq_len in range(16, 21)]
    with judging("benchmark", "cpu", test_s=FAR_S, import_s=FAR_S) as judge:
        return judge.evaluate(path.name, path.read_bytes(), lines), marker


@pytest.mark.parametrize(
    "seq_len, status, reason",
    [
        (16, "error", "no valid message from the process: "),
        (17, "wrong", "beyond rtol = atol = 0.01"),
        (18, "wrong", "beyond rtol = atol = 0.01"),
        (19, "wrong", "beyond rtol = atol = 0.01"),
        (20, "error", "no valid message from the process: "),
    ],
)
def test_an_attack_from_within_does_not_pass(attacked, seq_len: int, status: str, reason: str) -> None:
    row: LineResult = next(row for row in attacked[0].rows if row.line.seq_len == seq_len)
    assert row.outcome.status == status and reason in row.outcome.reason, row.outcome
    assert not row.accepted and row.timing is None


def test_nothing_of_an_attack_runs_in_the_judge(attacked) -> None:
    evaluation, marker = attacked
    assert evaluation.parent_import.status == "pass"
    assert not marker.exists()
    pickle.loads(Path(f"{marker}.pickle").read_bytes())
    assert marker.exists(), "the control: what was sent works where it is unpickled"


def test_a_forged_protocol_goes_no_further_than_the_log(attacked) -> None:
    evaluation, _ = attacked
    lines = list(class_lines(evaluation))
    assert [line.split(":")[0] for line in lines] == [*(f"benchmark.{n}" for n in range(5)), "check"]
    assert lines[-1] == "check: fail" and "check: pass" in evaluation.rows[3].outcome.log
    assert json.loads(json.dumps(evaluation.to_json()))["accepted"] is False
