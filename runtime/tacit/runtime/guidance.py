"""Guidance: the text, or nothing, that is put before the policy.

Nothing is a valid answer and costs no token. A hint that recommends what a guardrail forbids here
is dropped. Text from the library is data: the policy's prompt delimits it.
"""

from dataclasses import dataclass
from typing import Protocol

from tacit.memory import ExperienceLibrary, Item, Recollection, Step
from tacit.memory.guardrails import matches


@dataclass(frozen=True, slots=True)
class Hint:
    """Text for the policy, and the items and past steps it was made of."""

    text: str
    item_ids: tuple[str, ...] = ()
    step_ids: tuple[int, ...] = ()


class Guidance(Protocol):
    """Decides whether a hint helps here, and what it says."""

    def propose(self, recollection: Recollection) -> Hint | None:
        """A hint, or None to abstain."""
        ...


class RetrievalGuidance:
    """Says what was recalled: items, then what similar steps did and how they ended."""

    def propose(self, recollection: Recollection) -> Hint | None:
        """A line per item and step; None when nothing was recalled."""
        found_items = [hit.what for hit in recollection.items if isinstance(hit.what, Item)]
        items = [item for item in found_items if not (item.steps and _forbidden(item.steps[0], recollection))]
        lines = [_said(item) for item in items]
        lines += [f"- guardrail: {item.title}. {item.body}".rstrip() for item in recollection.guardrails]
        found = [hit.what for hit in recollection.steps if isinstance(hit.what, Step)]
        steps = [step for step in found if not _forbidden(step.action, recollection)]
        lines += [f"- in a similar situation, `{step.action}` {_ending(step)}" for step in steps]
        if not lines:
            return None
        shown = (*items, *recollection.guardrails)
        item_ids = tuple(dict.fromkeys(item.id for item in shown))
        return Hint("\n".join(dict.fromkeys(lines)), item_ids, tuple(step.id for step in steps if step.id is not None))


class WarmUpGuidance:
    """Abstains until the library has something to say (SLEA-RL): so many active items, and so many episodes of use.

    `iterations` are counted in what evolves the library: an episode each, in a learning agent, or what
    a trainer tells with `iteration`.
    """

    def __init__(self, inner: Guidance, library: ExperienceLibrary, *, items: int = 10, iterations: int = 5) -> None:
        self.inner, self._library = inner, library
        self._items, self._iterations = items, iterations
        self.iteration: int | None = None
        """Training iterations so far, where there is a trainer that says so."""

    def propose(self, recollection: Recollection) -> Hint | None:
        """None while it is too early, else what the inner guidance says."""
        return self.inner.propose(recollection) if self.is_warm else None

    @property
    def is_warm(self) -> bool:
        """Whether there are enough items and iterations."""
        iteration = self._library.episodes if self.iteration is None else self.iteration
        return iteration >= self._iterations and len(self._library.items(limit=self._items)) >= self._items


def _said(item: Item) -> str:
    unless = f" Not when: {item.when_not_to_use}." if item.when_not_to_use else ""
    return f"- {item.kind}: {item.title}. {item.body}".rstrip() + unless


def _forbidden(action: str, recollection: Recollection) -> bool:
    return any(matches(item.forbids or "", action) for item in recollection.guardrails)


def _ending(step: Step) -> str:
    if not step.diagnosis.success:
        return f"failed ({step.diagnosis.failure.value}): {step.diagnosis.evidence}".rstrip(": ")
    return f"led to a return of {step.return_to_go or 0.0:.2f}"
