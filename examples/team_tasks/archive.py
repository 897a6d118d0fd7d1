"""Define a team task: a question whose answer is spread over the files of an archive, with slow tools.

    with TemporaryDirectory() as folder:
        archive = Archive(Path(folder), seed=7)
        environment = archive.environment(Latency())
        state = environment.reset(archive.question)

The files exist on disk and are searched and read; only the latency of the calls is simulated. `Clerk` is a rule-based
agent: it searches, reads the matching files in random order, and looks up the exchange rates that it needs. Like a
model, it sometimes makes an irrelevant search or takes a note.
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
"""Templates of a search; clerks with different seeds choose different ones."""
WHIM, NOTE = 0.15, 0.25
"""Probabilities of an irrelevant search and of a note before each file that is read."""


class Archive:
    """Thirty project files and a table of exchange rates in a folder, with one question about them."""

    def __init__(self, folder: Path, seed: int) -> None:
        chance = random.Random(f"archive {seed}")
        self._folder = folder
        self._town = chance.choice(TOWNS)
        relevant = set(chance.sample(PROJECTS, 9))
        mentioned = set(chance.sample([name for name in PROJECTS if name not in relevant], 4))
        total = 0
        (folder / "rates").mkdir(parents=True, exist_ok=True)
        for coin, rate in COINS.items():
            (folder / "rates" / coin).write_text(f"One of the {coin} is {rate} marks.\n", encoding="utf-8")
        for name in PROJECTS:
            other_towns = [town for town in TOWNS if town != self._town]
            town = self._town if name in relevant else chance.choice(other_towns)
            amount, coin = chance.randrange(10, 100), chance.choice(list(COINS))
            total += amount * COINS[coin] if name in relevant else 0
            lines = [f"Project {name}, town {town}, budget {amount} {coin}.", *chance.sample(FILLER, 3)]
            if name in mentioned:
                # A distractor: a text search for the town finds this file, but its budget does not count.
                lines.append(f"A partner from {self._town} was heard once.")
            (folder / f"{name.lower()}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.question = f"What is the total budget in marks of all projects in the town of {self._town}?"
        self.answer = str(total)

    def environment(self, latency: Latency) -> Slow:
        """Return the tools over the files with simulated latency.

        Args:
            latency: Duration of thinking and of each call.
        """
        tools = ToolEnvironment(
            self._tools(), lambda _, answer, __: float(answer == self.answer), name="archive", shown_calls=2
        )
        return Slow(tools, latency.get_seconds)

    def _tools(self) -> Sequence[Any]:
        from langchain_core.tools import StructuredTool

        def search(words: str) -> str:
            """List the files that mention a town, or the first word if the words contain no town."""
            word = next((candidate for candidate in words.split() if candidate in TOWNS), words.split()[0])
            names = [path.stem for path in sorted(self._folder.glob("*.txt")) if word in _read(path)]
            return f"{len(names)} files: {' '.join(names)}" if names else "no file"

        def read(file: str) -> str:
            """Return the text of a file."""
            return _read(self._within(f"{file}.txt"))

        def rate(coin: str) -> str:
            """Return the value of a coin in marks."""
            return _read(self._within(f"rates/{coin}"))

        def note(text: str) -> str:
            """Save a private note."""
            return f"noted: {text}"

        # Only tools that declare themselves read-only can be answered from the team's bank.
        reading = [StructuredTool.from_function(tool, metadata={"readOnlyHint": True}) for tool in (search, read, rate)]
        return [*reading, StructuredTool.from_function(note)]

    def _within(self, name: str) -> Path:
        path = (self._folder / name).resolve()
        # The path comes from the agent and must not leave the folder.
        if self._folder.resolve() not in path.parents or not path.is_file():
            raise ValueError(f"there is no {name!r} in the archive")
        return path


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


class Clerk:
    """A rule-based agent that answers an archive's question; `seed` determines its order and its distractions."""

    name = "clerk"
    reads: Literal["values", "text"] = "text"

    def __init__(self, seed: int, latency: Latency) -> None:
        self._seed, self._latency = seed, latency

    async def adecide(self, context: Context) -> Decision:
        """Wait for the thinking time and return the next call."""
        await asyncio.sleep(self._latency.think_s)
        return Decision(self.next_call(context.state.task or context.state.observation, context.history))

    def decide(self, context: Context) -> Decision:
        """Run `adecide` synchronously."""
        return asyncio.run(self.adecide(context))

    def next_call(self, task: str, history: Sequence[Step]) -> str:
        """Return the next call, which depends only on the seed and the arguments.

        Args:
            task: The question.
            history: The steps of the episode so far.
        """
        results = {step.action: step.post.feedback for step in history if step.diagnosis.success}
        # The generator is seeded anew for every call, so the decision depends only on the arguments and the seed.
        chance = random.Random(f"{self._seed} {task}")
        town = task.rpartition(" of ")[2].rstrip("?")
        search = f'search(words="{chance.choice(ASKS).format(town=town)}")'
        if search not in results:
            return search
        files = re.findall(r"[a-z]+", results[search].partition(":")[2])
        chance.shuffle(files)
        unread = [file for file in files if f'read(file="{file}")' not in results]
        if unread:
            return self._distraction(task, len(files) - len(unread), results) or f'read(file="{unread[0]}")'
        budgets = self._budgets(town, results)
        coins = sorted({coin for _, coin in budgets})
        chance.shuffle(coins)
        for coin in coins:
            if f'rate(coin="{coin}")' not in results:
                return f'rate(coin="{coin}")'
        rates = {coin: int(re.findall(r"\d+", results[f'rate(coin="{coin}")'])[0]) for coin in coins}
        return f'finish(answer="{sum(amount * rates[coin] for amount, coin in budgets)}")'

    def _distraction(self, task: str, n_read: int, results: dict[str, str]) -> str | None:
        """Return an irrelevant search or a note, or None for no distraction at this point."""
        chance = random.Random(f"{self._seed} {task} {n_read}")
        luck, number = chance.random(), chance.randrange(1000)
        whim = f'search(words="{chance.choice(FILLER).split()[chance.randrange(1, 3)]} {number}")'
        note = f'note(text="{n_read} of the files seen, check {number}")'
        action = whim if luck < WHIM else note if luck < WHIM + NOTE else None
        return None if action in results else action

    @staticmethod
    def _budgets(town: str, results: dict[str, str]) -> list[tuple[int, str]]:
        texts = [text for action, text in results.items() if action.startswith("read(")]
        matches = [re.search(rf"town {town}, budget (\d+) (\w+)", text) for text in texts]
        return [(int(match[1]), match[2]) for match in matches if match]
