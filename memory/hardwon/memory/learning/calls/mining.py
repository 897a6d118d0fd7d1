"""Call mining: remedies that say when a call works: what has to come before it, and which value, form or tool.

A remedy of `skill_mining` says what mended a failure. That may be right for some requests alone: a refund to "voucher"
is for those that say "gift". The uses that worked are told apart from those that failed; see `choices` and `traits`.
"""

import hashlib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from sys import intern

from hardwon.memory.learning.generalization import ArgumentChange, find_changes, generalise
from hardwon.memory.learning.tuning import TUNING
from hardwon.memory.records import Failure, Item, Step, Trajectory
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.phrases import content_words
from hardwon.memory.situations.titles import choice_title, is_open, remedy_title
from hardwon.memory.storage.episodes import dumps
from hardwon.memory.trust.testimony import REQUESTS

from .choices import TOOL, CallUse, find_choice, find_mended, find_needed, has_open_choice, name_tool
from .ranges import find_conditional_need, find_ranged_choice
from .traits import find_trait

REPAIRABLE = frozenset([Failure.PRECONDITION, Failure.NO_EFFECT, Failure.INVALID_ACTION, Failure.TOOL_ERROR])
REFUTED = "newer episodes say otherwise when it works"
"""Why a remedy is retired; it comes back if later ones support it again."""
_HOLE = re.compile(r"\{(\d+)\}")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(slots=True)
class CallCandidate:
    """The newest uses of one form of call, of which some failed."""

    n: int = 0
    """Number of episodes with a use."""
    proposed: int = 0
    """Number of episodes at the last look."""
    last: str = ""
    """The episode of the last use."""
    uses: deque[CallUse] = field(default_factory=partial(deque, maxlen=TUNING.max_uses))
    failure: str = ""
    """How the last use that failed did."""
    chosen: str = ""
    """The argument whose value has to fit the request."""
    needed: str = ""
    """The form of a call that has to come before for some numbers alone."""
    has_rule: bool = False
    """Whether the uses said when it works, at the last look."""
    has_changed: bool = False
    """Whether the uses no longer say when it works."""
    advice: set[str] | None = None
    """The ids of the items that say when it works, at the last look."""
    explained: dict[str, bool] = field(default_factory=dict)
    """By id of a guardrail or warning, whether the uses explained its failures, since the last look."""

    def add_use(self, step: Step, episode: str, prepared: Mapping[str, str], words: tuple[str, ...]) -> None:
        """Add a use."""
        self.n += episode != self.last
        self.last = episode
        failure = "" if step.diagnosis.success else step.diagnosis.failure.value
        self.failure = failure or self.failure
        copied = step.why.copied or ()
        self.uses.append(CallUse(step.action, episode, failure, prepared, step.id, words, copied, step.pre.task))

    @property
    def due(self) -> bool:
        """Return whether there are an eighth more episodes than at the last proposal."""
        return bool(self.failure) and self.n >= 2 * REQUESTS and self.n > self.proposed + self.proposed // 8

    def forget_older(self) -> None:
        """Drop the uses before the newest episodes, as a rule that no longer holds hides the one in its place."""
        newest = [*dict.fromkeys(use.episode for use in reversed(self.uses))][: 2 * REQUESTS]
        self.uses = deque((use for use in self.uses if use.episode in newest), self.uses.maxlen)

    def explains(self, item: Item) -> bool:
        """Return whether most failures behind a guardrail or warning were those of a value that it does not name.

        Another value worked of an argument that the item leaves open, or of one with a value that is right elsewhere.
        """
        if item.id not in self.explained:
            constants, ids = _read_constants(item.forbids or ""), frozenset(item.provenance)
            wrong = {name for name, value in constants.items() if not self.is_right_elsewhere(name, value)}
            about = [use for use in self.uses if use.id in ids]
            self.explained[item.id] = 2 * sum(self._was_mended(use, wrong) for use in about) > len(about)
        return self.explained[item.id]

    def _was_mended(self, use: CallUse, wrong: set[str]) -> bool:
        """Return whether the call worked in the same episode with other values, none of an argument that is wrong."""
        worked = (each.action for each in self.uses if each.episode == use.episode and not each.failure)
        changes = (find_changes(use.action, action) for action in worked)
        return any(each and wrong.isdisjoint(name for name, *_ in each) for each in changes)

    def is_right_elsewhere(self, name: str, value: str) -> bool:
        """Return whether a value worked in more than a fifth of the episodes in which it was tried."""
        worked, failed = (
            {use.episode for use in self.uses if bool(use.failure) == failure and _has_value(use.action, name, value)}
            for failure in (False, True)
        )
        return 5 * len(worked) > len(worked | failed)


class CallMiner:
    """Collects the uses of calls, and proposes remedies whenever there are an eighth more episodes."""

    def __init__(self) -> None:
        self._calls: dict[str, CallCandidate] = {}
        """By form, the calls with arguments."""
        self._instead: dict[str, frozenset[str]] = {}
        """By form, the forms of the tools that were tried in place of each other."""
        self._tools: dict[frozenset[str], CallCandidate] = {}
        """By these forms, the uses of all of them as those of one call, of which the tool is an argument."""

    def read(self, trajectory: Trajectory) -> None:
        """Add the uses of the calls of an episode that have arguments by name."""
        done: dict[str, str] = {}
        answers: dict[str, str] = {}
        for step in trajectory.steps:
            parsed, has_worked = parse_action(step.action), step.diagnosis.success
            if not parsed.parts or not (has_worked or step.diagnosis.failure in REPAIRABLE):
                continue
            if parsed.slots and all(part.name for part in parsed.parts):
                prepared = {form: action for form, action in done.items() if form != parsed.template}
                texts = [step.pre.task, *(answers[form] for form in prepared)]
                words = chain.from_iterable(content_words(text[: TUNING.read_characters]) for text in texts)
                vocabulary = tuple(sorted(set(map(intern, words))))
                candidate = self._calls.setdefault(parsed.template, CallCandidate())
                candidate.add_use(step, trajectory.id, prepared, vocabulary)
            if has_worked:
                done[parsed.template], answers[parsed.template] = step.action, step.post.feedback

    def add_alternative(self, form: str, other: str) -> None:
        """Note that one tool was tried in place of another."""
        group = self._instead.get(form, frozenset([form])) | self._instead.get(other, frozenset([other]))
        self._instead.update(dict.fromkeys(group, group))

    def candidates(self) -> Iterator[tuple[int, Item]]:
        """Yield the remedies of the calls that are due, with the number of their episodes."""
        for form, call in self._calls.items():
            if call.due:
                item = _build_choice(form, call)
                has_rule = item is not None and not is_open(item.title)
                call.has_changed = not has_rule and (call.has_rule or call.has_changed)
                call.has_rule = has_rule
                if call.has_changed:
                    call.forget_older()
                call.proposed, call.advice = call.n, {item.id} if item else set()
                call.explained.clear()
                if item:
                    yield call.n, item
        yield from self._find_tool_choices()

    def is_right_elsewhere(self, form: str, changes: Sequence[ArgumentChange]) -> bool:
        """Return whether a value that was replaced to mend a call is right in other episodes."""
        call = self._calls.get(form)
        return call is not None and any(
            call.is_right_elsewhere(name, old) for name, old, _ in changes if name and old not in ("", "{}")
        )

    def _find_tool_choices(self) -> Iterator[tuple[int, Item]]:
        """Yield the remedies that say which of several tools fits which request, if their uses tell."""
        for group in {*self._instead.values()}:
            calls = {form: self._calls[form] for form in sorted(group) if form in self._calls}
            tools = self._tools.setdefault(group, CallCandidate())
            tools.n = sum(call.n for call in calls.values())
            tools.failure = next((call.failure for call in calls.values() if call.failure), "")
            if not tools.due:
                continue
            members = _find_exclusive(calls)
            tools.proposed = tools.n
            names = {form: _LETTERS[n % 26] * (n // 26 + 1) for n, form in enumerate(members)}
            uses = [use for call in members.values() for use in call.uses]
            tools.uses = deque(sorted(uses, key=lambda use: use.id or 0), TUNING.max_uses)
            items = _build_tool_choices(names, tools)
            tools.advice = {item.id for item in items}
            yield from ((tools.n, item) for item in items)

    def _fits_some(self, form: str) -> bool:
        """Return whether it is known which requests a tool fits, so that no remedy names it to all of them."""
        tools = self._tools.get(self._instead.get(form, frozenset()))
        return tools is not None and _identify("tool", form) in (tools.advice or ())

    def is_refuted(self, item: Item) -> bool:
        """Return whether newer episodes say otherwise when the call of a remedy works, as with which value or tool."""
        if not item.steps:  # an imported one may have a body alone
            return False
        form, call = parse_action(item.steps[-1]).template, self._calls.get(parse_action(item.forbids or "").template)
        is_own = item.id == _identify("choice", form)
        if call is not None and call.chosen in _read_constants(item.steps[-1]) and not is_own:
            return True
        if self._fits_some(form):
            return item.id != _identify("tool", form)
        own = self._calls.get(form)
        if own is not None and own.needed in map(_find_form, item.steps[:-1]) and not is_own:
            return True
        sources = {"choice": own, "tool": self._tools.get(self._instead.get(form, frozenset()))}
        return any(
            call is not None and call.advice is not None and item.id not in call.advice
            for kind, call in sources.items()
            if item.id == _identify(kind, form)
        )

    def explains(self, item: Item) -> bool:
        """Return whether a guardrail or a warning is about calls with wrong values; to repeat one is wrong as well."""
        call = self._calls.get(parse_action(item.forbids or "").template)
        is_about = item.kind in ("guardrail", "warning") and "again" not in (item.condition or {})
        return call is not None and is_about and call.explains(item)


def _find_form(call: str) -> str:
    """Return the form of a call."""
    return parse_action(call).template


def _has_value(call: str, name: str, value: str) -> bool:
    """Return whether a call has this value for an argument."""
    return any(part.name == name and part.value == value for part in parse_action(call).parts)


def _read_constants(call: str) -> dict[str, str]:
    """Return the arguments of a pattern that have values."""
    return {part.name: part.value for part in parse_action(call).parts if not _HOLE.fullmatch(part.value)}


def _build_choice(form: str, call: CallCandidate) -> Item | None:
    """Build the remedy that says what a call needs before it, and which value or form of one, if its uses tell.

    What it needs is said without values if several of them worked and the uses do not tell when.
    """
    needed, condition = find_needed(call.uses, REQUESTS), None
    if not needed and (condition := find_conditional_need(call.uses)):
        needed = (condition.form,)
    call.needed = condition.form if condition else ""
    able = [use for use in call.uses if all(step in use.prepared for step in needed)]
    choice = find_choice(able, REQUESTS) or find_ranged_choice(able) or find_trait(able, REQUESTS)
    if needed and choice is None:  # where it comes from may be seen only in the uses before what it needs
        choice = find_trait(call.uses, REQUESTS)
    call.chosen = choice.name if choice else ""
    if not (choice or condition or needed):
        choice = find_mended(call.uses, REQUESTS)
    if not (choice or condition or (needed and has_open_choice(able))):
        return None
    worked = [use for use in able if not use.failure]
    steps = _list_needed_steps(needed, worked)
    cases = choice.cases if choice else {"": ("", len({use.episode for use in worked}), len({u.episode for u in able}))}
    counts = [(n, tried) for _, n, tried in cases.values()]
    values = {clause: value for clause, (value, *_) in cases.items()}
    title = choice_title(steps, call.chosen, values, condition.clause if condition else "")
    # a value that is always right is advice about the calls with any value
    about = form if call.chosen in _read_constants(steps[-1]) else steps[-1]
    item = _build_case(title, steps, call, worked, counts)
    if is_open(title):
        ((n, tried),) = counts
        item = replace(item, body=f"Other values worked in {n} of {tried} episodes in which it had failed")
    return replace(item, forbids=about, id=_identify("choice", form))


def _find_exclusive(calls: Mapping[str, CallCandidate]) -> dict[str, CallCandidate]:
    """Return the calls of which hardly two work in one episode: what requests need besides is no alternative."""
    worked = {form: {use.episode for use in call.uses if not use.failure} for form, call in calls.items()}
    while worked:
        beside = {
            form: len(episodes & set().union(*(worked[other] for other in worked if other != form)))
            for form, episodes in worked.items()
        }
        most = max(beside, key=lambda form: (beside[form], form))
        if 5 * beside[most] <= len(worked[most]):
            break
        del worked[most]
    return {form: calls[form] for form in worked}


def _build_tool_choices(names: Mapping[str, str], tools: CallCandidate) -> list[Item]:
    """Build the remedies that say which tool fits which request; tools are letters while they are compared."""
    uses = [replace(use, action=name_tool(use.action, names[parse_action(use.action).template])) for use in tools.uses]
    needed = find_needed(uses, REQUESTS)
    able = [use for use in uses if all(step in use.prepared for step in needed)]
    choice = find_choice(able, REQUESTS)
    if choice is None or choice.name != TOOL:
        return []
    items = []
    for clause, (letter, n, tried) in choice.cases.items():
        (form,) = (form for form, name in names.items() if name == letter)
        ids = {use.id for use in able if not use.failure}
        worked = [use for use in tools.uses if use.id in ids and parse_action(use.action).template == form]
        steps = _list_needed_steps(needed, worked)
        title = f"{remedy_title('', steps, '', is_usual=True)} if {clause}"
        items.append(replace(_build_case(title, steps, tools, worked, [(n, tried)]), id=_identify("tool", form)))
    return items


def _list_needed_steps(needed: Sequence[str], worked: Sequence[CallUse]) -> tuple[str, ...]:
    """Return what came before the uses that worked, and their pattern."""
    return generalise([(*(use.prepared[step] for step in needed), use.action) for use in worked])


def _build_case(
    title: str,
    steps: tuple[str, ...],
    call: CallCandidate,
    worked: Sequence[CallUse],
    counts: Sequence[tuple[int, int]],
) -> Item:
    """Build a remedy from the uses that worked, with the numbers of episodes of its cases: worked, and tried."""
    n, tried = (sum(each) for each in zip(*counts, strict=True))
    return Item(
        "remedy",
        title,
        f"This worked in {n} of {tried} episodes",
        steps=steps,
        repairs=call.failure,
        provenance=tuple(use.id for use in worked if use.id is not None),
        episodes=n,
        confidence=round(0.95 - 0.6 / n, 3),
        source="experience",
        writer="rules",
    )


def _identify(kind: str, form: str) -> str:
    """Return the id of the remedy that says when a form of call works."""
    return f"re-{hashlib.blake2b(dumps([kind, form]).encode(), digest_size=6).hexdigest()}"
