"""A task for teams: a question whose answer is spread over the files of an archive, and tools that take their time.

    with TemporaryDirectory() as folder:
        archive = Archive(Path(folder), seed=7)
        environment = archive.environment(Latency())
        state = environment.reset(archive.question)

The files are real and are really searched and read; that each call waits, as one over a network does,
is simulated. `Clerk` answers by rule: it searches, reads what it found in an order of its own,
looks up the rates it needs, and now and then follows a whim or notes something, as agents do.
"""

import asyncio
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from hardwon.apps.cli.team_errands import Latency
from hardwon.memory import Step
from hardwon.runtime import ToolEnvironment
from hardwon.runtime.interfaces.types import Context, Decision

from .slow import Slow

TOWNS = ("Arden", "Brink", "Calder", "Dunmore", "Elswick", "Farrow", "Garth", "Holm")
_NAMES = """
Falcon Harbour Meadow Lantern Quarry Beacon Orchard Compass Thistle Anchor Willow Granite Juniper Marlin Nimbus
Osprey Pioneer Ridgeway Saffron Tundra Umber Velvet Windmill Yarrow Zephyr Copper Bramble Cinder Drift Ember
"""
PROJECTS = tuple(_NAMES.split())
COINS = {"crowns": 2, "florins": 3, "ducats": 5, "thalers": 4}
FILLER = (
    "The steering group met twice and asked for a shorter schedule.",
    "Two suppliers were replaced after the spring review.",
    "Training of new staff is booked for the autumn.",
    "The risk register lists weather, permits and staff turnover.",
    "A visitors' day brought more people than expected.",
    "The insurance was renewed without changes.",
)
ASKS = ("{town} projects", "projects based in {town}", "{town} budget files", "everything about {town}", "town {town}")
"""How a clerk may word its search; another one words it otherwise."""
WHIM, NOTE = 0.15, 0.25
"""Chance of a step that follows a whim, or that notes something, before each reading."""


class Archive:
    """Thirty project files and an account of rates, written into a folder; one question about them."""

    def __init__(self, folder: Path, seed: int) -> None:
        chance = random.Random(f"archive {seed}")
        self._folder = folder
        self._town = chance.choice(TOWNS)
        mine = set(chance.sample(PROJECTS, 9))
        mentioned = set(chance.sample([name for name in PROJECTS if name not in mine], 4))
        total = 0
        (folder / "rates").mkdir(parents=True, exist_ok=True)
        for coin, rate in COINS.items():
            (folder / "rates" / coin).write_text(f"One of the {coin} is {rate} marks.\n", encoding="utf-8")
        for name in PROJECTS:
            others = [town for town in TOWNS if town != self._town]
            town = self._town if name in mine else chance.choice(others)
            amount, coin = chance.randrange(10, 100), chance.choice(list(COINS))
            total += amount * COINS[coin] if name in mine else 0
            lines = [f"Project {name}, town {town}, budget {amount} {coin}.", *chance.sample(FILLER, 3)]
            if name in mentioned:
                lines.append(f"A partner from {self._town} was heard once.")
            (folder / f"{name.lower()}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.question = f"What is the total budget in marks of all projects in the town of {self._town}?"
        self.answer = str(total)

    def environment(self, latency: Latency) -> Slow:
        """The tools over the files, which wait; right answers succeed."""
        tools = ToolEnvironment(
            self._tools(), lambda _, answer, __: float(answer == self.answer), name="archive", shown_calls=2
        )
        return Slow(tools, latency.get_seconds)

    def _tools(self) -> Sequence[Any]:
        from langchain_core.tools import StructuredTool

        def search(words: str) -> str:
            """Names of the files that have a town among these words, else the first of them."""
            word = next((one for one in words.split() if one in TOWNS), words.split()[0])
            found = [path.stem for path in sorted(self._folder.glob("*.txt")) if word in _read(path)]
            return f"{len(found)} files: {' '.join(found)}" if found else "no file"

        def read(file: str) -> str:
            """What stands in a file."""
            return _read(self._within(f"{file}.txt"))

        def rate(coin: str) -> str:
            """What a coin is in marks."""
            return _read(self._within(f"rates/{coin}"))

        def note(text: str) -> str:
            """Keep a text for oneself."""
            return f"noted: {text}"

        reading = [StructuredTool.from_function(tool, metadata={"readOnlyHint": True}) for tool in (search, read, rate)]
        return [*reading, StructuredTool.from_function(note)]

    def _within(self, name: str) -> Path:
        path = (self._folder / name).resolve()
        if self._folder.resolve() not in path.parents or not path.is_file():
            raise ValueError(f"there is no {name!r} in the archive")
        return path


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


class Clerk:
    """Answers an archive's question by rule; `seed` is its way of going about it."""

    name = "clerk"
    reads: Literal["values", "text"] = "text"

    def __init__(self, seed: int, latency: Latency) -> None:
        self._seed, self._latency = seed, latency

    async def adecide(self, context: Context) -> Decision:
        """The next call, after some thought."""
        await asyncio.sleep(self._latency.think_s)
        return Decision(self.next_call(context.state.task or context.state.observation, context.history))

    def decide(self, context: Context) -> Decision:
        """The same."""
        return asyncio.run(self.adecide(context))

    def next_call(self, task: str, history: Sequence[Step]) -> str:
        """What it does after these steps; the same for the same clerk, task and steps."""
        known = {step.action: step.post.feedback for step in history if step.diagnosis.success}
        chance = random.Random(f"{self._seed} {task}")
        town = task.rpartition(" of ")[2].rstrip("?")
        asking = f'search(words="{chance.choice(ASKS).format(town=town)}")'
        if asking not in known:
            return asking
        files = re.findall(r"[a-z]+", known[asking].partition(":")[2])
        chance.shuffle(files)
        left = [file for file in files if f'read(file="{file}")' not in known]
        if left:
            return self._distraction(task, len(files) - len(left), known) or f'read(file="{left[0]}")'
        budgets = self._budgets(town, known)
        coins = sorted({coin for _, coin in budgets})
        chance.shuffle(coins)
        for coin in coins:
            if f'rate(coin="{coin}")' not in known:
                return f'rate(coin="{coin}")'
        rates = {coin: int(re.findall(r"\d+", known[f'rate(coin="{coin}")'])[0]) for coin in coins}
        return f'finish(answer="{sum(amount * rates[coin] for amount, coin in budgets)}")'

    def _distraction(self, task: str, reading: int, known: dict[str, str]) -> str | None:
        """Before some readings: a look at something that nobody asked for, or a note."""
        chance = random.Random(f"{self._seed} {task} {reading}")
        luck, number = chance.random(), chance.randrange(1000)
        whim = f'search(words="{chance.choice(FILLER).split()[chance.randrange(1, 3)]} {number}")'
        note = f'note(text="{reading} of the files seen, check {number}")'
        asked = whim if luck < WHIM else note if luck < WHIM + NOTE else None
        return None if asked in known else asked

    @staticmethod
    def _budgets(town: str, known: dict[str, str]) -> list[tuple[int, str]]:
        told = [text for action, text in known.items() if action.startswith("read(")]
        found = [re.search(rf"town {town}, budget (\d+) (\w+)", text) for text in told]
        return [(int(match[1]), match[2]) for match in found if match]
