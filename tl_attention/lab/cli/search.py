"""`search` finds schedules for a problem: it proposes, judges, compiles and races them, and keeps all in a study."""

from __future__ import annotations

import os
import random
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tl_attention.errors import InputError
from tl_attention.lab.cli.command import command
from tl_attention.lab.cli.measure import RUNS, recording
from tl_attention.lab.cli.options import FILE, causal_option, dtype_option, seed_option, shape_for, shape_option
from tl_attention.lab.files import user_file
from tl_attention.lab.files.kinds import FOUND_SCHEDULE, PAGE, SEARCH_PAGE
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.named import resolve_forward
from tl_attention.schedule.schedule import Schedule

if TYPE_CHECKING:
    from tl_attention.lab.measure.records import Row
    from tl_attention.lab.measure.session import Session
    from tl_attention.lab.search.outcome import Outcome
    from tl_attention.lab.search.parameters import Parameters
    from tl_attention.lab.search.study import Result, Study
    from tl_attention.lab.show.console import ProgressBar

STORAGE = f"sqlite:///{RUNS}/search.db"
# What a search writes in runs/, behind its name.
ENDINGS = {"page": ".html", "file": ".yaml", "timelines": ".timelines.html", "rows": ".jsonl"}
# The most that a final takes of the time, of which it has a part.
MOST_FINAL_S, FINAL = 150.0, 0.28
NO_GPU = "no GPU"


@command(
    examples={
        "search --minutes 60": "the fastest schedule for the default problem",
        "search --shape 1,16,8192,256 --causal --from d256_causal --study d256": "begin at one of ours, in a study of its own",
        "search --cells mine.yaml --storage postgresql://me@host/runs": "one schedule for several problems, with other hosts",
        "search --study d256 --report --shape 1,16,8192,256 --causal": "the page of that study again, without a search",
    }
)
@shape_option
@dtype_option("the inputs' dtype")
@causal_option
@click.option("--softcap", type=float, default=0.0, help="scores are capped by this; 0 is off")
@click.option("--cells", type=FILE, help="the problems of a file such as results/cells.yaml, for one schedule of all")
@click.option("--space", type=FILE, help="the file that lists what may be chosen  [default: one that ships]")
@click.option("--minutes", type=click.FloatRange(min=0.1), default=9.0, show_default=True, help="how long to search")
@click.option("--storage", default=STORAGE, show_default=True, help="the database of studies, as a URL")
@click.option("--study", "name", help="the study to begin or to go on with  [default: one for each problem]")
@click.option(
    "--from", "queued", multiple=True, metavar="SCHEDULE", help="try this one first; may be given several times"
)
@seed_option
@click.option("--report", is_flag=True, help="write the page of what the study has found, and search nothing")
def search(
    shape: str | None,
    dtype: str,
    causal: bool,
    softcap: float,
    cells: Path | None,
    space: Path | None,
    minutes: float,
    storage: str,
    name: str | None,
    queued: tuple[str, ...],
    seed: int | None,
    report: bool,
) -> None:
    """Search for the fastest schedule of a problem, and go on where a search before has ended.

    Schedules are drawn from a space, changed, and proposed by Optuna's sampler. Only those that are proved safe are
    compiled; each of these races with the best so far on the GPU, and the best meet once more at the end. Without a GPU
    they are ranked by prediction. The page, the winner's file and the final's rows are in runs/.

    \b
    A space is a YAML file of the values that keys may have, such as these five lines:
        block_N: [128, 144, 160, 176]
        stages: 2
        chunks: {exp: 2}
        wait_before: [mma1]
        kernel: {cluster: [1, 2], ping_pong: [false, true]}
    A key that it leaves out keeps its default.
    """
    problem, *others = (
        _problems(cells)
        if cells
        else [AttentionShape.parse(shape_for(shape, None), dtype=dtype, causal=causal, softcap=softcap)]
    )
    try:
        import optuna
    except ImportError:
        raise InputError('search: Optuna is missing, expected what `pip install "tl-attention[search]"` has') from None
    from tl_attention.lab.search import space as spaces
    from tl_attention.lab.search.parameters import Parameters
    from tl_attention.lab.search.study import Study

    parameters = Parameters(spaces.read(space or spaces.DEFAULT), problem.head_dim_v)
    name = re.sub(r"\W+", "-", cells.stem if cells else str(problem)).strip("-") if name is None else name
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise InputError(f"--study: {name[:60]!r}, expected letters, digits, '.', '+', '-' and '_' only")
    files = {what: RUNS / f"{name}{ending}" for what, ending in ENDINGS.items()}
    for what, kind in (("page", SEARCH_PAGE), ("file", FOUND_SCHEDULE), ("timelines", PAGE)):
        user_file.check_writable(files[what], kind)
    seed = secrets.randbelow(2**31) if seed is None else seed
    of = {"problem": "; ".join(map(str, (problem, *others))), "space": parameters.space.model_dump_json()}
    # A log of Optuna's is read by the same Optuna.
    of["Optuna"] = optuna.__version__.partition(".")[0]
    first = [_queued(parameters, text, (problem, *others)) for text in queued]
    also = tuple(others)
    if storage == STORAGE:
        user_file.make_folder(files["page"])
    if report:
        _tell(Study(storage, name, of, parameters, seed, worker=None, others=also), problem, files)
        return
    with recording(files["rows"]) as (record, progress):
        from tl_attention.compiler.store import VERSION
        from tl_attention.lab.measure.session import Session

        with Session(record, seed=seed) as session:
            of |= {"card": session.device or NO_GPU, "kernels": VERSION[:12]}
            study = Study(storage, name, of, parameters, seed, worker=_worker(), others=also)
            user_file.make_folder(files["page"])
            try:
                alone = _search(study, problem, session, first, minutes * 60, progress)
                if session.device and (alone or study.leases.outlasts()):
                    _final(study, problem, record, progress)
            finally:
                # Also of what an interrupted search has found.
                _tell(study, problem, files)


def _worker() -> str:
    """Returns the name by which a report knows this process: the host's, and the GPU's where it sees one of several."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
    return f"{socket.gethostname()}{f', GPU {gpu}' if gpu else ''}"


def _problems(file: Path) -> list[AttentionShape]:
    """Returns the problems of a file of cells. Raises InputError where one schedule cannot serve them."""
    from tl_attention.lab.measure.cell import load_cells

    context = click.get_current_context()
    for name in ("shape", "dtype", "causal", "softcap"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InputError(f"--{name}: with --cells, expected one of them: the file says each problem")
    found = [cell.shape for cell in load_cells(file)]
    if len(sizes := dict.fromkeys(str(shape.head_size) for shape in found)) > 1:
        raise InputError(f"{file}: head_dim {', '.join(sizes)}, expected one: a rule has schedules of one tile size")
    return found


def _queued(parameters: Parameters, text: str, problems: Sequence[AttentionShape]) -> Schedule:
    """Returns the schedule of a text. Raises InputError where it is no point of the space, or refused."""
    from tl_attention.lab.measure.candidate import called
    from tl_attention.lab.measure.compilation import refusal_of
    from tl_attention.program.planned import Planned

    named = resolve_forward(text)
    for problem in problems:
        if refusal := refusal_of(called(text, problem, Planned(named.schedule))):
            raise InputError(f"--from {text}: {refusal}")
    try:
        parameters.point(named.schedule)
    except ValueError as error:
        raise InputError(f"--from {text}: no point of the space: {error}") from None
    return named.schedule


def _search(
    study: Study,
    problem: AttentionShape,
    session: Session,
    queued: Sequence[Schedule],
    seconds: float,
    progress: ProgressBar,
) -> bool:
    """Searches, and says whether no other worker goes on."""
    from tl_attention.lab.search.proposals import Proposals
    from tl_attention.lab.search.search import Search
    from tl_attention.lab.search.timers import ByPrediction, OnGpu

    if session.device is None:
        progress.say(f"{NO_GPU}: schedules are proposed, checked, compiled and ranked by prediction, and none is timed")
    # A search that goes on does not draw again what was drawn, nor one beside it.
    rng = random.Random(f"{session.seed} {study.number} {len(study.results)}")
    timer = OnGpu(session.worker, session.seed, study.others) if session.device else ByPrediction()
    seconds -= min(MOST_FINAL_S, FINAL * seconds) if session.device else 0
    proposals = Proposals(study, problem, queued, rng)
    found = Search(study, problem, timer, proposals)

    def told(passed: float) -> None:
        best = f"best {found.incumbent.result.ms:.4g} ms" if found.incumbent else "nothing timed yet"
        what = f"{proposals.judged.total()} proposed, {len(study.results)} tried, {len(study.timed)} raced, {best}"
        progress.status(passed, seconds, what)

    try:
        found.run(seconds, told)
    except InputError:
        # The storage has gone: what this worker holds lapses.
        raise
    except BaseException:
        study.leases.leave(found.told)
        raise
    return study.leases.leave(found.told)


def _final(study: Study, problem: AttentionShape, record: Callable[[Row], None], progress: ProgressBar) -> None:
    """Has the best meet once more, in a new process, and keeps their rows in the study too."""
    from tl_attention.lab.measure.session import Session
    from tl_attention.lab.search.final import final

    with Session(record) as session:
        rows = final(study, problem, session, progress)
    study.note(final=[row.to_json() for row in rows])


def _tell(study: Study, problem: AttentionShape, files: dict[str, Path]) -> None:
    """Writes the page of a study, and the winner's file and timelines, and says where they are."""
    from tl_attention.lab.measure.records import Row, parse_line
    from tl_attention.lab.search.outcome import Outcome
    from tl_attention.lab.show import search

    user_file.make_folder(files["page"])
    rows = [parse_line(Row, line.encode(), study.where) for line in study.noted("final", [])]
    card = study.of["card"]
    outcome = Outcome(study, problem, card, rows)
    names: dict[str, str | None] = {}
    if outcome.winner:
        outcome.write(outcome.winner, files["file"])
        names = {"file": files["file"].name, "timelines": _timelines(outcome, outcome.winner, files["timelines"])}
    search.write(outcome.told(card != NO_GPU, names), files["page"])
    tried = f"{len(study.results)} tried, {len(study.timed)} raced"
    click.echo(f"{study.where}: {tried}; {files['page']} tells of it", err=True)
    if outcome.winner:
        click.echo(files["file"])


def _timelines(outcome: Outcome, winner: Result, file: Path) -> str | None:
    """Writes a page of the winner's predicted timeline above that of the nearest that ships; None where none is."""
    from tl_attention.lab.model.machine import load
    from tl_attention.lab.model.timeline import predicted
    from tl_attention.lab.trace import page

    try:
        kernel = outcome.kernel(winner)
        page.write([predicted(one, load()) for one in (kernel, outcome.nearest(kernel.ours.schedule))], file)
    except InputError:
        return None
    return file.name
