"""Rendering of recalled experience as lines of text, without the values of other requests.

Steps that did the same are one line with their count and outcome. A value appears only if the current state or the
admissible actions show it. Otherwise a named hole replaces it, as in `refund(order={order})`. In the error message of a
failed step, the words of that step's own request, names, addresses and numbers become holes too, as in
`write it as ####-##-##`. The lesson remains, and no value of another customer in the same namespace is revealed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from hardwon.memory import Estimate, Item, Outcome, State, Step
from hardwon.memory.situations.actions import fill, parse_action
from hardwon.memory.situations.commands import looks_like_shell
from hardwon.memory.situations.name_keys import names_all_things
from hardwon.memory.situations.phrases import words_of
from hardwon.memory.situations.titles import WITH_FAILED_VALUES
from hardwon.memory.trust.instructions import LEFT_OUT, instruction_in

_ERROR_CLASS = re.compile(r"[A-Z][A-Za-z]*(?:Error|Exception|Warning):?")
BEST, WORST = 3, 2
"""Admissible actions of which the past return is shown: the most with the highest and with the lowest."""
LONGEST_VALUE = 3
"""Number of words of a call's value that a lesson keeps; a longer text is a message of its request."""
LONGEST_EVIDENCE = 240
"""Number of characters of an error message that are rendered."""
_WORDS = re.compile(r"\w+")
_TOKEN = re.compile(r"[^\s\"'(),=]+")
_HOLE = re.compile(r"\{(\d+)\}")
_NAMED_HOLE = re.compile(r"\{[^{}\s]+\}")
"""A hole with a number or with the name of a parameter."""
_QUOTED = re.compile(r"`([^`]*)`")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_NUMBERED = re.compile(r"([^\W\d_]+(?: [^\W\d_]+)*) \d+")
"""A thing with a number, such as `apple 2`."""
_COUNT = re.compile(r"(?<=[^\W\d_]) \d+")
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
"""The vocabulary of items that the rules write."""
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
"""The common vocabulary of error messages; a sentence of only these words reveals no value."""


class Visible:
    """The words that the current state and actions show.

    Args:
        state: The current state.
        actions: The admissible actions.
        everything: Treat all words as shown, for a library that only one party writes and reads.
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
        # Spaces on both ends let `shows` find whole words by a substring search.
        self._text = f" {' '.join(words)} "
        self._words = frozenset(words)

    def shows(self, value: str) -> bool:
        """Return whether the present shows a value, word for word; a value without words always counts as shown."""
        words = _WORDS.findall(value.lower())
        return self._everything or not words or f" {' '.join(words)} " in self._text

    def tells(self, text: str, beside: frozenset[str]) -> bool:
        """Return whether every word of a text is shown or is among the words of `beside`."""
        return self._everything or all(word in beside or word in self._words for word in _WORDS.findall(text.lower()))


def generalize_action(action: str, visible: Visible) -> str:
    """Return an action with named holes for the values that the present does not show."""
    parsed = parse_action(action)
    if all(map(visible.shows, parsed.slots)) and visible.shows(_find_leftover_words(action, parsed.slots, visible)):
        return action
    names = [part.name.rpartition(".")[2] for part in parsed.parts for _ in part.slots]

    def fill_hole(hole: re.Match[str]) -> str:
        at = int(hole[1]) - 1
        if at < len(parsed.slots) and visible.shows(parsed.slots[at]):
            return parsed.slots[at]
        name = names[at] if at < len(names) else ""
        return f"{{{name}}}" if name else hole[0]

    return _HOLE.sub(fill_hole, parsed.template)


def _find_leftover_words(action: str, slots: Sequence[str], visible: Visible) -> str:
    """Return the words of an action that are in no slot and not in its template; there should be none."""
    expected = {*_WORDS.findall(parse_action(action).template.lower())}
    expected.update(word for slot in slots for word in _WORDS.findall(slot))
    return " ".join(word for word in _WORDS.findall(action.lower()) if word not in expected)


@dataclass(slots=True)
class StepGroup:
    """Recorded steps that did the same with the same outcome, in general words."""

    action: str
    outcome: str
    """How the steps failed; empty if they succeeded."""
    message: str
    """The general error message of a failure."""
    example: Step
    """The first of the steps."""
    n: int = 0
    returns: float = 0.0
    """Sum of the returns."""
    ids: list[int] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Return the mean return."""
        return self.returns / self.n

    @property
    def text(self) -> str:
        """Return the line of the group."""
        return f"- in {_count(self.n)}, `{self.action}` {self.outcome or _describe_return(self.mean, self.n)}"


def group_steps(steps: Iterable[Step], visible: Visible) -> list[StepGroup]:
    """Return the trusted steps by general action and outcome, in order of appearance.

    A step that stands for several (see `abstraction`) counts as many times.
    """
    groups: dict[tuple[str, str], StepGroup] = {}
    for step in steps:
        action = generalize_action(" ".join(step.action.split()), visible)
        if step.why.untrusted or instruction_in(action):  # a prompt injection in a recorded action
            continue
        outcome, message = _describe_failure(step, visible)
        group = groups.setdefault((action, outcome), StepGroup(action, outcome, message, step))
        ids = list(step.why.similar or ()) if step.id is None else [step.id]
        group.n += max(1, len(ids))
        group.returns += max(1, len(ids)) * (step.return_to_go or 0.0)
        group.ids += ids
    return list(groups.values())


def render_steps(steps: Iterable[Step], visible: Visible) -> list[tuple[str, tuple[int, ...]]]:
    """Return one line, with the step ids, for all steps with the same action and outcome, in order of appearance.

    A success of which only the verb would remain is left out. Steps from untrusted sources get lines of their own
    without ids, at the end.
    """
    steps = list(steps)
    untrusted = [(_render_untrusted(step), ()) for step in steps if step.why.untrusted]
    groups = (group for group in group_steps(steps, visible) if group.outcome or _says_something(group.action))
    return [*((group.text, tuple(group.ids)) for group in groups), *untrusted]


def render_estimates(
    estimates: Mapping[str, Estimate], outcomes: Mapping[str, Outcome]
) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return the action, a line and the step ids for admissible actions that past steps tell apart.

    What an action was rewarded or punished for at once is a fact about it. Without one, its mean return is shown if its
    evidence is about all things that the action names: the mean of `put X in Y` over any X says nothing about this X.
    With one such action, there is nothing to compare, but its line is still shown.
    """
    ranked = []
    for action, estimate in estimates.items():
        outcome = outcomes.get(action, Outcome())
        order = (-outcome.share, -estimate.value, action)
        if outcome.rewarded or outcome.punished:
            ranked.append((order, action, _describe_outcome(action, outcome), outcome.steps))
        elif estimate.n and names_all_things(estimate.key, action):
            line = f"- in {_count(estimate.n)}, `{action}` {_describe_return(estimate.value, estimate.n)}"
            ranked.append((order, action, line, estimate.steps))
    ranked.sort(key=itemgetter(0))
    visible = ranked if len(ranked) <= BEST + WORST else [*ranked[:BEST], *ranked[-WORST:]]
    return [(action, line, steps) for _, action, line, steps in visible if not instruction_in(action)]


def render_unlisted(outcomes: Mapping[str, Outcome], visible: Visible) -> list[tuple[str, tuple[int, ...]]]:
    """Return a line with the step ids for each action that was rewarded before and is not possible here yet.

    An action with words of other requests is left out.
    """
    return [
        (_describe_unlisted(action, outcome), outcome.steps)
        for action, outcome in outcomes.items()
        if may_show(action, visible)
    ]


def may_show(action: str, visible: Visible) -> bool:
    """Return whether a recorded action may be shown as it is: all its values are visible, and it gives no orders."""
    return generalize_action(action, visible) == action and not instruction_in(action)


def _describe_outcome(action: str, outcome: Outcome) -> str:
    """Return a line about what an action brought at once: `- `open box` was rewarded 3 of 4 times`."""
    return f"- `{action}` was {_describe_counts(outcome)}"


def _describe_counts(outcome: Outcome) -> str:
    """Return how often an action was rewarded, and how often it was punished or failed."""
    counts = (("rewarded", outcome.rewarded), ("punished or failed", outcome.punished))
    return ", ".join(f"{word} {_of(number, outcome.n)}" for word, number in counts if number)


def _describe_unlisted(action: str, outcome: Outcome) -> str:
    """Return a line about an action that is not possible yet.

    The action that made it possible before comes first, because it can be taken now.
    """
    if outcome.enabler and not instruction_in(outcome.enabler):
        return f"- `{outcome.enabler}` made `{action}` possible, which was {_describe_counts(outcome)}"
    return f"{_describe_outcome(action, outcome)}; it is not possible here yet"


def _of(number: int, among: int) -> str:
    return "once" if among == 1 else f"{number} of {among} times"


def _count(situations: int) -> str:
    return "a similar situation" if situations == 1 else f"{situations} similar situations"


def _describe_return(mean: float, situations: int) -> str:
    return f"led to a return of {mean:.2f}{'' if situations == 1 else ' on average'}"


def _describe_failure(step: Step, visible: Visible) -> tuple[str, str]:
    """Return how a step failed, and the general error message; empty if it succeeded."""
    if step.diagnosis.success:
        return "", ""
    why, evidence = step.diagnosis.failure.value, " ".join(step.diagnosis.evidence.split())
    message = "" if evidence == LEFT_OUT else render_failure(evidence, step, visible)
    message = "" if instruction_in(message) else message
    return f"failed ({why}): {message}".rstrip(": "), message


def render_failure(evidence: str, step: Step, visible: Visible) -> str:
    """Return the error message of a failed step with the request's values as holes; empty if mostly holes remain.

    A word is kept if the present shows it, if it is common in error messages, or if it is the environment's own: all
    lower or all upper case, without digits, and not in the request. Numbers keep only their format.
    """
    request = frozenset(_WORDS.findall(_collect_request_text(step)))

    def hide_value(token: str) -> str:
        words = _WORDS.findall(token)
        if all(visible.tells(word, _OF_FAILURES) for word in words):
            return token
        if _ERROR_CLASS.fullmatch(token):
            return token
        if not re.search("[^\\W\\d_]", token):  # digits and signs: a date, an amount
            return re.sub(r"\d", "#", token)
        is_own_word = not request.intersection(word.lower() for word in words) and not re.search(r"[\d@_]", token)
        if is_own_word and all(word.islower() or (word.isupper() and len(word) > 1) for word in words):
            return token
        return "{value}" + (re.search(r"[.,;:!?]*$", token) or [""])[0]

    tokens = [hide_value(token) for token in evidence[:LONGEST_EVIDENCE].split()]
    # Several values in a row become a single hole.
    kept = [token for token, before in zip(tokens, ["", *tokens], strict=False) if token != before]
    holes = sum(token.startswith("{value}") for token in kept)
    return " ".join(kept) if holes <= len(kept) / 2 else ""


def render_lesson(step: Step, preparation: Sequence[Step] = ()) -> str:
    """Return what a step teaches as a line for other tasks, such as `put milk in fridge: rewarded`; empty if nothing.

    Words are kept, because knowledge about kinds of things is what carries over: `put apple 2 in fridge 1` is about an
    apple and a fridge. Values with digits or signs, such as numbers of orders and addresses, and the longer texts of
    calls become named holes.

    Args:
        step: The step with the result.
        preparation: Earlier steps to name first, as in `open fridge, then put milk in fridge: rewarded`. Of calls, only
            the names of the parameters are kept.
    """
    action = _render_kinds(step.action)
    outcome, _ = _describe_failure(step, _show_words(step.action))
    result = outcome or (("rewarded" if step.reward > 0 else "punished") if step.reward else "")
    if not action or not result:
        return ""
    before = dict.fromkeys(text for each in preparation if (text := _render_form(each.action)) and text != action)
    return f"{', then '.join((*before, action))}: {result}"


def _render_kinds(action: str) -> str:
    """Return an action with kinds of things instead of numbered ones, and holes for ids; empty if it gives orders."""
    text = " ".join(action.split())
    parsed = parse_action(text)
    if not parsed.parts and any(map(_NUMBERED.fullmatch, parsed.slots)):
        text = fill(parsed.template, [_COUNT.sub("", slot) for slot in parsed.slots])
    return _drop_orders(generalize_action(text, _show_words(text)))


def _render_form(action: str) -> str:
    """Return an action with kinds of things, or a call with holes for all its values; empty if it gives orders."""
    text = " ".join(action.split())
    return _drop_orders(generalize_action(text, Visible(None))) if _is_call(text) else _render_kinds(text)


def _drop_orders(action: str) -> str:
    """Return an action on one line, or nothing if it gives orders: names in JSON may be any text."""
    return "" if instruction_in(action) else " ".join(action.split())


def _is_call(action: str) -> bool:
    """Return whether an action is a call or a shell command, whose values are those of its request."""
    return bool(parse_action(action).parts) or looks_like_shell(action)


def _show_words(action: str) -> Visible:
    """Return a view of the words of an action without values that have digits or signs or are the text of a call."""
    parsed, is_call = parse_action(action), _is_call(action)
    short = [slot for slot in parsed.slots if not is_call or len(slot.split()) <= LONGEST_VALUE]
    tokens = _TOKEN.findall(" ".join((parsed.template, *short)))
    return Visible(State(" ".join(token for token in tokens if not re.search(r"[\d@_]", token))))


def _collect_request_text(step: Step) -> str:
    """Return all text of a step's request, its state and action, in lower case."""
    pre = step.pre
    texts = (pre.task, pre.observation, pre.feedback, pre.location, *pre.notes, str(dict(pre.facts)), step.action)
    return "\n".join(texts).lower()


def _render_untrusted(step: Step) -> str:
    """Return the line for an untrusted step: the form of its action, with counts."""
    episodes, failed = step.why.episodes or 1, step.why.failed or 0
    outcome = f"worked in {episodes - failed} of {episodes} episodes" if episodes > 1 else "worked once"
    if not step.diagnosis.success:
        times = f" in {failed} of {episodes} episodes" if episodes > 1 else ""
        outcome = f"failed ({step.diagnosis.failure.value}){times}"
    return f"- in similar situations, `{step.action}` {outcome} (told by others, not verified)"


def render_item(item: Item, visible: Visible) -> str:
    """Return an item as a line: its own text, or a general form if it contains words of other requests.

    The line is empty if nothing but a verb would remain of the item: without its condition, as in `put {1} in {2}`, it
    would hold for everything.
    """
    general = describe_item(item, visible)
    if general and not any(_says_something(generalize_action(a, visible)) for a in _list_actions(item)):
        return ""
    text = " ".join(general).rstrip() if general else f"{item.title}. {item.body}".rstrip()
    unless = f" Not when: {item.when_not_to_use}." if item.when_not_to_use else ""
    return f"- {item.kind}: {text}".rstrip() + unless


def describe_item(item: Item, visible: Visible) -> tuple[str, str] | None:
    """Return a general title and body for an item that contains words of other requests.

    Returns:
        The title, and the counts of its body if they reveal nothing; None if the item's own text may be shown.
    """
    return _generalize_item(item, visible) if item.source == "experience" and not _is_public(item, visible) else None


def _is_public(item: Item, visible: Visible) -> bool:
    """Return whether a mined item contains only words of the rules, of action forms, and of the present."""
    text = f"{item.title} {item.body}"
    for action in _QUOTED.findall(text):
        if generalize_action(action, visible) != action:
            return False
    rest = _QUOTED.sub(" ", item.title)
    return visible.tells(rest, _OF_RULES) and visible.tells(_NUMBER.sub(" ", _QUOTED.sub(" ", item.body)), _OF_RULES)


def _list_actions(item: Item) -> list[str]:
    """Return the actions that an item is about."""
    return [item.forbids] if item.forbids else list(item.steps) or _QUOTED.findall(item.title)[:1]


def _says_something(action: str) -> bool:
    """Return whether a generalized action names a thing or a parameter, or takes none."""
    slots = parse_action(action).slots
    return not _HOLE.search(action) or any(not _HOLE.fullmatch(slot) for slot in slots)


def _lost_value(action: str, general: str) -> bool:
    """Return whether a value that an action names became a hole in its general form."""
    return len(_NAMED_HOLE.findall(general)) > len(_NAMED_HOLE.findall(action))


def _generalize_item(item: Item, visible: Visible) -> tuple[str, str]:
    counts = item.body if visible.tells(_NUMBER.sub(" ", item.body), _OF_RULES) else ""
    actions = _list_actions(item)
    general = [generalize_action(action, visible) for action in actions]
    rendered = ", then ".join(f"`{action}`" for action in general)
    # A sentence about the bare form would read as a ban of the whole tool.
    failing = WITH_FAILED_VALUES if any(map(_lost_value, actions, general)) else "in such a situation"
    if item.kind == "guardrail":
        return f"Do not {rendered} {failing}.", counts
    if item.kind == "warning":
        return f"{rendered} mostly fails {failing}.", counts
    return f"{rendered} paid in such a situation.", counts
