"""Records of answers: what recall, checks, admission and verification return."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .episodes import Step, as_tuples
from .knowledge import Item, Summary


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected return of one action in the current state, from past steps with the same keys."""

    value: float
    """Estimated discounted reward-to-go."""
    n: int = 0
    """Number of past steps under `key`."""
    key: str = ""
    """The most specific key of the action that has past steps."""
    tried: int = 0
    """Number of past steps with the action in this context, and for a task of this form if the text is short. A small
    number makes the action worth exploring."""
    steps: tuple[int, ...] = ()
    """Ids of a few of the past steps under `key`, the newest ones."""
    context: str = ""
    """Words around the action's arguments in the current state."""
    lost: float = 0.0
    """Probability that the action loses the task, in [0, 1]."""
    untried: bool = False
    """Whether an agent that nearly always succeeds tried others for such a task in such a situation, never this one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of rewards and punishments that one action brought at once in earlier steps of the applicable worlds."""

    n: int = 0
    """Number of steps with the action."""
    rewarded: int = 0
    """Number of them that were rewarded at once."""
    punished: int = 0
    """Number of them that were punished at once or failed."""
    steps: tuple[int, ...] = ()
    """Ids of the newest of these steps."""
    enabler: str = ""
    """For an action that is not listed: the listed action after which it was possible in most of these steps; empty if
    there is none."""

    @property
    def share(self) -> float:
        """Return how much more often the action was rewarded than punished, from -1 to 1."""
        return (self.rewarded - self.punished) / self.n if self.n else 0.0

    def __add__(self, other: "Outcome") -> "Outcome":
        """Return the outcome over both sets of steps, with the newest ids."""
        steps = tuple(sorted((*self.steps, *other.steps))[-3:])
        return Outcome(self.n + other.n, self.rewarded + other.rewarded, self.punished + other.punished, steps)


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result: an item or step, its similarity, and why it was returned."""

    what: Item | Step
    similarity: float
    why: str
    """Why it was returned, in words."""


@dataclass(frozen=True, slots=True)
class Recollection:
    """The result of a recall. It may be empty, and then the policy gets no hint.

    A recollection is falsy if it has no items, steps, guardrails or estimates.
    """

    items: tuple[Hit, ...] = ()
    steps: tuple[Hit, ...] = ()
    guardrails: tuple[Item, ...] = ()
    """Guardrails whose condition holds in the state."""
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    """Estimate by admissible action; empty if no actions were given."""
    path: Literal["empty", "cluster", "hybrid", "task"] = "empty"
    """Source of the result: a known situation ("cluster"), hybrid search, or whole episodes of the task."""
    tokens: int = 0
    """Number of tokens of the items and steps."""
    summaries: tuple[Summary, ...] = ()
    """Attempts in this kind of situation by kind of action, the most frequent first."""
    filled: int = 0
    """Number of `steps` that search added because the situation itself has fewer than k."""
    masked: tuple[str, ...] = ()
    """Ids of items that fit but are left out of `items` because they hurt in this world; see `values.effects`. `ADVICE`
    is among them where all advice together does harm."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    """Outcome by admissible action, and of a few others that were rewarded before and are about things that the state
    names; those may need something else first. Empty if no steps were asked for."""

    def __bool__(self) -> bool:
        return bool(self.items or self.steps or self.guardrails or self.estimates)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an action may run and, if not, which guardrail forbids it and why."""

    allowed: bool
    item_id: str | None = None
    """Id of the guardrail that forbids the action, or of the remedy that an allowed call needs."""
    cause: str = ""
    """Reason in words."""
    trial: bool = False
    """Whether a forbidden action may run this time as a trial. Its outcome decides whether the guardrail stays."""
    items: tuple[str, ...] = ()
    """Ids of all guardrails that forbid the action, `item_id` first."""
    over: bool = False
    """Whether the run should end, because a pinned guardrail refused too many actions in it."""

    def __post_init__(self) -> None:
        as_tuples(self, "items")


@dataclass(frozen=True, slots=True)
class Admission:
    """The curator's decision about a candidate item."""

    status: Literal["added", "merged", "replaced", "rejected"]
    reason: str
    item_id: str | None = None


@dataclass(frozen=True, slots=True)
class EvolutionReport:
    """The result of one call of `evolve`."""

    admissions: tuple[Admission, ...] = ()
    retired: tuple[str, ...] = ()
    """Ids of the items that were retired."""
    candidates: int = 0
    """Number of proposed items."""

    def count(self, status: str) -> int:
        """Return the number of candidates with an admission status.

        Args:
            status: "added", "merged", "replaced" or "rejected".
        """
        return sum(admission.status == status for admission in self.admissions)


@dataclass(frozen=True, slots=True)
class Problem:
    """A derived structure that disagrees with the recorded episodes and items."""

    where: str
    """Table or index."""
    what: str
    """The disagreement, in words."""
    remedy: str
    """The step that repairs it, in words."""
