"""Sources that ask a judge: labels of turns, scores, verdicts, qualities, checklists, and ranks of a tournament."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from hardwon.memory import Step
from hardwon.memory.errors import ConfigError
from hardwon.runtime.llm.prompts import step_line
from hardwon.trainers.algorithms.judging.checklists import ChecklistItem, check_items
from hardwon.trainers.algorithms.judging.tournament import rank_by_tournament
from hardwon.trainers.algorithms.judging.verdicts import compare_verdicts
from hardwon.trainers.algorithms.samples import Rollout, to_trace
from hardwon.trainers.algorithms.signals import Signals
from hardwon.trainers.config.sources import ChecklistSettings, ScoreSettings, StepsSettings

from .base import SourceParts, Untrained, list_turns, register_source
from .judge import Ask, AskKind, Assessment, open_judge, vote
from .local_judge import LocalAnswers, LocalJudge


class JudgedSource(Untrained):
    """The part that all sources with a judge share: the questions, and counts of calls and of unreadable answers."""

    gives: tuple[str, ...] = ()

    def __init__(self, parts: SourceParts) -> None:
        self._parts, self._settings = parts, parts.settings
        self._answers: LocalAnswers | None = None
        local = {"policy": lambda: self._open_local(frozen=False), "base": lambda: self._open_local(frozen=True)}
        self._judge = open_judge(parts.settings.judge, local)
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


@register_source("steps")
class StepsSource(JudgedSource):
    """Gives 1 for a right turn and 0 for a wrong one, by the votes of several critiques."""

    gives = ("steps",)
    _settings: StepsSettings

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the label of every turn; None where no critique could be read."""
        self.spent = {}
        rollouts = [rollout for group in groups for rollout in group]
        votes = self._settings.votes
        asks = [self._ask("steps", rollout, number=number) for rollout in rollouts for number in range(votes)]
        answers = await self._assess(asks)
        signals: dict[str, Signals] = {}
        for at, rollout in enumerate(rollouts):
            number = len(list_turns(rollout))
            critiques = [answer for answer in answers[at * votes : (at + 1) * votes] if answer is not None]
            own = [critique.steps for critique in critiques if len(critique.steps) == number]
            labels = vote(own, self._settings.rule) if own else (None,) * number
            signals[rollout.trajectory.id] = Signals({"steps": labels})
        traces = [to_trace(replace(rollout, signals=signals[rollout.trajectory.id])) for rollout in rollouts]
        self.rates = compare_verdicts(traces)
        return signals


@register_source("lookback")
class LookbackSource(JudgedSource):
    """Gives the share of the turns after the first whose thought uses what earlier turns showed (HAR).

    The thought is what the policy says before its action. A turn without one, or without a readable answer, counts in
    no mean, and an episode without any such turn has no share.
    """

    gives = ("lookback",)

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


@register_source("score")
class ScoreSource(JudgedSource):
    """Gives a judge's score in [0, 1] after every turn; the judge sees a hidden reference if there is one (ExpRL)."""

    gives = ("score", "quality")
    _settings: ScoreSettings

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
        task, _, seed = rollout.group.rpartition("#")
        shift = 1 if self._settings.reference == "another" else 0
        best = self._parts.reference(task, int(seed) + shift) if self._settings.reference != "none" else None
        return "" if best is None else "\n".join(step_line(step) for step in best.steps)


@register_source("verdict")
class VerdictSource(JudgedSource):
    """Gives 1 if a judge says that the task is solved and 0 if not, for worlds without an outcome."""

    gives = ("verdict",)

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the verdict of every episode; an unreadable one is 0."""
        self.spent = {}
        rollouts = [rollout for group in groups for rollout in group]
        answers = await self._assess([self._ask("verdict", rollout) for rollout in rollouts])
        return {
            rollout.trajectory.id: Signals(trace={"verdict": (answer.score or 0.0) if answer else 0.0})
            for rollout, answer in zip(rollouts, answers, strict=True)
        }


@register_source("items")
class ItemsSource(JudgedSource):
    """Gives the answers to a checklist after every turn (CM2). The file has the items by task."""

    gives = ("items",)
    _settings: ChecklistSettings

    def __init__(self, parts: SourceParts) -> None:
        super().__init__(parts)
        self._lists = read_checklists(Path(self._settings.file))

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
        given = json.loads(file.read_text(encoding="utf-8"))
        return {
            task: tuple(ChecklistItem(**{**item, "after": tuple(item.get("after", ()))}) for item in items)
            for task, items in given.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"roles.policy.sources.items.file is {str(file)!r}: {error}. Give a JSON object of tasks with lists of "
            'items such as {"name": "door", "weight": 0.5, "after": [], "question": "Is the door open?"}.'
        ) from error


@register_source("arena")
class ArenaSource(JudgedSource):
    """Gives the reward of a tournament of siblings, judged in pairs (ArenaRL): 4 (n - 1) calls a group."""

    gives = ("arena",)

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
