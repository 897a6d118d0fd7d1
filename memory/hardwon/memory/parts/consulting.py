"""Consulting a library: recall, checks by guardrails, lookahead and search. It writes only counts of refusals."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hardwon.memory.guardrails.conditions import holds
from hardwon.memory.guardrails.preconditions import find_remedies
from hardwon.memory.privacy.redaction import redact, redact_state
from hardwon.memory.records import Hit, Item, Kind, Recollection, State, Verdict
from hardwon.memory.retrieval import recall
from hardwon.memory.retrieval.candidates import How
from hardwon.memory.retrieval.request import Level, copy_recollection, make_key, parse_request
from hardwon.memory.retrieval.task_recall import recall_by_task
from hardwon.memory.situations.episode_map import EpisodeMap
from hardwon.memory.situations.keys import Attempt
from hardwon.memory.validation import check_choice, check_count, check_kinds, check_state, check_text, check_texts
from hardwon.memory.values.lookahead import Lookahead

from .file import LibraryFile


class ConsultedLibrary:
    """The verbs of a library that answer questions about a state."""

    _file: LibraryFile

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
        """Return the past experience that fits a state or a text.

        A known situation is a direct lookup; a new one uses hybrid search. If nothing is similar enough, the result is
        empty, which is a valid answer.

        Args:
            state_or_text: State of the episode, or a question in words.
            task: Task of the episode, if the state does not have one.
            k: Maximum number of items and of similar steps, each. With 0, only guardrails and estimates are returned.
            kinds: Kinds of items to return. None returns all kinds.
            budget_tokens: Maximum number of tokens of the items and steps together. None sets no limit.
            level: "step" recalls for the next action. "task" retrieves whole episodes by task.
            actions: Admissible actions, each with a short description of what this episode already tried (see
                `Situation.keys`). The result then has an estimate for each action.
            after: The previous action of the episode, or "" at its beginning. Steps that followed the same kind of
                action rank higher; see `retrieval.ranking`.
            beside: An item that is not in the library. At level "step", it is ranked as if it were, so the result shows
                whether it would be recalled.

        Returns:
            Items, similar steps, guardrails and estimates, with the reason for each hit.

        Raises:
            ConfigError: An argument is out of range.
            WrongType: An argument has the wrong type.
        """
        arguments = state_or_text, task, k, kinds, budget_tokens, level, actions, after
        key = make_key(*arguments) if beside is None else None
        file = self._file
        with file.lock:
            derived = file.caught_up()
            kept = derived.findings.recollections.get(key) if key is not None else None
            if kept is not None:
                return copy_recollection(kept)
            request = parse_request(*arguments, beside)
            if level == "task":
                recollection = recall_by_task(file.store, derived, file.search, request)
            else:
                recollection = recall.recall_by_step(file.store, derived, file.search, request, file.freshness.read_at)
            recollection = request.restore_names(recollection)
            derived.findings.recollections.keep(key, recollection)
        return recollection

    def search(self, text: str, k: int = 10, *, how: How = "hybrid") -> list[Hit]:
        """Search items and steps by text.

        This is meant for people; policies use `recall`.

        Args:
            text: Search text.
            k: Maximum number of hits.
            how: "dense" (vectors), "text" (words) or "hybrid" (both, fused).

        Returns:
            Hits, best first.

        Raises:
            ConfigError: `k` or `how` is out of range.
            WrongType: An argument has the wrong type.
        """
        check_text("text", text)
        check_count("k", k)
        check_choice("how", how, ("hybrid", "dense", "text"))
        with self._file.lock:
            derived = self._file.caught_up()
            file = self._file
            return recall.search(file.store, derived, file.search, file.freshness.read_at, redact(text), k, how)

    def check(self, state: State, action: str | Sequence[str], *, again: bool = False) -> Verdict:
        """Return whether a guardrail forbids an action or a plan in a state, without counting the refusal.

        Args:
            state: Current state.
            action: Action to check, or the actions of a plan in order, which guardrails on whole plans may forbid.
            again: Set to True if the same action failed in this run and no action has succeeded since.

        Returns:
            A verdict with the guardrails that forbid the action and the cause, or with the remedy that an allowed call
            needs: whether the run has done what it says is for the caller to know.

        Raises:
            WrongType: The state or the action has the wrong type.
        """
        check_query(state, *(action if isinstance(action, Sequence) and not isinstance(action, str) else [action]))
        with self._file.lock:
            derived = self._file.caught_up()
            situation = derived.situation(redact_state(state))
            if not isinstance(action, str):
                return derived.items.guard.check_plan(situation, map(redact, action), self._speaks)
            attempt = Attempt(situation, redact(action), again=again)
            verdict = derived.items.guard.check(attempt, self._speaks)
            return verdict if verdict.items else self._find_remedy(attempt)

    def _speaks(self, item: Item) -> bool:
        """Return whether an item may be told of: what was learned is silent while advice does harm, unless pinned."""
        is_learned = item.source in ("experience", "model") and not item.pinned
        return not is_learned or not self._file.derived.effects.gain().is_off

    def _find_remedy(self, attempt: Attempt) -> Verdict:
        """Return the verdict on an allowed call, with the best remedy of this world that warns of it."""
        derived = self._file.derived
        remedies = find_remedies(derived.items.warning_remedies, attempt.action, attempt.parsed)
        if remedies:
            home, worlds = derived.worlds.locate(attempt.situation.state.task)
            masked = derived.effects.left_out(home)
            for item in remedies:
                is_here = item.condition is None or holds(item.condition, attempt)
                is_told = item.id not in masked and derived.items.counts_in(item, worlds)
                if is_here and is_told and self._speaks(item):
                    return Verdict(True, item.id, item.title)
        return Verdict(True)

    def enforce(
        self, state: State, action: str, *, again: bool = False, keep: bool = True, by_hours: bool = False
    ) -> Verdict:
        """Check an action that is about to run, count a refusal, and grant a trial that is due.

        On a trial, the verdict allows the action and names the guardrails. Whoever runs the action records this in
        the step's `why` as `{"overrode": items, "trial": items}`, so that the outcome of the step decides about the
        guardrails. See `guardrails.probation`.

        Args:
            state: Current state.
            action: Action that is about to run.
            again: Set to True if the same action failed in this run and no action has succeeded since.
            keep: Write the counts to the library. If False, they stay in this process, and you pass the outcome of a
                trial to `library.items.settle_trial`.
            by_hours: With `keep=False`, let only time make a trial due, not the number of refusals.

        Returns:
            A verdict. `trial` is True if the action is forbidden but may run this time.

        Raises:
            WrongType: The state or the action has the wrong type.
        """
        # most calls are allowed, and then nothing needs to be looked up or counted
        verdict = self.check(state, action, again=again)
        if verdict.allowed:
            return verdict
        file = self._file
        with file.lock:
            items = file.caught_up().items.by_id
            # `check` released the lock, so another thread may have retired a guardrail since
            guardrails = tuple(items[ref] for ref in verdict.items if ref in items)
            if file.probation.lifted.issuperset(verdict.items):
                return replace(verdict, allowed=True)
            trial = file.probation.admits(guardrails, file.derived.words.clock.time, keep=keep, by_hours=by_hours)
        return replace(verdict, allowed=True, trial=True) if trial else verdict

    def offered(
        self, state: State, kinds: Sequence[Kind] = ("skill", "remedy"), *, masked: bool = False
    ) -> tuple[Item, ...]:
        """Return the active items whose condition holds in a state, best first.

        Args:
            state: Current state.
            kinds: Kinds of items to return.
            masked: Return only the items that are masked because they hurt in the state's world. By default, only the
                others are returned. See `library.items.effects`.

        Returns:
            Items in descending order of score times confidence.

        Raises:
            WrongType: The state or a kind has the wrong type.
            ConfigError: A kind does not exist.
        """
        check_state(state)
        check_kinds(kinds)
        with self._file.lock:
            derived = self._file.caught_up()
            situation = derived.situation(redact_state(state))
            no_action = Attempt(situation, "")
            home, worlds = derived.worlds.locate(situation.state.task)
            masked_ids = derived.effects.left_out(home)
            candidates = [
                item
                for item in derived.items.by_id.values()
                if item.kind in kinds
                and (item.id in masked_ids) == masked
                and derived.items.counts_in(item, worlds)
                and (item.condition is None or holds(item.condition, no_action))
            ]
            # the id breaks ties, so that the order does not depend on when items were read
            return tuple(sorted(candidates, key=lambda item: (-item.score * item.confidence, item.id)))

    def look_ahead(self, state: State, actions: Sequence[str], episode: EpisodeMap | None = None) -> Lookahead:
        """Return what each action is expected to bring and to make possible, here and at other known locations.

        Args:
            state: Current state.
            actions: Its admissible actions.
            episode: The map of the episode so far. None stands for its first state.

        Returns:
            A lookahead value for each action, and the actions at other locations with the way there.

        Raises:
            WrongType: The state or an action has the wrong type.
        """
        check_query(state, *actions)
        with self._file.lock:
            return self._file.caught_up().statistics.look_ahead(state, actions, episode or EpisodeMap())


def check_query(state: State, *actions: str) -> None:
    """Check the types of a state and of actions."""
    check_state(state)
    check_texts("actions", actions)
