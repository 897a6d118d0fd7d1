"""A judge by rules, for the configurations in this folder: it reads the lines of the steps and needs no model.

It shows the interface. For a judge that reads meaning, set `judge: chat:PROVIDER:MODEL` in the configuration.
"""

import re
from collections.abc import Sequence

from hardwon.trainers.sources.judge import Ask, Assessment

_BAD = re.compile(r"fail|refus|invalid|nothing happens|cannot|can't", re.IGNORECASE)
_GOOD = re.compile(r"reward|solved|taken|you take", re.IGNORECASE)


class RuleJudge:
    """Counts the turns of an episode that the environment refused or rewarded."""

    async def assess(self, asks: Sequence[Ask]) -> Sequence[Assessment | None]:
        """Return one answer per question."""
        return [self._answer(ask) for ask in asks]

    def _answer(self, ask: Ask) -> Assessment:
        if ask.kind == "steps":
            seen = [ask.turns[:t].count(turn) for t, turn in enumerate(ask.turns)]
            return Assessment(
                steps=tuple(float(not _BAD.search(t) and not n) for t, n in zip(ask.turns, seen, strict=True))
            )
        if ask.kind == "thoughts":
            words = [{*re.findall(r"\w+", turn.lower())} for turn in ask.turns]
            earlier = [set[str]().union(*words[:t]) for t in range(len(words))]
            spoken = [{*re.findall(r"\w+", turn.lower().partition(" | ")[0])} - {"thought"} for turn in ask.turns]
            return Assessment(steps=tuple(float(bool(a & b)) for a, b in zip(spoken, earlier, strict=True)))
        if ask.kind == "pair":
            return Assessment(pair=(self._score(ask.turns), self._score(ask.other)))
        if ask.kind == "items":
            text = "\n".join(ask.turns).lower()
            return Assessment(items={item: item.lower() in text for item in ask.items})
        return Assessment(score=self._score(ask.turns))

    def _score(self, turns: Sequence[str]) -> float:
        """Return a score in [0, 1]: one for a rewarded end, less for every refused or repeated turn."""
        wasted = sum(bool(_BAD.search(turn)) for turn in turns) + len(turns) - len({*turns})
        reached = 0.5 if turns and _GOOD.search(turns[-1]) else 0.0
        return max(0.0, reached + 0.5 - 0.1 * wasted)
