"""Answers of the model that is trained, to questions with a few possible answers: the judges `policy` and `base`.

    answers = LocalAnswers(parts, frozen=True)
    shares = answers.weigh(["The episode is solved. yes or no ?"], ("yes", "no"))

The probability of an answer is that of its tokens, relative to the other possible answers, so every answer can be read
and none depends on chance. A model that is no better than the policy judges no better than it acts: compare the shares
`signal/NAME/...` with the outcomes before you trust it.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.logprobs import compute_logprobs
from hardwon.trainers.algorithms.samples import Ids, PackedSequence
from hardwon.trainers.models.adapters import activate, has_adapters
from hardwon.trainers.prompting.base import PromptFormat
from hardwon.trainers.prompting.chat import ChatFormat

from .base import SourceParts
from .judge import Ask, Assessment, build_question

RIGHT, YES = ("right", "wrong"), ("yes", "no")
DIGITS = tuple("0123456789")
WORDS = " ".join((*RIGHT, *YES, *DIGITS, "solved", "failed", "progress", "better", "episode"))
"""Every word of an answer, and those of questions; the vocabulary of a word tokenizer must have them."""


class LocalAnswers:
    """Weighs the possible answers to questions with the policy's model, or with the base that it began as."""

    def __init__(self, parts: SourceParts, *, frozen: bool = False) -> None:
        """Prepare the model."""
        self._parts, self._frozen = parts, frozen
        self._copy: Any = None
        if frozen and not has_adapters(parts.model):
            self._copy = copy.deepcopy(parts.model).requires_grad_(False).eval()

    def weigh(self, questions: Sequence[str], options: Sequence[str]) -> list[list[float]]:
        """Return the probability of every option for each question; they sum to 1."""
        prompts = self._parts.prompts
        answers = [prompts.text(option)[:-1] for option in options]
        if len({*answers}) < len(answers) or not all(answers):
            raise ConfigError(
                f"the tokenizer does not tell {', '.join(options)} apart, so the model cannot judge with these words; "
                "name another judge, chat:PROVIDER:MODEL or MODULE:CLASS."
            )
        encoded = [encode_question(prompts, question) for question in questions]
        rows = [_to_row(f"{n}/{m}", encoded[n], answers[m]) for n in range(len(encoded)) for m in range(len(answers))]
        model = self._parts.model if self._copy is None else self._copy
        if self._copy is None:
            activate(model, "policy")
        with self._open(model):
            values = [float(value.sum()) for value in compute_logprobs(model, rows, budget=self._parts.budget)]
        sums = torch.tensor(values, dtype=torch.float64).reshape(len(encoded), len(answers))
        shares: list[list[float]] = sums.softmax(-1).tolist()
        return shares

    def _open(self, model: Any) -> AbstractContextManager[Any]:
        is_bare = self._frozen and self._copy is None
        return model.disable_adapter() if is_bare else nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of the copy of the base; empty without one."""
        return {} if self._copy is None else dict(self._copy.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the weights of the copy of the base: a resumed run opens with the trained ones."""
        if self._copy is not None and state:
            self._copy.load_state_dict(state)


def encode_question(prompts: PromptFormat, text: str) -> Ids:
    """Return the tokens of a question in words, up to its answer."""
    if isinstance(prompts, ChatFormat):
        return prompts.template.open("", text)
    mark = prompts.tokenizer("<item>", add_special_tokens=False).input_ids
    words = prompts.tokenizer(text.replace("<", " ").replace(">", " "), add_special_tokens=False).input_ids
    return (*words, *mark)


def _to_row(trace: str, prompt: Ids, answer: Ids) -> PackedSequence:
    """Return an answer behind its question as a sequence whose answer is scored."""
    n, m = len(prompt), len(answer)
    zeros = (0.0,) * (n + m)
    mask = (False,) * n + (True,) * m
    return PackedSequence(prompt + answer, mask, zeros, zeros, (None,) * (n + m), "policy", trace, 0)


class LocalJudge:
    """A judge that is the trained policy, or the base that it began as."""

    def __init__(self, answers: LocalAnswers) -> None:
        self._answers = answers

    async def assess(self, asks: Sequence[Ask]) -> Sequence[Assessment | None]:
        """Return one answer per question: the most probable word, or the expected number of a score."""
        return [self._assess(ask) for ask in asks]

    def _assess(self, ask: Ask) -> Assessment | None:
        if ask.kind in ("steps", "thoughts"):
            options = RIGHT if ask.kind == "steps" else YES
            end = f"\nOnly the last turn. {' or '.join(options)} ?"
            parts = [replace(ask, turns=ask.turns[: t + 1]) for t in range(len(ask.turns))]
            questions = [build_question(part) + end for part in parts]
            shares = self._answers.weigh(questions, options) if questions else []
            return Assessment(steps=tuple(float(good > bad) for good, bad in shares))
        if ask.kind == "items":
            questions = [f"{build_question(replace(ask, items=(item,)))}\nyes or no ?" for item in ask.items]
            shares = self._answers.weigh(questions, YES) if questions else []
            return Assessment(items={item: yes > no for item, (yes, no) in zip(ask.items, shares, strict=True)})
        if ask.kind == "verdict":
            ((yes, no),) = self._answers.weigh([f"{build_question(ask)}\nyes or no ?"], YES)
            return Assessment(score=float(yes > no))
        if ask.kind == "pair":
            texts = [replace(ask, kind="score", turns=turns, other=()) for turns in (ask.turns, ask.other)]
            a, b = (expect(own) for own in self._answers.weigh([build_question(text) for text in texts], DIGITS))
            return Assessment(pair=(10 * a, 10 * b))
        levels = DIGITS[1:6]
        (own,) = self._answers.weigh([build_question(ask)], levels)
        return Assessment(score=expect(own))


def expect(shares: Sequence[float]) -> float:
    """Return the expected place among ordered options, from 0 for the first to 1 for the last."""
    return sum(share * n for n, share in enumerate(shares)) / max(1, len(shares) - 1)
