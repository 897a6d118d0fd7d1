"""Retelling: what was recalled, said once and in general, without the values of other requests.

Steps that did the same are one line with their count and outcome. A value stands in it only where the present state
or the actions offered show it; otherwise its place is named: `refund(order={order})`. Of what a past environment
answered to a failed step, the words of that step's own request, names, addresses and numbers become holes as well
(`write it as ####-##-##`). So the lesson stays, and no value of another customer who shares the namespace is shown.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hardwon.memory import Item, State, Step
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.phrases import words_of
from hardwon.memory.trust.instructions import LEFT_OUT, instruction_in

_ERROR_CLASS = re.compile(r"[A-Z][A-Za-z]*(?:Error|Exception|Warning):?")
LONGEST_EVIDENCE = 240
"""Characters of an answer that are told."""
_WORDS = re.compile(r"\w+")
_HOLE = re.compile(r"\{(\d+)\}")
_QUOTED = re.compile(r"`([^`]*)`")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_OF_RULES = words_of(
    """
    a about action after again all always and any around average before blocked but by can counts do earn earned
    earns effect error fact failed fails first flags for four gaining guardrail had has have here i if in into
    invalid is it its led limit listed lost many mark mentioned more mostly named names near new no not note notes
    nothing of often on once or other over pays penalty precondition prefer remedy reward s said says seen several
    shown sight signature situation skill something somewhere stale state step steps strategy task text that the
    then there thing this three times to told tool tried try twice two unnamed verb visited warning was whatever
    when where wherever which with without word worked x y you your z
    """
)
"""Words in which rules write their items."""
_OF_FAILURES = _OF_RULES | words_of(
    """
    able access active allowed already an are argument arguments as at attribute available bad be been branch busy
    call cancelled cannot changed check closed command connection correct could denied did directory does done
    down empty exceeded exception exist existing exists expected expired failure field file forbidden format found
    from full given happens illegal import impossible incorrect index input internal invalid json key known limit
    locked login longer match method missing module must name needs network nobody none null number object off
    only open out output parameter password path permission please possible present processed protected query
    range reach refused rejected request required resource response result retry right running server service
    should shut size so started stopped such supported syntax t temporarily timed timeout too type unable
    unauthorized unavailable understand understood unexpected unknown unsupported used user valid value values was
    were will would wrong yet
    """
)
"""Words in which failures are told anywhere; a sentence of nothing else says nothing of anybody."""


class Visible:
    """The words that the present shows; with `everything`, all words count as shown.

    `everything` is for a library that one party alone writes and reads, where no value is another customer's.
    """

    def __init__(self, state: State | None, actions: Iterable[str] = (), *, everything: bool = False) -> None:
        self._everything = everything
        texts: list[str] = list(actions)
        if state is not None:
            texts += [
                state.observation,
                state.task,
                state.feedback,
                state.location,
                *state.notes,
                str(dict(state.facts)),
            ]
        words = _WORDS.findall("\n".join(texts).lower())
        self._text = f" {' '.join(words)} "
        self._words = frozenset(words)

    def shows(self, value: str) -> bool:
        """Return whether the present shows a value, word for word; one without words needs no showing."""
        words = _WORDS.findall(value.lower())
        return self._everything or not words or f" {' '.join(words)} " in self._text

    def tells(self, text: str, beside: frozenset[str]) -> bool:
        """Return whether every word of a text is shown, or among others."""
        return self._everything or all(word in beside or word in self._words for word in _WORDS.findall(text.lower()))


def general(action: str, visible: Visible) -> str:
    """Return an action with the values that the present does not show as named holes."""
    parsed = parse_action(action)
    if all(map(visible.shows, parsed.slots)) and visible.shows(_rest(action, parsed.slots, visible)):
        return action
    names = [part.name.rpartition(".")[2] for part in parsed.parts for _ in part.slots]

    def filled(hole: re.Match[str]) -> str:
        at = int(hole[1]) - 1
        if at < len(parsed.slots) and visible.shows(parsed.slots[at]):
            return parsed.slots[at]
        name = names[at] if at < len(names) else ""
        return f"{{{name}}}" if name else hole[0]

    return _HOLE.sub(filled, parsed.template)


def _rest(action: str, slots: Sequence[str], visible: Visible) -> str:
    """Return what of an action is in no slot and in no form, which should be nothing."""
    known = {*_WORDS.findall(parse_action(action).template.lower())}
    known.update(word for slot in slots for word in _WORDS.findall(slot))
    return " ".join(word for word in _WORDS.findall(action.lower()) if word not in known)


@dataclass(slots=True)
class _Told:
    """Steps that are one line."""

    n: int = 0
    returns: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)


def tell_steps(steps: Iterable[Step], visible: Visible) -> list[tuple[str, tuple[int, ...]]]:
    """Return a line for all steps that did the same with the same outcome, and their ids; in the order they came."""
    told: dict[tuple[str, str], _Told] = {}
    lines: list[tuple[str, tuple[int, ...]]] = []
    for step in steps:
        if step.why.get("untrusted"):
            lines.append((_heard(step), ()))
            continue
        action = general(" ".join(step.action.split()), visible)
        if instruction_in(action):
            continue
        one = told.setdefault((action, _outcome(step, visible)), _Told())
        one.n += 1
        one.returns.append(step.return_to_go or 0.0)
        one.ids += [step.id] if step.id is not None else []
    known = [(_line(action, outcome, one), tuple(one.ids)) for (action, outcome), one in told.items()]
    return [*known, *lines]


def _line(action: str, outcome: str, told: _Told) -> str:
    where = "a similar situation" if told.n == 1 else f"{told.n} similar situations"
    mean = sum(told.returns) / told.n
    ending = outcome or f"led to a return of {mean:.2f}{'' if told.n == 1 else ' on average'}"
    return f"- in {where}, `{action}` {ending}"


def _outcome(step: Step, visible: Visible) -> str:
    """Return how a step failed; empty when it did not."""
    if step.diagnosis.success:
        return ""
    why, evidence = step.diagnosis.failure.value, " ".join(step.diagnosis.evidence.split())
    said = "" if evidence == LEFT_OUT else tell_failure(evidence, step, visible)
    return f"failed ({why}): {said}".rstrip(": ") if not instruction_in(said) else f"failed ({why})"


def tell_failure(evidence: str, step: Step, visible: Visible) -> str:
    """Return the answer to a failed step with the values of its request as holes; empty when little else is left.

    A word is kept when the present shows it, when failures anywhere are told in it, or when it is the environment's
    own: in lower or in upper case, without digits, and nowhere in the request. Numbers keep their form alone.
    """
    request = frozenset(_WORDS.findall(_request_of(step)))

    def told(token: str) -> str:
        words = _WORDS.findall(token)
        if all(visible.tells(word, _OF_FAILURES) for word in words):
            return token
        if _ERROR_CLASS.fullmatch(token):
            return token
        if not re.search("[^\\W\\d_]", token):  # digits and signs: a date, an amount
            return re.sub(r"\d", "#", token)
        known = not request.intersection(word.lower() for word in words) and not re.search(r"[\d@_]", token)
        if known and all(word.islower() or (word.isupper() and len(word) > 1) for word in words):
            return token
        return "{value}" + (re.search(r"[.,;:!?]*$", token) or [""])[0]

    tokens = [told(token) for token in evidence[:LONGEST_EVIDENCE].split()]
    kept = [token for token, before in zip(tokens, ["", *tokens], strict=False) if token != before]
    holes = sum(token.startswith("{value}") for token in kept)
    return " ".join(kept) if holes <= len(kept) / 2 else ""


def _request_of(step: Step) -> str:
    """Return in lower case what a step's request showed: all of its state, and its action."""
    pre = step.pre
    texts = (pre.task, pre.observation, pre.feedback, pre.location, *pre.notes, str(dict(pre.facts)), step.action)
    return "\n".join(texts).lower()


def _heard(step: Step) -> str:
    """Return the line of what untrusted steps say: a form, and counts."""
    episodes, failed = int(step.why.get("episodes", 1)), int(step.why.get("failed", 0))
    said = f"worked in {episodes - failed} of {episodes} episodes" if episodes > 1 else "worked once"
    if not step.diagnosis.success:
        times = f" in {failed} of {episodes} episodes" if episodes > 1 else ""
        said = f"failed ({step.diagnosis.failure.value}){times}"
    return f"- in similar situations, `{step.action}` {said} (told by others, not verified)"


def tell_item(item: Item, visible: Visible) -> str:
    """Return what an item says: in its words, or in general where it was made of the words of other requests."""
    said = f"{item.title}. {item.body}".rstrip()
    if item.source == "experience" and not _is_public(item, visible):
        said = _in_general(item, visible)
    unless = f" Not when: {item.when_not_to_use}." if item.when_not_to_use else ""
    return f"- {item.kind}: {said}".rstrip() + unless


def _is_public(item: Item, visible: Visible) -> bool:
    """Return whether an item of rules has no words but those of rules, of forms, and of the present."""
    text = f"{item.title} {item.body}"
    for action in _QUOTED.findall(text):
        if general(action, visible) != action:
            return False
    rest = _QUOTED.sub(" ", item.title)
    return visible.tells(rest, _OF_RULES) and visible.tells(_NUMBER.sub(" ", _QUOTED.sub(" ", item.body)), _OF_RULES)


def _in_general(item: Item, visible: Visible) -> str:
    counts = item.body if visible.tells(_NUMBER.sub(" ", item.body), _OF_RULES) else ""
    actions = [item.forbids] if item.forbids else list(item.steps) or _QUOTED.findall(item.title)[:1]
    said = ", then ".join(f"`{general(action, visible)}`" for action in actions)
    if item.kind == "guardrail":
        return f"Do not {said} in such a situation. {counts}".rstrip()
    if item.kind == "warning":
        return f"{said} mostly fails in such a situation. {counts}".rstrip()
    return f"{said} paid in such a situation. {counts}".rstrip()
