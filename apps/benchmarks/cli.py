"""Define the commands of `hardwon bench`.

Each benchmark prints a table, or {"rows": [...]} with `--json`. Progress goes to stderr.
"""

from pathlib import Path
from typing import Annotated

import typer

from hardwon.apps.shared.common import AsJson, out, say_json, tell

from .harness.tables import Place, print_rows
from .learning.alfworld import alfworld
from .learning.continual import continual
from .learning.learn import learn
from .learning.preconditions import preconditions
from .learning.team import bench_team
from .training.gpu import gpu
from .training.methods import methods

app = typer.Typer(
    no_args_is_help=True,
    help="Benchmarks of speed, retrieval, training and learning, and comparisons with other memories.",
)


@app.command()
def recall(
    sizes: Annotated[str, typer.Option(help="Library sizes in steps, separated by commas.")] = "1000,10000",
    queries: Annotated[int, typer.Option(min=10, help="Number of queries per path.")] = 300,
    keep: Annotated[
        Path | None, typer.Option(help="Folder of the libraries to measure; missing libraries are built.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure recall latency against the plain SQLite, FAISS and FTS5 calls that it consists of."""
    # Benchmarks are imported when they run: most of them load numpy or torch, and `--help` must stay fast.
    from .speed import recall as bench_recall

    print_rows(bench_recall.measure(_parse_sizes(sizes), queries, tell, keep), as_json)


def _parse_sizes(text: str) -> list[int]:
    """Return the library sizes of a comma-separated list; raise `typer.BadParameter` if one is below 100."""
    sizes = [int(part) for part in text.split(",") if part.strip().isdigit()]
    if not sizes or len(sizes) != len(text.split(",")) or min(sizes) < 100:
        raise typer.BadParameter(f"--sizes is {text!r}; write whole numbers of at least 100, such as 1000,10000.")
    return sizes


@app.command()
def loop(
    steps: Annotated[int, typer.Option(min=100, help="Library size in steps.")] = 10_000,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of 50 steps per mode.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Measure the runtime's CPU time per step, with recall, a trivial environment and a trivial policy."""
    from .speed import loop as bench_loop

    print_rows(bench_loop.measure(steps, episodes, tell), as_json)


@app.command()
def bfcl(
    seeds: Annotated[int, typer.Option(min=1, help="Number of agent seeds.")] = 3,
    passes: Annotated[int, typer.Option(min=1, help="Number of times to play each train task.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Count failing calls in BFCL's multi-turn tasks, with and without guardrails learned from other tasks."""
    from .learning import bfcl as bench_bfcl

    print_rows(bench_bfcl.measure(seeds, passes, tell), as_json)


@app.command()
def middleware(
    steps: Annotated[int, typer.Option(min=100, help="Library size in steps.")] = 10_000,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes per agent.")] = 50,
    calls: Annotated[int, typer.Option(min=1, max=1000, help="Tool calls of an episode.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Measure the time that the middleware adds to a model call of a LangChain agent."""
    from .speed import middleware as bench_middleware

    print_rows(bench_middleware.measure(steps, episodes, calls, tell), as_json)


@app.command()
def http(
    steps: Annotated[int, typer.Option(min=1000, help="Library size in steps.")] = 10_000,
    large: Annotated[
        int, typer.Option(min=0, help="Library size in steps for the dashboard's first page; 0 skips this part.")
    ] = (100_000),
    clients: Annotated[int, typer.Option(min=1, max=64, help="Number of concurrent clients.")] = 8,
    minutes: Annotated[float, typer.Option(min=0, max=120, help="Minutes of mixed load; 0 skips this part.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Measure an HTTP server: recalls per second, dashboard load time, and a long mixed load."""
    from .speed import http as bench_http

    print_rows(bench_http.measure(steps, large, clients, minutes, tell), as_json)


@app.command()
def attack(as_json: AsJson = False) -> None:
    """Measure how far poisoned episodes influence a library: hints, actions, repeated attacks and drift."""
    from .learning import attack as bench_attack

    rows = bench_attack.measure(tell)
    print_rows(rows if as_json else bench_attack.for_people(rows), as_json)


@app.command()
def start(
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs per command, each in a new process.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Measure the start time of `hardwon --help` and `import hardwon.memory`, and list their heavy imports."""
    from .speed import start as bench_start

    print_rows(bench_start.measure(repeats, tell), as_json)


@app.command()
def store(
    steps: Annotated[int, typer.Option(min=1000, help="Library size in steps for writing, memory and disk.")] = 10_000,
    large: Annotated[int, typer.Option(min=1000, help="Library size in steps for opening.")] = 100_000,
    as_json: AsJson = False,
) -> None:
    """Measure writing, memory, disk and opening."""
    from .speed import store as bench_store

    print_rows(bench_store.measure(steps, large, tell), as_json)


@app.command()
def fleet(
    url: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="postgresql://USER@HOST/DB, an empty database.", show_default=False)
    ],
    steps: Annotated[int, typer.Option(min=1000, help="Number of steps that fill a new replica.")] = 20_000,
    as_json: AsJson = False,
) -> None:
    """Measure a shared library: appends beside bare INSERTs, lag of a replica, recall under load, and bootstrap."""
    from .speed import fleet as bench_fleet

    print_rows(bench_fleet.measure(url, steps, tell), as_json)


@app.command()
def retrieval(
    data: Annotated[
        Path,
        typer.Option(
            envvar="HARDWON_DATA",
            help="Folder of trajectories in JSON Lines, or of such folders; see docs/retrieval.md.",
        ),
    ],
    tuning: Annotated[bool, typer.Option(help="Use only the first half of the tasks.")] = False,
    ablate: Annotated[bool, typer.Option(help="Also switch off one ingredient at a time.")] = False,
    embedder: Annotated[str, typer.Option(help="Use only this embedder: hashing or MiniLM.")] = "",
    as_json: AsJson = False,
) -> None:
    """Measure whether recalled steps predict the next action of real trajectories, without a model or judge."""
    from .retrieval import sets

    rows = sets.measure(data, tell, tuning=tuning, ablate=ablate, only=embedder)
    print_rows(rows if as_json else sets.format_rows(rows), as_json)


@app.command()
def memory(
    data: Annotated[
        Path | None,
        typer.Option(envvar="HARDWON_MEMORY_DATA", help="Folder of the downloaded data sets; see docs/comparison.md."),
    ] = None,
    only: Annotated[str, typer.Option(help="Systems to run, separated by semicolons: BM25; hardwon; mem0; ...")] = "",
    embedder: Annotated[str, typer.Option(help="Use only this embedder, for all systems: hashing or MiniLM.")] = "",
    first: Annotated[int, typer.Option(min=0, help="Number of queries per data set; 0 takes all.")] = 0,
    cache: Annotated[Path, typer.Option(help="Folder of the peers' virtual environments.")] = Path(
        "~/.cache/hardwon/peers"
    ),
    as_json: AsJson = False,
) -> None:
    """Measure retrieval from LoCoMo, LongMemEval, BFCL and tau-bench, beside BM25, mem0 and LangMem."""
    from .memory import measure as bench_memory

    systems = bench_memory.parse_systems(only)
    rows = bench_memory.measure(data, systems, cache, tell, embedder=embedder, first=first)
    if as_json:
        say_json({"rows": rows})
        return
    for head, lines in bench_memory.format_tables(rows):
        out().print(f"\n{head}")
        print_rows(lines, False)


@app.command()
def train(
    rounds: Annotated[int, typer.Option(min=1, help="Number of passes of each system over the batch.")] = 20,
    base: Annotated[
        Path | None,
        typer.Option(help="Folder of a pretrained model, from `hardwon model`.", show_default="a small random one"),
    ] = None,
    trl: Annotated[
        bool, typer.Option(help="Compare with TRL, installed in its own virtual environment (2 GB).")
    ] = True,
    cache: Annotated[Path, typer.Option(help="Folder of TRL's virtual environment.")] = Path("~/.cache/hardwon/peers"),
    write: Annotated[Path | None, typer.Option(help="Markdown file to write the tables to, between its marks.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure tokens generated and trained per CPU second, next to TRL and plain transformers."""
    from .training import train as bench_train

    place = Place(write, "train") if write else None
    results = bench_train.measure(rounds, cache if trl else None, tell, base)
    if place:
        of_base = f" --base {base}" if base else ""
        bench_train.write(place, results, f"hardwon bench train --rounds {rounds}{of_base}")
    if as_json:
        say_json(results)
        return
    print_rows(results["rows"], False)
    if results["targets"]:
        print_rows(results["targets"], False)
    print_rows([{"floor": name, "value": value} for name, value in results["floor"].items()], False)
    if "trl" in results:
        tell(f"TRL: {results['trl']}.")


app.command()(gpu)
app.command()(methods)
app.command()(alfworld)
app.command()(learn)
app.command()(preconditions)
app.command()(continual)
app.command("team")(bench_team)
