"""Two small worlds with one hidden rule: which way a sign means. A tiny model learns it within minutes.

    environment = Forks()             # reward at the end alone
    environment = PaidForks()         # a reward at every right choice

A path has four forks, each with one of 16 signs. The same sign means the same way in every task. In `Forks`, a wrong
way is a dead end from which one must come back, and the steps suffice for two of them. In `PaidForks` there is no way
back: each choice is right or wrong, a right one is paid at once, and the task is solved if all four are right.

In the split `start`, six of the signs mean another way in every task. Who imitates it knows ten signs of 16: there is
room above and below.
"""

import random
from typing import Self

from hardwon.memory import State
from hardwon.runtime.interfaces.types import Info

FORKS = 4
WAYS = ("go ahead", "go left", "go right")
BACK = "turn around"
SIGNS = (
    "anchor", "arrow", "bell", "crown", "feather", "fish", "flame", "hammer",
    "heron", "key", "leaf", "lion", "moon", "rose", "star", "wheel",
)  # fmt: skip
WORN = frozenset(SIGNS[::3])
"""Signs that the split `start` does not teach."""
MEANING: dict[str, str] = dict(zip(SIGNS, random.Random("forks").choices(WAYS, k=len(SIGNS)), strict=True))


class Forks:
    """The seed draws the signs of a path; apart from `start`, the splits are alike."""

    name = "forks"
    pays, turns_back = False, True

    def __init__(self) -> None:
        self._signs: list[str] = []
        self._ways: list[str] = []
        self._at = self._right = 0
        self._is_astray = False

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin at the first fork of a path."""
        chance = random.Random(f"forks {seed}")
        self._signs = chance.sample(SIGNS, FORKS)
        worn = WORN if task == "start" else frozenset()
        self._ways = [chance.choice(WAYS) if sign in worn else MEANING[sign] for sign in self._signs]
        self._at, self._right, self._is_astray = 0, 0, False
        return self._describe()

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Take a way, or come back from a dead end."""
        if self._is_astray:
            self._is_astray = action != BACK
            return self._describe(), 0.0, False, Info(success=False, score=0.0)
        is_right = action == self._ways[self._at]
        self._is_astray = self.turns_back and not is_right
        self._at += not self._is_astray
        self._right += is_right
        is_over, is_solved = self._at == FORKS, self._right == FORKS
        paid = is_right / FORKS if self.pays else float(is_solved)
        score = self._right / FORKS if self.pays else float(is_solved)
        return self._describe(), paid, is_over, Info(success=is_solved, lost=is_over and not is_solved, score=score)

    def admissible(self, state: State) -> list[str]:
        """Return the ways, or the one that leads back."""
        return [BACK] if self._is_astray else list(WAYS)

    def clone(self) -> Self:
        """Return a new world of the same kind."""
        return type(self)()

    def close(self) -> None:
        """Release nothing."""

    def _describe(self) -> State:
        if self._at == FORKS:
            text = "The path ends here."
        elif self._is_astray:
            text = "A wall blocks this way."
        else:
            text = f"A sign shows the {self._signs[self._at]}."
        return State(text, location="road", task="reach the end")


class PaidForks(Forks):
    """The same signs, without a way back and with a reward at every right choice."""

    name = "paid-forks"
    pays, turns_back = True, False
