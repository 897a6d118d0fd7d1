"""Support: which words of recorded steps may be shown, because independent requests produced them.

A tool's result may be written by anybody, and an argument may be a customer's name. What a single request says could be
an attack or a secret; what REQUESTS requests say alike is how the tool is used and how it answers. If several trusted
parties record, at least PARTIES of them must say it, because one person may send many requests. An episode counts once.

Values of actions are compared argument by argument. Messages are compared by pairs of neighboring tokens, and only with
messages that share at least half of them: otherwise, common words could be assembled to a new sentence.
"""

import json
import sqlite3
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from functools import lru_cache
from itertools import islice, pairwise
from typing import NamedTuple

from hardwon.memory.patterns import compile_late
from hardwon.memory.records import Hit, Item, Step, Summary
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.phrases import HOLE
from hardwon.memory.situations.titles import is_open
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import witness_of

from .instructions import LEFT_OUT, instruction_in
from .testimony import COPIED, PARTIES, REQUESTS, find_chosen_words, find_names
from .tuning import TUNING

SHARE_OF_VALUES, SHARE_OF_MESSAGES = 0.25, 0.5
"""Least share of the requests with the same form of action, or with a similar message."""
READ, SCANNED = 4000, 32_000
"""Number of newest steps of a namespace that are compared, and of the file that are searched for them."""
HIDDEN = "{value}"
_HEAD = compile_late(r"[^\s(\[]*")
_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_TOKEN = compile_late(rf"[{_CJK}]|[^\W{_CJK}]+(?:[@/.:+-]+[^\W{_CJK}]+)*|[^\w\s]")
_DIGIT = compile_late(r"\d")
_NEW = f"""
SELECT steps.id, action, trajectory_id, task,
iif(failure = 'none' OR NOT json_valid(diagnosis), '', json_extract(diagnosis, '$.evidence')),
(SELECT writer FROM trajectories WHERE trajectories.namespace = steps.namespace AND trajectories.id = trajectory_id),
{COPIED}
FROM steps JOIN states ON states.id = pre
WHERE steps.id > max(?, (SELECT max(id) FROM steps) - ?) AND +steps.namespace = ? AND witness = 0
ORDER BY steps.id DESC LIMIT ?
"""
_NEXT_WRITER = "SELECT min(writer) FROM trajectories WHERE namespace = ? AND writer > ?"
_EVIDENCE = """
SELECT trajectory_id, task FROM steps JOIN states ON states.id = pre
WHERE witness = 0 AND steps.id IN (SELECT value FROM json_each(?)) ORDER BY steps.id
"""
_WRITER = "SELECT writer FROM trajectories WHERE namespace = ? AND id = ?"


def _party_of(writer: str) -> str:
    """Return who is behind a trusted writer: the programs of this machine are one party."""
    return writer if writer.startswith("token:") else ""


def _list_parties(store: Store, namespace: int) -> Iterator[str]:
    """Yield the party of each writer; those of untrusted writers are left out, because they support nothing."""
    untrusted = {name for (name,) in store.rows("SELECT name FROM writers WHERE namespace = ?", (namespace,)) if name}
    writer: str | None = store.rows("SELECT min(writer) FROM trajectories WHERE namespace = ?", (namespace,))[0][0]
    while writer is not None:
        if witness_of(writer) not in untrusted:
            yield _party_of(writer)
        writer = store.rows(_NEXT_WRITER, (namespace, writer))[0][0]


ArgumentPair = tuple[str, str]
Pairs = tuple[ArgumentPair, ...]


class _Use(NamedTuple):
    """One recorded use of a tool."""

    action: str
    episode: str
    task: str
    message: str
    """Its error message; empty if it succeeded."""
    writer: str
    copied: str
    """The values of the action that were copied from results, as JSON; empty if there are none."""


class _Form:
    """Which requests gave which values to the parameters of one form of action."""

    def __init__(self, slots: int) -> None:
        self.episodes: set[str] = set()
        self.values: list[dict[str, set[str]]] = [{} for _ in range(slots)]
        """By parameter and value."""


class _Messages:
    """Which requests got messages with the same masked pairs, and which pairs these had."""

    def __init__(self) -> None:
        self.episodes: set[str] = set()
        self.pairs: dict[ArgumentPair, set[str]] = {}


class _Tool:
    """What the newest requests for one tool share.

    Uses are counted when somebody asks, each once. After `compared_steps` more uses, the older ones are forgotten.
    """

    def __init__(self) -> None:
        self._uses: deque[_Use] = deque(maxlen=TUNING.compared_steps)
        self.uncounted = self._new = 0
        self.limits: dict[int | None, tuple[Step, Step]] = {}
        """By id, steps as recorded and with the words that may be shown, until there are enough new uses."""
        self.usual_message: str | None = None
        """What most of the failed uses got, as far as it may be shown; None until somebody asks, as for `limits`."""
        self._clear()

    def _clear(self) -> None:
        self._counted = 0
        self.parties: dict[str, str] = {}
        """By episode."""
        self.words_asked: dict[str, frozenset[str]] = {}
        """Words of the request, by episode."""
        self.forms: dict[str, _Form] = {}
        self.chosen: dict[str, set[str]] = {}
        """Which requests chose a word of a form, or the name of a tool or parameter."""
        self.copied: set[str] = set()
        """What was copied from a result."""
        self.messages: dict[frozenset[ArgumentPair], _Messages] = {}
        self._words: Counter[str] = Counter()

    def add(self, use: _Use) -> None:
        """Add a use; an episode that repeats itself says nothing new."""
        if self._uses and self._uses[-1] == use:
            return
        self._uses.append(use)
        self.uncounted = min(self.uncounted + 1, TUNING.compared_steps)
        self._new += 1
        if self._new > TUNING.renewal_share * len(self._uses):
            self.renew()
            self._new = 0

    def renew(self) -> None:
        """Forget what may be shown, so that it is found out anew."""
        self.limits.clear()
        self.usual_message = None

    def count(self) -> None:
        """Count the uses that were added since the last call."""
        if self._counted + self.uncounted > 2 * TUNING.compared_steps:
            self._clear()
            self.uncounted = len(self._uses)
        for use in islice(self._uses, len(self._uses) - self.uncounted, None):
            self._count_use(use)
        self._counted += self.uncounted
        self.uncounted = 0

    def _count_use(self, use: _Use) -> None:
        if use.episode not in self.parties:
            self.parties[use.episode] = _party_of(use.writer)
            self._words.update(words := _find_words(use.task))
            self.words_asked[use.episode] = words
        parsed, copied = parse_action(use.action), json.loads(use.copied) if use.copied else ()
        if parsed.slots:
            form = self.forms.get(parsed.template) or self.forms.setdefault(parsed.template, _Form(len(parsed.slots)))
            form.episodes.add(use.episode)
            for values, slot, head in zip(form.values, parsed.slots, parsed.heads, strict=True):
                if slot not in copied:
                    for value in {slot, head}:  # a pattern may name the kind of a thing alone
                        values.setdefault(value, set()).add(use.episode)
        self.copied.update(copied)
        for word in find_chosen_words(use.action) | find_names(use.action):
            self.chosen.setdefault(word, set()).add(use.episode)
        if use.message:
            _, _, distinct, pairs = _pair(use.message)
            messages = self.messages.get(distinct) or self.messages.setdefault(distinct, _Messages())
            messages.episodes.add(use.episode)
            for pair in pairs:
                messages.pairs.setdefault(pair, set()).add(use.episode)

    def list_failed(self) -> list[_Use]:
        """Return the uses with a message."""
        return [use for use in self._uses if use.message]

    def find_independent(self, value: str, episodes: Collection[str], varying: Set[str]) -> Collection[str]:
        """Return those of these requests that gave a value without being asked for it in its varying words."""
        words = varying & _find_words(value)
        return {ref for ref in episodes if words.isdisjoint(self.words_asked[ref])} if words else episodes

    def find_varying(self, task: str) -> frozenset[str]:
        """Return the words of a task that most of the requests do not have."""
        least = TUNING.constant_share * len(self.parties)
        return frozenset(word for word in _find_words(task) if self._words[word] < least)


class Support:
    """Counts which requests of one namespace share a value or a message."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store, self._namespace = store, namespace
        self._last = 0
        self._tools: defaultdict[str, _Tool] = defaultdict(_Tool)
        self._parties: set[str] = set()
        self.unread = True
        """Whether steps were recorded since the last call."""

    def limit_words(self, hit: Hit) -> Hit:
        """Return a hit on a step with the words that `limit_step` leaves, or on an item with those of its failures."""
        what = self.limit_step(hit.what) if isinstance(hit.what, Step) else self._add_message(hit.what)
        return hit if what is hit.what else replace(hit, what=what)

    def limit_step(self, step: Step) -> Step:
        """Return a step with the supported part of its message, and with its supported values as a reason."""
        if step.why.untrusted:
            return step
        tool = self._find_tool(step.action)
        recorded, limited = tool.limits.get(step.id, (None, step))
        if recorded is not step:
            limited = self._limit(step, tool)
            tool.limits[step.id] = step, limited
        return limited

    def _limit(self, step: Step, tool: _Tool) -> Step:
        varying, diagnosis = tool.find_varying(step.pre.task), step.diagnosis
        values_copied = {*(step.why.copied or ())} - find_names(step.action)
        copied = tuple(sorted(values_copied | self._find_doubtful_names(step.action, tool))) or None
        chosen = find_chosen_words(step.action)
        values = self._find_values(step.action, varying, tool, chosen) or None
        if diagnosis.evidence:
            message = self._find_message(diagnosis.evidence, varying, tool) if diagnosis.evidence != LEFT_OUT else ""
            diagnosis = replace(diagnosis, evidence=message)
        if (values, copied) == (step.why.supported, step.why.copied) and diagnosis is step.diagnosis:
            return step
        return replace(step, diagnosis=diagnosis, why=step.why.updated(supported=values, copied=copied))

    def has_doubtful_names(self, *actions: str) -> bool:
        """Return whether one of these actions has a name that may not be shown."""
        return any(self._find_doubtful_names(action, self._find_tool(action)) for action in actions)

    def _find_doubtful_names(self, action: str, tool: _Tool) -> frozenset[str]:
        """Return the names of a tool and its parameters that too few requests gave.

        That is asked of a name that a result had, and of each name once the tool has more requests.
        """
        names, chosen = find_names(action), tool.chosen
        rare = {name for name in names if len(chosen.get(name, ())) < REQUESTS <= len(tool.parties) // 2}
        unsupported = {name for name in names if not self._is_supported(chosen.get(name, ()), (), 0.0, tool)}
        return frozenset(rare | (unsupported & tool.copied))

    def vouches_for(self, item: Item) -> bool:
        """Return whether enough parties did what a rule-made item says, and enough requests gave the values in it."""
        self._read()
        evidence = self._store.rows(_EVIDENCE, (json.dumps(item.provenance),))
        if self._has_several_parties:
            writers = (row for ref, _ in {*evidence} for row in self._store.rows(_WRITER, (self._namespace, ref)))
            if len({_party_of(writer) for (writer,) in writers}) < PARTIES:
                return False
        task = evidence[-1][1] if evidence else ""
        for action in (*filter(None, [item.forbids]), *item.steps):
            chosen = find_chosen_words(action)
            named = chosen.union(slot for slot in parse_action(action).slots if not HOLE.fullmatch(slot))
            if named:
                tool = self._find_tool(action)
                if not named <= {*self._find_values(action, tool.find_varying(task), tool, chosen)}:
                    return False
        return True

    @property
    def _has_several_parties(self) -> bool:
        return len(self._parties) >= PARTIES

    def _find_tool(self, action: str) -> _Tool:
        """Return the tool of an action, with all its recorded uses counted."""
        if self.unread:
            self._read()
        tool = self._tools[_find_head(action)]
        if tool.uncounted:
            tool.count()
        return tool

    def _read(self) -> None:
        """Read the steps that were recorded since the last call."""
        if not self.unread:
            return
        self.unread = False
        try:
            rows = self._store.rows(_NEW, (self._last, SCANNED, self._namespace, READ))
        except sqlite3.OperationalError:  # a damaged text supports nothing; `verify` reports it
            return
        if not rows:
            return
        had_several = self._has_several_parties
        if not self._last:
            self._parties.update(islice(_list_parties(self._store, self._namespace), TUNING.compared_writers))
        for _, action, episode, task, message, writer, copied in reversed(rows):
            message = " ".join(message.split())[: TUNING.max_message] if message else ""
            self._tools[_find_head(action)].add(_Use(action, episode, task, message, writer or "", copied))
            self._parties.add(_party_of(writer or ""))
        self._last = rows[0][0]
        if self._has_several_parties is not had_several:
            for tool in self._tools.values():
                tool.renew()

    def _is_supported(self, episodes: Collection[str], among: Collection[str], share: float, tool: _Tool) -> bool:
        """Return whether enough requests, of enough parties and of all similar ones, are among these."""
        if len(episodes) < max(REQUESTS, share * len(among)):
            return False
        return not self._has_several_parties or len({tool.parties[episode] for episode in episodes}) >= PARTIES

    def _find_values(
        self, action: str, varying: frozenset[str], tool: _Tool, chosen: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Return the arguments of an action or a pattern, and the words of its form, that enough requests chose."""
        parsed = parse_action(action)
        form = tool.forms.get(parsed.template) or _Form(len(parsed.slots))
        pairs = zip(parsed.slots, form.values, strict=True)
        uses: list[tuple[str, Collection[str], Collection[str], float]] = [
            *((value, by_value.get(value, ()), form.episodes, SHARE_OF_VALUES) for value, by_value in pairs),
            *((word, tool.chosen.get(word, ()), (), 0.0) for word in sorted(chosen)),
        ]
        return tuple(dict.fromkeys(
            value for value, refs, among, share in uses
            if self._is_supported(tool.find_independent(value, refs, varying), among, share, tool)
        ))  # fmt: skip

    def _add_message(self, item: Item) -> Item:
        """Return a remedy that names no value with the message that most of the failed uses of its call got.

        It is added when the remedy is recalled: a stored one would keep the words of episodes that are forgotten.
        """
        if item.source != "experience" or not item.steps or not is_open(item.title):
            return item  # another source's words, whatever they look like
        tool = self._find_tool(item.steps[-1])
        if tool.usual_message is None:
            tool.usual_message = self._find_usual_message(tool)
        message = tool.usual_message
        return replace(item, body=f'{item.body}. It answered "{message}"') if message else item

    def _find_usual_message(self, tool: _Tool) -> str:
        """Return what most of the failed uses of a tool got; empty if it fails in several ways."""
        failed = tool.list_failed()
        counts = Counter(self._find_message(use.message, tool.find_varying(use.task), tool) for use in failed)
        hidden = counts.pop("", 0)
        message = max(counts, key=lambda text: (counts[text], text), default="")
        return message if counts.total() > hidden and not instruction_in(message) else ""

    def _find_message(self, message: str, varying: frozenset[str], tool: _Tool) -> str:
        """Return the part of a step's message that enough requests got, with holes; empty if little remains."""
        text = " ".join(message.split())[: TUNING.max_message]
        exact, masked, distinct, pairs = _pair(text)
        similar = [other for key, other in tool.messages.items() if 2 * len(distinct & key) >= len(distinct)]
        among = set().union(*(other.episodes for other in similar))
        if len(among) < REQUESTS:
            return ""
        visible = {pair for pair in pairs if self._is_said(pair, similar, among, varying, tool)}
        return _fill_template(text, [pair in visible for pair in exact], [pair in visible for pair in masked])

    def _is_said(
        self, pair: ArgumentPair, similar: Sequence[_Messages], among: Set[str], varying: frozenset[str], tool: _Tool
    ) -> bool:
        """Return whether enough of the requests that did not say a pair's words themselves got it in such a message."""
        text = " ".join(pair)
        refs = tool.find_independent(text, _unite(pair, similar), varying)
        return self._is_supported(refs, tool.find_independent(text, among, varying), SHARE_OF_MESSAGES, tool)


def drop_doubtful(store: Store, namespace: int, summaries: Iterable[Summary]) -> list[Summary]:
    """Return the summaries of actions whose names may be shown."""
    support = Support(store, namespace)
    return [summary for summary in summaries if not support.has_doubtful_names(summary.pattern)]


def _unite(pair: ArgumentPair, similar: Sequence[_Messages]) -> Set[str]:
    """Return the requests with a pair in any of several kinds of messages."""
    if len(similar) == 1:
        return similar[0].pairs.get(pair, frozenset())
    return set().union(*(messages.pairs.get(pair, ()) for messages in similar))


@lru_cache(maxsize=4096)
def _find_words(text: str) -> frozenset[str]:
    """Return the words of a text as tokens of messages."""
    return frozenset(token for token in _TOKEN.findall(text.casefold()) if token[0].isalnum())


@lru_cache(maxsize=4096)
def _find_head(action: str) -> str:
    """Return the name of the tool or the verb of an action."""
    if action.lstrip().startswith("{"):
        return parse_action(action).verb.lower()
    match = _HEAD.match(action.lstrip())
    return match[0].lower() if match else ""


@lru_cache(maxsize=4096)
def _pair(text: str) -> tuple[Pairs, Pairs, frozenset[ArgumentPair], frozenset[ArgumentPair]]:
    """Return the pairs of neighboring tokens of a message, with its ends, as they are and with masked digits.

    The last two are the distinct masked ones, and all distinct ones.
    """
    exact = ["", *(token.casefold() for token in _TOKEN.findall(text)), ""]
    masked = [_DIGIT.sub("#", token) for token in exact]
    pairs, masked_pairs = tuple(pairwise(exact)), tuple(pairwise(masked))
    return pairs, masked_pairs, frozenset(masked_pairs), frozenset((*pairs, *masked_pairs))


def _fill_template(text: str, exact: list[bool], masked: list[bool]) -> str:
    """Return a message whose tokens are shown if a pair with a neighbor is supported, exactly or with masked digits."""
    parts = list(_show_tokens(text, exact, masked))
    if 2 * sum(part.strip() == HIDDEN for part in parts) > len(parts):
        return ""
    # several hidden tokens in a row become one hole
    kept = [
        part
        for part, before in zip(parts, ["", *parts], strict=False)
        if (part.strip(), before.strip()) != (HIDDEN, HIDDEN)
    ]
    return "".join(kept).strip()


def _show_tokens(text: str, exact: list[bool], masked: list[bool]) -> Iterator[str]:
    """Yield each token with the spaces before it; see `_fill_template`."""
    end = 0
    for at, token in enumerate(_TOKEN.finditer(text)):
        word = HIDDEN
        if any(masked[at : at + 2]):
            word = _DIGIT.sub("#", token[0])
        if any(exact[at : at + 2]):
            word = token[0]
        yield text[end : token.start()] + word
        end = token.end()
