"""Lookahead: the value of every action here, and of what could be done at other locations of the episode.

At a known location, its actions are judged as if the agent stood there with what it has and knows now. To them come the
forms of two arguments with what the agent has got since and what stands there, such as `put lamp in box`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from hardwon.memory.records import State
from hardwon.memory.situations.actions import ParsedAction, fill, parse_action
from hardwon.memory.situations.episode_map import EpisodeMap, Visit

from .lookahead_table import LookaheadTable, LookaheadValue
from .tuning import TUNING


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """An action at another location, and the way there."""

    action: str
    location: str
    outlook: LookaheadValue
    first: str
    """The first action of the way."""
    steps: int
    """Number of actions until the arrival."""


@dataclass(frozen=True, slots=True)
class Lookahead:
    """The lookahead values of the actions here and elsewhere."""

    by_action: dict[str, LookaheadValue] = field(default_factory=dict)
    elsewhere: tuple[Elsewhere, ...] = ()
    scale: float = 1.0
    """The median positive reward, the unit of all lookahead values."""


def look_around(table: LookaheadTable, state: State, actions: Sequence[str], episode: EpisodeMap) -> Lookahead:
    """Return the lookahead of a state."""
    by_action = dict(zip(actions, table.judge(table.keys.list(state, actions, episode)), strict=True))
    return Lookahead(by_action, tuple(_look_elsewhere(table, state, actions, episode)), table.scale)


def _look_elsewhere(
    table: LookaheadTable, state: State, actions: Sequence[str], episode: EpisodeMap
) -> Iterator[Elsewhere]:
    """Yield the actions at the other known locations that have not been tried there."""
    visits = {**episode.visits, state.location: Visit(state, tuple(actions))}
    if len(visits) < 2 or not state.location:
        return
    moves = {name: _list_moves(table, visit, episode) for name, visit in visits.items()}
    routes = episode.find_routes(state.location, moves)
    for name, route in sorted(routes.items(), key=lambda entry: (entry[1].steps, entry[0]))[: TUNING.considered_places]:
        if name not in visits:
            continue
        visit = visits[name]
        there = _carry_over(state, visit.state)
        tried = episode.list_tried(visit.state)
        open_actions = [action for action in visit.actions if action not in tried]
        open_actions += _imagine(table, state, actions, visit, visits)
        estimates = table.judge(table.keys.list(there, open_actions, episode))
        for action, estimate in zip(open_actions, estimates, strict=True):
            yield Elsewhere(action, name, estimate, route.first, route.steps)


def _list_moves(table: LookaheadTable, visit: Visit, episode: EpisodeMap) -> dict[str, str]:
    """Return the destination of each action that moves and whose destination is known."""
    moving = [action for action in visit.actions if table.forms.is_move(parse_action(action).template)]
    destinations = table.keys.situate(visit.state).find_destinations(moving, episode)
    return {action: destination for action, destination in zip(moving, destinations, strict=True) if destination}


def _carry_over(now: State, then: State) -> State:
    """Return an earlier state with what the agent knows and has now."""
    had = [element for element in _list_elements(now) if element not in then.observation]
    observation = "\n".join([then.observation, *had])
    return replace(then, observation=observation, notes=now.notes, facts=now.facts)


def _list_elements(state: State) -> list[str]:
    """Return the elements of all lists of the facts."""
    lists = (value for value in state.facts.values() if isinstance(value, list | tuple))
    return [str(element) for value in lists for element in value]


def _imagine(
    table: LookaheadTable, state: State, actions: Sequence[str], visit: Visit, visits: dict[str, Visit]
) -> list[str]:
    """Return actions with something that the agent has got since a visit and something that stands there."""
    got = set(_list_elements(state)) - set(_list_elements(visit.state))
    if not got:
        return []
    offered = [parse_action(action) for item in visits.values() for action in item.actions]
    own_things = {slot for action in actions for slot in parse_action(action).slots if _names_any(slot, got)}
    notes = " ".join(state.notes).lower()
    things = {(slot, head) for action in visit.actions for slot, head in _list_arguments(parse_action(action))}
    imagined = []
    for form, seconds in sorted(table.forms.second.items()):
        if table.forms.offered[form] < TUNING.imagined_after:
            continue
        fitting = {parsed.slots[0] for parsed in offered if parsed.template == form}
        firsts = table.forms.first[form]
        for slot in sorted(own_things):
            if slot not in fitting and slot not in notes and _head_of(slot, actions) not in firsts:
                continue
            imagined += [fill(form, (slot, thing)) for thing, head in sorted(things) if head in seconds]
    return [action for action in dict.fromkeys(imagined) if action not in visit.actions]


def _names_any(slot: str, elements: set[str]) -> bool:
    """Return whether an argument names one of the elements."""
    return any(f" {slot} " in f" {element.lower()} " for element in elements)


def _list_arguments(parsed: ParsedAction) -> Iterator[tuple[str, str]]:
    """Yield each argument with its head."""
    yield from zip(parsed.slots, parsed.heads, strict=True)


def _head_of(slot: str, actions: Sequence[str]) -> str:
    """Return the head of an argument of some action."""
    return next(
        (head for action in actions for text, head in _list_arguments(parse_action(action)) if text == slot), slot
    )
