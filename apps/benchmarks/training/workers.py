"""Measure rollout workers: episodes per second of none, one and two Ray actors.

    sleep       a corridor whose steps sleep, as environments do that wait for another program
    textworld   TextWorldExpress, whose steps cost CPU time in Java
    elsewhere   the same, with tokens that another machine generates, as vLLM on a GPU does

The numbers of workers take turns in every round, so that other load on the machine affects all of them alike. In the
first two, the policy is a tiny model with random weights, which the learner's process serves on the same cores. The CPU
time of the processes says how much more workers could gain.
"""

import asyncio
import math
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hardwon.memory import State
from hardwon.runtime.interfaces.types import Info
from hardwon.trainers.algorithms.samples import PackedSequence
from hardwon.trainers.config.schema import of
from hardwon.trainers.engines.base import Completion, Request
from hardwon.trainers.player import Player
from hardwon.trainers.session import Session
from hardwon.trainers.workers.opening import build_setup
from hardwon.trainers.workers.pool import WorkerPool
from hardwon.trainers.workers.ray_cluster import RayCluster

WORKERS = (0, 1, 2)
WORLDS = 4
COPIES = 4
STEPS = 10
PAUSE_S = 0.02
ELSEWHERE = "elsewhere"
WORLDS_OF: dict[str, dict[str, Any]] = {
    "sleep": {"name": f"{__name__}:Pausing", "max_steps": STEPS},
    "textworld": {"name": "textworld", "game": "coin", "params": "numLocations=6, includeDoors=0", "max_steps": STEPS},
}
WORLDS_OF[ELSEWHERE] = WORLDS_OF["textworld"]

Row = dict[str, Any]


class Pausing:
    """A room that nobody leaves, in which every step takes `PAUSE_S`."""

    name = "pausing"

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin an episode."""
        return State("You are in a room.", location="room", task="wait")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Wait."""
        time.sleep(PAUSE_S)
        return self.reset(), 0.0, False, Info(success=False, score=0.0)

    def admissible(self, state: State) -> list[str]:
        """Return the actions."""
        return ["wait here", "look around"]

    def clone(self) -> "Pausing":
        """Return another room."""
        return Pausing()

    def close(self) -> None:
        """Do nothing."""


class Elsewhere:
    """An engine that costs this machine nothing but its messages. It draws listed actions at random."""

    async def generate(self, request: Request) -> Completion:
        """Return a random answer among those that are allowed."""
        assert request.allowed is not None
        rng = request.chance or random.Random(0)
        tokens: list[int] = []
        allowed: list[tuple[int, ...]] = []
        while following := request.allowed.allowed(tokens):
            allowed.append(tuple(following))
            tokens.append(rng.choice(following))
        logprobs = tuple(-math.log(len(each)) for each in allowed)
        mask = tuple(len(each) > 1 for each in allowed)
        return Completion(tuple(tokens), logprobs, mask, tuple(allowed), 0)

    async def logprobs(self, streams: Sequence[PackedSequence], role: str) -> list[list[float]]:
        """Refuse to compute: nothing is trained here."""
        raise NotImplementedError

    def load_adapter(self, role: str, version: int, weights: Any) -> None:
        """Do nothing."""

    def versions(self) -> dict[str, int]:
        """Return the version of the policy, which does not change."""
        return {"policy": 0}

    async def begin(self, session: str) -> None:
        """Do nothing."""

    async def end(self, session: str) -> None:
        """Do nothing."""


def measure(rounds: int, tell: Callable[[str], None]) -> list[Row]:
    """Measure every environment with every number of workers.

    Args:
        rounds: Number of timed rounds.
        tell: Receives lines of progress.
    """
    rows = []
    for name, environment in WORLDS_OF.items():
        tell(f"  {name} ...")
        with TemporaryDirectory(prefix="hardwon-workers-") as folder:
            rows += _compare(name, environment, Path(folder), rounds)
    return rows


def _compare(name: str, environment: dict[str, Any], folder: Path, rounds: int) -> list[Row]:
    config = of(
        {
            "environment": environment,
            "explore": {"worlds": {"fold": "train", "seeds": "0-3"}, "steps": 5, "tries": 1},
            "model": {"tiny": {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 32}},
            "rollouts": {"workers": max(WORKERS)},
            "run": {"out": str(folder), "threads": 1},
        }
    )
    with closing(Session.open(config, folder)) as session:
        played = replace(session, engine=Elsewhere()) if name == ELSEWHERE else session
        rates, spent = _play(played, dict.fromkeys(config.list_arms(), COPIES), rounds)
    rows = [
        {"what": f"{name}, {workers or 'no'} workers", "n": rounds, "value": round(statistics.median(each), 2)}
        | {"unit": "episodes per second", "promise": ""}
        for workers, each in rates.items()
    ]
    share = statistics.median(two / one for one, two in zip(rates[1], rates[2], strict=True))
    rows += [
        {"what": f"{name}, {max(WORKERS)} workers, CPU time of {part}", "n": rounds, "value": round(1000 * each, 2)}
        | {"unit": "ms per episode", "promise": ""}
        for part, each in spent.items()
    ]
    return [
        *rows,
        {"what": f"{name}, 2 over 1", "n": rounds, "value": round(share, 2), "unit": "x", "promise": ">= 1.6"},
    ]


def _play(session: Session, arms: Any, rounds: int) -> tuple[dict[int, list[float]], dict[str, float]]:
    with _open_players(session) as players:
        return asyncio.run(_play_rounds(players, arms, rounds))


@contextmanager
def _open_players(session: Session) -> Iterator[dict[int, Player]]:
    with ExitStack() as stack:
        players = {}
        cluster = RayCluster("auto", sum(WORKERS))  # the first one starts Ray, and stops it at the end
        stack.callback(cluster.close)
        for workers in WORKERS:
            pool = None
            if workers:
                own = RayCluster("auto", sum(WORKERS))
                pool = WorkerPool(session, own, setup=build_setup(session), workers=workers)
            players[workers] = Player(session, pool=pool)
            stack.enter_context(closing(players[workers]))
        yield players


async def _play_rounds(
    players: dict[int, Player], arms: Any, rounds: int
) -> tuple[dict[int, list[float]], dict[str, float]]:
    """Return the rates by the number of workers, and the CPU time of an episode with most workers, by its part."""
    rates: dict[int, list[float]] = {workers: [] for workers in players}
    spent: Counter[str] = Counter()
    episodes = 0
    worlds = [("train", seed) for seed in range(WORLDS)]
    for number in range(rounds + 1):
        order = sorted(players, reverse=bool(number % 2))
        for workers in order:
            pids = await _find_workers(players[workers]) if number and workers == max(players) else []
            before, began = read_spent_s(pids), time.perf_counter()
            rollouts = await players[workers].play(worlds, arms, salt=f"{number}")
            if number:  # the first round starts the environments
                rates[workers].append(len(rollouts) / (time.perf_counter() - began))
            if pids:
                spent.update({part: each - before[part] for part, each in read_spent_s(pids).items()})
                episodes += len(rollouts)
    return rates, {part: each / episodes for part, each in spent.items()}


async def _find_workers(player: Player) -> list[int]:
    """Return the processes of a player's workers."""
    assert player.pool is not None
    actors = [member.handle.actor for member in player.pool._members]  # type: ignore[attr-defined]
    return [await actor.__ray_call__.remote(lambda _: os.getpid()) for actor in actors]


def read_spent_s(workers: Sequence[int]) -> dict[str, float]:
    """Return the CPU time of the learner, which is this process, of its workers, and of programs that they started."""
    programs = [program for worker in workers for program in list_programs(worker)]
    return {
        "the learner": time.process_time(),
        "the workers": sum(map(_read_s, workers)),
        "the environments' programs": sum(map(_read_s, programs)),
    }


def list_programs(pid: int) -> list[int]:
    """Return the processes that a process of this machine has started."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def _read_s(pid: int) -> float:
    """Return the CPU time of all threads of a process of this machine."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
