"""Sharing: how one agent of a team writes to the bank and reads from it.

A `Desk` is its seat there. `SharedPolicy` and `SharedEnvironment` stand around the agent's own: before
every decision each new step is said in a key and admitted or not; the keys of the others are put
before the policy, which may ask for a value; and a call that changes nothing and that another team
has made is answered from the bank. The episode itself is the runtime's; nothing here runs one.

    pull(entry=12)            the action by which a policy asks; where actions are listed: `pull 12: KEY`
"""

import asyncio
import inspect
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from hardwon.memory import State, Step
from hardwon.memory.bank import Bank, Entry
from hardwon.memory.errors import UnknownName
from hardwon.runtime.interfaces.types import Context, Decision, Described, Environment, Info, Policy, Usage
from hardwon.runtime.llm.chat_model import in_thread

from .sharing_policy import Admission, Candidate, Choice, extract_words

KEY_WORDS = 20
"""A key has at most so many words."""
MAX_KEYS = 60
"""Newest keys of the others that are put before a policy."""
MAX_PULLS = 4
"""Values that a policy may ask for before it has to act."""
VALUE_CHARS = 4_000
"""Characters of pulled values, the newest last, that stay before the policy."""
HEADING = "Other teams work on this task beside you. What they have found so far, by its key:"
PULLED = "Looked up for you:"
HOW = "pull(entry: integer): What another team found, by the number of its key; it takes no time and no step."

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n")

T = TypeVar("T")
Outcome = tuple[State, float, bool, Info]
Summarise = Callable[[Step], str | Awaitable[str]]
"""Says a step in a key."""
Watch = Callable[["Event"], None]


@dataclass(frozen=True, slots=True)
class Event:
    """What a team did, for whoever watches."""

    team: str
    what: Literal["step", "shared", "kept", "pulled", "own", "finished", "stopped"]
    """kept: a step that was not shared; own: a pull of the team's own entry."""
    text: str
    entry: int | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """A step, the decision about it, and under which number it is in the bank, if it is."""

    team: str
    t: int
    candidate: Candidate
    choice: Choice
    entry: int | None
    step: Step


def build_key(step: Step) -> str:
    """The step in at most twenty words: where it was, the action, what came of it; what speaks of the task first."""
    told = step.diagnosis.evidence or step.post.feedback or step.post.observation
    wanted = extract_words(step.pre.task)
    sentences = sorted(_SENTENCE.split(told), key=lambda sentence: not extract_words(sentence) & wanted)
    place = f"{step.pre.location}: " if step.pre.location else ""
    return shorten(f"{place}{' '.join(step.action.split())} -> {' '.join(sentences)}")


def shorten(text: str, words: int = KEY_WORDS) -> str:
    """The first words of a text, on one line."""
    return " ".join(text.split()[:words])


def get_value(steps: Sequence[Step]) -> str:
    """What a reader gets: all that the last of the steps told."""
    return steps[-1].post.feedback or steps[-1].post.observation


def count_tokens(text: str) -> int:
    """About how many tokens a text has: one for four characters."""
    return -(-len(text) // 4)


class Desk:
    """One agent's seat at the bank. Several agents of one team have the team's name in common.

    Without a bank nothing is shared and nothing can be pulled; steps are counted all the same.
    """

    def __init__(
        self,
        bank: Bank | None,
        team: str,
        admission: Admission,
        *,
        summarise: Summarise = build_key,
        value: Callable[[Sequence[Step]], str] = get_value,
        watch: Watch = lambda event: None,
        threads: bool = True,
    ) -> None:
        """value: what readers get of the last of an episode's steps so far.

        threads: the bank is asked in one, since a commit waits for the disk and the other teams need not. Without
        them it is asked in the order of the events, so that a run can be repeated.
        """
        self.team = team
        self._bank, self._admission, self._watch = bank, admission, watch
        self._summarise, self._value, self._threads = summarise, value, threads
        self._entries: list[Entry] = []
        self._costs: list[float] = []
        self.shared: list[Shared] = []
        """Every step, with what was decided about it."""
        self.calls = 0
        """Steps that were taken, and not answered from the bank."""
        self.key_tokens = 0
        """Tokens that keys took before the policy, over all decisions."""
        self.value_tokens = 0
        """Tokens of the values that were pulled."""
        self.admission_s = 0.0
        """Seconds spent on deciding."""
        self.usage = Usage()
        """What the admission's model cost."""

    @property
    def open(self) -> bool:
        """Whether there is a bank."""
        return self._bank is not None

    async def look(self) -> None:
        """Read the keys that are new."""
        if self._bank is not None:
            last = self._entries[-1].id if self._entries else 0
            new = await self._asked(lambda bank: bank.entries(last), self._bank)
            known = self._entries[-1].id if self._entries else 0  # somebody of this team may have looked meanwhile
            self._entries += [entry for entry in new if entry.id > known]

    async def _asked(self, question: Callable[[Bank], T], bank: Bank) -> T:
        return await asyncio.to_thread(question, bank) if self._threads else question(bank)

    @property
    def others(self) -> list[Entry]:
        """The newest entries of the other teams, oldest first; of those with one key, the first."""
        distinct = {entry.key: entry for entry in reversed(self._entries) if entry.team != self.team}
        return sorted(distinct.values(), key=lambda entry: entry.id)[-MAX_KEYS:]

    def took(self, seconds: float) -> None:
        """How long the step lasted that comes next to be shared."""
        self._costs.append(seconds)

    async def share(self, steps: Sequence[Step]) -> None:
        """Say the last of an episode's steps in a key, decide, and put it into the bank where the decision is YES."""
        step = steps[-1]
        self._watch(Event(self.team, "step", step.action))
        if self._bank is None:
            return
        said = self._summarise(step)
        key = shorten(await said if inspect.isawaitable(said) else said)
        await self.look()
        costs = self._costs
        mean = sum(costs) / len(costs) if costs else 0.0
        candidate = Candidate(
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
        put = self._asked(lambda bank: bank.put(self.team, key, candidate.value), self._bank) if choice.admit else None
        entry = None if put is None else await put
        self.shared.append(Shared(self.team, step.t, candidate, choice, entry, step))
        self._watch(Event(self.team, "shared" if choice.admit else "kept", key, entry))

    async def pull(self, entry: int) -> str | None:
        """The value, logged; None for a number that is not there, or is no longer."""
        known = next((one for one in self._entries if one.id == entry), None)
        if self._bank is None:
            return None
        try:
            value = await self._asked(lambda bank: bank.pull(entry, self.team), self._bank)
        except UnknownName:
            return None
        self.value_tokens += count_tokens(value)
        own = known is not None and known.team == self.team
        self._watch(Event(self.team, "own" if own else "pulled", known.key if known else str(entry), entry))
        return value

    async def answering(self, action: str) -> Entry | None:
        """The first entry of another team whose key says that it made this very call."""
        await self.look()
        made = f"{' '.join(action.split())} -> "
        return next((entry for entry in self._entries if entry.team != self.team and entry.key.startswith(made)), None)


class SharedPolicy:
    """A policy at a desk: it shares what was done, sees the keys of the others, and may ask for values."""

    def __init__(self, inner: Policy, desk: Desk) -> None:
        self._inner, self._desk = inner, desk
        self.name = inner.name
        self.reads: Literal["values", "text"] = inner.reads
        self._told = 0
        self._values: dict[int, str] = {}

    async def adecide(self, context: Context) -> Decision:
        """Share the steps since the last decision; then what the policy wants, looked-up values apart."""
        await self.tell(context.history)
        await self._desk.look()
        spent, pulled = Usage(), list[int]()
        while True:
            offered = self._offered(pulled)
            decision = await self._inner.adecide(self._shown(context, offered))
            spent += decision.usage
            entry = parse_pull(decision.action)
            if entry is None or len(pulled) >= MAX_PULLS:
                break
            pulled.append(entry)
            value = await self._desk.pull(entry)
            self._values[entry] = "There is no such entry any more." if value is None else self._told_of(entry, value)
        why = {**decision.why, "pulled": pulled} if pulled else decision.why
        return replace(decision, why=why, usage=spent)

    def decide(self, context: Context) -> Decision:
        """The same, for a loop that does not await."""
        return asyncio.run(self.adecide(context))

    async def tell(self, history: Sequence[Step]) -> None:
        """Share what is new in an episode's steps."""
        if len(history) < self._told:  # another attempt at the episode
            self._told = 0
            self._values.clear()
        while self._told < len(history):
            self._told += 1
            if history[self._told - 1].action:
                await self._desk.share(history[: self._told])

    def _told_of(self, entry: int, value: str) -> str:
        """The value behind what was done to get it."""
        key = next((one.key for one in self._desk.others if one.id == entry), "")
        return f"{key.partition(' -> ')[0]} -> {value}" if " -> " in key else value

    def _offered(self, pulled: Sequence[int]) -> list[Entry]:
        if self.reads == "values" or len(pulled) >= MAX_PULLS:
            return []
        return [entry for entry in self._desk.others if entry.id not in self._values]

    def _shown(self, context: Context, offered: Sequence[Entry]) -> Context:
        """The context with keys and looked-up values; as it was for a policy that reads estimates alone."""
        if self.reads == "values":
            return context
        listed = bool(context.actions)
        lines = [format_entry(entry, listed=listed) for entry in offered]
        self._desk.key_tokens += sum(map(count_tokens, lines))
        values = "\n".join(f"[{entry}] {value}" for entry, value in self._values.items())[-VALUE_CHARS:]
        parts = [context.guidance or "", f"{PULLED}\n{values}" if values else ""]
        if lines and not listed:
            parts.append("\n".join([HEADING, *lines]))
        return replace(
            context,
            guidance="\n\n".join(part for part in parts if part) or None,
            actions=(*context.actions, *lines) if listed else context.actions,
            manual=f"{context.manual}\n{HOW}".strip() if self._desk.open and not listed else context.manual,
        )


def format_entry(entry: Entry, *, listed: bool = False) -> str:
    """What is shown of an entry: never longer, with its number and the end of the line, than its key."""
    room = len(entry.key) - 1
    text = f"pull {entry.id}: {entry.key}" if listed else f"[{entry.id}] {entry.key}"
    return text[: max(room - 5 if listed else room, len(f"pull {entry.id}"))]


_ASKED = re.compile(r"\s*pull(?:\s*\(\s*(?:entry\s*=\s*)?|\s+)(\d+)\b")


def parse_pull(action: str) -> int | None:
    """The number of the entry that an action asks for; None for any other action."""
    match = _ASKED.match(action)
    return int(match[1]) if match else None


class SharedEnvironment:
    """An environment at a desk: a call that another team has made is answered from the bank, at once.

    Only where the environment says that the call changes nothing (`changes_nothing`, `answered`). All else
    is awaited, in a thread where the environment cannot be, so that the other teams go on meanwhile.
    """

    waits = True

    def __init__(self, inner: Environment, desk: Desk) -> None:
        self._inner, self._desk = inner, desk
        self.name = inner.name
        self.keeps_time = bool(getattr(inner, "keeps_time", False))

    async def astep(self, action: str) -> Outcome:
        """The outcome, pulled or made."""
        inner: Any = self._inner
        if hasattr(inner, "answered") and inner.changes_nothing(action):
            entry = await self._desk.answering(action)
            value = None if entry is None else await self._desk.pull(entry.id)
            if value is not None:
                self._desk.took(0.0)
                outcome: Outcome = inner.answered(action, value)
                return outcome
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            return await self._made(action)
        finally:
            self._desk.took(clock() - began)
            self._desk.calls += 1

    async def _made(self, action: str) -> Outcome:
        inner: Any = self._inner
        if hasattr(inner, "astep"):
            outcome: Outcome = await inner.astep(action)
            return outcome
        return await asyncio.wrap_future(in_thread(lambda: self._inner.step(action)))

    def step(self, action: str) -> Outcome:
        """The same, for a loop that does not await."""
        return asyncio.run(self.astep(action))

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin an episode."""
        return self._inner.reset(task, seed)

    def admissible(self, state: State) -> list[str]:
        """What can be done."""
        return self._inner.admissible(state)

    def describe(self) -> str:
        """How it is acted in; nothing where it does not say."""
        return self._inner.describe() if isinstance(self._inner, Described) else ""

    def clone(self) -> "SharedEnvironment":
        """Another one at the same desk."""
        return SharedEnvironment(self._inner.clone(), self._desk)

    def abandon(self) -> None:
        """Cut off a call that is not waited for any more, where that can be done."""
        getattr(self._inner, "abandon", lambda: None)()

    def close(self) -> None:
        """Close it."""
        self._inner.close()
