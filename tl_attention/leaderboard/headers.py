"""The TileLang and CUTLASS headers that a generated kernel includes, and compressed text that carries them."""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import re
from collections.abc import Mapping
from pathlib import Path

from tl_attention.errors import InputError

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(<[^>\n]+>|"[^"\n]+")', re.MULTILINE)
LINE_WIDTHS = range(120, 80, -1)


def tilelang_include_folders() -> tuple[Path, ...]:
    """Where the installed TileLang keeps its own and CUTLASS's headers."""
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    return tuple(Path(folder).resolve() for folder in (TILELANG_TEMPLATE_PATH, CUTLASS_INCLUDE_DIR))


def header_closure(source: str, folders: tuple[Path, ...]) -> dict[str, str]:
    """{path as included: text} of all that the source includes from the folders, directly or not, sorted by path.

    Conditions are not evaluated: another nvcc than ours takes another branch, and then finds its header too. What is
    in no folder belongs to the CUDA toolkit. Raises InputError for a header that is not UTF-8 text.
    """
    found: dict[str, str] = {}
    waiting: list[tuple[str, Path | None]] = [(source, None)]
    while waiting:
        text, includer = waiting.pop()
        for quoted in INCLUDE.findall(text):
            header = _find(quoted, includer, folders)
            if header is None or (name := _name(header, folders)) in found:
                continue
            try:
                found[name] = header.read_bytes().decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"header {name} is not UTF-8 text: {error.reason} at byte {error.start}") from None
            waiting.append((found[name], header.parent))
    return dict(sorted(found.items()))


def _find(quoted: str, includer: Path | None, folders: tuple[Path, ...]) -> Path | None:
    """The file that an include means: with quotes, the includer's folder comes first."""
    beside = (includer,) if includer is not None and quoted.startswith('"') else ()
    candidates = ((folder / quoted[1:-1]).resolve() for folder in (*beside, *folders))
    return next((path for path in candidates if path.is_file()), None)


def _name(header: Path, folders: tuple[Path, ...]) -> str:
    for folder in folders:
        if header.is_relative_to(folder):
            return header.relative_to(folder).as_posix()
    raise InputError(f"header {header.name} is outside TileLang's include folders, so it cannot be shipped")


def digests(headers: Mapping[str, str]) -> dict[str, str]:
    """{path: sha256 of the text as UTF-8}."""
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in headers.items()}


def pack(headers: Mapping[str, str], avoid: str) -> list[str]:
    """The headers as JSON, as `xz_lines` of it."""
    return xz_lines(json.dumps(headers, ensure_ascii=False, sort_keys=True).encode(), avoid)


def xz_lines(data: bytes, avoid: str) -> list[str]:
    """The data, compressed with xz, in lines of base64 none of which holds the word `avoid` in any case."""
    text = base64.b64encode(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)).decode()
    for width in LINE_WIDTHS:
        lines = [text[start : start + width] for start in range(0, len(text), width)]
        if not any(avoid.lower() in line.lower() for line in lines):
            return lines
    raise InputError(f"{avoid!r} occurs in the base64 of what is carried at every line width tried: not packed")
