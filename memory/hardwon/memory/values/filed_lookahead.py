"""Lookahead tables that follow the episodes of one world of a library, read as rows of key ids."""

from collections import deque
from collections.abc import Mapping, Sequence

from hardwon.memory.records import Failure, State, Step
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.episode_map import EpisodeMap
from hardwon.memory.situations.familiarity import place
from hardwon.memory.situations.lookahead_keys import LookaheadKeys
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import read_steps

from .lookahead_table import EpisodeRows, Forms, LookaheadTable, Rows, fit
from .tuning import TUNING

_NEW = (
    "SELECT one.rowid, one.id FROM trajectories AS one JOIN episode_worlds AS placed "
    "ON placed.namespace = one.namespace AND trajectory_id = one.id "
    # The unary plus makes SQLite scan the few new rows by rowid instead of the index of the namespace.
    "WHERE +one.namespace = ? AND one.rowid > ? AND success IS NOT NULL AND trust = 'trusted' AND world IN ({marks}) "
    "ORDER BY one.rowid DESC LIMIT ?"
)


class FiledLookahead:
    """The lookahead tables of one world, updated from new episodes."""

    def __init__(self, store: Store, namespace: int, worlds: Sequence[int]) -> None:
        """Create an unread book."""
        self._store = store
        self._namespace = namespace
        self._worlds = tuple(worlds)
        self._last = 0
        self._begin(frozenset())
        self._table: LookaheadTable | None = None
        self._fitted = 0
        self._renewed = 0
        self._read = 0
        self.unread = True
        """Whether there may be episodes that have not been read."""

    def _begin(self, structural: frozenset[str]) -> None:
        """Start without episodes, with these structural words."""
        self._keys = LookaheadKeys(structural)
        self._rows, self._forms = Rows(), Forms()
        self._episodes: deque[EpisodeRows] = deque(maxlen=TUNING.lookahead_episodes)

    def read(self, structural: frozenset[str]) -> LookaheadTable:
        """Return the tables, fitted to all episodes so far or almost all."""
        if not self.unread and self._table is not None:
            return self._table
        self.unread = False
        new = self._find_new()
        if (
            new
            and self._read + len(new) >= TUNING.renewal_growth * self._renewed
            and structural != self._keys.structural
        ):
            self._begin(structural)
            self._last, self._renewed = 0, self._read + len(new)
            self._read = 0
            new = self._find_new()
        for rowid, episode in new:
            steps = read_steps(
                self._store,
                "namespace = ? AND trajectory_id = ? AND witness = 0 ORDER BY t",
                (self._namespace, episode),
            )
            if steps:
                reader = EpisodeReader(self._rows, self._forms, self._keys)
                self._episodes.append(reader.read(steps))
            self._last = rowid
            self._read += 1
        if (
            self._table is None
            or self._read - self._fitted >= max(1.0, TUNING.refit_share * self._read)
            or self._read < self._fitted
        ):
            self._table, self._fitted = fit(self._rows, self._forms, self._keys, self._episodes), self._read
        return self._table

    def _find_new(self) -> list[tuple[int, str]]:
        """Return the rows and ids of the newest episodes that have not been read, oldest first."""
        query = _NEW.format(marks=",".join("?" * len(self._worlds)))
        rows = self._store.rows(query, (self._namespace, self._last, *self._worlds, TUNING.lookahead_episodes))
        return [(int(rowid), str(episode)) for rowid, episode in reversed(rows)]


class EpisodeReader:
    """Turns the steps of one episode into rows."""

    def __init__(self, rows: Rows, forms: Forms, keys: LookaheadKeys) -> None:
        self._rows = rows
        self._forms = forms
        self._keys = keys
        self._map = EpisodeMap()
        self._arguments: set[str] = set()
        self._feedback: set[str] = set()
        self._last_seen: dict[str, Mapping[str, int]] = {}
        """By location, the rows of its actions at the last visit."""

    def read(self, steps: Sequence[Step]) -> EpisodeRows:
        """Return the rows of an episode."""
        episode = EpisodeRows()
        now = self._file(steps[0].pre, steps[0].admissible) if steps else {}
        if steps:
            self._see(steps[0].admissible)
            self._last_seen[steps[0].pre.location] = now
        for t, step in enumerate(steps):
            row = now.get(step.action)
            if row is None:  # free text, or a list that was not recorded
                row = self._file(step.pre, (step.action,))[step.action]
            following = steps[t + 1].admissible if t + 1 < len(steps) else ()
            arrives = step.post.location not in self._map.visits and step.post.location != step.pre.location
            new = len(step.post.notes) - len(step.pre.notes) + TUNING.arrival_novelties * arrives + self._see(following)
            episode.steps.append(row)
            episode.rewards.append(step.reward)
            episode.novelty.append(TUNING.novelty * min(1.0, max(0.0, new) / TUNING.max_novelties))
            episode.lost.append(step.diagnosis.failure is Failure.TASK_LOST)
            episode.dead.append(self._is_dead(step))
            ends = t + 1 == len(steps) and (episode.lost[-1] or (step.reward > 0 and step.diagnosis.success))
            episode.followed.append(bool(following) or ends)
            self._map.add(step)
            form = parse_action(step.action).template
            self._forms.steps[form] += 1
            self._forms.moved[form] += step.post.location != step.pre.location
            self._feedback.add(step.post.feedback)
            if following:
                before, now = now, self._file(steps[t + 1].pre, following)
                episode.opened += self._find_opened(t, now, self._last_seen.get(step.post.location, {}), before)
                self._last_seen[step.post.location] = now
        return episode

    @staticmethod
    def _find_opened(
        t: int, now: Mapping[str, int], seen: Mapping[str, int], before: Mapping[str, int]
    ) -> list[tuple[int, int, int, int]]:
        """Return the actions whose keys changed since they were last possible."""
        return [
            (t, row, seen.get(action, 0), before.get(action, 0))
            for action, row in now.items()
            if row not in (seen.get(action), before.get(action))
        ]

    def _file(self, state: State, actions: Sequence[str]) -> dict[str, int]:
        """Return the row of each action in a state."""
        return {
            action: self._rows.file(keys)
            for action, keys in zip(actions, self._keys.list(state, actions, self._map), strict=True)
        }

    def _see(self, actions: Sequence[str]) -> int:
        """Return the number of arguments that were not seen before, and remember them."""
        parsed = [parse_action(action) for action in actions]
        for action_parts in parsed:
            self._forms.offer(action_parts)
        arguments = {slot for action_parts in parsed for slot in action_parts.slots}
        new = len(arguments - self._arguments)
        self._arguments |= arguments
        return new

    def _is_dead(self, step: Step) -> bool:
        """Return whether a step neither changed nor told anything."""
        is_news = len(step.post.notes) > len(step.pre.notes) or step.post.feedback not in self._feedback
        return step.reward == 0 and place(step.pre) == place(step.post) and not is_news
