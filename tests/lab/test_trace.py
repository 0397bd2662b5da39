"""`trace` refuses in one line what it cannot run or read, and shows timelines without a GPU."""

from __future__ import annotations

import json
import pickle
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import measure
import pytest
import torch
from browser import browser
from click.testing import CliRunner
from golden_kernels import KERNELS
from once import lowered
from tiers import exhaustive
from timelines import ABOUT, CLOCK, NOTED, timeline

from tl_attention.codeproof.mark_places import KINDS
from tl_attention.compiler.compile import compile_kernel
from tl_attention.lab.cli.measure import candidates
from tl_attention.lab.cli.options import card_for
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.counters import TENSOR_PIPE, CountedLaunch
from tl_attention.lab.show.timeline import below
from tl_attention.lab.trace import counted, page, recording
from tl_attention.lab.trace.about import Counted
from tl_attention.lab.trace.recording import roles_of
from tl_attention.lab.trace.shares import shares_of, shares_of_block, tensor_pipe
from tl_attention.lab.trace.timeline import Line, Timeline, What, Window
from tl_attention.problem.shape import AttentionShape

CANDIDATE = Candidate("some", AttentionShape(1, 2, 256, 256, 128), sms=132, arch="sm_90a")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.json"
    timeline().write(path)
    return path


def test_timelines_are_written_as_a_trace_and_a_page(cli, file, tmp_path) -> None:
    chrome, html = tmp_path / "new" / "the.chrome.json", tmp_path / "new" / "page.html"
    result = cli("trace", "--of", file, "-o", chrome, "--output", html)
    assert result.exit_code == 0
    assert f"written: {html}" in result.stderr
    assert json.loads(chrome.read_text())["traceEvents"] and "/*TIMELINES*/" not in html.read_text()


def test_a_roles_parts_are_its_whole_tiles() -> None:
    found = timeline()
    shares = shares_of(found, found.lines[0])
    assert shares and (shares.tiles, shares.cycles, sum(shares.parts.values())) == (2, 200, 200)
    # (10, 30), (90, 95) and (125, 150).
    assert shares.parts[What("issue", "mma0")] == 50 and shares.share("issue") == 0.25
    assert shares.issues == {"mma0": 3}
    assert shares_of(found, Line(0, 0, 0, 0, 0, (5, 9), (0, 1))) is None


def test_a_boundary_lies_between_the_last_product_and_the_first_of_the_next_tile() -> None:
    found = timeline()
    shares = shares_of(found, found.lines[0])
    # In NOTED the tiles' products are issued from cycle 10 and 125 on, and waited for until 99 and 190.
    assert shares and shares.boundary == {What("tile", ""): 15, What("vector", "exp"): 31}
    assert shares.kv_blocks == 3


def test_ncu_counts_the_same_kernel_with_marks(monkeypatch) -> None:
    seen = []

    class Counting:
        def profile(self, command, metrics, timeout_s):
            seen.append((command[1:3], pickle.loads(Path(command[3]).read_bytes()), metrics))
            return [CountedLaunch("attention_kernel", {TENSOR_PIPE: 59.5})]

        def version(self):
            return "1.2"

    asked = frozenset({"tile", "end"}), Window((0,), 0, 4)
    monkeypatch.setattr(counted, "Ncu", Counting)
    monkeypatch.setattr(counted, "record", lambda *given: replace(timeline(), about=replace(ABOUT, seed=given[3])))
    found = counted.record_and_count(CANDIDATE, *asked, 3)
    assert found.about.ncu == Counted(TENSOR_PIPE, 59.5, "1.2")
    assert seen == [(["-m", "tl_attention.lab.trace.counted"], (CANDIDATE, *asked, 3), [TENSOR_PIPE])]
    assert "; ncu counts 59.5 % in the whole kernel with these marks" in next(below(found))


@pytest.mark.parametrize("ncu", [(), ("--ncu",)])
def test_any_window_of_any_problem_is_recorded_by_tools(ncu, tmp_path, monkeypatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(*((counted, "record_and_count") if ncu else (recording, "record")), lambda *of: seen.append(of))
    monkeypatch.setattr(sys.modules["tl_attention.lab.cli.trace"], "visible_gpus", lambda: ("a GPU",))
    words = f"timeline seed --shape 1,2,256,128 --softcap 30 --skip 3 --iterations 9 --seed 1 -o {tmp_path}/new.json"
    CliRunner().invoke(measure.main, [*words.split(), *ncu])
    [(candidate, _, window, seed)] = seen
    assert (str(candidate.shape), seed) == ("(1, 2, 256, 128) float16, softcap 30", 1)
    assert window == Window((0, 1, 2, 3), 3, 9)


def test_the_tensor_pipe_is_busy_as_long_as_its_instructions_take() -> None:
    found = timeline()
    roles = [*shares_of_block(found, 7).values()]
    assert tensor_pipe(found, roles) == pytest.approx(2 * 3 * 20 / 200)
    two_blocks = replace(found, about=replace(found.about, blocks_of_sm=2))
    assert tensor_pipe(two_blocks, roles) == pytest.approx(2 * 2 * 3 * 20 / 200)
    for kinds in (("tile", "wait", "wait", "vector", "end"), ("tile", "issue", "wait", "fragments", "end")):
        whats = tuple(what._replace(kind=kind) for what, kind in zip(found.whats, kinds))
        assert tensor_pipe(replace(found, whats=whats), roles) is None


@pytest.mark.parametrize(
    "name,roles",
    [
        ("best", ("consumer 0", "consumer 1", "producer")),
        ("inferred", ("producer", "consumer 0", "consumer 1")),
        ("seed", ("warpgroup 0", "warpgroup 1")),
        ("mma_sync", ("warp 0", "warp 1", "warp 2", "warp 3")),
    ],
)
def test_roles_have_the_names_of_what_they_do(name, roles) -> None:
    assert roles_of(lowered(KERNELS[name]).source) == roles


@exhaustive
@pytest.mark.browser
def test_a_browser_shows_the_page_and_answers_the_wheel(tmp_path) -> None:
    """The tip says what is below the pointer, and the wheel zooms; two timelines are above each other."""
    page.write([timeline(), timeline()], tmp_path / "page.html")
    with browser() as driver:
        driver.get((tmp_path / "page.html").as_uri())
        assert driver.execute_script("return document.querySelectorAll('canvas').length") == 2
        told = driver.execute_script(
            """const box = charts[0].canvas.getBoundingClientRect();
            const at = {clientX: box.left + LEFT + 1, clientY: box.top + TOP + 10, bubbles: true};
            charts[0].canvas.dispatchEvent(new PointerEvent("pointermove", at));
            const before = view.cycles;
            charts[0].canvas.dispatchEvent(new WheelEvent("wheel", {...at, deltaY: -400}));
            return [tip.style.display, tip.textContent, before, view.cycles];"""
        )
        assert told[0] == "block" and told[1].startswith("tile\nSM 100, block 7, consumer 0") and told[3] < told[2]
        assert driver.get_log("browser") == []


def long_timeline(blocks: int, tiles: int) -> Timeline:
    """Returns a timeline of so many thread blocks, whose roles do the same in each tile."""
    found, behind = timeline(), len(NOTED) - 1
    cycles = [CLOCK + NOTED[behind][0] * n + cycle for n in range(tiles) for cycle, _ in NOTED[:behind]]
    marks = tuple(mark for _ in range(tiles) for _, mark in NOTED[:behind])
    lines = [replace(line, times=tuple(cycles), marks=marks) for line in found.lines[:2]]
    return replace(found, lines=tuple(replace(line, block=n, sm=n) for n in range(blocks) for line in lines))


ZOOMS = """
const [answer] = [...arguments].slice(-1), canvas = charts[0].canvas, times = [];
const frame = () => new Promise(requestAnimationFrame);
(async () => {
  for (const deltaY of [-100, 100, -100, 100, -100]) {
    const begun = performance.now();
    canvas.dispatchEvent(new WheelEvent("wheel", {clientX: LEFT + 400, clientY: 100, deltaY}));
    await frame();
    // What is read has been drawn.
    canvas.getContext("2d").getImageData(0, 0, 1, 1);
    times.push((performance.now() - begun) / 1000);
  }
  const before = canvas.toDataURL();
  window.scrollTo(0, document.body.scrollHeight);
  await frame();
  await frame();
  answer([times, view.cycles, whole().cycles, window.scrollY > 0 && canvas.toDataURL() !== before]);
})();
"""


@exhaustive
@pytest.mark.browser
def test_a_browser_shows_a_page_of_20_mb_and_zooms_without_delay(tmp_path) -> None:
    """It is on the screen in 10 s, and answers the wheel in 0.5 s. Lanes are drawn when they scroll into view."""
    file = tmp_path / "page.html"
    page.write([long_timeline(16, 2300)], file)
    assert file.stat().st_size > 20e6
    with browser() as driver:
        begun = time.monotonic()
        driver.get(file.as_uri())
        driver.get_screenshot_as_png()
        assert time.monotonic() - begun < 10
        times, cycles, all_cycles, scrolled = driver.execute_async_script(ZOOMS)
        assert min(times) < 0.5 and cycles < all_cycles and scrolled, times


@exhaustive
@pytest.mark.browser
def test_the_pages_address_says_what_it_shows(tmp_path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    named = [replace(timeline(), about=replace(ABOUT, name=name)) for name in ("one", "two", "three")]
    page.write(named, tmp_path / "page.html")
    shown = """return [charts.filter(chart => chart.box.offsetHeight).map(chart => chart.timeline.name),
                       document.querySelectorAll("input").length, view.first, view.cycles]"""
    with browser() as driver:
        driver.get((tmp_path / "page.html").as_uri() + "#three,one@20+100")
        names, boxes, first, cycles = driver.execute_script(shown)
        assert (sorted(names), boxes, first, cycles) == (["one", "three"], 3, 20, 100)
        places = "return charts.map(chart => chart.box.getBoundingClientRect().top)"
        one, _, three = driver.execute_script(places)
        assert three < one
        # Of many timelines the page begins with two.
        driver.execute_script("location.hash = '#nobody'")
        WebDriverWait(driver, 5).until(lambda _: driver.execute_script(shown)[0] == ["one", "two"])
        driver.execute_script("charts[1].tick.click(); charts[2].tick.click()")
        assert driver.execute_script(shown)[0] == ["one", "three"]
        assert driver.get_log("browser") == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["best", "seed", "mma_sync", "inferred"])
def test_every_role_is_seen_on_a_gpu_and_the_output_is_the_same(name, tmp_path) -> None:
    from tl_attention.lab.trace.recording import Traced, record, values_of

    (candidate,) = candidates([name], card_for(None), refuse=True, shape="1,8,2048,128", causal=False)
    found = record(candidate, frozenset(KINDS), Window((0, 1, 2, 3), 0, 200), seed=3)
    assert len({line.sm for line in found.lines}) == 4 and len(found.lines) == 4 * len(found.roles)
    for line in found.lines:
        shares = shares_of(found, line)
        assert shares and sum(shares.parts.values()) == shares.cycles
    busy = tensor_pipe(found, [*shares_of_block(found, 0).values()])
    assert busy is None if name == "mma_sync" else busy and 0.1 < busy < 1
    found.write(tmp_path / "found.json")
    assert Timeline.read(tmp_path / "found.json") == found
    values = values_of(candidate, 3)
    compile_kernel(candidate.schedule, candidate.variant, candidate.planned)(**values)
    plain = values["Output"].clone()
    traced = Traced(candidate, frozenset(KINDS))
    traced.timeline(Window((0,), 0, 1), values)
    assert torch.equal(plain, values["Output"])
