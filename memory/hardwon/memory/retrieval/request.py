"""The arguments of one recall: checked, redacted, and as a key under which a result can be found again."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from hardwon.memory.errors import WrongType
from hardwon.memory.privacy.redaction import redact, redact_names, redact_state
from hardwon.memory.records import Item, Kind, Recollection, State
from hardwon.memory.situations.episode_map import Trail
from hardwon.memory.situations.familiarity import place
from hardwon.memory.validation import (
    check_choice,
    check_count,
    check_kinds,
    check_object,
    check_state,
    check_text,
    check_texts,
    describe_value,
)

Level = Literal["step", "task"]
RecallKey = tuple[Any, ...]
"""The arguments of a recall as one hashable value."""
LONGEST_QUERY = 20_000
"""Characters of each text of a query that are read. Its time grows with them, and the other callers wait."""
LONGEST_SERVED = 200_000
"""Characters of a state or an action that a server takes in a query: others wait while it is read."""
MOST_VISITS = 1000
"""Visits of a trail that a server takes: the way between any two of them is looked for."""


@dataclass(frozen=True, slots=True)
class RecallRequest:
    """One recall, without secrets."""

    state: State
    """The current state, or a question as the observation of one."""
    k: int = 5
    """Largest number of items, and of steps."""
    kinds: Sequence[Kind] | None = None
    """Kinds of items to return, or None for all."""
    budget_tokens: int | None = None
    """Token budget for items and steps together, or None for no limit."""
    level: Level = "step"
    actions: Mapping[str, str] | None = None
    """Admissible actions, each with the text about its earlier tries."""
    given: Mapping[str, str] | None = None
    """The same actions as the caller wrote them."""
    by_text: bool = False
    """Whether to search by text instead of looking up the situation."""
    after: str | None = None
    """The previous action of this episode; "" at its beginning, None if unknown."""
    beside: Item | None = None
    """An item that is not in the library, ranked as if it were."""

    def restore_names(self, recollection: Recollection) -> Recollection:
        """Return the recollection with estimates under the caller's actions instead of the redacted ones."""
        if self.given is None or self.actions is self.given:  # nothing was redacted
            return recollection
        restored = recollection.estimates
        # actions that differ only in a secret share one estimate
        estimates = {action: restored[redact(action)] for action in self.given if redact(action) in restored}
        return replace(recollection, estimates=estimates)


def parse_request(
    state_or_text: State | str,
    task: str | None,
    k: int,
    kinds: Sequence[Kind] | None,
    budget_tokens: int | None,
    level: Level,
    actions: Mapping[str, str] | None,
    after: str | None,
    beside: Item | None = None,
) -> RecallRequest:
    """Check the arguments of a recall, and redact them."""
    check_text("task", task or "")
    check_text("after", after or "")
    check_count("k", k)
    check_kinds(kinds)
    check_choice("level", level, ("step", "task"))
    if budget_tokens is not None:
        check_count("budget_tokens", budget_tokens)
    if actions is not None:
        if not isinstance(actions, Mapping):
            raise WrongType(
                f"actions is {describe_value(actions)}; give a dict from each action to a text about its "
                "earlier tries, such as {'open door': ''}."
            )
        check_object("actions", actions)
        check_texts("actions", tuple(actions.values()))
    text = state_or_text[:LONGEST_QUERY] if isinstance(state_or_text, str) else state_or_text
    state = text if isinstance(text, State) else State(text, task=task or "")
    check_state(state)
    if task is not None and not state.task:
        state = replace(state, task=task)
    state = shorten_state(state)
    given = actions or {}
    # the library stores redacted text only, so an unredacted query would miss its own situation
    return RecallRequest(
        redact_state(state), k, kinds, budget_tokens, level, redact_names(given), given,
        isinstance(state_or_text, str), after and redact(after[:LONGEST_QUERY]), beside,
    )  # fmt: skip


def shorten_state(state: State) -> State:
    """Return a state with at most LONGEST_QUERY characters in each text, and the signature of the whole one."""
    texts = state.observation, state.location, state.task, state.feedback
    is_long = sum(map(len, state.notes)) > LONGEST_QUERY
    facts = _shorten_facts(state.facts) if state.facts else state.facts
    if not is_long and facts is state.facts and max(map(len, texts)) <= LONGEST_QUERY:
        return state
    observation, location, task, feedback = (text[:LONGEST_QUERY] for text in texts)
    share = LONGEST_QUERY // len(state.notes) if is_long else None
    notes = tuple(note[:share] for note in state.notes[:LONGEST_QUERY])
    return State(observation, facts, location, task, feedback, notes, state.signature)


def fit_state(state: State) -> State:
    """Return a state that a server takes, as it is if it has at most LONGEST_SERVED characters."""
    return state if measure(list_texts(state)) <= LONGEST_SERVED else shorten_state(state)


def fit_action(action: str) -> str:
    """Return an action that a server takes, without its middle if it is too long: the ends are its form."""
    half = LONGEST_SERVED // 2
    return action if len(action) <= LONGEST_SERVED else action[:half] + action[-half:]


def fit_text(text: str) -> str:
    """Return the beginning of a text that a server takes in an address."""
    return text.encode(errors="replace")[:10_000].decode(errors="ignore")


def fit_trail(trail: Trail) -> Trail:
    """Return the map of an episode that a server takes: what was done, and the newest visits with their moves."""
    if len(trail.visits) <= MOST_VISITS and measure(list_trail(trail)) <= LONGEST_SERVED:
        return trail
    done = _take_texts([(action,) for action in trail.done])
    moves, tried = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for start, action, end in trail.moves:
        moves[start] += (start, action, end)
    for where, action in trail.tried:
        tried[where] += (where, action)
    newest = trail.visits[: -MOST_VISITS - 1 : -1]
    texts = [
        (*list_texts(state), *actions, *moves[state.location], *tried[place(state)])
        for state, actions in ((visit.state, visit.actions) for visit in newest)
    ]
    visits = tuple(newest[at] for at in reversed(_take_texts(texts)))
    locations, places = {visit.state.location for visit in visits}, {place(visit.state) for visit in visits}
    return Trail(
        tuple(trail.done[at] for at in done), visits,
        tuple(move for move in trail.moves if move[0] in locations),
        tuple(pair for pair in trail.tried if pair[0] in places),
    )  # fmt: skip


def _take_texts(groups: Sequence[Sequence[str]]) -> list[int]:
    """Return the places of the first groups of texts that fit into half of what a server takes."""
    left, places = LONGEST_SERVED // 2, list[int]()
    for at, group in enumerate(groups):
        length = measure(group)
        if length <= left:
            left -= length
            places.append(at)
    return places


def measure(texts: Iterable[str]) -> int:
    """Return the number of characters of texts; an empty one counts, too, as a million take as long as any."""
    return sum(len(text) or 1 for text in texts)


def list_trail(trail: Trail) -> Iterator[str]:
    """Yield all texts of the map of an episode."""
    visits = (chain(list_texts(visit.state), visit.actions) for visit in trail.visits)
    return chain(trail.done, *visits, *trail.moves, *trail.tried)


def list_texts(state: State) -> Iterator[str]:
    """Yield all texts of a state, facts included."""
    yield from (state.observation, state.feedback, state.task, state.location, *state.notes)
    yield from (str(part) for pair in state.facts.items() for part in pair)


def _shorten_facts(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first facts that have LONGEST_QUERY characters together; a text among them is cut, not left out."""
    left, kept = LONGEST_QUERY, dict[str, Any]()
    for name, value in facts.items():
        length = len(name) + len(value if isinstance(value, str) else str(value))
        if length > left and isinstance(value, str) and len(name) < left:
            kept[name], left = value[: left - len(name)], 0
        elif length <= left:
            kept[name], left = value, left - length
    return facts if len(kept) == len(facts) and left else kept


def make_key(
    state: State | str,
    task: str | None,
    k: int,
    kinds: Sequence[Kind] | None,
    budget_tokens: int | None,
    level: Level,
    actions: Mapping[str, str] | None,
    after: str | None,
) -> RecallKey | None:
    """Return the arguments of a recall as a key, or None if they have none.

    Equal keys belong to equal arguments, so whatever was checked for one holds for the other. Types that compare equal
    but are checked differently, such as True and 1, are part of the key; unusual types have no key.
    """
    if type(state) is not State or type(state.facts) is not dict or level != "step":
        return None
    if not (kinds is None or type(kinds) is tuple) or not (actions is None or type(actions) is dict):
        return None
    key = (
        state.observation, repr(state.facts) if state.facts else "", state.location, state.task, state.feedback,
        state.notes, state.signature_if_known, task, type(k), k, kinds, type(budget_tokens), budget_tokens,
        None if actions is None else tuple(actions.items()), after,
    )  # fmt: skip
    try:
        hash(key)
    except TypeError:  # an argument of a wrong type, which `parse_request` reports
        return None
    return key


class RecallCache(dict[RecallKey, Recollection]):
    """Results of recalls by their arguments, until the library changes."""

    def keep(self, key: RecallKey | None, recollection: Recollection) -> None:
        """Keep a result that needed no search, at most 512 of them.

        A result that needed one is not kept: the next recall reads what the search bound to the situation.
        """
        if key is not None and recollection.path == "cluster":
            if len(self) >= 512:
                self.clear()
            self[key] = copy_recollection(recollection)


def copy_recollection(recollection: Recollection) -> Recollection:
    """Return a recollection whose estimates the receiver may change."""
    if not (recollection.estimates or recollection.outcomes):
        return recollection
    return replace(recollection, estimates=dict(recollection.estimates), outcomes=dict(recollection.outcomes))
