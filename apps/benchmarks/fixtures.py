"""Build seeded synthetic libraries of any size for benchmarks.

A situation is a room with furniture and objects. Each visit to a situation draws new numbers for the names in its
observation, as text worlds do. A library therefore has many distinct states but only a few hundred signatures.
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
"""Episodes per transaction."""
TELL_EVERY = 100_000
"""Steps between two lines of progress."""
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
    """An embedder that caches single texts, to keep embedding time out of a measurement."""

    def __init__(self, inner: Embedder) -> None:
        self.name, self.dim, self.fingerprint = inner.name, inner.dim, inner.fingerprint
        self._inner = inner
        self._vectors: dict[str, Vectors] = {}

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the unit vectors of texts, and cache the vector of a call with a single text.

        Args:
            texts: n texts.

        Returns:
            A float32 array of shape (n, dim).
        """
        # Libraries embed in batches only to build an index. Queries come one at a time, and only they are timed.
        if len(texts) != 1:
            return self._inner.embed(texts)
        vectors = self._vectors.get(texts[0])
        if vectors is None:
            vectors = self._vectors[texts[0]] = self._inner.embed(texts)
        return vectors


class Rooms:
    """A random generator of states, actions, episodes and items; the same seed gives the same sequence."""

    def __init__(self, seed: int = 0, situations: int = SITUATIONS) -> None:
        self.rng = random.Random(seed)
        self._layouts = [self._draw_layout() for _ in range(situations)]

    def _draw_layout(self) -> tuple[str, list[tuple[str, str]], list[str], list[str]]:
        """Draw a room, its furniture with their states, the objects in it, and the rooms behind its doors."""
        furniture = self.rng.sample(_FURNITURE, self.rng.randint(3, 7))
        placed = [(name, self.rng.choice(_STATES)) for name in furniture]
        return (
            self.rng.choice(_ROOMS),
            placed,
            self.rng.sample(_THINGS, self.rng.randint(2, 6)),
            self.rng.sample(_ROOMS, 2),
        )

    def draw_state(self) -> State:
        """Return a state of one of the fixed situations, with new numbers."""
        return self._build_state(*self.rng.choice(self._layouts))

    def draw_new_state(self) -> State:
        """Return a state of a situation outside the fixed set."""
        return self._build_state(*self._draw_layout())

    def _build_state(self, room: str, furniture: list[tuple[str, str]], things: list[str], doors: list[str]) -> State:
        """Return the state of a layout, with new numbers in its observation."""
        furnished = ". ".join(f"The {name} {self._draw_number()} is {state}" for name, state in furniture)
        objects = ", ".join(f"a {thing} {self._draw_number()}" for thing in things)
        observation = (
            f"You are in the {room}. {furnished}. On the {furniture[0][0]} {self._draw_number()} you see {objects}. "
            f"A door leads to the {doors[0]}, another to the {doors[1]}."
        )
        return State(observation, location=room, task=f"put a clean {things[0]} on the {furniture[0][0]}")

    def _draw_number(self) -> int:
        return self.rng.randint(1, 99)

    def draw_action(self, state: State) -> str:
        """Return an action on a piece of furniture that the state mentions."""
        words = state.observation.replace(".", "").split()
        return f"{self.rng.choice(_VERBS)} {self.rng.choice([word for word in words if word in _FURNITURE])}"

    def generate_episodes(self, steps: int, keys: Callable[[State, str], tuple[str, ...]]) -> Iterator[Trajectory]:
        """Yield episodes of `EPISODE` steps; the last one may be shorter.

        Args:
            steps: total number of steps.
            keys: function that returns the keys of an action in a state.
        """
        for number in range(-(-steps // EPISODE)):
            length = min(EPISODE, steps - number * EPISODE)
            states = [self.draw_state() for _ in range(length + 1)]
            done = []
            for t in range(length):
                action = self.draw_action(states[t])
                failed = self.rng.random() < 0.2
                reward = 1.0 if t == length - 1 else 0.0
                failure = Failure.NO_EFFECT if failed else Failure.NONE
                diagnosis = Diagnosis(not failed, failure, self.rng.random())
                done.append(Step(states[t], action, states[t + 1], diagnosis, reward, t, keys(states[t], action)))
            yield Trajectory(states[0].task, tuple(done), bool(number % 2), 1.0, "retrieved", number, "success")

    def generate_items(self, count: int = ITEMS) -> list[Item]:
        """Return `count` insights about objects and furniture."""
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
    """Create a library with recorded episodes and, on request, items and vectors, through the public API only.

    Args:
        path: file of the new library.
        steps: number of steps to record.
        seed: seed of the generated states.
        tell: function that receives lines of progress.
        embedded: whether to add items and to embed the states and items.

    Returns:
        The open library, the generator that filled it, and the library's embedder.
    """
    rooms, embedder = Rooms(seed), CachedEmbedder(open_embedder())
    library = ExperienceLibrary.open(path, embedder=embedder)
    episodes = rooms.generate_episodes(steps, library.episodes.keys)
    reported = recorded = 0
    while group := list(islice(episodes, TOGETHER)):
        library.record_many(group)
        recorded += sum(len(episode.steps) for episode in group)
        if recorded - reported >= TELL_EVERY:
            tell(f"  {recorded:,} of {steps:,} steps recorded")
            reported = recorded
    if embedded:
        library.items.add_many(rooms.generate_items())
        tell("  embedding ...")
        library.admin.index()
    return library, rooms, embedder
