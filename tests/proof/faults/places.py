"""A change says what it changes in generated code by an operation and its arguments, not by the text around them.

    K_full wait.parity -> ($ ^ 1)              an argument of an operation is replaced; $ is what stands there
    load K.head: head -> (head + 1)            a part of it
    producer blocks = max -> min(blocks, 9)    the value that is assigned
    store_lse ->                               an operation is left out
    Q_full wait -> if (wg == 1)                it is put under a condition
    store_lse -> $\\n$                         it stands twice: what has several lines replaces an operation
    for i.bound around tma_store -> i < 1      the loop around an operation
    fence_proxy_async => behind tma_store      an operation is moved behind, or before, another

An operation is a line of the kernels that has these words in this order, as names or kinds (KINDS); `a|b` is
either. `producer` or `consumers` before them says whose line it is. There is one such line, or the change says which:
`the first` to `the last`; `every`; or `each`, which makes of each line a fault of its own. That `behind`, `before` or
`around` another operation is the nearest.

Locals are written without the number that TileLang gives them: `blocks` is blocks_1 too. In what replaces it a name is
that of the replaced text, or else the nearest before; @name is a name as it stands. X, Y and Z are any text whose
brackets are closed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|::|->|<<|>>|[<>=!]=|&&|\|\||\+\+|\S")
WORD = re.compile(rf"\w+(?:\|\w+)+|{TOKEN.pattern}")
CHANGE = re.compile(r"(?P<at>.*?)(?:: (?P<old>.*?))? (?P<how>->|=> behind|=> before)(?: (?P<new>.*))?", re.DOTALL)
WHICH = {"first": 0, "second": 1, "third": 2, "fourth": 3, "fifth": 4, "last": -1}
ARGUMENT = re.compile(r"\.(\w+)")
NEAR = re.compile(r" (behind|before|around) ")
OPEN, CLOSED = "([{", ")]}"
HOLES = ("X", "Y", "Z")
# What is called, by its kind.
KINDS = {
    "load": r"tma_load(_multicast)?",
    "copy": r"cp_async_gs(_conditional)?",
    "fragment": r"ptx_ldmatrix_\w+",
    "multiply": r"mma_sync",
    "product": r"wgmma_[sr]s",
}
# A ragged view has the end of a sequence where others have the batch.
BOX = ("column", "row", "head", "batch", "wrap")
# Arguments by their names; those of an operation on an mbarrier have its index before them.
ARGUMENTS = {
    "tma_load": ("tensor", "mbarrier", "place", *BOX),
    "tma_load_multicast": ("tensor", "mbarrier", "place", "blocks", *BOX),
    "tma_store": ("tensor", "place", *BOX),
    "cp_async_gs": ("place", "source"),
    "cp_async_gs_conditional": ("place", "source", "condition"),
    "increase_descriptor_offset": ("descriptor", "offset"),
    "initialize_wgmma_descriptor": ("descriptor", "place"),
    "wgmma_ss": ("a", "b", "into", "keeps"),
    "wgmma_rs": ("a", "b", "into", "keeps"),
    "tl_attention_store": ("from", "place", "rows", "row_stride"),
    "tl_attention_store_of": ("from", "place", "rows", "row_stride", "head_stride"),
    "tl_attention_store_part": ("from", "place", "rows", "row_stride"),
    "tl_attention_store_part_of": ("from", "place", "rows", "row_stride", "head_stride"),
    "tl_attention_store_lse": ("maxima", "sums", "scale", "place", "rows", "thread"),
    "tl_attention_store_lse_of": ("maxima", "sums", "scale", "place", "rows", "thread", "head_stride"),
    "wait": ("index", "parity"),
    "arrive": ("index", "rank"),
    "expect_transaction": ("index", "bytes"),
    "mma_sync": ("into", "a", "b"),
    "init": ("index", "count"),
    "for": ("from", "bound", "step"),
}


@dataclass(frozen=True)
class Token:
    """A token has a name: its text without the number that makes a local unique, or the kind of what is called."""

    text: str
    start: int
    end: int

    @cached_property
    def name(self) -> str:
        short = re.sub(r"_\d+$|_desc$", "", self.text.removeprefix("tl_attention_"))
        return next((kind for kind, called in KINDS.items() if re.fullmatch(called, self.text)), short)


@dataclass(frozen=True)
class Line:
    """A line is a statement, or the head of a block; `role` says which threads run it."""

    tokens: tuple[Token, ...]
    role: str

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(token.name for token in self.tokens)

    @property
    def value(self) -> tuple[Token, ...]:
        """Returns what an assignment assigns, or nothing."""
        return self.tokens[self.names.index("=") + 1 : -1] if "=" in self.names and self.names[0] != "for" else ()

    def has(self, words: list[str]) -> bool:
        """Says whether these words are in the line, in this order; those of an assignment up to = begin it."""
        begin = words.index("=") + 1 if "=" in words else 0
        rest = iter(self.tokens[begin:])
        return self.names[:begin] == tuple(words[:begin]) and all(
            any({token.name, token.text} & {*word.split("|")} for token in rest) for word in words[begin:]
        )


@lru_cache(maxsize=4)
def lines_of(text: str) -> list[Line]:
    """Returns the lines of the kernels, without the device functions before them."""
    lines, role, start = [], "", text.index('extern "C" __global__')
    for line in text[start:].split("\n"):
        if line.startswith("extern"):
            role = ""
        role = "producer" if "threadIdx.y) ==" in line else "consumers" if role and line == "  } else {" else role
        tokens = tuple(Token(t.group(), start + t.start(), start + t.end()) for t in TOKEN.finditer(line))
        if tokens:
            lines.append(Line(tokens, role))
        start += len(line) + 1
    return lines


def changed(text: str, change: str) -> Iterator[str]:
    """Yields the text with the change, once for each fault that it makes."""
    match = CHANGE.fullmatch(change)
    assert match, f"{change!r} is no change"
    at, old, how, new = (match[group] or "" for group in ("at", "old", "how", "new"))
    which, found = _found(text, at)
    if how != "->":
        start, end = _whole(text, found[0])
        moved = text[start:end]
        text = text[:start] + text[end:]
        start, end = _whole(text, _found(text, new)[1][0])
        place = start if how == "=> before" else end
        yield text[:place] + moved + text[place:]
        return
    argument = named[1] if (named := ARGUMENT.search(at)) else ""
    of_lines = [[*_edits(text, line, argument, old, new, " =" in at)] for line in found]
    some = any(of_lines) if which in ("every", "each") else [len(edits) for edits in of_lines] == [1]
    assert some, f"{old!r} is in {[len(edits) for edits in of_lines]} places of the lines"
    apart = [edits for edits in of_lines if edits] if which == "each" else [[*chain(*of_lines)]]
    for edits in apart:
        edited = text
        for start, end, replacement in reversed(edits):
            edited = edited[:start] + replacement + edited[end:]
        yield edited


def _found(text: str, at: str) -> tuple[str, list[Line]]:
    """Returns which lines are meant, and those that a change names."""
    at = ARGUMENT.sub("", at)
    lines = lines_of(text)
    near = NEAR.search(at)
    own = WORD.findall(at[: near.start()] if near else at)
    which = own.pop(0) if own[0] in ("every", "each") else own.pop(1) if own[0] == "the" else "only"
    own = own[own[:1] == ["the"] :]
    role = own.pop(0) if own[:1] in (["producer"], ["consumers"]) else ""
    if near:
        other = lines.index(_found(text, at[near.end() :])[1][0])
        lines = lines[other + 1 :] if near[1] == "behind" else _before(lines, other, near[1] == "around")
        which = "first" if which == "only" else which
    found = [line for line in lines if line.has(own) and role in ("", line.role)]
    assert found and (len(found) == 1 or which != "only"), f"{at!r} is in {len(found)} lines"
    return which, [found[WHICH[which]]] if which in WHICH else found


def _before(lines: list[Line], other: int, around: bool) -> list[Line]:
    """Returns the lines before another from the nearest on: all, or only those whose block it is in."""
    found, depth = [], 0
    for line in reversed(lines[:other]):
        depth += sum((name in CLOSED) - (name in OPEN) for name in line.names)
        if not around or depth < 0:
            found.append(line)
            depth = 0
    return found


def _whole(text: str, line: Line) -> tuple[int, int]:
    """Returns where a statement begins and ends, with its block and the directive before it, in whole lines."""
    lines = lines_of(text)
    first = last = lines.index(line)
    depth = sum((name in OPEN) - (name in CLOSED) for name in line.names)
    while depth > 0:
        last += 1
        depth += sum((name in OPEN) - (name in CLOSED) for name in lines[last].names)
    first -= lines[first - 1].names[0] == "#"
    start = text.rindex("\n", 0, lines[first].tokens[0].start) + 1
    return start, text.index("\n", lines[last].tokens[-1].end) + 1


def _edits(text: str, line: Line, argument: str, old: str, new: str, assigned: bool) -> Iterator[tuple[int, int, str]]:
    """Yields where text of a line, or of the value that it assigns, is replaced, and by what."""
    if new.startswith("if (") and "$" not in new and not old:
        new += " {\n$\n}"
    elif argument or old or (new and assigned and "\n" not in new):
        span = _argument(line, argument) if argument else line.value if assigned else line.tokens
        for tokens, bound in _parts(span, old) if old else [(span, {})]:
            start, end = tokens[0].start, tokens[-1].end
            yield start, end, _written(text, new, text[start:end], bound, end)
        return
    start, end = _whole(text, line)
    yield start, end, _written(text, new, text[start : end - 1], {}, end) + "\n" if new else ""


def _argument(line: Line, argument: str) -> tuple[Token, ...]:
    """Returns the tokens of an operation's argument, by its name or number."""
    tokens = line.tokens
    found: list[tuple[Token, ...]] = []
    called = next((token.text for token in tokens if token.text in ARGUMENTS), "")
    if tokens[1].text == "[":
        close = _close(tokens, 1)
        found.append(tokens[2:close])
        tokens = tokens[close:]
    opened = next(n for n, token in enumerate(tokens) if token.text == "(")
    close, start = _close(tokens, opened), opened + 1
    depth = 0
    for n in range(start, close + 1):
        depth += (tokens[n].text in OPEN) - (tokens[n].text in CLOSED)
        if n == close or (depth == 0 and tokens[n].text in ",;"):
            found.append(tokens[start:n])
            start = n + 1
    named = "batch" if argument == "end" else argument
    return found[int(argument) if argument.isdigit() else ARGUMENTS[called].index(named)]


def _close(tokens: tuple[Token, ...], opened: int) -> int:
    depth = 0
    for n in range(opened, len(tokens)):
        depth += (tokens[n].text in OPEN) - (tokens[n].text in CLOSED)
        if depth == 0:
            return n
    raise AssertionError("a bracket is not closed")


def _parts(tokens: tuple[Token, ...], old: str) -> Iterator[tuple[tuple[Token, ...], dict[str, tuple[Token, ...]]]]:
    """Yields the tokens that are like a text, and what its names and holes stand for."""
    pattern = TOKEN.findall(old)
    for n in range(len(tokens)):
        for end, bound in _match(tokens, n, pattern):
            yield tokens[n:end], bound


def _match(tokens: tuple[Token, ...], n: int, pattern: list[str]) -> list[tuple[int, dict[str, tuple[Token, ...]]]]:
    if not pattern:
        return [(n, {})]
    head, *rest = pattern
    if head not in HOLES:
        if n == len(tokens) or head not in (tokens[n].name, tokens[n].text):
            return []
        return [(end, {head: tokens[n : n + 1]} | bound) for end, bound in _match(tokens, n + 1, rest)]
    depth = 0
    for end in range(n, len(tokens)):
        depth += (tokens[end].text in OPEN) - (tokens[end].text in CLOSED)
        if depth < 0:
            break
        if depth == 0 and (found := _match(tokens, end + 1, rest)):
            return [(found[0][0], {head: tokens[n : end + 1]} | found[0][1])]
    return []


def _written(text: str, new: str, before: str, bound: dict[str, tuple[Token, ...]], end: int) -> str:
    """Returns what replaces `before`: names in it have the numbers of the kernel."""

    def name(match: re.Match[str]) -> str:
        word = match.group()
        if word[0] in "$@":
            return word[1:] or before
        if word in bound:
            return text[bound[word][0].start : bound[word][-1].end]
        near = [*re.finditer(rf"\b{word}(?:_\d+)?\b", text[text.rindex('extern "C" __global__', 0, end) : end])]
        return near[-1].group() if near else word

    return re.sub(r"\$|@\w+|(?<![\w.:])[A-Za-z_]\w*", name, new)
