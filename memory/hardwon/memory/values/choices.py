"""Choice frequencies: learn from successes alone by comparing the chosen action with the alternatives.

If every recorded episode succeeded, every action has about the same value, and values carry no signal. The contrast is
then within the steps: an action of some kind was admissible at many steps and chosen at few. The estimate is the share
of its opportunities at which a kind of action was chosen. It is computed from general keys to specific ones, each
shrunk towards the more general key. This is behavioral cloning with nested backoff. Failures make it unnecessary, so
its weight falls to 0 as their share grows.

What an agent chose by itself may be a detour that it never left. Of its own choices for tasks of one form in such a
situation, the quickest one counts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hardwon.memory.records import Estimate, Step
from hardwon.memory.situations.keys import Situation
from hardwon.memory.situations.refinements import FULL_NAME, REFINED
from hardwon.memory.storage.counted import COUNTED_EPISODES
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import read_steps

from .cells import Cell, weigh_part
from .tuning import TUNING


def weight_of(won: int, episodes: int) -> float:
    """Return the weight of choices relative to values, in [0, 1]."""
    return max(0.0, 1.0 - TUNING.failure_slope * (episodes - won) / episodes) if episodes else 0.0


class Choices:
    """Counts of how often each kind of action was admissible and chosen in successful episodes."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        """By key: opportunities, those at which it was chosen, their episodes, and the last of these."""
        self._episodes = 0
        self.steps = 0
        """Number of steps with a choice."""

    def read(self, episode: Iterable[Step], structural: frozenset[str]) -> None:
        """Count the choices of an episode, with the number of earlier tries of each action in the same state."""
        tries: Counter[tuple[str, str]] = Counter()
        self._episodes += 1
        for step in episode:
            state = f"{step.pre.observation}\n{step.pre.signature}"
            self._add(step, structural, {action: tries[state, action] for action in step.admissible})
            # After counting the choice: its tries are those made before it.
            tries[state, step.action] += 1

    def _add(self, step: Step, structural: frozenset[str], tries: Mapping[str, int]) -> None:
        """Count one choice; skip failed steps and steps without recorded alternatives."""
        if step.action not in step.admissible or len(step.admissible) < 2 or not step.diagnosis.success:
            return
        self.steps += 1
        situation = Situation(step.pre, structural)
        for action in step.admissible:
            chosen = action == step.action
            for key in dict.fromkeys(situation.keys(action, f"tried {min(tries[action], TUNING.max_tries)}")):
                count = self._counts.setdefault(key, [0, 0, 0, 0])
                count[0] += 1
                count[1] += chosen
                count[2] += count[3] != self._episodes
                count[3] = self._episodes

    def share(self, keys: Sequence[str]) -> float:
        """Return the share of its opportunities at which an action was chosen, in [0, 1]."""
        share = 0.0
        kind = [0, 0, 0, 0]
        # From general to specific: each share becomes the prior of the next.
        for key in keys:
            count = self._counts.get(key)
            if count is None:
                continue
            if not key.startswith(REFINED):
                share = (count[1] + TUNING.prior_opportunities * share) / (count[0] + TUNING.prior_opportunities)
                kind = count
            elif key.startswith(FULL_NAME):  # after the key of its kind, which has all its steps
                weight = weigh_part((count[0], count[2], count[1]), (kind[0], kind[2], kind[1], kind[1]))
                share += weight * (count[1] / count[0] - share)
        return share

    def blend(
        self,
        estimates: dict[str, Estimate],
        situation: Situation,
        actions: Mapping[str, str],
        weight: float,
        tries: Mapping[str, Cell],
    ) -> dict[str, Estimate]:
        """Return the estimates with their values moved towards the likelihood that each action is chosen.

        Where the agent's own `tries` tell which action was quickest for such a task, it is the likely one.
        """
        shares = {action: self.share(situation.keys(action, actions[action].split(" to ")[0])) for action in estimates}
        n, best = sum(cell.n for cell in tries.values()), max((cell.mean for cell in tries.values()), default=0.0)
        for action, share in shares.items():
            is_quickest = action in tries and tries[action].mean == best
            shares[action] = (n * is_quickest + TUNING.prior_opportunities * share) / (n + TUNING.prior_opportunities)
        most = max(shares.values(), default=0.0)
        if most <= 0.0:
            return estimates
        return {
            action: replace(estimate, value=(1.0 - weight) * estimate.value + weight * shares[action] / most)
            for action, estimate in estimates.items()
        }


def read_choices(
    store: Store, namespace: int, worlds: Sequence[int], structural: frozenset[str], counted: str
) -> Choices:
    """Count the choices in the newest successes of a world."""
    marks = ",".join("?" * len(worlds))
    newest = store.rows(
        "SELECT id FROM trajectories AS one JOIN episode_worlds AS placed "
        "ON placed.namespace = one.namespace AND trajectory_id = id "
        f"WHERE one.namespace = ? AND success = 1 {COUNTED_EPISODES[counted]}AND world IN ({marks}) "
        "ORDER BY one.rowid DESC LIMIT ?",
        (namespace, *worlds, TUNING.choice_episodes),
    )
    choices = Choices()
    episodes = (
        read_steps(store, "namespace = ? AND trajectory_id = ? AND offer IS NOT NULL ORDER BY t", (namespace, ref))
        for (ref,) in reversed(newest)
    )
    for episode in episodes:  # oldest first
        choices.read(episode, structural)
    return choices
