"""`hardwon bench`: what the promises of speed and of learning rest on, measured here and now.

Every benchmark prints {"rows": [...]} with `--json`, a table otherwise; progress goes to stderr.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hardwon.apps.shared.common import AsJson, out, say_json, table, tell

from .learning.learn import learn
from .learning.team import bench_team
from .learning.transfer import transfer
from .training.gpu import gpu

app = typer.Typer(no_args_is_help=True, help="Measure: speed, other memories, retrieval, training, and what is learnt.")


@app.command()
def recall(
    sizes: Annotated[str, typer.Option(help="Steps that the libraries hold, separated by commas.")] = "1000,10000",
    queries: Annotated[int, typer.Option(min=10, help="Queries for every path.")] = 300,
    keep: Annotated[Path | None, typer.Option(help="Folder of libraries to measure, built where missing.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recall in the store, beside the plain SQLite, FAISS and FTS5 calls that it needs."""
    from .speed import recall as bench_recall

    _show(bench_recall.measure(_sizes(sizes), queries, tell, keep), as_json)


def _sizes(text: str) -> list[int]:
    sizes = [int(part) for part in text.split(",") if part.strip().isdigit()]
    if not sizes or len(sizes) != len(text.split(",")) or min(sizes) < 100:
        raise typer.BadParameter(f"--sizes is {text!r}; write whole numbers of at least 100: 1000,10000.")
    return sizes


@app.command()
def loop(
    steps: Annotated[int, typer.Option(min=100, help="Steps that the library holds.")] = 10_000,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of 50 steps measured in every mode.")] = 10,
    as_json: AsJson = False,
) -> None:
    """CPU time of the runtime a step, with a trivial environment and policy, recall on."""
    from .speed import loop as bench_loop

    _show(bench_loop.measure(steps, episodes, tell), as_json)


@app.command()
def bfcl(
    seeds: Annotated[int, typer.Option(min=1, help="Agent seeds.")] = 3,
    passes: Annotated[int, typer.Option(min=1, help="Times that every train task is played.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Failing calls in BFCL's multi-turn tasks, with and without guardrails learnt in other tasks."""
    from .learning import bfcl as bench_bfcl

    _show(bench_bfcl.measure(seeds, passes, tell), as_json)


@app.command()
def growth(
    game: Annotated[str, typer.Option(help="Game of TextWorldExpress.")] = "twc",
    most: Annotated[int, typer.Option(min=50, help="Episodes of the largest library: a tenth, a half, all.")] = 2000,
    as_json: AsJson = False,
) -> None:
    """CPU time a step, guardrails and wins, as one library of one game grows."""
    from .speed import growth as bench_growth

    _show(bench_growth.measure(game, sorted({most // 10, most // 2, most}), tell), as_json)


@app.command()
def middleware(
    steps: Annotated[int, typer.Option(min=100, help="Steps that the library holds.")] = 10_000,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of 20 calls measured with each agent.")] = 50,
    as_json: AsJson = False,
) -> None:
    """What the middleware adds to a model call of a LangChain agent, beside the bare agent."""
    from .speed import middleware as bench_middleware

    _show(bench_middleware.measure(steps, episodes, tell), as_json)


@app.command()
def http(
    steps: Annotated[int, typer.Option(min=1000, help="Steps that the library holds.")] = 10_000,
    large: Annotated[int, typer.Option(min=0, help="Steps behind the dashboard's first page; 0 leaves it out.")] = (
        100_000
    ),
    clients: Annotated[int, typer.Option(min=1, max=64, help="Clients at once.")] = 8,
    minutes: Annotated[float, typer.Option(min=0, max=120, help="How long the mixed load goes on; 0: not.")] = 3,
    as_json: AsJson = False,
) -> None:
    """A served library: recalls a second, the dashboard's first page, memory and errors under a mixed load."""
    from .speed import http as bench_http

    _show(bench_http.measure(steps, large, clients, minutes, tell), as_json)


@app.command()
def attack(as_json: AsJson = False) -> None:
    """What crafted episodes reach among benign ones: words shown, actions first, three rounds, and drift."""
    from .learning import attack as bench_attack

    rows = bench_attack.measure(tell)
    _show(rows if as_json else bench_attack.for_people(rows), as_json)


@app.command()
def start(
    repeats: Annotated[int, typer.Option(min=1, help="Fresh Pythons for every start.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Time of `hardwon --help` and `import hardwon.memory` in a fresh Python, and what they import."""
    from .speed import start as bench_start

    _show(bench_start.measure(repeats, tell), as_json)


@app.command()
def store(
    steps: Annotated[int, typer.Option(min=1000, help="Steps of the library that is written and weighed.")] = 10_000,
    large: Annotated[int, typer.Option(min=1000, help="Steps of the library that is opened.")] = 100_000,
    as_json: AsJson = False,
) -> None:
    """Writing, memory, disk, opening and tenants of a library."""
    from .speed import store as bench_store

    _show(bench_store.measure(steps, large, tell), as_json)


@app.command()
def peers(
    n: Annotated[int, typer.Option(min=10, help="Texts that each memory holds.")] = 10_000,
    queries: Annotated[int, typer.Option(min=10, help="Searches of each kind.")] = 200,
    only: Annotated[str, typer.Option(help="Systems, separated by commas: parts, ours, langgraph, ...; or all.")] = "",
    cap_s: Annotated[float, typer.Option(min=1, help="Seconds that a memory may take to add what it is to hold.")] = 60,
    cache: Annotated[Path, typer.Option(help="Folder for the peers' virtual environments.")] = Path(
        "~/.cache/hardwon/peers"
    ),
    embedder: Annotated[
        str | None, typer.Option(help="What makes the vectors, beforehand; hashing if not given.")
    ] = None,
    write: Annotated[Path | None, typer.Option(help="A Markdown file whose marked part gets the tables.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ours beside LangGraph's SqliteStore, chromadb, mem0 and the plain parts: speed, size, tenants, faults."""
    from .peers import compare, report

    wanted = compare.names(only)
    if write is not None:
        report.can_be_written(write)
    rows = compare.measure(n, queries, wanted, cap_s, cache, embedder, tell)
    if write is not None:
        report.write(write, rows, f"hardwon bench peers --n {n} --queries {queries} --cap-s {cap_s:g}")
    if as_json:
        say_json({"rows": rows})
        return
    for head, lines in report.tables(rows):
        out().print(f"\n{head}")
        _show(lines, False)


@app.command()
def retrieval(
    data: Annotated[
        Path, typer.Option(envvar="HARDWON_DATA", help="Folder of trajectories, JSON lines as in docs/retrieval.md.")
    ],
    sets: Annotated[
        bool, typer.Option(help="Every folder below is a set: its first half is recorded, the other is asked about.")
    ] = False,
    tuning: Annotated[bool, typer.Option(help="With --sets: use the first half of the tasks alone.")] = False,
    ablate: Annotated[bool, typer.Option(help="With --sets: also without one ingredient at a time.")] = False,
    embedder: Annotated[str, typer.Option(help="With --sets: hashing or MiniLM alone.")] = "",
    as_json: AsJson = False,
) -> None:
    """Whether the steps recalled tell the next action, on real trajectories: no judge, no model."""
    from .retrieval import sets as bench_sets, trajectories

    if sets:
        found = bench_sets.measure(data, tell, tuning=tuning, ablate=ablate, only=embedder)
        _show(found if as_json else bench_sets.for_people(found), as_json)
        return
    rows = trajectories.measure(data, tell)
    _show(rows if as_json else trajectories.for_people(rows), as_json)


@app.command()
def train(
    rounds: Annotated[int, typer.Option(min=1, help="Passes of every system over the batch.")] = 20,
    trl: Annotated[bool, typer.Option(help="Beside TRL, in a virtual environment of its own (2 GB).")] = True,
    cache: Annotated[Path, typer.Option(help="Folder for that environment.")] = Path("~/.cache/hardwon/peers"),
    write: Annotated[Path | None, typer.Option(help="A Markdown file whose marked part gets the tables.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tokens generated and trained by CPU-second, beside TRL and plain transformers."""
    from .training import train as bench_train

    if write is not None:
        bench_train.can_be_written(write)
    found = bench_train.measure(rounds, cache if trl else None, tell)
    if write is not None:
        bench_train.write(write, found, f"hardwon bench train --rounds {rounds}")
    if as_json:
        say_json(found)
        return
    _show(found["rows"], False)
    if found["targets"]:
        _show(found["targets"], False)
    _show([{"floor": name, "value": value} for name, value in found["floor"].items()], False)
    if "trl" in found:
        tell(f"TRL: {found['trl']}.")


app.command()(gpu)
app.command()(learn)
app.command()(transfer)
app.command("team")(bench_team)


def _show(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        say_json({"rows": rows})
        return
    numbers = [name for name, value in rows[0].items() if isinstance(value, int | float)]
    cells = [[_words(value) for value in row.values()] for row in rows]
    out().print(table(*rows[0], rows=cells, numbers=numbers))


def _words(value: Any) -> str:
    if value is None:
        return "-"
    return (", ".join(value) or "none") if isinstance(value, list) else str(value)
