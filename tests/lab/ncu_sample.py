"""Has what ncu printed on an H200, cut to the counters that are read, and makes an executable that prints it again.

Both samples are of (4, 64, 8192, 128). `FP16` has the launches of seed, best, fa3_overlap and experiments/cluster_1.
`BF16` has the launches of best, experiments/one_tile and FlashAttention-3, with fewer counters.
"""

from pathlib import Path

import pytest

from tl_attention.lab.measure.counters import METRICS
from tl_attention.lab.measure.profile import MARKER

FP16 = (Path(__file__).parent / "ncu_fp16.csv").read_text()
BF16 = (Path(__file__).parent / "ncu_bf16.csv").read_text()
MARK = f'"0","1","python3.12","127.0.0.1","{MARKER}(long)"'
# Metrics as `ncu --query-metrics` lists them: names without suffixes, and without the launch's metrics.
QUERY = "\n".join(
    ["Chip gh100", "-----", *dict.fromkeys(f"{metric.partition('.')[0]:60} Counter" for metric in METRICS)]
).replace("launch__", "other__")


def marked(text: str, launches: int) -> str:
    """Returns the first launches of a sample, with the marker's launch before each."""
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith('"ID"')) + 2
    mark = MARK + ',""' * (lines[first - 2].count('","') - MARK.count('","'))
    return "\n".join([*lines[:first], *(part for line in lines[first : first + launches] for part in (mark, line))])


def fake_ncu(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, query: str = QUERY) -> Path:
    """Makes an ncu that is the only one on the PATH.

    The ncu answers --version and --query-metrics. Else it keeps its arguments, one a line in the file that is returned,
    and does what `body`, a shell script, says.
    """
    (folder / "query").write_text(query)
    script = f"""#!/bin/sh
case "$1" in
--version) echo "Version 2025.3.1.0 (build 1)" ;;
--query-metrics) cat {folder / "query"} ;;
*) printf '%s\\n' "$@" > {folder / "arguments"}
{body} ;;
esac
"""
    (folder / "ncu").write_text(script)
    (folder / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder / "arguments"
