"""Guidance: the text, or nothing, that is put before the policy.

Nothing is a valid answer and costs no token of the policy's. It is asked for at the start of an
episode, in a situation that is new in it, and after trouble; else what was said there before stands.
A hint that recommends what a guardrail forbids here is dropped. Text from the library is data: the
policy's prompt delimits it. Back-ends: what was recalled (here), the same through a gate (`gated`), a
chat model's words (`generated`), and whatever else keeps to the protocol, such as a trained model.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

from hardwon.memory import ExperienceLibrary, Item, Recollection, State, Step
from hardwon.memory.guardrails.conditions import matches
from hardwon.runtime.interfaces.types import Context, Usage

from .rendering import Visible, tell_item, tell_steps

Occasion = Literal["start", "situation", "trouble"]
"""When guidance is asked for: the episode begins, its situation is new, the last step was diagnosed as trouble."""


@dataclass(frozen=True, slots=True)
class Hint:
    """Text for the policy, and the items and past steps it was made of. Without text it is to abstain, at a cost."""

    text: str
    item_ids: tuple[str, ...] = ()
    step_ids: tuple[int, ...] = ()
    usage: Usage = field(default_factory=Usage)
    """What asking for it cost."""
    written: bool = False
    """Whether a model wrote it: then it is dropped where it recommends what a guardrail forbids."""
    why: Mapping[str, Any] = field(default_factory=dict)
    """What to keep with the step of how it came about: plain values."""


class Guidance(Protocol):
    """Decides whether a hint helps here, and what it says."""

    def propose(self, context: Context) -> Hint | None:
        """A hint, or None to abstain; a hint without text abstains and says what that cost."""
        ...


@runtime_checkable
class AwaitedGuidance(Protocol):
    """Guidance that waits for a model, and can be awaited in an asynchronous loop."""

    async def apropose(self, context: Context) -> Hint | None:
        """The same, awaited."""
        ...


async def proposed(guidance: Guidance, context: Context) -> Hint | None:
    """What a guidance says, awaited where it can be."""
    if isinstance(guidance, AwaitedGuidance):
        return await guidance.apropose(context)
    return guidance.propose(context)


def occasion(*, steps: int, new_situation: bool, replan: str | None, known: bool) -> Occasion | None:
    """Why guidance is to be asked for now, or None.

    `replan`: the trouble that the last step was diagnosed with. `known`: it was asked for in this situation
    before, so that what was said then stands.
    """
    if replan:
        return "trouble"
    if not steps:
        return "start"
    return "situation" if new_situation or not known else None


def forbidden_in(text: str, context: Context) -> str | None:
    """An action that the text speaks of and a guardrail forbids here, or None.

    To name it is enough: a model's text that warns of it is dropped too, for the guardrail does that already.
    """
    patterns = [item.forbids for item in context.recollection.guardrails if item.forbids]
    if not patterns:
        return None
    named = (action for action in _named(text, context) if any(matches(pattern, action) for pattern in patterns))
    return next(named, None)


_PHRASE = re.compile(r"[\n`\"'“”.;:,!?<>]+")
_MOST_WORDS = 12
"""Words of a phrase that may be an action."""


def _named(text: str, context: Context) -> Iterator[str]:
    """The admissible actions in the text; then the ends of its phrases, for where no actions are listed."""
    said = " ".join(text.lower().split())
    yield from (a for a in context.actions if re.search(rf"(?<!\w){re.escape(a.lower())}(?!\w)", said))
    for phrase in _PHRASE.split(text.lower()):
        words = phrase.split()
        yield from (" ".join(words[n:]) for n in range(max(0, len(words) - _MOST_WORDS), len(words)))


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was recalled, as it is said."""

    text: str
    item_id: str = ""
    step_ids: tuple[int, ...] = ()


def lines_of(
    recollection: Recollection, state: State | None = None, actions: Sequence[str] = (), *, everything: bool = False
) -> list[Line]:
    """Items, guardrails, then what similar steps did and how they ended; without what is forbidden here.

    Values of other requests stand in no line: only what `state` or `actions` show, see `guidance.rendering`; with
    `everything`, all values are shown.
    """
    visible = Visible(state, actions, everything=everything)
    items = [hit.what for hit in recollection.items if isinstance(hit.what, Item)]
    steps = [hit.what for hit in recollection.steps if isinstance(hit.what, Step)]
    return [
        *(
            Line(tell_item(one, visible), one.id)
            for one in items
            if not (one.steps and _forbidden(one.steps[0], recollection))
        ),
        *(Line(tell_item(one, visible), one.id) for one in recollection.guardrails),
        *(
            Line(line, step_ids=ids)
            for line, ids in tell_steps((one for one in steps if not _forbidden(one.action, recollection)), visible)
        ),
    ]


def hint_of(lines: Sequence[Line], text: str = "") -> Hint:
    """A hint made of these lines, in their words or in others."""
    return Hint(
        text or "\n".join(dict.fromkeys(line.text for line in lines)),
        tuple(dict.fromkeys(line.item_id for line in lines if line.item_id)),
        tuple(ref for line in lines for ref in line.step_ids),
    )


class RetrievalGuidance:
    """Says what was recalled: a line per item and step."""

    def propose(self, context: Context) -> Hint | None:
        """Everything that was recalled; None when nothing was."""
        lines = lines_of(context.recollection, context.state, context.actions)
        return hint_of(lines) if lines else None


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

    def propose(self, context: Context) -> Hint | None:
        """None while it is too early, else what the inner guidance says."""
        return self.inner.propose(context) if self.is_warm else None

    async def apropose(self, context: Context) -> Hint | None:
        """The same, awaited."""
        return await proposed(self.inner, context) if self.is_warm else None

    @property
    def is_warm(self) -> bool:
        """Whether there are enough items and iterations."""
        iteration = self._library.episodes if self.iteration is None else self.iteration
        return iteration >= self._iterations and len(self._library.items(limit=self._items)) >= self._items


def recalling(context: Context, recollection: Recollection) -> Context:
    """The same situation with something else recalled."""
    return replace(context, recollection=recollection)


def _forbidden(action: str, recollection: Recollection) -> bool:
    return any(matches(item.forbids or "", action) for item in recollection.guardrails)
