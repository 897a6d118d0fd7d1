"""A tree of whole answers that a judge compares in pairs, each written with the advice that its parent got.

    tree = AnswerTree(Draft("first try"))
    parent = tree.select()                          # the answer to improve
    tree.add(parent, Draft("second try"), verdict) # what the judge says of the two
    tree.best.text

Worth of an answer, from 0 to 10, with its rank among all answers and its score s beside its parent's:

    10 (0.9 rank + 0.1 e^s / (e^s + e^s_parent))

The rank follows from all wins and everything that they imply. The worth of a child then moves that of its parent:
`Q_parent <- 0.9 Q_parent + 0.1 Q_child`, the newest child first.
"""

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from .tuning import TUNING

Name = TypeVar("Name", bound=Hashable)
Content = TypeVar("Content")
Contra = TypeVar("Contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class AnswerVerdict:
    """The verdict of a judge about two answers."""

    winner: Literal["first", "second", ""] = ""
    """Empty where neither is better, or where the judge does not agree with itself."""
    scores: tuple[float, float] = (0.0, 0.0)
    """Score of each, from 0 to 10."""
    reasons: str = ""
    advice: str = ""
    """Advice for the answers that follow."""


class AnswerJudge(Protocol[Contra]):
    """Compares answers."""

    def compare(self, first: Contra, second: Contra) -> AnswerVerdict | None:
        """Return which answer is better and why, or None without a usable verdict."""
        ...


def compare_both_ways(judge: AnswerJudge[Content], first: Content, second: Content) -> AnswerVerdict | None:
    """Return what a judge says in both orders: the mean scores, and the winner only where the two verdicts agree.

    Judges favor the answer that they read first, or last; such a win disappears here.
    """
    there, back = judge.compare(first, second), judge.compare(second, first)
    if there is None or back is None:
        return None
    turned: dict[str, Literal["first", "second", ""]] = {"first": "second", "second": "first"}
    winner = there.winner if there.winner == turned.get(back.winner, "") else ""
    scores = ((there.scores[0] + back.scores[1]) / 2, (there.scores[1] + back.scores[0]) / 2)
    return AnswerVerdict(winner, scores, there.reasons, there.advice)


def borda(names: Sequence[Name], wins: Collection[tuple[Name, Name]]) -> dict[Name, float]:
    """Return the rank of everything in [0, 1] by the number of others that it beats, directly or by implication.

    Equal counts share their mean rank, so without any win all have 0.5. Worked example: A beats B and B beats C, so A
    beats C; the counts are 2, 1 and 0, and the ranks 1, 0.5 and 0.
    """
    beaten: dict[Name, set[Name]] = {name: {loser for winner, loser in wins if winner == name} for name in names}
    for via in names:
        for name in names:
            if via in beaten[name]:
                beaten[name] |= beaten[via]
    counts = {name: len(beaten[name] - {name}) for name in names}
    pairs = len(names) - 1

    def rank(name: Name) -> float:
        below = sum(counts[other] < counts[name] for other in names)
        equal = sum(counts[other] == counts[name] for other in names) - 1
        return (below + equal / 2) / pairs

    return {name: rank(name) if pairs else 0.5 for name in names}


def score_beside(score: float, parent_score: float) -> float:
    """Return the share of an answer beside its parent. Scores 7 and 6 give 0.731."""
    return 1 / (1 + math.exp(parent_score - score))


def mix(parent: float, child: float) -> float:
    """Return the worth of a parent after that of a child is known. A parent of 5 with a child of 9 gets 5.4."""
    return (1 - TUNING.child_weight) * parent + TUNING.child_weight * child


@dataclass(slots=True)
class Draft(Generic[Content]):
    """A node of the tree."""

    text: str
    """The answer in words, which identify it."""
    content: Content
    parent: "Draft[Content] | None" = None
    advice: str = ""
    """How to write the answers that follow."""
    local: float = 0.5
    """Share beside the parent."""
    worth: float = TUNING.scale / 2
    """Q: the own worth, moved by that of the children."""
    own: float = TUNING.scale / 2
    """The worth by rank and share alone."""
    visits: int = 0
    """How often this answer or one below it was improved."""
    children: int = 0


@dataclass(slots=True)
class AnswerTree(Generic[Content]):
    """Answers that improve on each other."""

    answers: list[Draft[Any]] = field(default_factory=list)
    wins: set[tuple[str, str]] = field(default_factory=set)
    """Texts of the winner and the loser of every comparison."""

    @property
    def best(self) -> Draft[Content]:
        """Return the answer with the highest rank; the earliest among equal ones."""
        return max(self.answers, key=lambda answer: answer.own)

    def select(self) -> Draft[Content] | None:
        """Return the answer to improve next, or None if all have been improved as often as they may be.

        The rule is Q + 1.4 sqrt(ln(N_parent + 1) / N), and Q + 0.1 for an answer that was not improved yet.
        """

        def rate(answer: Draft[Content]) -> float:
            if not answer.visits:
                return answer.worth + TUNING.first_bonus
            above = answer.parent or answer
            return answer.worth + TUNING.answer_exploration * math.sqrt(math.log(above.visits + 1) / answer.visits)

        open_answers = [answer for answer in self.answers if answer.children < TUNING.max_children]
        return max(open_answers, key=rate, default=None)

    def add(self, parent: Draft[Content], answer: Draft[Content], verdict: AnswerVerdict | None) -> None:
        """Add what was written after an answer; an answer that is there already counts as a visit alone."""
        parent.children += 1
        for above in _climb(parent):
            above.visits += 1
        if any(answer.text == other.text for other in self.answers):
            return
        answer.parent, answer.advice = parent, parent.advice
        if verdict is not None:
            answer.advice = verdict.advice or parent.advice
            answer.local = score_beside(verdict.scores[1], verdict.scores[0])
            if verdict.winner:
                pair = (parent.text, answer.text)
                self.wins.add(pair if verdict.winner == "first" else (pair[1], pair[0]))
        self.answers.append(answer)
        self._judge_all()

    def _judge_all(self) -> None:
        """Compute the worth of all answers anew, because each comparison may change every rank."""
        ranks = borda([answer.text for answer in self.answers], self.wins)
        for answer in self.answers:
            answer.own = answer.worth = TUNING.scale * (
                (1 - TUNING.local) * ranks[answer.text] + TUNING.local * answer.local
            )
        for answer in reversed(self.answers):
            if answer.parent is not None:
                answer.parent.worth = mix(answer.parent.worth, answer.worth)


def _climb(answer: Draft[Content]) -> Iterable[Draft[Content]]:
    """Yield an answer and all that it descends from."""
    above: Draft[Content] | None = answer
    while above is not None:
        yield above
        above = above.parent
