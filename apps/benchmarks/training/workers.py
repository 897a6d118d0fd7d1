"""Measure rollout workers: episodes per second of none, one and two Ray actors.

    sleep       a corridor whose steps sleep, as environments do that wait for another program
    textworld   TextWorldExpress, whose steps cost CPU time in Java
    server      the same, with tokens of a vLLM server on another machine, which the workers ask themselves

The numbers of workers take turns in every round, so that other load on the machine affects all of them alike. In the
first two, the policy is a tiny model with random weights, which the learner's process serves on the same cores. In the
last one, the client does all of its work, but no request leaves the process, and the server answers at once. The CPU
time of the processes says how much more workers could gain, and their memory what one costs.
"""

import asyncio
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import httpx

from hardwon.memory import State
from hardwon.runtime.interfaces.types import Info
from hardwon.trainers.config.loading import of
from hardwon.trainers.config.schema import TrainConfig
from hardwon.trainers.engines.base import Engine
from hardwon.trainers.engines.server import ServerEngine
from hardwon.trainers.player import Player
from hardwon.trainers.session import Session
from hardwon.trainers.workers.asking import SharedServer
from hardwon.trainers.workers.messages import Setup
from hardwon.trainers.workers.opening import build_setup
from hardwon.trainers.workers.pool import WorkerPool
from hardwon.trainers.workers.ray_cluster import RayCluster
from hardwon.trainers.workers.worker import RolloutWorker

WORKERS = (0, 1, 2)
WORLDS = 4
COPIES = 16
STEPS = 10
PAUSE_S = 0.02
SERVER = "server"
WORLDS_OF: dict[str, dict[str, Any]] = {
    "sleep": {"name": f"{__name__}:Pausing", "max_steps": STEPS},
    "textworld": {"name": "textworld", "game": "coin", "params": "numLocations=6, includeDoors=0", "max_steps": STEPS},
}
WORLDS_OF[SERVER] = WORLDS_OF["textworld"]

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


class AskingWorker(RolloutWorker):
    """A worker that asks a server, as with `engine.kind: server`, although its base is a tiny one."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        scenes = self._scenes
        scenes.source = SharedServer(scenes._get_state, open_elsewhere(setup.tokenizer, scenes.config))
        scenes.engine = cast(Engine, scenes.source)


def open_elsewhere(tokenizer: Any, config: TrainConfig) -> ServerEngine:
    """Return a server that answers at once, with equal probabilities: only the client's work is left."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"data": [{"id": "base", "parent": None}]})
        tokens = json.loads(request.content)["logprob_token_ids"]
        told = {f"token_id:{token}": -1.0 for token in tokens}
        return httpx.Response(200, json={"choices": [{"logprobs": {"top_logprobs": [told]}}]})

    server = ServerEngine("http://elsewhere.invalid/v1", tokenizer, list(config.roles))
    server._client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return server


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
        server = open_elsewhere(session.tokenizer, config)
        played = replace(session, engine=server) if name == SERVER else session
        rates, spent, memory = _play(played, dict.fromkeys(config.list_arms(), COPIES), rounds)
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
    rows += [
        {"what": f"{name}, memory of {part}", "n": 1, "value": round(each), "unit": "MB", "promise": ""}
        for part, each in memory.items()
    ]
    return [
        *rows,
        {"what": f"{name}, 2 over 1", "n": rounds, "value": round(share, 2), "unit": "x", "promise": ">= 1.6"},
    ]


def _play(
    session: Session, arms: Any, rounds: int
) -> tuple[dict[int, list[float]], dict[str, float], dict[str, float]]:
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
                asks = isinstance(session.engine, ServerEngine)
                own = RayCluster("auto", sum(WORKERS), AskingWorker if asks else RolloutWorker)
                pool = WorkerPool(session, own, setup=build_setup(session), workers=workers)
            players[workers] = Player(session, pool=pool)
            stack.enter_context(closing(players[workers]))
        yield players


async def _play_rounds(
    players: dict[int, Player], arms: Any, rounds: int
) -> tuple[dict[int, list[float]], dict[str, float], dict[str, float]]:
    """Return the rates by the number of workers, and, with most workers, the CPU time of an episode and the memory."""
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
    memory = read_memory_mb(await _find_workers(players[max(players)]))
    return rates, {part: each / episodes for part, each in spent.items()}, memory


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


def read_memory_mb(workers: Sequence[int]) -> dict[str, float]:
    """Return the resident memory of a worker and of the programs that it started, the means over the workers."""
    sizes = {
        "a worker": [_read_mb(worker) for worker in workers],
        "its environments' programs": [sum(map(_read_mb, list_programs(worker))) for worker in workers],
    }
    return {part: statistics.fmean(each) for part, each in sizes.items()}


def _read_mb(pid: int) -> float:
    """Return the resident memory of a process of this machine."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def list_programs(pid: int) -> list[int]:
    """Return the processes that a process of this machine has started."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def _read_s(pid: int) -> float:
    """Return the CPU time of all threads of a process of this machine."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
