"""A library to measure on: seeded, of any size, with a few hundred kinds of situations.

Rooms with furniture, things and numbers: what one situation shows differs in names' numbers from
visit to visit, as in the text worlds, so that states are many and their signatures few.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory
from hardwon.memory.retrieval.embedders import Embedder, Vectors, open_embedder

EPISODE = 50
"""Steps of one recorded episode."""
TOGETHER = 100
"""Episodes recorded in one transaction."""
TELL_EVERY = 100_000
"""Steps after which progress is told."""
SITUATIONS = 400
ITEMS = 200

_NOUNS = (
    "kitchen pantry bathroom bedroom corridor cellar attic garage garden workshop library office laundry porch "
    "backyard lounge nursery studio shed hall",
    "drawer cupboard shelf cabinet fridge oven stove microwave dishwasher basket wardrobe bench counter table desk "
    "sofa bed sink bathtub trunk locker safe rack crate barrel toolbox bookcase dresser mantel stool",
    "apple knife plate mug spoon lettuce potato tomato egg bread pan kettle towel soap candle book pen newspaper "
    "pillow blanket vase statue watch keychain laptop remote creditcard cellphone box bottle lamp clock cloth sponge "
    "saltshaker peppershaker ladle spatula bowl fork hammer screwdriver rope lantern map coin",
)
_ROOMS, _FURNITURE, _THINGS = (nouns.split() for nouns in _NOUNS)
_STATES = ("open", "closed", "locked", "empty", "dirty", "clean", "hot", "switched on")
_VERBS = ("open", "close", "examine", "go to", "clean", "heat")


class CachedEmbedder:
    """An embedder that answers from memory for texts it has seen: takes embedding out of a measurement."""

    def __init__(self, inner: Embedder) -> None:
        self.name, self.dim, self.fingerprint = inner.name, inner.dim, inner.fingerprint
        self._inner = inner
        self._known: dict[str, Vectors] = {}

    def embed(self, texts: Sequence[str]) -> Vectors:
        """(n, dim) float32 unit rows; a single text is remembered."""
        if len(texts) != 1:
            return self._inner.embed(texts)
        known = self._known.get(texts[0])
        if known is None:
            known = self._known[texts[0]] = self._inner.embed(texts)
        return known


class Rooms:
    """Situations and their observations, the same for the same seed."""

    def __init__(self, seed: int = 0, situations: int = SITUATIONS) -> None:
        self.rng = random.Random(seed)
        self._shapes = [self._shape() for _ in range(situations)]

    def _shape(self) -> tuple[str, list[tuple[str, str]], list[str], list[str]]:
        """A room, its furniture with their states, what lies about, and where doors lead."""
        furniture = self.rng.sample(_FURNITURE, self.rng.randint(3, 7))
        placed = [(name, self.rng.choice(_STATES)) for name in furniture]
        return (
            self.rng.choice(_ROOMS),
            placed,
            self.rng.sample(_THINGS, self.rng.randint(2, 6)),
            self.rng.sample(_ROOMS, 2),
        )

    def state(self) -> State:
        """A state of one of the situations, with numbers of its own."""
        return self._told(*self.rng.choice(self._shapes))

    def unknown(self) -> State:
        """A state of a situation that is none of those."""
        return self._told(*self._shape())

    def _told(self, room: str, furniture: list[tuple[str, str]], things: list[str], doors: list[str]) -> State:
        seen = ". ".join(f"The {name} {self._number()} is {state}" for name, state in furniture)
        lying = ", ".join(f"a {thing} {self._number()}" for thing in things)
        observation = (
            f"You are in the {room}. {seen}. On the {furniture[0][0]} {self._number()} you see {lying}. "
            f"A door leads to the {doors[0]}, another to the {doors[1]}."
        )
        return State(observation, location=room, task=f"put a clean {things[0]} on the {furniture[0][0]}")

    def _number(self) -> int:
        return self.rng.randint(1, 99)

    def action(self, state: State) -> str:
        """Something to do there."""
        words = state.observation.replace(".", "").split()
        return f"{self.rng.choice(_VERBS)} {self.rng.choice([word for word in words if word in _FURNITURE])}"

    def episodes(self, steps: int, keys: Callable[[State, str], tuple[str, ...]]) -> Iterator[Trajectory]:
        """Episodes of EPISODE steps each, `steps` in all."""
        for number in range(-(-steps // EPISODE)):
            length = min(EPISODE, steps - number * EPISODE)
            states = [self.state() for _ in range(length + 1)]
            taken = []
            for t in range(length):
                action = self.action(states[t])
                failed = self.rng.random() < 0.2
                reward = 1.0 if t == length - 1 else 0.0
                failure = Failure.NO_EFFECT if failed else Failure.NONE
                judged = Diagnosis(not failed, failure, self.rng.random())
                taken.append(Step(states[t], action, states[t + 1], judged, reward, t, keys(states[t], action)))
            yield Trajectory(states[0].task, tuple(taken), bool(number % 2), 1.0, "retrieved", number, "success")

    def items(self, count: int = ITEMS) -> list[Item]:
        """Advice on things and furniture."""
        return [
            Item(
                "insight",
                f"a {self.rng.choice(_THINGS)} in the {self.rng.choice(_ROOMS)} is found near the "
                f"{self.rng.choice(_FURNITURE)} {number}",
                f"Look behind the {self.rng.choice(_FURNITURE)} when it is {self.rng.choice(_STATES)}.",
            )
            for number in range(count)
        ]


def build(
    path: Path,
    steps: int,
    seed: int = 0,
    tell: Callable[[str], None] = lambda words: None,
    *,
    embedded: bool = True,
) -> tuple[ExperienceLibrary, Rooms, CachedEmbedder]:
    """A new library of so many steps and its items, embedded or not, through the public calls alone."""
    rooms, embedder = Rooms(seed), CachedEmbedder(open_embedder())
    library = ExperienceLibrary.open(path, embedder=embedder)
    episodes = rooms.episodes(steps, library.keys)
    told = recorded = 0
    while group := list(islice(episodes, TOGETHER)):
        library.record_many(group)
        recorded += sum(len(episode.steps) for episode in group)
        if recorded - told >= TELL_EVERY:
            tell(f"  {recorded:,} of {steps:,} steps recorded")
            told = recorded
    if embedded:
        library.add_many(rooms.items())
        tell("  embedding ...")
        library.index()
    return library, rooms, embedder
