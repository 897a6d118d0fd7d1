"""INSPO (arXiv:2512.01945)."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.memory.upkeep.text_files import read_text
from hardwon.trainers.algorithms.catalog import PARTS, import_named
from hardwon.trainers.algorithms.composers.base import Composer, ComposerParts, group_specs
from hardwon.trainers.algorithms.composers.spec import Spec
from hardwon.trainers.algorithms.samples import Rollout

MAX_CHARACTERS = 600
"""Longest instruction, in characters."""


@PARTS.add(
    "composer",
    "INSPO",
    "arXiv:2512.01945",
    evidence="N",
    name="instructions",
    method="inspo",
    reading="proposals come from your own class, and are taken in after checks of their form alone",
    unseen="the rule for weights: a moving mean of the outcomes of a text",
    example={"tasks.compose.instructions.file": "examples/methods/instructions.txt"},
)
class Instructions(Composer):
    """Draws one instruction of a population for every group, and lets outcomes move their weights (INSPO).

    arXiv:2512.01945. The probability of a text is softmax(w / temperature). All episodes of a group in one arm read the
    same text, and texts never share a baseline. Every `every` iterations, the text with the lowest weight is replaced
    by a proposal, if there is a proposer; it reads the newest failures.
    """

    acted = "told"

    def __init__(
        self,
        parts: ComposerParts,
        *,
        file: str = "",
        temperature: float = 0.2,
        decay: float = 0.9,
        every: int = 10,
        proposer: str = "",
    ) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            file: Text file with one instruction per line.
            temperature: Temperature of the draws.
            decay: Share of a weight that a new group leaves as it was.
            every: Iterations between two replacements.
            proposer: MODULE:CLASS with a method propose(failures, texts) -> str; empty for none.
        """
        super().__init__(parts)
        self._temperature, self._decay, self._every = temperature, decay, every
        self._texts = read_instructions(file) if file else ["look around first .", "do not go back ."]
        self._weights = [0.0] * len(self._texts)
        self._numbers = list(range(len(self._texts)))
        """Name of each text; a replaced text gets a new one."""
        self._failures: list[str] = []
        self._iterations = 0
        self._proposer: Callable[[Sequence[str], Sequence[str]], str] | None = None
        if proposer:
            self._proposer = _import_proposer(proposer)

    def list_probabilities(self) -> list[float]:
        """Return the probability of each text."""
        top = max(self._weights)
        shares = [math.exp((weight - top) / self._temperature) for weight in self._weights]
        return [share / sum(shares) for share in shares]

    def begin(self, specs: Sequence[Spec], iteration: int = 0) -> list[Spec]:
        """Return the episodes, those of a group with the same text."""
        episodes: list[Spec] = []
        for (group, arm), own in group_specs(specs).items():
            chance = random.Random(f"{self.parts.seed}/{own[0].salt}/{group}/{arm}")
            (at,) = chance.choices(range(len(self._texts)), self.list_probabilities())
            label = f"instruction {self._numbers[at]}"
            episodes += [replace(spec, note=self._texts[at], label=label) for spec in own]
            self.counts["told"] += len(own)
        return episodes

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Move the weights by the mean outcome of each text, and replace the worst one now and then."""
        outcomes: dict[str, list[float]] = {}
        for rollout in rollouts:
            if rollout.outcome is not None:
                outcomes.setdefault(rollout.label, []).append(rollout.outcome)
                if not rollout.outcome:
                    actions = " . ".join(step.action for step in rollout.trajectory.steps)
                    self._failures = [*self._failures, f"{rollout.trajectory.task} : {actions}"][-64:]
        for at, number in enumerate(self._numbers):
            if values := outcomes.get(f"instruction {number}"):
                self._weights[at] = self._decay * self._weights[at] + (1 - self._decay) * fmean(values)
        self._iterations += 1
        if self._proposer is not None and self._iterations % self._every == 0 and self._failures:
            self._replace_worst(self._proposer(self._failures, self._texts))

    def _replace_worst(self, text: str) -> None:
        """Put a new text in the place of the worst one, with the mean weight, unless its form is refused."""
        if not is_instruction(text) or text in self._texts:
            self.counts["refused"] += 1
            return
        worst = min(range(len(self._weights)), key=lambda at: (self._weights[at], at))
        self._texts[worst], self._weights[worst] = text, fmean(self._weights)
        self._numbers[worst] = max(self._numbers) + 1
        self.counts["replaced"] += 1

    def drain_metrics(self) -> dict[str, float]:
        """Return the counts, and the probability of the best text."""
        return {**super().drain_metrics(), "compose/best_probability": max(self.list_probabilities())}

    def state_dict(self) -> dict[str, Any]:
        """Return the population."""
        return {
            "texts": list(self._texts),
            "weights": list(self._weights),
            "numbers": list(self._numbers),
            "failures": list(self._failures),
            "iterations": self._iterations,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the population."""
        self._texts, self._weights = list(state["texts"]), [float(weight) for weight in state["weights"]]
        self._numbers, self._failures = [int(n) for n in state["numbers"]], list(state["failures"])
        self._iterations = int(state["iterations"])


def is_instruction(text: str) -> bool:
    """Return whether a text may be an instruction: one short line without the tags of a prompt."""
    return bool(text.strip()) and len(text) <= MAX_CHARACTERS and not set(text) & set("\n<>")


def read_instructions(file: str) -> list[str]:
    """Return the instructions of a file, one per line.

    Raises:
        ConfigError: The file cannot be read, has none, or a line is too long or contains tags.
    """
    try:
        texts = [line.strip() for line in read_text(file).splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"instructions of {file} cannot be read: {error}. Give a text file.") from error
    if wrong := [text for text in texts if not is_instruction(text)]:
        raise ConfigError(f"instruction {wrong[0][:60]!r} of {file} has tags or over {MAX_CHARACTERS} characters.")
    if not texts:
        raise ConfigError(f"{file} has no instruction; write one per line.")
    return list(dict.fromkeys(texts))


def _import_proposer(name: str) -> Callable[[Sequence[str], Sequence[str]], str]:
    propose: Callable[[Sequence[str], Sequence[str]], str] = import_named(name, "proposer")().propose
    return propose
