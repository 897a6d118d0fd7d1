"""Client for a library that `hardwon serve experience.db` serves.

    with RemoteLibrary("http://127.0.0.1:8420", token="hardwon_...", namespace="acme") as library:
        Agent(policy, library, environment).run()

A `RemoteLibrary` has the methods of an `ExperienceLibrary`, with the same records and the same errors. Its parts are in
`parts`, and the HTTP client is in `wire`.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import blake2b
from typing import Any, cast

from hardwon.memory.errors import ConfigError, LibraryError, UnknownName
from hardwon.memory.grading.grades import Grade
from hardwon.memory.learning.extraction import Extractor
from hardwon.memory.library import ExperienceLibrary
from hardwon.memory.open_runs import OpenRuns
from hardwon.memory.parts.file import LibraryFile
from hardwon.memory.privacy.private_files import find_cache
from hardwon.memory.records import (
    Add,
    Admission,
    EvolutionReport,
    Hit,
    Item,
    Kind,
    Operation,
    Recollection,
    Return,
    State,
    Trajectory,
    Trust,
    Verdict,
)
from hardwon.memory.retrieval.candidates import How
from hardwon.memory.retrieval.request import (
    LONGEST_QUERY,
    Level,
    fit_action,
    fit_state,
    fit_text,
    fit_trail,
    shorten_state,
)
from hardwon.memory.situations.episode_map import EpisodeMap, Trail
from hardwon.memory.upkeep.damage import names_damage
from hardwon.memory.values.lookahead import Lookahead
from hardwon.memory.wire import Wire, part, plain, read

from .parts import RemoteAdmin, RemoteEpisodes, RemoteItems, UnservedFile, send_episodes


@names_damage
class RemoteLibrary(ExperienceLibrary):
    """One namespace of a served library. Safe to use from several threads."""

    def __init__(self, url: str, token: str | None = None, namespace: str = "default", *, raw: bool = False) -> None:
        """Connect to a server, and create the namespace if it does not exist and the token permits it.

        Args:
            url: Address of the server, such as "http://127.0.0.1:8420".
            token: Access token. None if the server needs none.
            namespace: Namespace to work in.
            raw: Let `recall` and `offered` return recorded steps and items word for word, as a local library does. The
                token needs the right `log`. By default, the server leaves out values of other requests, and steps that
                did the same are one step.

        Raises:
            LibraryUnreachable: The server does not answer.
            LibraryForbidden: The token does not permit this namespace.
            UnknownName: The namespace does not exist and cannot be created.
            ConfigError: The address is not valid.
        """
        # no super().__init__: there is no file
        self.namespace = namespace
        self._raw = raw
        self._wire = Wire(url, token, namespace)
        try:
            about = self._about()
        except BaseException:
            self._wire.close()
            raise
        self._evolves = "write" in read(list[str], about.get("rights", ["write"]))
        # Steps of runs that are not over stay on this host, apart for each token, because it names the writer.
        account = blake2b(f"{url}\n{token}".encode(), digest_size=12).hexdigest()
        self._runs = OpenRuns(str(find_cache() / f"client-{account}"), namespace)
        self._file = cast(LibraryFile, UnservedFile(url))
        self.items = RemoteItems(self._file, self._wire)
        self.episodes = RemoteEpisodes(self._file, self._wire, self._runs, raw=raw)
        self.admin = RemoteAdmin(self._file, self._wire, self.items, about)
        self._record_abandoned()

    def _about(self) -> dict[str, Any]:
        """Return the server's description of the namespace, which is created if it does not exist."""
        try:
            return cast(dict[str, Any], self._wire.get("about"))
        except UnknownName:
            return cast(dict[str, Any], self._wire.send("POST", "namespaces", {"name": self.namespace}))

    @classmethod
    def open(cls, *args: Any, **options: Any) -> "RemoteLibrary":
        """Connect to a server; the same as calling the class.

        Args:
            *args: Positional arguments of the class.
            **options: Keyword arguments of the class.
        """
        return cls(*args, **options)

    def reopen(self, namespace: str | None = None) -> "RemoteLibrary":
        """Connect to the server again, as another handle with the same token; see `ExperienceLibrary.reopen`."""
        name = self.namespace if namespace is None else namespace
        return RemoteLibrary(self._wire.url, self._wire.token, name, raw=self._raw)

    @property
    def path(self) -> str:
        """Return the address of the server."""
        return self._wire.url

    @property
    def revision(self) -> tuple[int, int]:
        """Return the number of episodes, and a number that changes when recorded ones are graded or forgotten."""
        description = self._wire.get("about")
        return read(int, description["episodes"]), read(int, description["edition"])

    # -- writing ----------------------------------------------------------------------------------

    def _record_abandoned(self) -> None:
        """Send the runs of processes of this host that are gone; they wait if the server does not take them."""
        if not self.admin.read_only:
            with suppress(LibraryError):
                self._runs.record_abandoned(self._record_again)

    def _record_whole(self, whole: Trajectory) -> str:
        """Record an episode beside its beginning, under another id, because a server replaces no episode."""
        is_new = self._find_beginning(whole) is None
        return self.record(whole if is_new else replace(whole, id=f"{whole.id}-whole"))

    def record_many(self, trajectories: Iterable[Trajectory]) -> list[str]:
        """Record several episodes in one transaction; see `ExperienceLibrary.record_many`."""
        return send_episodes(self._wire, trajectories)

    def apply(
        self, operations: Sequence[Operation], trajectory: Trajectory, seen_ids: Sequence[str]
    ) -> list[Admission]:
        """Apply the operations of an extractor that read a recorded episode; see `ExperienceLibrary.apply`."""
        requests = [
            {
                "item": plain(Item, operation.item),
                **({} if isinstance(operation, Add) else {"indices": list(operation.indices)}),
            }
            for operation in operations
            if not isinstance(operation, Return)
        ]
        body = {"operations": requests, "shown": list(seen_ids)}
        answer = self._wire.send("POST", f"episodes/{part(trajectory.id)}/reading", body)
        return read(list[Admission], answer["admissions"])

    def evolve(self, *, extractor: Extractor | None = None) -> EvolutionReport:
        """Learn items from the episodes recorded since the last call; see `ExperienceLibrary.evolve`.

        If the token does not permit writing, the server evolves the library whenever it receives an episode, and the
        report is empty.

        Raises:
            ConfigError: An extractor is given. It reads episodes on the server.
        """
        if extractor is not None:
            raise ConfigError(
                f"{self._wire.url} reads its episodes itself. Start it with: hardwon serve LIBRARY --extractor MODEL"
            )
        self._record_abandoned()
        # not an error: the runtime evolves after each episode, whatever its token permits
        if not self._evolves:
            return EvolutionReport()
        return read(EvolutionReport, self._wire.answer("POST", "evolve", limit="whole"))

    def feedback(self, item_id: str, helped: bool, *, writer: str = "", episode: str = "") -> Item:
        """Report whether an item helped; see `ExperienceLibrary.feedback`.

        Args:
            item_id: The id, or an unambiguous prefix of it.
            helped: Whether the item helped.
            writer: Ignored: the server knows the writer by its token.
            episode: Id of the recorded episode in which the item was used.

        Returns:
            The item with its new score. If the token may not read, an insight without content that has only the id.

        Raises:
            TooMuchFeedback: The item is already rated for this episode, or there were too many ratings in a minute.
            UnknownName: The item or the episode does not exist.
        """
        body = {"helped": helped, "episode": episode}
        answer = self._wire.send("POST", f"items/{part(item_id)}/feedback", body)
        if not answer.has_content:
            return Item("insight", "not readable with this token", id=item_id)
        return read(Item, answer)

    def grade(
        self,
        episode_id: str,
        *,
        success: bool | None = None,
        score: float | None = None,
        unknown: bool = False,
        why: str = "",
        lesson: str = "",
        instead: str = "",
        step: int | None = None,
        grader: str = "",
        trust: Trust = "trusted",
    ) -> Grade:
        """Grade, correct or explain a recorded episode; see `ExperienceLibrary.grade`.

        A token that may only record grades the episodes that it recorded. The server decides on `trust`, and puts the
        name of the token before `grader`.
        """
        body = {
            "success": success, "score": score, "unknown": unknown, "why": why, "lesson": lesson, "instead": instead,
            "step": step, "grader": grader,
        }  # fmt: skip
        return read(Grade, self._wire.send("POST", f"episodes/{part(episode_id)}/grade", body))

    # -- recall -----------------------------------------------------------------------------------

    def recall(
        self,
        state_or_text: State | str,
        *,
        task: str | None = None,
        k: int = 5,
        kinds: Sequence[Kind] | None = None,
        budget_tokens: int | None = None,
        level: Level = "step",
        actions: Mapping[str, str] | None = None,
        after: str | None = None,
        beside: Item | None = None,
    ) -> Recollection:
        """Return the past experience that fits a state or a text; see `ExperienceLibrary.recall`.

        Raises:
            ConfigError: There is an item beside the library.
        """
        if beside is not None:
            raise ConfigError(
                f"a served library does not rank an item beside it, such as {beside.title!r:.60}; open its file."
            )
        if isinstance(state_or_text, str):
            about: dict[str, Any] = {"text": state_or_text[:LONGEST_QUERY]}
        else:
            about = {"state": asdict(shorten_state(state_or_text))}
        query = {
            **about, "task": task and task[:LONGEST_QUERY], "k": k, "kinds": None if kinds is None else list(kinds),
            "budget_tokens": budget_tokens, "level": level, "actions": None if actions is None else dict(actions),
            "after": after and after[:LONGEST_QUERY], "raw": self._raw,
        }  # fmt: skip
        return read(Recollection, self._wire.ask("recall", query))

    def check(self, state: State, action: str | Sequence[str], *, again: bool = False) -> Verdict:
        """Return whether a guardrail forbids an action or a plan in a state; see `ExperienceLibrary.check`."""
        if isinstance(action, Sequence) and not isinstance(action, str):
            return read(
                Verdict, self._wire.ask("check-plan", {"state": asdict(fit_state(state)), "actions": list(action)})
            )
        # the same endpoint serves `enforce`, which counts refusals; a mere check must not
        query = {"state": asdict(fit_state(state)), "action": fit_action(action), "again": again, "about_to_run": False}
        return read(Verdict, self._wire.ask("check", query))

    def enforce(
        self, state: State, action: str, *, again: bool = False, keep: bool = True, by_hours: bool = False
    ) -> Verdict:
        """Check an action that is about to run, count a refusal, and grant a trial that is due.

        Without `keep`, the server writes nothing and grants no trial. See `ExperienceLibrary.enforce`.
        """
        query = {"state": asdict(fit_state(state)), "action": fit_action(action), "again": again, "about_to_run": keep}
        return read(Verdict, self._wire.send("POST", "check", query))

    def offered(
        self, state: State, kinds: Sequence[Kind] = ("skill", "remedy"), *, masked: bool = False
    ) -> tuple[Item, ...]:
        """Return the active items whose condition holds in a state; see `ExperienceLibrary.offered`."""
        query = {"state": asdict(fit_state(state)), "kinds": list(kinds), "masked": masked, "raw": self._raw}
        answer = self._wire.ask("offered", query)
        return tuple(read(list[Item], answer["items"]))

    def look_ahead(self, state: State, actions: Sequence[str], episode: EpisodeMap | None = None) -> Lookahead:
        """Return what each action is expected to bring; see `ExperienceLibrary.look_ahead`.

        Without `raw`, actions at other locations are those that were possible there, and none are imagined.
        """
        trail = plain(Trail, fit_trail((episode or EpisodeMap()).trace()))
        query = {"state": asdict(fit_state(state)), "actions": list(actions), "trail": trail, "raw": self._raw}
        return read(Lookahead, self._wire.ask("foresee", query))

    def search(self, text: str, k: int = 10, *, how: How = "hybrid") -> list[Hit]:
        """Search items and steps by text; see `ExperienceLibrary.search`."""
        return read(list[Hit], self._wire.get("search", text=fit_text(text), k=k, how=how)["hits"])

    def close(self) -> None:
        """Send the runs that are not over, and close the connections. Closing twice is allowed."""
        with suppress(LibraryError):
            self._runs.close(self._record_again)
        self._wire.close()
