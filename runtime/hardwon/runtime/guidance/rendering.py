"""Rendering of recalled experience as lines of text, without the values of other requests.

Steps that did the same are one line with their count and outcome. A value appears only if the current state or the
admissible actions show it, or if independent requests gave it (see `memory.trust.support`). Otherwise a named hole
replaces it, as in `refund(order={order})`. An action without holes is shown exactly as it was taken.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import log
from operator import itemgetter

from hardwon.memory import Estimate, Failure, Item, Outcome, State, Step
from hardwon.memory.situations.actions import ParsedAction, Part, parse_action, put_values
from hardwon.memory.situations.commands import looks_like_shell
from hardwon.memory.situations.phrases import REDACTED
from hardwon.memory.situations.refinements import names_all_things
from hardwon.memory.situations.scripts import split_words
from hardwon.memory.situations.titles import WITH_FAILED_VALUES, choose_cases, end_sentence, name_holes, quote_steps
from hardwon.memory.trust.instructions import instruction_in
from hardwon.memory.trust.testimony import REQUESTS, find_chosen_words, find_names, form_of
from hardwon.memory.upkeep.write_buffer import DISCOUNT

BEST, WORST = 3, 2
"""Admissible actions of which the past return is shown: the most with the highest and with the lowest."""
_HOLE = re.compile(r"\{(\d+)\}")
_NAMED_HOLE = re.compile(r"\{[^{}\s]+\}")
"""A hole with a number or with the name of a parameter."""
_QUOTED = re.compile(r"`([^`]*)`")


class Visible:
    """The words that the current state and actions show."""

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
        self._whole = "\n".join(texts)
        words = split_words(self._whole)
        # Spaces on both ends let `shows` find whole words by a substring search.
        self._text = f" {' '.join(words)} "
        self.general_forms: dict[str, str] = {}
        """By action, its general form, which several lines of a hint need."""

    def shows(self, value: str) -> bool:
        """Return whether the present shows a value, word for word; a value without words always counts as shown."""
        return self._everything or not split_words(value) or self.says(value)

    def says(self, word: str) -> bool:
        """Return whether the present itself says a word, whatever may be shown."""
        return f" {' '.join(split_words(word))} " in self._text

    def shows_id(self, start: str) -> bool:
        """Return whether the present shows an id that begins like this."""
        return bool(re.search(rf"(?<!\w){re.escape(start)}\w*[^\w\s]?\d", self._whole, re.IGNORECASE))


def generalize_action(
    action: str, visible: Visible, supported: Collection[str] = (), copied: Collection[str] = ()
) -> str:
    """Return an action with named holes for redacted values, and those that neither the present nor requests show.

    If that is true of other words of a call, such as a subcommand, only the names of the tool and of its parameters are
    left. If it is true of a name that was copied from a result, or of a command without a name, the text is empty.
    """
    if supported or copied:
        return _generalize(action, visible, supported, copied)
    if (form := visible.general_forms.get(action)) is None:
        form = visible.general_forms[action] = _generalize(action, visible, (), ())
    return form


def _generalize(action: str, visible: Visible, supported: Collection[str], copied: Collection[str]) -> str:
    doubtful = find_chosen_words(action).difference(supported)
    if copied and not all(map(visible.shows, find_names(action).intersection(copied).difference(supported))):
        return ""
    if doubtful and not all(map(visible.shows, doubtful)):
        form = form_of(action)
        return form if form.endswith(")") else ""
    parsed = parse_action(action)
    given = {value for value in supported if not REDACTED.search(value)}  # the value itself is not known
    hidden = {n for n, slot in enumerate(parsed.slots) if slot not in given and not visible.shows(slot)}
    has_leftover = not visible.shows(_find_leftover_words(action))
    if not hidden and not has_leftover:
        return action
    names = [part.name.rpartition(".")[2] for part in parsed.parts for _ in part.slots]
    holes = {n: f"{{{names[n] if n < len(names) and names[n] else n + 1}}}" for n in hidden}
    in_place = "" if has_leftover else put_values(action, {parsed.slots[n]: hole for n, hole in holes.items()})
    return in_place or _hide_arguments(parsed)


def _hide_arguments(parsed: ParsedAction) -> str:
    """Return an action with a hole for each argument.

    Its template is no substitute: it has lost quotes, capitals and the order of flags, so nobody could run it.
    """
    if not parsed.parts:
        return f"{parsed.verb} {{1}}" if looks_like_shell(parsed.template) else parsed.template
    names = dict.fromkeys(part.name.partition(".")[0] or str(n) for n, part in enumerate(parsed.parts, 1))
    return (
        f"{parsed.verb}({', '.join(f'{name}={{{name}}}' if not name.isdigit() else f'{{{name}}}' for name in names)})"
    )


def _put_on_line(action: str) -> str:
    """Return an action on one line: its line breaks could otherwise look like further lines of the hint."""
    return "\\n".join(action.strip().splitlines())


@lru_cache(maxsize=8192)
def _find_leftover_words(action: str) -> str:
    """Return the words of an action that are in no slot and not in its template; there should be none."""
    parsed = parse_action(action)
    expected = {word for text in (parsed.template, *parsed.slots) for word in split_words(text)}
    return " ".join(word for word in split_words(action) if word not in expected)


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
    won: int | None = 0
    """Number of the steps whose task succeeded; None if outcomes were graded."""
    ids: list[int] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Return the mean return."""
        return self.returns / self.n

    def describe(self, among: int) -> str:
        """Return the line of the group."""
        count = _count(self.n) if self.n == among else f"{self.n} of {among} similar situations"
        if self.outcome or self.won is None or not parse_action(self.action).template.endswith(")"):
            return f"- in {count}, `{self.action}` {self.outcome or _describe_return(self.mean, self.n)}"
        rest = "" if self.won == self.n else f"; the task succeeded in {self.won} of {self.n}"
        if among == 1:
            count, rest = _count(1), rest and ", and the task did not succeed"
        else:
            count = f"{self.n} of {among} similar situations"
        return f"- `{self.action}` worked in {count}{rest}"


def group_steps(steps: Iterable[Step], visible: Visible) -> list[StepGroup]:
    """Return the trusted steps by general action and outcome, in order of appearance.

    A step that stands for several (see `abstraction`), or has others like it (see `recall`), counts as many times.
    """
    groups: dict[tuple[str, str], StepGroup] = {}
    for step in steps:
        action = generalize_action(_put_on_line(step.action), visible, step.why.supported or (), step.why.copied or ())
        is_refused = step.diagnosis.failure == Failure.BLOCKED  # nobody saw what the call does
        if is_refused or step.why.untrusted or not action or instruction_in(action):  # a prompt injection
            continue
        outcome, message = _describe_failure(step)
        group = groups.setdefault((action, outcome), StepGroup(action, outcome, message, step))
        alike = list(step.why.similar or ())
        n = step.why.count or max(1, len(alike) + (step.id is not None))
        group.n += n
        group.returns += n * (step.return_to_go or 0.0 if step.why.value is None else step.why.value)
        won = _count_won(step)
        group.won = None if won is None or group.won is None else group.won + won
        group.ids += alike if step.id is None else [step.id]  # a record of all would grow with the library
    return list(groups.values())


def _count_won(step: Step) -> int | None:
    """Return how many of the steps that a step stands for were part of a success; None if outcomes were graded."""
    alike, failed = len(step.why.similar or ()), step.why.failed
    if step.id is None and alike:
        return None if failed is None else (step.why.count or alike) - failed
    value = step.return_to_go or 0.0
    steps_to_go = log(value, DISCOUNT) if value > 0 else 0.0  # a success is worth 1, discounted by the steps to it
    is_graded = value < 0 or abs(steps_to_go - round(steps_to_go)) > 1e-6
    return None if is_graded else int(value > 0) + alike - (failed or 0)


def render_steps(
    steps: Iterable[Step],
    visible: Visible,
    needs_step: Callable[[str, str | None], bool] = lambda action, message: True,
) -> list[tuple[str, tuple[int, ...]]]:
    """Return one line, with the step ids, for all steps with the same action and outcome, in order of appearance.

    An action, with its message if it failed, has a line if `needs_step` says so.
    A line of which only the verb would remain is left out, unless the verb always failed or the message says more. The
    successes of an action that also failed are part of
    the count of its failures: a return beside a failure would recommend the action as it is. Steps from untrusted
    sources get lines of their own without ids, at the end.
    """
    steps = list(steps)
    untrusted = [(_render_untrusted(step), ()) for step in steps if step.why.untrusted]
    groups = group_steps(steps, visible)
    failed, among = {group.action for group in groups if group.outcome}, Counter[str]()
    for group in groups:
        among[group.action] += group.n
    lines = (
        group for group in groups
        if not (hides_command(group.example.action, group.action) and not group.message)
        and (_says_something(group.action) or group.message or (group.outcome and group.n == among[group.action]))
        and (group.outcome or group.action not in failed)
        and needs_step(group.action, group.message if group.outcome else None)
    )  # fmt: skip
    return [*((group.describe(among[group.action]), tuple(group.ids)) for group in lines), *untrusted]


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


def _describe_failure(step: Step) -> tuple[str, str]:
    """Return how a step failed, and its error message; empty if it succeeded."""
    if step.diagnosis.success:
        return "", ""
    message = " ".join(step.diagnosis.evidence.split())
    message = "" if instruction_in(message) else message
    return f"failed ({step.diagnosis.failure.value}): {message}".rstrip(": "), message


def _render_untrusted(step: Step) -> str:
    """Return the line for an untrusted step: the form of its action, with counts."""
    episodes, failed = step.why.episodes or 1, step.why.failed or 0
    outcome = f"worked in {episodes - failed} of {episodes} episodes" if episodes > 1 else "worked once"
    if not step.diagnosis.success:
        times = f" in {failed} of {episodes} episodes" if episodes > 1 else ""
        outcome = f"failed ({step.diagnosis.failure.value}){times}"
    return f"- in similar situations, `{step.action}` {outcome} (told by others, not verified)"


def render_item(item: Item, visible: Visible) -> str:
    """Return an item as a line: its own text, or a general form if too few requests support its words.

    The line is empty if nothing of one of its actions, or nothing but verbs, would remain: without its condition, as in
    `put {1} in {2}`, it would hold for everything. It is empty, too, if no case of a choice is met.
    """
    general = describe_item(item, visible)
    forms = [(action, generalize_action(action, visible)) for action in list_actions(item)] if general else []
    is_said = all(form and not hides_command(action, form) for action, form in forms)
    if general and not (is_said and any(_says_something(form) for _, form in forms)):
        return ""
    title = choose_cases(item.title, visible.says, visible.shows_id)
    if not (general or title):
        return ""
    text = general or f"{end_sentence(title)} {item.body}".rstrip()
    unless = f" Not when: {end_sentence(item.when_not_to_use)}" if item.when_not_to_use else ""
    return f"- {item.kind}: {text}".rstrip() + unless


def describe_item(item: Item, visible: Visible) -> str:
    """Return a general sentence in place of the text of a rule-made item whose words too few requests support.

    It is empty if the item's own text may be shown.
    """
    return _generalize_item(item, visible) if item.source == "experience" and item.episodes < REQUESTS else ""


def list_actions(item: Item) -> list[str]:
    """Return the actions that an item is about."""
    return [*filter(None, [item.forbids]), *item.steps] or _QUOTED.findall(item.title)[:1]


def _says_something(action: str) -> bool:
    """Return whether a generalized action names a thing or a parameter, or takes none."""
    slots = parse_action(action).slots
    return not _HOLE.search(action) or any(not _HOLE.fullmatch(slot) for slot in slots)


def hides_command(action: str, general: str) -> bool:
    """Return whether a call of a shell lost its command, which leaves nothing to be said about it."""
    is_changed = general != action  # most are as they were
    return is_changed and general == form_of(action) and any(map(_is_command, parse_action(action).parts))


def _is_command(part: Part) -> bool:
    """Return whether an argument is a command of a shell."""
    return looks_like_shell(part.value) or part.frame != "{}"


def _lost_value(action: str, general: str) -> bool:
    """Return whether a value that an action names became a hole in its general form."""
    return len(_NAMED_HOLE.findall(general)) > len(_NAMED_HOLE.findall(action))


def _generalize_item(item: Item, visible: Visible) -> str:
    actions = list_actions(item)
    general = [generalize_action(action, visible) for action in actions]
    rendered = quote_steps(general)
    # A sentence about the bare form would read as a ban of the whole tool.
    failing = WITH_FAILED_VALUES if any(map(_lost_value, actions, general)) else "in such a situation"
    if item.kind == "guardrail":
        return f"Do not {rendered} {failing}."
    if item.kind == "warning":
        return f"{rendered} mostly fails {failing}."
    if item.kind == "remedy":
        failed, *repair = name_holes(general if item.forbids else [general[-1], *general])
        if len(repair) > 1 and repair[-1] == failed and _NAMED_HOLE.search(failed):  # twice the same, with other values
            failed, repair[-1] = [parse_action(failed).verb] * 2
        worked = "other values" if item.forbids and repair == [failed] else quote_steps(repair)
        return f"After `{failed}` failed, {worked} worked."
    return f"{rendered} paid in such a situation."
