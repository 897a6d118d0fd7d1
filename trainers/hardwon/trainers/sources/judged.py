"""Sources that ask a judge: labels of turns, scores, verdicts, qualities, checklists, and ranks of a tournament."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from hardwon.memory import Step
from hardwon.memory.errors import ConfigError
from hardwon.memory.upkeep.text_files import read_text
from hardwon.runtime.llm.prompts import step_line
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.judging.checklists import ChecklistItem, check_items
from hardwon.trainers.algorithms.judging.tournament import rank_by_tournament
from hardwon.trainers.algorithms.judging.verdicts import compare_verdicts
from hardwon.trainers.algorithms.samples import Rollout, to_trace
from hardwon.trainers.algorithms.signals import Signals

from .base import SourceParts, Untrained, list_turns
from .judge import Ask, AskKind, Assessment, Rule, open_judge, vote
from .local_judge import LocalAnswers, LocalJudge


class JudgedSource(Untrained):
    """The part that all sources with a judge share: the questions, and counts of calls and of unreadable answers."""

    def __init__(self, parts: SourceParts, *, judge: str) -> None:
        """Create the source.

        Args:
            parts: Its objects.
            judge: policy, base (the model before training), chat:PROVIDER:MODEL, or MODULE:CLASS of your judge.
        """
        super().__init__(parts)
        self._answers: LocalAnswers | None = None
        local = {"policy": lambda: self._open_local(frozen=False), "base": lambda: self._open_local(frozen=True)}
        self._judge = open_judge(judge, local)
        self.spent: dict[str, float] = {}
        self.rates: dict[str, float] = {}

    def _open_local(self, *, frozen: bool) -> LocalJudge:
        """Return the judge that is the run's own model."""
        self._answers = LocalAnswers(self._parts, frozen=frozen)
        return LocalJudge(self._answers)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a judge that is the run's own model; that of others is empty."""
        return {} if self._answers is None else self._answers.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a judge that is the run's own model."""
        if self._answers is not None:
            self._answers.load_state_dict(state)

    def _ask(self, kind: AskKind, rollout: Rollout, **fields: Any) -> Ask:
        """Return a question about an episode."""
        steps = rollout.trajectory.steps
        turns = tuple(step_line(steps[turn]) for turn in list_turns(rollout))
        task = steps[0].pre.task if steps else rollout.trajectory.task
        return Ask(kind, task, turns, **fields)

    async def _assess(self, asks: Sequence[Ask]) -> Sequence[Assessment | None]:
        """Ask the judge, and count the calls."""
        answers = await self._judge.assess(asks) if asks else []
        unread = sum(answer is None for answer in answers)
        self.spent = {
            "calls": self.spent.get("calls", 0.0) + len(asks),
            "unread": self.spent.get("unread", 0.0) + unread,
        }
        return answers


@PARTS.add("source", "Labels of turns by a judge", gives=("steps",), name="steps", method="capo")
class StepsSource(JudgedSource):
    """Whether each turn is right, by the votes of a judge's critiques."""

    def __init__(self, parts: SourceParts, *, judge: str, votes: int = 4, rule: Rule = "intersection") -> None:
        """Create the source.

        Args:
            parts: Its objects.
            judge: See `JudgedSource`.
            votes: Critiques per episode.
            rule: When a turn is wrong: if all critiques say so (for small judges), at least half, or one.
        """
        super().__init__(parts, judge=judge)
        self._votes: int = votes
        self._rule: Rule = rule

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the label of every turn; None where no critique could be read."""
        self.spent = {}
        rollouts = [rollout for group in groups for rollout in group]
        votes = self._votes
        asks = [self._ask("steps", rollout, number=number) for rollout in rollouts for number in range(votes)]
        answers = await self._assess(asks)
        signals: dict[str, Signals] = {}
        for at, rollout in enumerate(rollouts):
            number = len(list_turns(rollout))
            critiques = [answer for answer in answers[at * votes : (at + 1) * votes] if answer is not None]
            own = [critique.steps for critique in critiques if len(critique.steps) == number]
            labels = vote(own, self._rule) if own else (None,) * number
            signals[rollout.trajectory.id] = Signals({"steps": labels})
        traces = [to_trace(replace(rollout, signals=signals[rollout.trajectory.id])) for rollout in rollouts]
        self.rates = compare_verdicts(traces)
        return signals


@PARTS.add("source", "Use of earlier turns by a judge (HAR)", gives=("lookback",), name="lookback", method="har-judge")
class LookbackSource(JudgedSource):
    """Share of the turns after the first whose thought uses what earlier turns showed, by a judge; it needs speech.

    The thought is what the policy says before its action. A turn without one, or without a readable answer, counts in
    no mean, and an episode without any such turn has no share.
    """

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return whether each thought looks back, and the share of those that do."""
        self.spent = {}
        rollouts = [rollout for group in groups for rollout in group]
        thoughts = [
            [_read_thought(rollout.trajectory.steps[turn]) for turn in list_turns(rollout)] for rollout in rollouts
        ]
        asks = [
            self._ask_thoughts(rollout, own) for rollout, own in zip(rollouts, thoughts, strict=True) if any(own[1:])
        ]
        answers = iter(await self._assess(asks))
        signals = {}
        for rollout, own in zip(rollouts, thoughts, strict=True):
            answer = next(answers) if any(own[1:]) else None
            marks = answer.steps if answer is not None and len(answer.steps) == len(own) else (None,) * len(own)
            # nothing was shown before the first turn
            values = tuple(mark if t and text else None for t, (mark, text) in enumerate(zip(marks, own, strict=True)))
            counted = [value for value in values if value is not None]
            share = {"lookback": fmean(counted)} if counted else {}
            signals[rollout.trajectory.id] = Signals({"lookback": values}, share)
        return signals

    def _ask_thoughts(self, rollout: Rollout, thoughts: Sequence[str]) -> Ask:
        """Return the question about the thoughts of an episode."""
        whole = self._ask("thoughts", rollout)
        lines = zip(thoughts, whole.turns, strict=True)
        return replace(whole, turns=tuple(f"thought: {thought or 'none'} | {line}" for thought, line in lines))


def _read_thought(step: Step) -> str:
    """Return what the policy said before its action: a thought, a prediction or a tag; empty if nothing."""
    extra = step.why.extra
    return next((str(extra[name]) for name in ("thought", "prediction", "tag") if extra.get(name)), "")


@PARTS.add("source", "Scores by a judge", gives=("score", "quality"), name="score", method="exprl")
class ScoreSource(JudgedSource):
    """Score of every prefix of an episode by a judge, and that of the whole as quality."""

    def __init__(self, parts: SourceParts, *, judge: str, reference: Literal["own", "another", "none"] = "own") -> None:
        """Create the source.

        Args:
            parts: Its objects.
            judge: See `JudgedSource`.
            reference: What the judge sees and the policy never does: own is an explored success of the
                task instance, and another that of the next one, with which the judge must be wrong more often.
        """
        super().__init__(parts, judge=judge)
        self._reference = reference

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the score of every prefix, and of the whole as quality. Unread prefixes are None."""
        self.spent = {}
        rollouts = [rollout for group in groups for rollout in group]
        asks: list[Ask] = []
        for rollout in rollouts:
            whole = self._ask("score", rollout, hidden=self._find_reference(rollout))
            asks += [replace(whole, turns=whole.turns[: t + 1]) for t in range(len(whole.turns))]
        answers = iter(await self._assess(asks))
        signals = {}
        for rollout in rollouts:
            scores = tuple(
                None if (assessment := next(answers)) is None else assessment.score for _ in list_turns(rollout)
            )
            whole_score = scores[-1] if scores else None
            # an unreadable quality counts as 0, as a wrong one does
            signals[rollout.trajectory.id] = Signals({"score": scores}, {"quality": whole_score or 0.0})
        return signals

    def _find_reference(self, rollout: Rollout) -> str:
        """Return the path of an explored success, of the same task instance unless the settings say another."""
        shift = int(self._reference == "another")
        best = self._parts.find_reference(rollout, shift) if self._reference != "none" else None
        return "" if best is None else "\n".join(step_line(step) for step in best.steps)


@PARTS.add("source", "Verdict of a judge", gives=("verdict",), name="verdict", method="spark-augmented")
class VerdictSource(JudgedSource):
    """Whether an episode solved its task, by a judge."""

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the verdict of every episode; an unreadable one is 0."""
        self.spent = {}
        rollouts = [rollout for group in groups for rollout in group]
        answers = await self._assess([self._ask("verdict", rollout) for rollout in rollouts])
        return {
            rollout.trajectory.id: Signals(trace={"verdict": (answer.score or 0.0) if answer else 0.0})
            for rollout, answer in zip(rollouts, answers, strict=True)
        }


@PARTS.add("source", "Checklist by a judge", gives=("items",), name="items", method="checklist")
class ItemsSource(JudgedSource):
    """Which items of a task's checklist are satisfied after every turn, by a judge."""

    def __init__(self, parts: SourceParts, *, judge: str, file: str) -> None:
        """Create the source.

        Args:
            parts: Its objects.
            judge: See `JudgedSource`.
            file: JSON file with lists of items by the text of the task; `*` stands for all other tasks.
        """
        super().__init__(parts, judge=judge)
        self._lists = read_checklists(Path(file))

    def _find_items(self, task: str) -> tuple[ChecklistItem, ...]:
        """Return the checklist of a task, or that of all other tasks."""
        return self._lists.get(task, self._lists.get("*", ()))

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return when each item was satisfied; a task without a checklist has none."""
        self.spent = {}
        rollouts = [rollout for group in groups for rollout in group]
        asks: list[Ask] = []
        for rollout in rollouts:
            whole = self._ask("items", rollout)
            questions = tuple(item.question or item.name for item in self._find_items(whole.task))
            if questions:
                asks += [replace(whole, turns=whole.turns[: t + 1], items=questions) for t in range(len(whole.turns))]
        answers = iter(await self._assess(asks))
        signals = {}
        for rollout in rollouts:
            number, items = len(list_turns(rollout)), self._find_items(self._ask("items", rollout).task)
            if not items:
                signals[rollout.trajectory.id] = Signals({"items": (None,) * number})
                continue
            own = [next(answers) for _ in range(number)]
            named = [_name_answers(items, assessment) for assessment in own]
            values = tuple(None if assessment is None else 1.0 for assessment in own)
            signals[rollout.trajectory.id] = Signals({"items": values}, facts={"checklist": check_items(items, named)})
        return signals


def _name_answers(items: Sequence[ChecklistItem], answer: Assessment | None) -> dict[str, bool]:
    """Return whether each item is satisfied, by name; an unreadable answer satisfies none."""
    given = answer.items if answer is not None else {}
    return {item.name: bool(given.get(item.question or item.name)) for item in items}


def read_checklists(file: Path) -> dict[str, tuple[ChecklistItem, ...]]:
    """Return the checklists of a JSON file: lists of items by the text of the task."""
    try:
        given = json.loads(read_text(file))
        return {
            task: tuple(ChecklistItem(**{**item, "after": tuple(item.get("after", ()))}) for item in items)
            for task, items in given.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"roles.policy.sources.items.file is {str(file)!r}: {error}. Give a JSON object of tasks with lists of "
            'items such as {"name": "door", "weight": 0.5, "after": [], "question": "Is the door open?"}.'
        ) from error


@PARTS.add("source", "Tournament by a judge", gives=("arena",), name="arena", method="arena")
class ArenaSource(JudgedSource):
    """Rank of an episode in a tournament of its siblings, by a judge of pairs.

    It takes 4 (n - 1) calls a group (ArenaRL).
    """

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the reward of every episode by its rank among its siblings."""
        self.spent = {}
        signals: dict[str, Signals] = {}
        for group in groups:

            async def compare(
                matches: Sequence[tuple[int, int]], group: Sequence[Rollout] = group
            ) -> list[tuple[float, float] | None]:
                asks = [self._ask("pair", group[a], other=self._ask("pair", group[b]).turns) for a, b in matches]
                return [None if answer is None else answer.pair for answer in await self._assess(asks)]

            rewards = await rank_by_tournament(len(group), compare)
            for rollout, reward in zip(group, rewards, strict=True):
                signals[rollout.trajectory.id] = Signals(trace={"arena": reward})
        return signals
