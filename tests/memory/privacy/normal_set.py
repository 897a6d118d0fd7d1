"""Lines without any secret: prose, games, code, logs and results of tools that redaction must leave alone."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

from .secrets_set import HEX, Half, text, uuid

THINGS = ("mug", "key", "token", "secret note", "brass key", "pass card", "potato", "lamp", "map", "coin")
PLACES = ("drawer 3", "sinkbasin 1", "cabinet 12", "the cellar", "room 101", "shelf 2", "the vault", "bed 1")


def _generated(half: Half) -> Iterator[str]:
    """Yield lines of games, logs and tools with other names and numbers each."""
    for number in range(10):
        chance = Random(f"{half} {number}")
        thing, place = chance.choice(THINGS), chance.choice(PLACES)
        n = chance.randrange
        yield f"You put the {thing} in {place}. It is {chance.choice(('closed', 'open', 'locked'))}."
        yield f"put {thing} in/on {place} | tried {n(3)} to new | 1:T,inventory 2:T | 1: key; 2: -"
        job = n(10**9)
        yield f"2024-{n(1, 12):02d}-{n(1, 28):02d}T12:{n(60):02d}:07Z INFO worker-{n(9)} took {n(999)} ms for job {job}"
        yield f'{{"order_id": "#W{n(10**6, 10**7)}", "amount": {n(10**5) / 100}, "zip": "{n(10**4, 10**5)}"}}'
        yield f"{n(256)}.{n(256)}.{n(256)}.{n(256)} - - GET /v1/items/{n(999)}?page={n(9)} 200 {n(9999)}"
        yield f"get_user(user_id='{chance.choice(('mia_li', 'bo_ng'))}_{n(1000, 9999)}', key='{thing}')"
        yield f"id {uuid(chance)} of {thing}, trace {text(chance, 32, HEX)}"
        yield f"epoch {n(99)}: loss={n(999) / 100}, tokens/s={n(9999)}, key={thing.split()[0]}"
        yield f"the {thing} in {place} opens door {n(9)}; pass through it {n(2, 9)} times"


def normal(half: Half) -> list[str]:
    """Return the lines of one half."""
    return [*read_lines(f"normal_{half.replace('-', '_')}.txt"), *_generated(half)]


def read_lines(name: str) -> list[str]:
    """Return the lines of a file beside this module."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
