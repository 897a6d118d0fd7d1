"""Guidance: the component that decides whether to give the policy a hint, and what it says.

No hint is a valid answer and costs the policy no tokens. Guidance runs at the start of an episode, in situations that
are new in it, and after trouble. At other steps the last hint of the situation is repeated. A hint from a model that
recommends a forbidden action is dropped. Text from the library is data, and the policy's prompt marks it as such.

Implementations: recalled experience as it is (here), the same through thresholds (`gated`), a chat model's text
(`generated`), and any object with the protocol, such as a trained model.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

from hardwon.memory import ExperienceLibrary, Item, Outcome, Recollection, State, Step
from hardwon.memory.guardrails.conditions import matches
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.usage import ModelUsage

from .coverage import Coverage, find_done
from .rendering import Visible, list_actions, render_estimates, render_item, render_steps, render_unlisted

Occasion = Literal["start", "situation", "trouble"]
"""Why guidance runs: the episode begins, its situation is new, or the last step was diagnosed as trouble."""


@dataclass(frozen=True, slots=True)
class Hint:
    """Text for the policy, with the items and past steps that it is based on. An empty text is no hint, at a cost."""

    text: str
    item_ids: tuple[str, ...] = ()
    """The items that the text uses; they get credit for the episode's outcome."""
    step_ids: tuple[int, ...] = ()
    """The past steps that the text uses."""
    usage: ModelUsage = field(default_factory=ModelUsage)
    """The cost of the model calls."""
    written: bool = False
    """Whether a model wrote the text; it is then dropped if it mentions a forbidden action."""
    why: Mapping[str, Any] = field(default_factory=dict)
    """Reasons to record with the step, as plain JSON values."""


class Guidance(Protocol):
    """Decides whether a hint helps in a state, and writes it."""

    def propose(self, context: Context) -> Hint | None:
        """Return a hint, or None for no hint.

        A hint with an empty text is no hint either, but reports its cost.

        Args:
            context: The current state and the recalled experience.
        """
        ...


@runtime_checkable
class AwaitedGuidance(Protocol):
    """Guidance that waits for a model and can be awaited in an asynchronous loop."""

    async def apropose(self, context: Context) -> Hint | None:
        """Return a hint asynchronously; see `Guidance.propose`."""
        ...


@runtime_checkable
class ReadsLibrary(Protocol):
    """Guidance that reads more of the library than what was recalled."""

    def attach(self, library: Any) -> Guidance:
        """Return this guidance with the library that is recalled from."""
        ...


async def apropose_hint(guidance: Guidance, context: Context) -> Hint | None:
    """Return the hint of any guidance, awaiting it if it supports that."""
    if isinstance(guidance, AwaitedGuidance):
        return await guidance.apropose(context)
    return guidance.propose(context)


def find_occasion(*, steps: int, new_situation: bool, replan: str | None, was_guided: bool) -> Occasion | None:
    """Return why guidance should run at this step, or None."""
    if replan:
        return "trouble"
    if not steps:
        return "start"
    return "situation" if new_situation or not was_guided else None


def forbidden_in(text: str, context: Context) -> str | None:
    """Return an action that the text mentions and a guardrail forbids in this state, or None.

    A mention is enough. A model's warning about such an action is dropped too, because the guardrail already blocks it.
    """
    # Only a model's text needs this check: `lines_of` filters recalled experience itself.
    patterns = [item.forbids for item in context.recollection.guardrails if item.forbids]
    if not patterns:
        return None
    mentions = (
        action for action in _find_phrases(text, context) if any(matches(pattern, action) for pattern in patterns)
    )
    return next(mentions, None)


_PHRASE = re.compile(r"[\n`\"'“”.;:,!?<>]+")


def _find_phrases(text: str, context: Context) -> Iterator[str]:
    """Yield the admissible actions in the text, then the ends of its phrases, which may be unlisted actions."""
    normalized = " ".join(text.lower().split())
    yield from (a for a in context.actions if re.search(rf"(?<!\w){re.escape(a.lower())}(?!\w)", normalized))
    for phrase in _PHRASE.split(text.lower()):
        words = phrase.split()
        yield from (" ".join(words[n:]) for n in range(max(0, len(words) - 12), len(words)))


@dataclass(frozen=True, slots=True)
class HintLine:
    """One recalled item or group of steps as a line of text."""

    text: str
    item_id: str = ""
    step_ids: tuple[int, ...] = ()


def lines_of(
    recollection: Recollection,
    state: State | None = None,
    actions: Sequence[str] = (),
    *,
    history: Sequence[Step] = (),
    everything: bool = False,
) -> list[HintLine]:
    """Return lines for items, guardrails and the outcomes of similar steps, without forbidden actions.

    What the run has done is left out, and so is what a remedy says better; `history` has the steps of the run.
    Actions that were rewarded come before the return of others: a reader with little time takes the first.
    """
    visible = Visible(state, actions, everything=everything)
    items = [hit.what for hit in recollection.items if isinstance(hit.what, Item)]
    steps = [hit.what for hit in recollection.steps if isinstance(hit.what, Step)]
    coverage = Coverage(items, find_done(state, history))
    usable = [
        item for item in items
        if not (item.steps and _is_forbidden(item.steps[0], recollection))
        and coverage.needs_item(item, list_actions(item))
    ]  # fmt: skip
    estimates = {a: e for a, e in recollection.estimates.items() if not _is_forbidden(a, recollection)}
    outcomes = {a: o for a, o in recollection.outcomes.items() if not _is_forbidden(a, recollection)}
    unlisted = {action: outcome for action, outcome in outcomes.items() if action not in recollection.estimates}
    estimated = render_estimates(estimates, outcomes)
    covered = {*(action for action, _, _ in estimated), *unlisted}
    rewarded = [line for line in estimated if outcomes.get(line[0], Outcome()).share > 0]
    failed = {step.action for step in steps if not step.diagnosis.success}
    # A return beside a failure of the same action would recommend it as it is; counts of punishments stay.
    told_apart = (line for line in estimated if line[0] not in failed or outcomes.get(line[0], Outcome()).punished)
    compared = [line for line in told_apart if line not in rewarded]
    # The mean over all evidence replaces the single outcomes of the same action.
    similar = [step for step in steps if step.action in failed or step.action not in covered]
    lines = [
        *(HintLine(render_item(item, visible), item.id) for item in (*usable, *recollection.guardrails)),
        *(HintLine(text, step_ids=ids) for _, text, ids in rewarded),
        *(HintLine(text, step_ids=ids) for text, ids in render_unlisted(unlisted, visible)),
        *(HintLine(text, step_ids=ids) for _, text, ids in compared),
        *(
            HintLine(line, step_ids=ids)
            for line, ids in render_steps(
                (s for s in similar if not _is_forbidden(s.action, recollection)), visible, coverage.needs_step
            )
        ),
    ]
    return [line for line in lines if line.text]


def hint_of(lines: Sequence[HintLine], text: str = "") -> Hint:
    """Return a hint that is based on these lines, with their text or another one."""
    return Hint(
        text or "\n".join(dict.fromkeys(line.text for line in lines)),
        tuple(dict.fromkeys(line.item_id for line in lines if line.item_id)),
        tuple(ref for line in lines for ref in line.step_ids),
    )


class RetrievalGuidance:
    """Shows the recalled experience as it is, one line per item or group of steps."""

    def propose(self, context: Context) -> Hint | None:
        """Return everything that was recalled as a hint, or None if nothing was."""
        lines = lines_of(context.recollection, context.state, context.actions, history=context.history)
        return hint_of(lines) if lines else None


class WarmUpGuidance:
    """Gives no hints until the library has enough items and episodes, as in SLEA-RL."""

    def __init__(self, inner: Guidance, library: ExperienceLibrary, *, items: int = 10, episodes: int = 5) -> None:
        """Wrap another guidance.

        Args:
            inner: The guidance to use after the warm-up.
            library: The library whose items and episodes are counted.
            items: The minimum number of active items.
            episodes: The minimum number of recorded episodes.
        """
        self.inner, self._library, self._items, self._episodes = inner, library, items, episodes

    def propose(self, context: Context) -> Hint | None:
        """Return None during the warm-up, and the inner guidance's hint afterwards."""
        return self.inner.propose(context) if self.is_warm else None

    async def apropose(self, context: Context) -> Hint | None:
        """Return the hint asynchronously; see `propose`."""
        return await apropose_hint(self.inner, context) if self.is_warm else None

    @property
    def is_warm(self) -> bool:
        """Return whether there are enough items and episodes."""
        # The limit keeps the query small: it only matters whether the number is reached.
        return (
            self._library.episodes.count() >= self._episodes
            and len(self._library.items.find(limit=self._items)) >= self._items
        )


def replace_recollection(context: Context, recollection: Recollection) -> Context:
    """Return the context with another recollection."""
    return replace(context, recollection=recollection)


def _is_forbidden(action: str, recollection: Recollection) -> bool:
    return any(matches(item.forbids or "", action) for item in recollection.guardrails)
