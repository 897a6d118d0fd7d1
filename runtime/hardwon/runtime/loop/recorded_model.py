"""Looking ahead in recorded episodes: where an action led whenever it was taken in this very state.

SearchPlanner(library, RecordedModel(library))
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hardwon.memory import ExperienceLibrary, State, Step
from hardwon.runtime.interfaces.extension import Imagined
from hardwon.runtime.interfaces.types import Context, Info
from hardwon.runtime.interfaces.working_memory import place

from .episode_tally import EpisodeRow, EpisodeTally

Key = tuple[str, object, str]
"""Identity of a state: its task, observation and location, without messages."""
ENDS = ("success", "task_lost", "done")
"""Endings by the environment; at other endings the episode could have gone on."""


@dataclass(slots=True)
class Results:
    """The recorded results of an action in one state."""

    counts: Counter[tuple[Key, bool, bool]] = field(default_factory=Counter)
    """Counts of the results: the state, whether the episode was over there, and whether it succeeded."""
    rewards: float = 0.0

    def add(self, result: tuple[Key, bool, bool], reward: float) -> None:
        """Count one result."""
        self.counts[result] += 1
        self.rewards += reward


@dataclass(slots=True)
class Transitions:
    """The results of all recorded steps."""

    results: dict[tuple[Key, str], Results] = field(default_factory=dict)
    states: dict[Key, State] = field(default_factory=dict)
    actions: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    """Admissible actions of a state."""

    def add(self, steps: Sequence[Step], *, is_over: bool, is_success: bool) -> None:
        """Add the steps of an episode."""
        for at, step in enumerate(steps):
            before, after = identify(step.pre), identify(step.post)
            self.actions[before] = step.admissible
            self.states[after] = step.post
            ends = is_over and at == len(steps) - 1
            result = after, ends, ends and is_success
            self.results.setdefault((before, step.action), Results()).add(result, step.reward)


def identify(state: State) -> Key:
    """Return what tells a state from others."""
    return state.task, place(state), state.location


class RecordedModel:
    """Looks up the recorded steps with the same action in the same state; it can tell nothing of other states.

    With k of n steps agreeing, the certainty is k / (n + 1), times that of the actions before. No simulator is needed,
    so it also serves where actions have effects outside, but only where states come back word for word.
    """

    def __init__(self, library: ExperienceLibrary) -> None:
        self._library = library
        self._transitions = EpisodeTally(library, Transitions, self._add_episode)

    def _add_episode(self, transitions: Transitions, row: EpisodeRow) -> None:
        episode = self._library.trajectory(row["id"])
        transitions.add(episode.steps, is_over=episode.ending in ENDS, is_success=episode.outcome == 1.0)

    def imagine(self, context: Context, path: Sequence[str]) -> Imagined | None:
        """Return where the actions led most often; None if one of them was never taken there, or ended the episode."""
        transitions = self._transitions.read()
        at, certainty, imagined = identify(context.state), 1.0, None
        for action in path:
            results = transitions.results.get((at, action))
            if results is None or (imagined is not None and imagined.done):
                return None
            (at, done, is_success), n = results.counts.most_common(1)[0]
            total = results.counts.total()
            certainty *= n / (total + 1)
            info: Info = {"success": is_success}
            actions = () if done else transitions.actions.get(at, ())
            imagined = Imagined(transitions.states[at], actions, results.rewards / total, done, info, certainty)
        return imagined

    def close(self) -> None:
        """Do nothing; the library stays open."""
