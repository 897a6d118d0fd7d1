"""Choices: learning from successes alone, by what was done beside what could have been done.

Where every recorded episode succeeded, every action is worth about the same, and values tell nothing. Then the
contrast is in the steps themselves: an action of some kind was admissible at many steps, and taken at few. The
share of its chances at which a kind of action was taken, from general keys to special ones, each shrunk towards
the more general, is an estimate of what the demonstrator would do here (behavioral cloning with nested backoff).
Failures make it unnecessary, so its weight falls to nothing as their share grows.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hardwon.memory.records import Estimate, Step
from hardwon.memory.situations.keys import Situation
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import read_steps

PRIOR = 2.0
"""How many imagined chances the share of a more general key counts for."""
FAILURES = 5.0
"""The weight of choices falls by so much for each unit of the share of episodes that failed: at a fifth, none."""
EPISODES = 100
"""Newest successes that choices are read from."""
MOST_TRIES = 2
"""Tries in one state that are told apart, as in the runtime's counts."""
REREAD = 1.25
"""Growth of the number of successes at which choices are read anew."""


def weight_of(won: int, episodes: int) -> float:
    """Return how much choices count beside values, in [0, 1], where so many of a world's episodes succeeded."""
    return max(0.0, 1.0 - FAILURES * (episodes - won) / episodes) if episodes else 0.0


class Choices:
    """How often each kind of action was admissible and taken in successful episodes."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self.steps = 0
        """Steps at which a choice was seen."""

    def read(self, episode: Iterable[Step], structural: frozenset[str]) -> None:
        """Count the choices of an episode, each with how often it had been made in the same state before."""
        tries: Counter[tuple[str, str]] = Counter()
        for step in episode:
            shown = f"{step.pre.observation}\n{step.pre.signature}"
            self._add(step, structural, {action: tries[shown, action] for action in step.admissible})
            tries[shown, step.action] += 1

    def _add(self, step: Step, structural: frozenset[str], tries: Mapping[str, int]) -> None:
        """Count one choice; a step that does not say what was admissible, or had no alternative, tells nothing."""
        if step.action not in step.admissible or len(step.admissible) < 2 or not step.diagnosis.success:
            return
        self.steps += 1
        situation = Situation(step.pre, structural)
        for action in step.admissible:
            taken = action == step.action
            for key in dict.fromkeys(situation.keys(action, f"tried {min(tries[action], MOST_TRIES)}")):
                count = self._counts.setdefault(key, [0, 0])
                count[0] += 1
                count[1] += taken

    def share(self, keys: Sequence[str]) -> float:
        """Return the share of its chances at which an action with these keys was taken, most general first."""
        share = 0.0
        for key in keys:
            count = self._counts.get(key)
            if count is not None:
                share = (count[1] + PRIOR * share) / (count[0] + PRIOR)
        return share

    def blend(
        self, estimates: dict[str, Estimate], situation: Situation, actions: Mapping[str, str], weight: float
    ) -> dict[str, Estimate]:
        """Return the estimates with their values moved towards the likelihood that the action would be chosen.

        `actions` say how often each was tried; where an action led then is left out, for it is not known of the
        alternatives of a recorded step.
        """
        shares = {action: self.share(situation.keys(action, actions[action].split(" to ")[0])) for action in estimates}
        most = max(shares.values(), default=0.0)
        if most <= 0.0:
            return estimates
        return {
            action: Estimate(
                (1.0 - weight) * known.value + weight * shares[action] / most,
                known.n,
                known.key,
                known.tried,
                known.steps,
                known.context,
            )
            for action, known in estimates.items()
        }


def read_choices(store: Store, namespace: int, worlds: Sequence[int], structural: frozenset[str]) -> Choices:
    """Count the choices of the newest successes of a world, which goes by all these ids."""
    marks = ",".join("?" * len(worlds))
    newest = store.rows(
        "SELECT id FROM trajectories AS one JOIN episode_worlds AS placed "
        "ON placed.namespace = one.namespace AND trajectory_id = id "
        f"WHERE one.namespace = ? AND success = 1 AND world IN ({marks}) ORDER BY one.rowid DESC LIMIT ?",
        (namespace, *worlds, EPISODES),
    )
    choices = Choices()
    episodes = (
        read_steps(store, "namespace = ? AND trajectory_id = ? AND offer IS NOT NULL ORDER BY t", (namespace, ref))
        for (ref,) in reversed(newest)
    )
    for episode in episodes:
        choices.read(episode, structural)
    return choices
