"""A look at the verdicts of a base that has not been trained: does it obey, and does the text matter?

A small base puts little probability on the two words that a role asks for, or answers the same whatever it reads. Both
can be trained, but a run should say so before it begins. Each question is asked about texts whose right answers differ.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from hardwon.trainers.algorithms.samples import Ids, PackedSequence
from hardwon.trainers.engines.base import Engine
from hardwon.trainers.prompting.base import PromptFormat, Purpose, Query

from .tuning import TUNING

PURPOSES: Mapping[str, Purpose] = {"guide": "guide", "admission": "share"}
"""The question of each deciding role, by its name."""
_TASK = "Put the things where they belong."
_SCENE = "You are in the kitchen. You see a fridge, a drawer and a milk carton."
_PROBES: Mapping[Purpose, Sequence[Mapping[str, str | Sequence[str]]]] = {
    "guide": [
        {"task": _TASK, "observation": _SCENE, "recalled": ["- put milk in fridge: rewarded"]},
        {"task": _TASK, "observation": _SCENE, "recalled": ["- fly to the moon: failed (not understood)"]},
        {"task": _TASK, "observation": _SCENE, "recalled": ["- put socks in wardrobe: rewarded"]},
    ],
    "share": [
        {"task": _TASK, "keys": [], "observation": "open fridge -> the fridge is full\nThe fridge is full."},
        {"task": _TASK, "keys": ["wait -> nothing"], "observation": "wait -> nothing\nTime passes."},
        {"task": _TASK, "keys": ["open drawer -> forks"], "observation": "open drawer -> forks\nForks."},
    ],
}
"""For each question, texts whose right answers differ."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a role answers its probes."""

    mass: float
    """Mean probability of the two words together, among all tokens."""
    yes: tuple[float, ...]
    """P(yes) among the two words, for each probe."""

    @property
    def spread(self) -> float:
        """Return the range of P(yes) over the probes."""
        return max(self.yes) - min(self.yes)

    def explain(self, role: str) -> str | None:
        """Return a warning in words, or None if the base obeys and the text matters."""
        problems = []
        if self.mass < TUNING.min_mass:
            problems.append(f"puts {self.mass:.1%} of its probability on the two words of its question")
        if self.spread < TUNING.min_range:
            answers = ", ".join(f"{p:.2f}" for p in self.yes)
            problems.append(f"answers nearly the same whatever it reads (P(yes) is {answers})")
        if not problems:
            return None
        return (
            f"WARNING: the untrained base {' and '.join(problems)} as {role}. Its first verdicts are close to chance; "
            f"train roles.{role} for 30 updates or more with a learning rate of 1e-4 to 2e-4 before you rely on them."
        )


async def look(engine: Engine, prompts: PromptFormat, role: str) -> Look:
    """Ask a role its probes, and return the probabilities of its verdicts."""
    purpose = PURPOSES[role]
    verdicts = prompts.verdicts(purpose)
    queries = [prompts.query(Query(purpose, sections)) for sections in _PROBES[purpose]]
    sequences = [_end_with(ids, word[0], role) for ids in queries for word in (verdicts.yes, verdicts.no)]
    logprobs = [values[-1] for values in await engine.logprobs(sequences, role)]
    pairs = [(math.exp(yes), math.exp(no)) for yes, no in zip(logprobs[::2], logprobs[1::2], strict=True)]
    return Look(fmean(yes + no for yes, no in pairs), tuple(yes / max(yes + no, 1e-30) for yes, no in pairs))


def _end_with(prompt: Ids, token: int, role: str) -> PackedSequence:
    """Return a prompt with one more token, whose log-probability among all tokens is asked for."""
    n = len(prompt)
    mask, zeros = (*(False,) * n, True), (0.0,) * (n + 1)
    return PackedSequence((*prompt, token), mask, zeros, zeros, (None,) * (n + 1), role, "look", 0)
