"""Keys of an action for outlooks, from general to specific: the same form, the same marks, the same words.

In contrast to the keys of a value, they do not contain what the episode already tried in detail. One of them leaves the
verb out: it says only how the notes speak of the arguments, so an agent can do what it was told with an action that it
never tried.
"""

from collections.abc import Sequence

from hardwon.memory.records import State

from .actions import ParsedAction, parse_action, pattern_of
from .episode_map import EpisodeMap
from .keys import Situation

MAX_WORDS = 4
"""Number of keys with one word of the notes."""
COLUMNS = 9 + MAX_WORDS
"""Number of keys of an action; missing ones are empty."""
LEVELS = (0, 1, 2, 3, 4, 4, 5, *[6] * MAX_WORDS, 7, 8)
"""Level of each key; at equal evidence, each level weighs twice as much as the one before it."""
TOLD = 6
"""Column of the first key about what the notes say; those with one word each follow."""
FORM, AGAIN, SPECIAL = 1, 2, COLUMNS - 2
"""Columns of the form, of the form with what the episode did, and of the action's distinguishing words."""
STATES = 512
"""Number of states whose keys are kept; the states of an episode are read several times."""

Keys = tuple[str, ...]


class OutlookKeys:
    """Computes the keys of actions and keeps those of the last states."""

    def __init__(self, structural: frozenset[str] = frozenset()) -> None:
        """Create a computation of keys.

        Args:
            structural: Words that belong to the structure of the environment.
        """
        self.structural = structural
        self._states: dict[tuple[object, ...], tuple[Situation, dict[tuple[str, bool, bool], Keys]]] = {}

    def situate(self, state: State) -> Situation:
        """Return the situation of a state."""
        return self._find(state)[0]

    def list(self, state: State, actions: Sequence[str], episode: EpisodeMap) -> list[Keys]:
        """Return the keys of each action in a state.

        Args:
            state: The state.
            actions: The actions.
            episode: The map of the episode so far.
        """
        situation, kept = self._find(state)
        keys_of_actions = []
        for action in actions:
            which = action, action in episode.done, bool(episode.find_destination(situation, action))
            keys = kept.get(which)
            if keys is None:
                parsed = parse_action(action)
                keys = compute_outlook_keys(situation, action, parsed, done=which[1], leads_back=which[2])
                kept[which] = keys
            keys_of_actions.append(keys)
        return keys_of_actions

    def _find(self, state: State) -> tuple[Situation, dict[tuple[str, bool, bool], Keys]]:
        which = state.task, state.location, state.observation, state.notes, str(state.facts)
        entry = self._states.get(which)
        if entry is None:
            if len(self._states) >= STATES:
                self._states.clear()
            entry = self._states[which] = Situation(state, self.structural), {}
        return entry


def compute_outlook_keys(
    situation: Situation, action: str, parsed: ParsedAction, *, done: bool, leads_back: bool
) -> tuple[str, ...]:
    """Return the keys of an action, one for each column.

    Args:
        situation: The situation before the action.
        action: The action.
        parsed: The parsed action.
        done: Whether the episode already did it.
        leads_back: Whether it leads to a location that the episode has seen.
    """
    form, half, narrow = parsed.template, pattern_of(action, keep_first=True), pattern_of(action)
    around = situation.read_around(parsed.slots)[0]
    marks = " ".join(situation.mark(parsed)) or "-"
    note_keys = [f"{half} | {marks} | {word}" for word in situation.read_note_words(parsed.slots)[:MAX_WORDS]]
    again = ("again " if done else "first ") + ("back" if leads_back else "on")
    return (
        "*",
        form,
        f"{form} | {again}",
        f"{form} | {again} | {situation.flags(parsed)} | {situation.listed}",
        f"{form} | {around}",
        f"{len(parsed.slots)} | {marks}",
        f"{half} | {marks} | {again}",
        *note_keys,
        *[""] * (MAX_WORDS - len(note_keys)),
        f"{narrow} | {again} | {marks}" if parsed.slots else "",
        f"{narrow} | {again} | {marks} | {around}" if parsed.slots else "",
    )
