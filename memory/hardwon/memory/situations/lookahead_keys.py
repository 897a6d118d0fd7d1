"""Keys of an action for lookahead values, from general to specific: the same form, the same marks, the same words.

In contrast to the keys of a value, they do not contain what the episode already tried in detail. One of them leaves the
verb out: it says only how the notes speak of the arguments, so an agent can do what it was told with an action that it
never tried.
"""

from collections.abc import Sequence

from hardwon.memory.records import State

from .actions import ParsedAction, parse_action, pattern_of
from .episode_map import EpisodeMap
from .keys import Situation
from .refinements import FULL_NAME, name_in_full
from .tuning import TUNING

COLUMNS = 11 + TUNING.max_note_words
"""Number of keys of an action; missing ones are empty."""
LEVELS = (0, 1, 2, 3, 4, 4, 5, *[6] * TUNING.max_note_words, 7, 8, 9, 10)
"""Level of each key; at equal evidence, each level weighs twice as much as the one before it."""
TOLD = 6
"""Column of the first key about what the notes say; those with one word each follow."""
FORM, AGAIN, SPECIAL, NAMED = 1, 2, COLUMNS - 4, COLUMNS - 2
"""Columns of the form, of the form with what the episode did, and the first of the two with the action's
distinguishing words, and with its full names: each of these refines the key NAMED - SPECIAL columns before it."""
STATES = 512
"""Number of states whose keys are kept; the states of an episode are read several times."""

Keys = tuple[str, ...]
_Which = tuple[str, str, str, tuple[str, ...], str]
"""Identity of a state for its keys: task, location, observation, notes and facts."""


class LookaheadKeys:
    """Computes the keys of actions and keeps those of the last states.

    A step changes little: mostly the notes are those of the step before, and all locations of an episode are judged
    with the same notes and facts. So the parts of keys that come from them are kept apart from the rest.
    """

    def __init__(self, structural: frozenset[str] = frozenset()) -> None:
        """Create a computation of keys."""
        self.structural = structural
        self._scenes: dict[_Which, Scene] = {}
        self._belongings: dict[tuple[str, tuple[str, ...], str], Belongings] = {}

    def situate(self, state: State) -> "Scene":
        """Return a state with the keys that were computed in it."""
        facts = str(state.facts) if state.facts else ""
        which = state.task, state.location, state.observation, state.notes, facts
        scene = self._scenes.get(which)
        if scene is None:
            if len(self._scenes) >= STATES:
                self._scenes.clear()
                self._belongings.clear()
            belongings = self._belongings.get((state.task, state.notes, facts))
            if belongings is None:
                belongings = self._belongings[state.task, state.notes, facts] = Belongings(state, self.structural)
            scene = self._scenes[which] = Scene(Situation(state, self.structural), belongings)
        return scene

    def list(self, state: State, actions: Sequence[str], episode: EpisodeMap) -> list[Keys]:
        """Return the keys of each action in a state."""
        scene = self.situate(state)
        destinations, kept = scene.find_destinations(actions, episode), scene.keys
        keys_of_actions = []
        for action, destination in zip(actions, destinations, strict=True):
            which = action, action in episode.done, bool(destination)
            keys = kept.get(which)
            if keys is None:
                parsed = parse_action(action)
                keys = compute_lookahead_keys(scene, action, parsed, done=which[1], leads_back=which[2])
                kept[which] = keys
            keys_of_actions.append(keys)
        return keys_of_actions


class Belongings:
    """Flags, marks and words of arguments that follow from the task, the notes and the facts of a state alone."""

    def __init__(self, state: State, structural: frozenset[str]) -> None:
        self._situation = Situation(State("", task=state.task, notes=state.notes, facts=state.facts), structural)
        self.listed = self._situation.listed
        self._kept: dict[tuple[str, tuple[str, ...]], tuple[str, str, tuple[str, ...]]] = {}

    def read(self, parsed: ParsedAction) -> tuple[str, str, tuple[str, ...]]:
        """Return the flags of an action, its marks as text, and the words of the notes around its arguments."""
        which = parsed.verb, parsed.slots
        parts = self._kept.get(which)
        if parts is None:
            situation = self._situation
            marks = " ".join(situation.mark(parsed)) or "-"
            parts = self._kept[which] = (
                situation.flags(parsed),
                marks,
                situation.read_note_words(parsed.slots)[: TUNING.max_note_words],
            )
        return parts


class Scene:
    """A state with what was computed for its actions."""

    __slots__ = ("_destinations", "belongings", "keys", "situation")

    def __init__(self, situation: Situation, belongings: Belongings) -> None:
        self.situation = situation
        self.belongings = belongings
        self.keys: dict[tuple[str, bool, bool], Keys] = {}
        """By action, whether the episode did it, and whether it leads back."""
        self._destinations: tuple[object, dict[str, str]] = ((), {})
        """By action, where it leads, and the part of an episode's map that this depends on."""

    def find_destinations(self, actions: Sequence[str], episode: EpisodeMap) -> list[str]:
        """Return the known location that each action leads to, or ""; see `EpisodeMap.find_destination`."""
        version, by_action = self._destinations
        if version != (now := episode.read_version(self.situation.state.location)):
            by_action = {}
            self._destinations = now, by_action
        destinations = []
        for action in actions:
            destination = by_action.get(action)
            if destination is None:
                destination = by_action[action] = episode.find_destination(self.situation, action)
            destinations.append(destination)
        return destinations


def compute_lookahead_keys(
    scene: Scene, action: str, parsed: ParsedAction, *, done: bool, leads_back: bool
) -> tuple[str, ...]:
    """Return the keys of an action, one for each column."""
    form, half, narrow = parsed.template, pattern_of(action, keep_first=True), pattern_of(action)
    name = name_in_full(action)
    around = scene.situation.read_context(parsed.slots)
    flags, marks, note_words = scene.belongings.read(parsed)
    note_keys = [f"{half} | {marks} | {word}" for word in note_words]
    again = ("again " if done else "first ") + ("back" if leads_back else "on")
    return (
        "*",
        form,
        f"{form} | {again}",
        f"{form} | {again} | {flags} | {scene.belongings.listed}",
        f"{form} | {around}",
        f"{len(parsed.slots)} | {marks}",
        f"{half} | {marks} | {again}",
        *note_keys,
        *[""] * (TUNING.max_note_words - len(note_keys)),
        f"{narrow} | {again} | {marks}" if parsed.slots else "",
        f"{narrow} | {again} | {marks} | {around}" if parsed.slots else "",
        f"{FULL_NAME}{name} | {again} | {marks}" if name else "",
        f"{FULL_NAME}{name} | {again} | {marks} | {around}" if name else "",
    )
