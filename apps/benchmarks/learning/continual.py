"""`hardwon bench continual`: measure what one library gains over a stream of tasks from several environments.

Each order is a permutation of the same tasks and has an agent seed of its own. Three arms play it:

    stateful   one library for all environments, which learns from every episode
    stateless  the same agent with an empty library in every episode
    empty      an empty library, and an agent that does not explore, because nothing of what it finds is kept

Differences pair the episodes of the same task and order. Intervals resample tasks, because every order repeats them. An
interrupted run continues in its folder.
"""

import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.harness.intervals import bootstrap_groups
from benchmarks.harness.results import Results
from benchmarks.harness.tables import Row, print_rows
from hardwon.apps.shared.common import AsJson, say_json, tell
from hardwon.memory.errors import ConfigError, UnknownName

from .learn import CASES, Case

if TYPE_CHECKING:
    from hardwon.runtime.agent import Agent
    from hardwon.runtime.interfaces.types import Context, Decision, Environment, Policy

STATEFUL, BASELINES = "stateful", ("stateless", "empty")
PART = 25
"""Episodes between two stored results, from which an interrupted run continues."""
WORLDS: Mapping[str, Case] = {
    "wiki-1": Case("wiki", "1", "", 0, (), 20),
    "wiki-2": Case("wiki", "2", "", 0, (), 20),
    "errands": Case("benchmarks.learning.errands:Errands", "", "", 0, (), 20),
    **CASES,
    "peckingorder": Case("textworld", "peckingorder", "", 0, ()),
    "simonsays": Case("textworld", "simonsays", "", 0, ()),
}
"""Environments by name; those from `CASES` on need the `games` extra."""
TaskInstance = tuple[str, int]
"""Name of an environment and seed."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The settings of a run, stored beside the results."""

    environments: tuple[str, ...]
    episodes: int
    orders: int
    policy: str

    def __post_init__(self) -> None:
        for name in self.environments:
            if name not in WORLDS and ":" not in name:
                raise UnknownName.of("environment", name, [*WORLDS, "MODULE:CLASS"])
        if not 0 < len(set(self.environments)) == len(self.environments) <= self.episodes:
            raise ConfigError(
                f"environments are {list(self.environments)} and episodes {self.episodes}; name each environment once, "
                "and give an episode or more for each."
            )

    def list_tasks(self, order: int) -> list[TaskInstance]:
        """Return the tasks in one of the orders."""
        names = self.environments
        tasks = [(names[n % len(names)], n // len(names)) for n in range(self.episodes)]
        return random.Random(f"order:{order}").sample(tasks, len(tasks))


class HintCounter:
    """A policy that counts the tokens of the hints that it is given."""

    def __init__(self, policy: "Policy") -> None:
        self._policy, self.tokens = policy, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def decide(self, context: "Context") -> "Decision":
        """Count the hint, and decide."""
        from hardwon.memory.retrieval.recall import estimate_tokens

        self.tokens += estimate_tokens(context.guidance) if context.guidance else 0
        return self._policy.decide(context)


def continual(
    environments: Annotated[
        str, typer.Option(help=f"Environments, separated by commas: {', '.join(WORLDS)}, or MODULE:CLASS of your own.")
    ] = "wiki-1,wiki-2,errands",
    episodes: Annotated[int, typer.Option(min=8, max=2000, help="Episodes of each order, of all environments.")] = 200,
    orders: Annotated[int, typer.Option(min=3, help="Number of orders, each with an agent seed of its own.")] = 3,
    policy: Annotated[str, typer.Option(help="Policy: episodic, lookahead, or a model such as openai:gpt-5.")] = (
        "episodic"
    ),
    out: Annotated[Path, typer.Option(help="Folder of the results; an interrupted run continues.")] = Path(
        "runs/continual"
    ),
    as_json: AsJson = False,
) -> None:
    """Measure an agent that keeps one library against the same agent without any, on the same tasks in any order."""
    names = tuple(name.strip() for name in environments.split(",") if name.strip())
    stream = Stream(environments=names, episodes=episodes, orders=orders, policy=policy)
    played = run(stream, out, tell)
    gains, costs = compare(stream, played), sum_costs(stream, played)
    if as_json:
        say_json({"rows": gains, "costs": costs})
        return
    print_rows(gains)
    print_rows(costs)


Played = Mapping[tuple[str, int], Sequence[Row]]
"""The episodes of an arm and an order, as they were played."""


def run(stream: Stream, out: Path, say: Callable[[str], None]) -> Played:
    """Play the missing parts, and return all episodes.

    Raises:
        ConfigError: The folder holds the results of other settings.
    """
    results = Results(out / "episodes.jsonl", asdict(stream))
    starts = range(0, stream.episodes, PART)
    parts = [(order, arm, n) for order in range(stream.orders) for arm in (STATEFUL, *BASELINES) for n in starts]
    missing = [(order, arm, n) for order, arm, n in parts if not results.find(order=order, arm=arm, start=n)]
    began = time.monotonic()
    with ExitStack() as stack:
        opened = {name: stack.enter_context(closing(_open(name))) for name in stream.environments if missing}
        for done, (order, arm, start) in enumerate(missing, 1):
            tasks = stream.list_tasks(order)[start : start + PART]
            folder = _prepare_folder(out / f"order-{order}", start) if arm == STATEFUL else None
            rows = _play_part(stream, arm, order, tasks, opened, folder)
            results.add({"order": order, "arm": arm, "start": start, "episodes": rows})
            minutes = (time.monotonic() - began) / done * (len(missing) - done) / 60
            solved = sum(bool(row["success"]) for row in rows)
            say(
                f"order {order + 1} of {stream.orders}, {arm}: {start + len(rows)} of {stream.episodes} episodes, "
                f"{solved} of the last {len(rows)} solved; about {minutes:.0f} min left"
            )
    played: dict[tuple[str, int], list[Row]] = {}
    for order, arm, start in parts:
        played.setdefault((arm, order), []).extend(results.find(order=order, arm=arm, start=start)[0]["episodes"])
    return played


def _open(name: str) -> "Environment":
    from hardwon.runtime.environments import open_environment

    case = WORLDS.get(name) or Case(name, "", "", 0, ())
    return open_environment(case.environment, game=case.game or None, params=case.params)


def _prepare_folder(parent: Path, start: int) -> Path:
    """Return the folder of the library for one part: a copy of the one that the part before has left."""
    folder, before = parent / str(start), parent / str(start - PART)
    shutil.rmtree(folder, ignore_errors=True)  # of a part that was interrupted
    if start:
        shutil.copytree(before, folder)
        shutil.rmtree(parent / str(start - 2 * PART), ignore_errors=True)
    else:
        folder.mkdir(parents=True)
    return folder


def _play_part(
    stream: Stream,
    arm: str,
    order: int,
    tasks: Sequence[TaskInstance],
    opened: Mapping[str, "Environment"],
    folder: Path | None,
) -> list[Row]:
    """Play some tasks with the library of a folder, or with an empty one, and return a row for each."""
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.agent import Agent
    from hardwon.runtime.strategies.components import as_policy

    rows, agents, policy = [], dict[str, Agent](), HintCounter(as_policy(stream.policy))
    with ExitStack() as kept:
        library = kept.enter_context(ExperienceLibrary.open(folder / "library.db" if folder else ":memory:"))
        for name, seed in tasks:
            if arm == "stateless":  # it learns as the stateful one does, and forgets all after the episode
                agents.clear()
                kept.close()
                library = kept.enter_context(ExperienceLibrary.open(":memory:"))
            if name not in agents:
                limit = WORLDS[name].max_steps if name in WORLDS else 50
                options: dict[str, Any] = {"policy": policy, "max_steps": limit, "seed": order, "learn": arm != "empty"}
                agents[name] = kept.enter_context(
                    closing(Agent(library=library, environment=opened[name], arm="step", **options))
                )
            rows.append(_play(agents[name], opened[name], policy, name, seed))
    return rows


def _play(agent: "Agent", environment: "Environment", policy: HintCounter, name: str, seed: int) -> Row:
    """Play one episode, and return its row."""
    from hardwon.runtime.environments import count_seeds

    policy.tokens, began = 0, time.process_time()
    episode = agent.run("", seed % (count_seeds(environment, "train") or seed + 1)).trajectory
    return {
        "environment": name,
        "seed": seed,
        "success": episode.success,
        "steps": len(episode.steps),
        "cpu_s": time.process_time() - began,
        "hint_tokens": policy.tokens,
    }


def compare(stream: Stream, played: Played) -> list[Row]:
    """Return the difference of the stateful arm to each of the others, by environment and over all."""
    return [
        {"environment": name, "minus": baseline, **_summarize(_pair(stream, played, name, baseline))}
        for name in (*stream.environments, "all")
        for baseline in BASELINES
    ]


@dataclass(frozen=True)
class Pair:
    """The outcomes of one task in one order."""

    order: int
    task: str
    stateful: bool
    other: bool
    is_late: bool
    """True in the last quarter of the stream."""

    @property
    def gain(self) -> int:
        """Return 1, 0 or -1."""
        return self.stateful - self.other


def _pair(stream: Stream, played: Played, name: str, baseline: str) -> list[Pair]:
    """Return the pairs of an environment, without those in which the environment broke."""
    return [
        Pair(order, f"{one['environment']} {one['seed']}", one["success"], other["success"], 4 * at >= 3 * len(tasks))
        for order in range(stream.orders)
        for tasks in [played[STATEFUL, order]]
        for at, (one, other) in enumerate(zip(tasks, played[baseline, order], strict=True))
        if name in (one["environment"], "all") and None not in (one["success"], other["success"])
    ]


def _summarize(pairs: Sequence[Pair]) -> Row:
    """Return the figures of the pairs of an environment.

    Raises:
        ConfigError: The environment broke in every episode.
    """
    if not pairs:
        raise ConfigError("an environment broke in every episode; play it with `hardwon check-env`.")
    gains = [pair.gain for pair in pairs]
    orders = sorted({pair.order for pair in pairs})
    by_order = [round(fmean(pair.gain for pair in pairs if pair.order == order), 3) for order in orders]
    low, high = bootstrap_groups(gains, [pair.task for pair in pairs]) or (0.0, 0.0)
    last = [pair.gain for pair in pairs if pair.is_late]
    return {
        "pairs": len(pairs),
        "stateful": round(fmean(pair.stateful for pair in pairs), 3),
        "other": round(fmean(pair.other for pair in pairs), 3),
        "gain": round(fmean(gains), 3),
        "ci95": [low, high],
        "by_order": by_order,
        "worst": min(by_order),
        "last_quarter": round(fmean(last), 3) if last else None,
        "below": high < 0,
    }


def sum_costs(stream: Stream, played: Played) -> list[Row]:
    """Return the mean steps, CPU seconds and tokens of hints of an episode, by environment and arm."""
    rows = []
    for name in stream.environments:
        for arm in (STATEFUL, *BASELINES):
            episodes = [
                row for order in range(stream.orders) for row in played[arm, order] if row["environment"] == name
            ]
            means = {key: round(fmean(row[key] for row in episodes), 3) for key in ("steps", "cpu_s", "hint_tokens")}
            rows.append({"environment": name, "arm": arm, "episodes": len(episodes), **means})
    return rows
