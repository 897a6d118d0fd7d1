"""How an agent of a team writes to the bank and reads from it.

A `BankClient` connects one agent to the bank. `SharedPolicy` and `SharedEnvironment` wrap the agent's own policy and
environment. Before every decision, each new step is summarized as a key, and admitted or not. The policy
sees the keys of other teams and may pull their values. A read-only call that another team already made is
answered from the bank. This module runs no episodes.

    pull(entry=12)            the action by which a policy pulls a value; in a list of actions: `pull 12: KEY`
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from hardwon.memory import Reasons, State, Step
from hardwon.memory.bank import Bank, Entry
from hardwon.memory.errors import UnknownName
from hardwon.memory.situations.scripts import FULL_STOPS
from hardwon.runtime.interfaces.types import Context, Decision, Described, Environment, Info, Policy, Tooled
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.llm.chat_model import in_thread

from .sharing_policy import Choice, SharingInput, SharingPolicy, extract_words
from .tuning import TUNING

HEADING = "Other teams work on this task beside you. What they have found so far, by its key:"
PULLED = "Looked up for you:"
HOW = "pull(entry: integer): What another team found, by the number of its key; it takes no time and no step."
PULL_SCHEMA = {"type": "object", "properties": {"entry": {"type": "integer"}}, "required": ["entry"]}

_SENTENCE = re.compile(rf"(?<=[.!?])\s+|(?<=[{FULL_STOPS}])|\n")

T = TypeVar("T")
StepOutcome = tuple[State, float, bool, Info]
OnTeamEvent = Callable[["TeamEvent"], None]


@dataclass(frozen=True, slots=True)
class TeamEvent:
    """An event of a team, for observers."""

    team: str
    what: Literal["step", "shared", "kept", "pulled", "own", "finished", "stopped"]
    """"kept" is a step that was not shared; "own" is a pull of the team's own entry."""
    text: str
    entry: int | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """A step, the decision about it, and the id of its bank entry if it was shared."""

    team: str
    t: int
    candidate: SharingInput
    choice: Choice
    entry: int | None
    step: Step


def build_key(step: Step) -> str:
    """Return a summary of a step in at most 20 words: location, action, whether it was rewarded, and outcome.

    Sentences that share words with the task come first.
    """
    outcome = step.diagnosis.evidence or step.post.feedback or step.post.observation
    wanted = extract_words(step.pre.task)
    sentences = sorted(_SENTENCE.split(outcome), key=lambda sentence: not extract_words(sentence) & wanted)
    place = f"{step.pre.location}: " if step.pre.location else ""
    rewarded = " (rewarded)" if step.reward > 0 else ""
    return shorten(f"{place}{' '.join(step.action.split())}{rewarded} -> {' '.join(sentences)}")


def shorten(text: str, words: int = TUNING.key_words) -> str:
    """Return the first words of a text on one line."""
    return " ".join(text.split()[:words])


def get_value(steps: Sequence[Step]) -> str:
    """Return the value of an entry: the full feedback or observation of the last step."""
    return steps[-1].post.feedback or steps[-1].post.observation


def count_tokens(text: str) -> int:
    """Estimate the number of tokens of a text, at four characters per token."""
    return -(-len(text) // 4)


class BankClient:
    """The connection of one agent to the bank; agents of one team share the team's name.

    Without a bank, nothing is shared or pulled, but steps are counted.
    """

    def __init__(
        self,
        bank: Bank | None,
        team: str,
        admission: SharingPolicy,
        *,
        value: Callable[[Sequence[Step]], str] = get_value,
        watch: OnTeamEvent = lambda event: None,
        threads: bool = True,
    ) -> None:
        """Create a client."""
        self.team = team
        self._bank, self._admission, self._watch = bank, admission, watch
        self._value, self._threads = value, threads
        self._entries: list[Entry] = []
        self._costs: list[float] = []
        self.shared: list[Shared] = []
        """Every step with the decision about it."""
        self.calls = 0
        """Steps that ran in the environment instead of being answered from the bank."""
        self.key_tokens = 0
        """Tokens of the keys in prompts, over all decisions."""
        self.value_tokens = 0
        """Tokens of the pulled values."""
        self.admission_s = 0.0
        """Seconds spent on sharing decisions."""
        self.usage = ModelUsage()
        """Usage of the admission's model."""

    @property
    def open(self) -> bool:
        """Return whether there is a bank."""
        return self._bank is not None

    async def look(self) -> None:
        """Read the new keys."""
        if self._bank is not None:
            last = self._entries[-1].id if self._entries else 0
            new = await self._query(lambda bank: bank.entries(last), self._bank)
            # Another agent with this client may have read the same entries while this one waited.
            last = self._entries[-1].id if self._entries else 0
            self._entries += [entry for entry in new if entry.id > last]

    async def _query(self, question: Callable[[Bank], T], bank: Bank) -> T:
        return await asyncio.to_thread(question, bank) if self._threads else question(bank)

    @property
    def foreign_entries(self) -> list[Entry]:
        """Return the newest entries of other teams, oldest first; of several with one key, the first."""
        distinct = {entry.key: entry for entry in reversed(self._entries) if entry.team != self.team}
        return sorted(distinct.values(), key=lambda entry: entry.id)[-TUNING.max_keys :]

    def took(self, seconds: float) -> None:
        """Record the duration in seconds of the step that will be shared next."""
        self._costs.append(seconds)

    async def share(self, steps: Sequence[Step]) -> None:
        """Summarize the last step of an episode, decide about it, and put it into the bank if it is admitted."""
        step = steps[-1]
        self._watch(TeamEvent(self.team, "step", step.action))
        if self._bank is None:
            return
        key = build_key(step)
        await self.look()  # the decision depends on the keys that are already in the bank
        costs = self._costs
        mean = sum(costs) / len(costs) if costs else 0.0
        candidate = SharingInput(
            step.pre.task,
            tuple(entry.key for entry in self._entries),
            step.action,
            key,
            self._value(steps),
            step.diagnosis.success,
            step.diagnosis.progress,
            costs[-1] / mean if mean else 1.0,
        )
        began = time.perf_counter()
        choice = await self._admission.decide(candidate)
        self.admission_s += time.perf_counter() - began
        self.usage += choice.usage
        put = self._query(lambda bank: bank.put(self.team, key, candidate.value), self._bank) if choice.admit else None
        # 0 is none: a server with an admission of its own may hold back what was admitted here
        entry = (await put or None) if put is not None else None
        self.shared.append(Shared(self.team, step.t, candidate, choice, entry, step))
        self._watch(TeamEvent(self.team, "shared" if entry is not None else "kept", key, entry))

    async def pull(self, entry: int) -> str | None:
        """Return the value of an entry and log the pull; None if the entry does not exist any more."""
        source = next((candidate for candidate in self._entries if candidate.id == entry), None)
        if self._bank is None:
            return None
        try:
            value = await self._query(lambda bank: bank.pull(entry, self.team), self._bank)
        except UnknownName:
            return None
        self.value_tokens += count_tokens(value)
        is_own = source is not None and source.team == self.team
        self._watch(TeamEvent(self.team, "own" if is_own else "pulled", source.key if source else str(entry), entry))
        return value

    async def find_answer(self, action: str) -> Entry | None:
        """Return the first entry of another team whose key starts with this call; None if there is none."""
        await self.look()
        prefix = f"{' '.join(action.split())} -> "
        return next(
            (entry for entry in self._entries if entry.team != self.team and entry.key.startswith(prefix)), None
        )


class SharedPolicy:
    """A policy that shares its steps, sees the keys of other teams, and may pull values."""

    def __init__(self, inner: Policy, client: BankClient) -> None:
        self._inner, self._client = inner, client
        self.name = inner.name
        self.reads: Literal["values", "text"] = inner.reads
        self._shared_count = 0
        self._values: dict[int, str] = {}

    async def adecide(self, context: Context) -> Decision:
        """Share the steps since the last decision, then return the policy's action after any pulls."""
        await self.tell(context.history)
        await self._client.look()
        spent, pulled = ModelUsage(), list[int]()
        while True:
            offered = self._list_offers(pulled)
            decision = await self._inner.adecide(self._add_entries(context, offered))
            spent += decision.usage
            entry = parse_pull(decision.action)
            if entry is None or len(pulled) >= TUNING.max_pulls:
                break
            pulled.append(entry)
            value = await self._client.pull(entry)
            # A missing entry gets a value too, so that it is not offered again.
            self._values[entry] = (
                "There is no such entry any more." if value is None else self._format_value(entry, value)
            )
        why = decision.why.merged(Reasons(extra={"pulled": pulled})) if pulled else decision.why
        return replace(decision, why=why, usage=spent)

    def decide(self, context: Context) -> Decision:
        """Return the policy's action; the synchronous version of `adecide`."""
        return asyncio.run(self.adecide(context))

    async def tell(self, history: Sequence[Step]) -> None:
        """Share the new steps of an episode."""
        if len(history) < self._shared_count:  # a shorter history means that the episode was restarted
            self._shared_count = 0
            self._values.clear()
        while self._shared_count < len(history):
            # Counted first, so that a step whose sharing fails or is cancelled is not shared twice.
            self._shared_count += 1
            if history[self._shared_count - 1].action:
                await self._client.share(history[: self._shared_count])

    def _format_value(self, entry: int, value: str) -> str:
        """Return the value together with the action that led to it."""
        key = next((candidate.key for candidate in self._client.foreign_entries if candidate.id == entry), "")
        return f"{key.partition(' -> ')[0]} -> {value}" if " -> " in key else value

    def _list_offers(self, pulled: Sequence[int]) -> list[Entry]:
        if self.reads == "values" or len(pulled) >= TUNING.max_pulls:
            return []
        return [entry for entry in self._client.foreign_entries if entry.id not in self._values]

    def _add_entries(self, context: Context, offered: Sequence[Entry]) -> Context:
        """Return the context with keys and pulled values.

        A policy that reads only estimates gets its context unchanged.
        """
        if self.reads == "values":
            return context
        listed = bool(context.actions)
        lines = [format_entry(entry, listed=listed) for entry in offered]
        self._client.key_tokens += sum(map(count_tokens, lines))
        values = "\n".join(f"[{entry}] {value}" for entry, value in self._values.items())[-TUNING.value_chars :]
        parts = [context.guidance or "", f"{PULLED}\n{values}" if values else ""]
        if lines and not listed:
            parts.append("\n".join([HEADING, *lines]))
        pulls = {"pull": PULL_SCHEMA} if self._client.open and not listed and context.tools else {}
        return replace(
            context,
            tools={**context.tools, **pulls},
            guidance="\n\n".join(part for part in parts if part) or None,
            actions=(*context.actions, *lines) if listed else context.actions,
            manual=f"{context.manual}\n{HOW}".strip() if self._client.open and not listed else context.manual,
        )


def format_entry(entry: Entry, *, listed: bool = False) -> str:
    """Return an entry with its number as one line, cut so that it takes no more characters than its key."""
    # Leave room for the number and the line end, so that a prompt grows by no more than the length of the keys.
    room = len(entry.key) - 1
    text = f"pull {entry.id}: {entry.key}" if listed else f"[{entry.id}] {entry.key}"
    return text[: max(room - 5 if listed else room, len(f"pull {entry.id}"))]


_PULL = re.compile(r"\s*pull(?:\s*\(\s*(?:entry\s*=\s*)?|\s+)(\d+)\b")


def parse_pull(action: str) -> int | None:
    """Return the number of the entry that an action pulls; None for any other action."""
    match = _PULL.match(action)
    return int(match[1]) if match else None


class SharedEnvironment:
    """An environment that answers calls from the bank if another team already made them.

    This applies only to calls without side effects, if the environment supports it by `changes_nothing` and
    `answered`. All other calls are awaited, in a thread if necessary, so that the other teams continue.
    """

    waits = True

    def __init__(self, inner: Environment, client: BankClient) -> None:
        self._inner, self._client = inner, client
        self.name = inner.name
        self.keeps_time = bool(getattr(inner, "keeps_time", False))

    async def astep(self, action: str) -> StepOutcome:
        """Return the outcome of an action, from the bank or from the environment."""
        inner: Any = self._inner
        # Calls with side effects must run for every team.
        if hasattr(inner, "answered") and inner.changes_nothing(action):
            entry = await self._client.find_answer(action)
            value = None if entry is None else await self._client.pull(entry.id)
            if value is not None:
                # It took no time, so an admission by cost does not share the finding a second time.
                self._client.took(0.0)
                outcome: StepOutcome = inner.answered(action, value)
                return outcome
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            return await self._run_step(action)
        finally:
            self._client.took(clock() - began)
            self._client.calls += 1

    async def _run_step(self, action: str) -> StepOutcome:
        inner: Any = self._inner
        if hasattr(inner, "astep"):
            outcome: StepOutcome = await inner.astep(action)
            return outcome
        return await asyncio.wrap_future(in_thread(lambda: self._inner.step(action)))

    def step(self, action: str) -> StepOutcome:
        """Take an action; the synchronous version of `astep`."""
        return asyncio.run(self.astep(action))

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin an episode."""
        return self._inner.reset(task, seed)

    def admissible(self, state: State) -> list[str]:
        """Return the admissible actions."""
        return self._inner.admissible(state)

    def describe(self) -> str:
        """Return the environment's description of its actions; "" if it has none."""
        return self._inner.describe() if isinstance(self._inner, Described) else ""

    def tool_schemas(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the environment's tools with their schemas; empty if it has none."""
        return self._inner.tool_schemas() if isinstance(self._inner, Tooled) else {}

    def clone(self) -> "SharedEnvironment":
        """Return another environment with the same client."""
        return SharedEnvironment(self._inner.clone(), self._client)

    def abandon(self) -> None:
        """Cut off a call that nobody waits for any more, if the environment supports it."""
        getattr(self._inner, "abandon", lambda: None)()

    def close(self) -> None:
        """Close the environment."""
        self._inner.close()
