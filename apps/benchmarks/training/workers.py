"""Measure rollout workers: episodes per second of none, one and two Ray actors.

    sleep       a corridor whose steps sleep, as environments do that wait for another program
    textworld   TextWorldExpress, whose steps cost CPU time in Java

The numbers of workers take turns in every round, so that other load on the machine affects all of them alike. The
policy is a tiny model with random weights, which the learner's process serves.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hardwon.memory import State
from hardwon.runtime.interfaces.types import Info
from hardwon.trainers.config.schema import of
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
WORLDS_OF: dict[str, dict[str, Any]] = {
    "sleep": {"name": f"{__name__}:Pausing", "max_steps": STEPS},
    "textworld": {"name": "textworld", "game": "coin", "params": "numLocations=6, includeDoors=0", "max_steps": STEPS},
}

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
    with closing(Session.open(config, folder)) as session, _open_players(session) as players:
        rates = asyncio.run(_play_rounds(players, dict.fromkeys(config.list_arms(), COPIES), rounds))
    rows = [
        {"what": f"{name}, {workers or 'no'} workers", "n": rounds, "value": round(statistics.median(each), 2)}
        | {"unit": "episodes per second", "promise": ""}
        for workers, each in rates.items()
    ]
    share = statistics.median(two / one for one, two in zip(rates[1], rates[2], strict=True))
    return [
        *rows,
        {"what": f"{name}, 2 over 1", "n": rounds, "value": round(share, 2), "unit": "x", "promise": ">= 1.6"},
    ]


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


async def _play_rounds(players: dict[int, Player], arms: Any, rounds: int) -> dict[int, list[float]]:
    rates: dict[int, list[float]] = {workers: [] for workers in players}
    worlds = [("train", seed) for seed in range(WORLDS)]
    for number in range(rounds + 1):
        order = sorted(players, reverse=bool(number % 2))
        for workers in order:
            began = time.perf_counter()
            rollouts = await players[workers].play(worlds, arms, salt=f"{number}")
            if number:  # the first round starts the environments
                rates[workers].append(len(rollouts) / (time.perf_counter() - began))
    return rates
