"""The recorded episodes of a library: queries, later versions, episodes of clients, and the keys of steps."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from hardwon.memory.grading.grades import Grade, read_grades
from hardwon.memory.open_runs import OpenRun, OpenRuns
from hardwon.memory.privacy.redaction import redact, redact_state
from hardwon.memory.records import State, Step, Summary, Trajectory, Trust
from hardwon.memory.storage import rollups
from hardwon.memory.storage.episodes import dumps, read_steps
from hardwon.memory.trust.intake import received
from hardwon.memory.upkeep import queries
from hardwon.memory.upkeep.damage import names_damage
from hardwon.memory.upkeep.write_buffer import redact_and_pack
from hardwon.memory.validation import check_episodes, check_id, check_text, check_texts
from hardwon.memory.values.demonstration_index import DemonstrationIndex

from .consulting import check_query
from .file import LibraryFile


@names_damage
class LibraryEpisodes:
    """The recorded episodes of one namespace, and those that are not over. Ids may be given as unambiguous prefixes."""

    def __init__(self, file: LibraryFile, runs: OpenRuns) -> None:
        self._file, self._runs = file, runs

    def count(self, state: State | None = None, actions: Iterable[str] = ()) -> int:
        """Return the number of episodes, without excluded ones.

        Args:
            state: Count only the episodes in the environment of this state, with whatever kind of task. An agent
                explores less the more it has practiced there.
            actions: The admissible actions of the state, which tell tasks apart that share no words.
        """
        with self._file.lock:
            derived = self._file.caught_up()
            return derived.words.clock.episodes if state is None else derived.worlds.count_kin(state.task, actions)

    def find(
        self, ids: Collection[str] | None = None, *, limit: int | None = None, offset: int = 0
    ) -> list[dict[str, Any]]:
        """Return rows about episodes without their steps, newest first.

        Args:
            ids: Return only the rows of those of these episodes that are recorded.
            limit: Largest number of rows; None for all.
            offset: Number of rows to skip.
        """
        if ids is not None:
            check_texts("episode ids", tuple(ids))
        return queries.trajectories(self._file.filed(), self._file.number, limit, offset, ids)

    def get(self, episode_id: str) -> Trajectory:
        """Return an episode with its steps.

        Args:
            episode_id: The id, or an unambiguous prefix of it.

        Raises:
            UnknownName: No episode, or more than one, matches.
        """
        check_text("episode id", episode_id)
        return self._file.look_up(lambda store: queries.trajectory(store, self._file.number, episode_id))

    def receive(self, trajectories: Iterable[Trajectory], *, writer: str, trust: Trust) -> list[str]:
        """Record episodes that came from a client, in one transaction.

        The writer and the trust of the episodes are replaced by the given ones, and keys are recomputed here. A
        client therefore cannot choose under which name, trust level or keys its episodes are stored.

        Args:
            trajectories: Episodes as the client sent them.
            writer: Name of the client.
            trust: "trusted" or "untrusted".

        Returns:
            The ids of the episodes, in the same order.

        Raises:
            ConfigError: An episode cannot be stored. No episode is written.
            WrongType: A value of an episode has the wrong type. No episode is written.
        """
        return self._file.record([received(trajectory, writer=writer, trust=trust) for trajectory in trajectories])

    def replace_many(self, versions: Iterable[tuple[Trajectory, Sequence[str]]]) -> None:
        """Replace recorded episodes by later versions of them, all or none.

        An episode keeps its id, its grades, and what it says of the items that it was shown. Without a grade, its
        outcome is that of the new version.

        Args:
            versions: Each new version, with the ids of the recorded episodes that it replaces. The first one stays.

        Raises:
            UnknownName: An episode is not recorded.
            ConfigError: A version cannot be stored. Nothing is replaced.
        """
        versions = list(versions)
        with self._file.lock:
            episodes = self._file.add_keys(check_episodes(new for new, _ in versions))
            clean = [redact_and_pack(episode)[0] for episode in episodes]
            refs = [list(replaced) for _, replaced in versions]
            self._file.replace(list(zip(clean, refs, strict=True)))

    def open_run(self, episode: str, describe: Callable[[], Trajectory]) -> OpenRun:
        """Return a run that is not over yet, so that its steps are on the disk before its episode is recorded.

        Close it when the episode is recorded. If the process is killed before, the next one that opens or evolves the
        library records the steps, with an unknown outcome. A library in memory keeps nothing.

        Args:
            episode: Id of the episode.
            describe: Returns what is known of the episode when it has its first step; its steps are not read.
        """
        check_id("episode id", episode)
        return self._runs.begin(episode, describe)

    def grades(self, episode_id: str) -> list[Grade]:
        """Return the grades of an episode, oldest first: who gave which outcome, when and why.

        Args:
            episode_id: The id, or an unambiguous prefix of it.

        Raises:
            UnknownName: No episode, or more than one, matches.
        """
        ref = self._file.look_up(lambda store: queries.trajectory_id(store, self._file.number, episode_id))
        return read_grades(self._file.filed(), self._file.number, ref)

    def steps(self, ids: Sequence[int]) -> list[Step]:
        """Return steps of this namespace in the order of `ids`. Unknown ids are skipped.

        Args:
            ids: Ids of steps, for example the `provenance` of an item.
        """
        where = "namespace = ? AND id IN (SELECT value FROM json_each(?))"
        steps = {step.id: step for step in read_steps(self._file.filed(), where, (self._file.number, dumps(list(ids))))}
        return [steps[ref] for ref in ids if ref in steps]

    def summaries(self, signature: str | None = None, *, limit: int | None = None, offset: int = 0) -> list[Summary]:
        """Return summaries of attempts, the most frequent first.

        Args:
            signature: Return only the summaries of this situation; None for all.
            limit: Largest number of summaries; None for all.
            offset: Number of summaries to skip.
        """
        return list(rollups.summaries(self._file.filed(), self._file.number, signature, limit, offset))

    def evidence(self, summary_id: int, failure: str | None = None) -> list[int]:
        """Return the ids of the steps behind a summary's counts.

        Args:
            summary_id: Id of the summary.
            failure: Return only steps with this failure; "none" selects steps without a failure.

        Raises:
            UnknownName: The summary or the failure does not exist.
        """
        return rollups.read_evidence(self._file.filed(), self._file.number, summary_id, failure)

    def keys(self, state: State, action: str, counts: str = "") -> tuple[str, ...]:
        """Return the keys under which a step with this action in this state is filed.

        Args:
            state: State before the action.
            action: Action of the step.
            counts: What this episode already tried, as the working memory describes it.

        Returns:
            Keys from the most general to the most specific one.
        """
        check_query(state, action, counts)
        with self._file.lock:
            return self._file.caught_up().keys(redact_state(state), redact(action), counts)

    def context(self, state: State, action: str) -> str:
        """Return the words around the arguments of an action in a state.

        Automatic guardrails use this text as their condition.
        """
        check_query(state, action)
        with self._file.lock:
            return self._file.caught_up().situation(redact_state(state)).context(redact(action))

    def index_demonstrations(self, environment: str | None = None, actions: Iterable[str] = ()) -> DemonstrationIndex:
        """Return the demonstrations of the library and where things were found, for a planner. Do not change it.

        Args:
            environment: Label of an environment, to which the episodes are limited. None stands for all episodes.
            actions: Actions of this environment. Episodes without a label belong to it if they know all of these, or
                are like those with the label.
        """
        with self._file.lock:
            derived = self._file.caught_up()
            return derived.statistics.demonstrations.read(derived.worlds, environment, actions)
