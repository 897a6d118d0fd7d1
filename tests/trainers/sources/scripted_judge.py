"""Judges of tests: answers by a script in place of a model."""

from typing import Any

from hardwon.trainers.sources.judge import Assessment

ASKS: list[Any] = []


class Judge:
    """Says that turns with `bad` are wrong, and scores an episode by its number of turns."""

    async def assess(self, asks):
        ASKS.extend(asks)
        return [self.answer(ask) for ask in asks]

    def answer(self, ask):
        if ask.kind == "steps":
            return Assessment(steps=tuple(float("bad" not in turn) for turn in ask.turns))
        if ask.kind == "thoughts":
            return Assessment(steps=tuple(float("again" in turn) for turn in ask.turns))
        if ask.kind == "pair":
            return Assessment(pair=(float(len(ask.turns)), float(len(ask.other))))
        if ask.kind == "items":
            return Assessment(items=dict.fromkeys(ask.items, len(ask.turns) > 1))
        return Assessment(score=len(ask.turns) / 4)


class Mute:
    """Says nothing that can be read."""

    async def assess(self, asks):
        return [None for _ in asks]
