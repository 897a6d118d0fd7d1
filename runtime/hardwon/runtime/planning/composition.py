"""Composition: bind a demonstration to a new task, and make the preconditions of its steps true.

    demonstration  put the red lamp in the box:   take lamp 1 from desk 2, put lamp 1 in box 1
    bound          put a cup on the shelf:        take cup from anywhere, put it on the shelf

A demonstration is a success of the library. The names in its task, in order, stand for the names in the new one. What
it did with other things is kept if all successes did it with the same kind of thing; otherwise the thing is free. Moves
and preparations are left out, because they belong to the place where it was recorded.

A step that cannot be done now is answered by making it possible: open what is here, go to the place that the step
names, return to where a fitting thing was seen, or search the places that were not visited, the likeliest one first. If
nothing is left, the next demonstration is tried.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hardwon.memory import State, Step
from hardwon.memory.situations.actions import ParsedAction, parse_action
from hardwon.memory.situations.phrases import head_noun, words
from hardwon.memory.validation import read_whole
from hardwon.memory.values.demonstration_index import Demonstration, DemonstrationIndex
from hardwon.memory.values.tuning import TUNING as VALUES
from hardwon.runtime.interfaces.types import Context

from .tuning import TUNING


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a bound step."""

    thing: str
    """The thing of the demonstration; equal ones stand for one thing, different ones for different things."""
    kind: str
    """Head that it must have; empty for any."""

    @property
    def is_free(self) -> bool:
        """Return whether anything fits."""
        return not self.kind


@dataclass(frozen=True, slots=True)
class BoundStep:
    """One step of a demonstration, bound to a new task."""

    form: str
    arguments: tuple[Argument, ...]

    @property
    def text(self) -> str:
        """Return the step as a pattern, such as `take cup from {2}`."""
        text = self.form
        for number, argument in enumerate(self.arguments, 1):
            if argument.kind:
                text = text.replace(f"{{{number}}}", argument.kind, 1)
        return text


@dataclass(frozen=True, slots=True)
class Binding:
    """A demonstration, bound to a new task."""

    source: str
    """Id of the demonstration's episode."""
    steps: tuple[BoundStep, ...]

    @property
    def shape(self) -> tuple[object, ...]:
        """Return what tells bindings apart: the steps, and which of their things are the same."""
        order: dict[str, int] = {}
        return tuple(
            (
                step.text,
                *(order.setdefault(argument.thing, len(order)) for argument in step.arguments if not argument.is_free),
            )
            for step in self.steps
        )


def bind_demonstration(demonstration: Demonstration, task: str, index: DemonstrationIndex) -> Binding | None:
    """Return a demonstration bound to a task, or None if the task does not explain what it acted on."""
    names_before, wanted = index.list_names(demonstration.task), index.list_names(task)
    frames = index.list_frame(demonstration.task), index.list_frame(task)
    if len(names_before) != len(wanted) or not names_before:
        return None
    if len(frames[0] & frames[1]) < VALUES.min_common_words * len(frames[0] | frames[1]):
        return None
    names = dict(zip(names_before, wanted, strict=True))
    steps, aside = [], set()
    for action in demonstration.actions:
        parsed = parse_action(action)
        arguments = tuple(_bind_argument(parsed, number, names, index, task) for number in range(len(parsed.slots)))
        if not any(head in names for head in parsed.heads):
            continue
        if arguments[0].is_free:
            aside.add(parsed.template)
        else:
            steps.append(BoundStep(parsed.template, arguments))
    # What it did with other things was by chance if it did the same with the named ones.
    is_explained = aside <= {step.form for step in steps}
    return Binding(demonstration.id, tuple(steps)) if steps and is_explained else None


def _bind_argument(
    parsed: ParsedAction, number: int, names: Mapping[str, str], index: DemonstrationIndex, task: str
) -> Argument:
    """Return an argument with the kind of thing that it stands for."""
    slot, head = parsed.slots[number], parsed.heads[number]
    if head in names and index.is_named(parsed.template, number, task):
        return Argument(slot, names[head])
    return Argument(slot, head if index.is_fixed(parsed.template, number) else "")


@dataclass(frozen=True, slots=True)
class BindingProgress:
    """How far a binding has been followed."""

    done: tuple[tuple[int, str], ...] = ()
    """(number of the step, from 0, and the action that did it)."""
    since: int = 0
    """Number of steps of the episode when the last one was done or the binding began."""
    used: frozenset[str] = frozenset()
    """Things that earlier bindings of the episode acted on."""


def choose_action(
    binding: Binding, at: int, progress: BindingProgress, context: Context, index: DemonstrationIndex
) -> str:
    """Return the next action towards a step of a binding, or "" if nothing is left to try."""
    step = binding.steps[at]
    things = _find_things(binding, progress)
    possible = [action for action in context.actions if _is_open(action, context)]
    fitting = [action for action in possible if _fits(step, action, things, progress.used)]
    if fitting:
        return max(fitting, key=lambda action: (_estimate(context, action), action))
    search = _Search(step, things, progress, context, index, possible)
    return next(search.list_actions(), "")


def choose_detour(binding: Binding, progress: BindingProgress, context: Context, index: DemonstrationIndex) -> str:
    """Return an action that the last step may need in a kind of task that failed and was never solved, or "".

    It is something else to do with the things of the demonstration, what the task says first, and each form of action
    once. Where nothing is left to do, it leads to a kind of place at which the episode has not been with them.
    """
    unsolved, things = index.list_unsolved(context.state.task), _find_things(binding, progress)
    past_actions = [step.action for step in context.history[progress.since :]]
    if not unsolved or not things or any(unsolved.intersection(words(action)) for action in past_actions):
        return ""
    possible = [action for action in context.actions if _is_open(action, context)]
    forms = {*(step.form for step in binding.steps), *(parse_action(action).template for action in past_actions)}
    untried = [
        action
        for action in possible
        if parse_action(action).template not in forms
        and not set(things.values()).isdisjoint(parse_action(action).slots)
    ]
    if untried:
        return max(untried, key=lambda action: (len(unsolved.intersection(words(action))), context.rng.random()))
    ways = _Search(binding.steps[-1], things, progress, context, index, possible).list_new_ways()
    return context.rng.choice(ways) if ways else ""


def fits_step(binding: Binding, at: int, action: str, progress: BindingProgress) -> bool:
    """Return whether an action does a step of a binding."""
    return _fits(binding.steps[at], action, _find_things(binding, progress), progress.used)


def _find_things(binding: Binding, progress: BindingProgress) -> dict[str, str]:
    """Return the things that stand for those of the demonstration, from the steps that are done."""
    things: dict[str, str] = {}
    for number, action in progress.done:
        slots = parse_action(action).slots
        for argument, slot in zip(binding.steps[number].arguments, slots, strict=False):
            if not argument.is_free:
                things.setdefault(argument.thing, slot)
    return things


def _fits(step: BoundStep, action: str, things: Mapping[str, str], used: frozenset[str]) -> bool:
    """Return whether an action does a step."""
    parsed = parse_action(action)
    if parsed.template != step.form:
        return False
    return all(
        _is_thing(argument, slot, head, things, used)
        for argument, slot, head in zip(step.arguments, parsed.slots, parsed.heads, strict=True)
    )


def _is_thing(argument: Argument, slot: str, head: str, things: Mapping[str, str], used: frozenset[str]) -> bool:
    """Return whether a thing stands for an argument."""
    if argument.is_free:
        return True
    if argument.thing in things:
        return things[argument.thing] == slot
    return head == argument.kind and slot not in used and slot not in things.values()


def _is_open(action: str, context: Context) -> bool:
    """Return whether an action was neither refused in this step nor failed in this context."""
    return action not in context.forbidden and not context.working.failed(
        action, context.recollection.estimates[action].context if action in context.recollection.estimates else ""
    )


def _estimate(context: Context, action: str) -> float:
    estimate = context.recollection.estimates.get(action)
    return estimate.value if estimate else 0.0


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for what makes a step possible."""

    step: BoundStep
    things: Mapping[str, str]
    progress: BindingProgress
    context: Context
    index: DemonstrationIndex
    possible: Sequence[str]

    def list_actions(self) -> Iterator[str]:
        """Yield actions that may make the step possible, the most promising first."""
        targets = self._list_targets()
        place = self.context.state.location
        # What is to be found may be inside; a place that the step names may have to be opened.
        if not targets or any(self._is_target(place, kind, name) for kind, name in targets):
            yield from self._list_reveals()
        yield from self._list_returns()
        yield from self._list_ways(targets)

    def _list_targets(self) -> list[tuple[str, str]]:
        """Return the (kind, name) of the places that the step names; the name is empty if any will do."""
        first = self.step.arguments[0]
        if len(self.step.arguments) > 1 and self._is_missing(first):
            return []  # the thing itself must be found first, wherever it is
        kinds = self._list_kinds_of_places()
        return [
            (argument.kind, self.things.get(argument.thing, ""))
            for argument in self.step.arguments
            if argument.kind in kinds
        ]

    def _list_kinds_of_places(self) -> set[str]:
        """Return the kinds of the places that can be named here, and of this place itself."""
        return {head_noun(name) for name in (*self._list_moves(), self.context.state.location)}

    def _is_missing(self, argument: Argument) -> bool:
        """Return whether no later step can be about this thing yet, because it was not obtained."""
        return not argument.is_free and argument.thing not in self.things

    def _is_target(self, place: str, kind: str, name: str) -> bool:
        return place == name if name else head_noun(place) == kind

    def _list_moves(self) -> dict[str, str]:
        """Return the action that leads to each place that can be named here."""
        moves = {}
        for action in self.possible:
            parsed = parse_action(action)
            if parsed.slots and self.index.is_way(parsed.template):
                moves[parsed.slots[-1]] = action
        return moves

    def _list_reveals(self) -> Iterator[str]:
        """Yield the actions that may reveal something here."""
        place = self.context.state.location.lower()
        past_actions = {
            step.action for step in self.context.history if step.pre.location == self.context.state.location
        }
        forms = [
            (-self.index.reveals(parse_action(action).template), action)
            for action in self.possible
            if action not in past_actions and parse_action(action).slots == (place,)
        ]
        yield from (action for share, action in sorted(forms) if -share >= TUNING.revealing_share)

    def _list_returns(self) -> Iterator[str]:
        """Yield the way back to a place where the step was possible."""
        moves = self._list_moves()
        gone = {*self._list_visited(self.progress.since), self.context.state.location}
        for step in reversed(self.context.history):
            for state in (step.post, step.pre):
                way = moves.get(state.location.lower())
                if way is not None and state.location not in gone and self._is_promising(step, state):
                    yield way

    def _is_promising(self, step: Step, state: State) -> bool:
        """Return whether the step was possible in an earlier state, or a thing that it is about was seen there."""
        if state is step.pre and any(self._does(action) for action in step.admissible):
            return True
        text, kinds = state.observation.lower(), self._list_kinds_of_places()
        bound_things = {*self.progress.used, *self.things.values()}
        return any(
            name not in bound_things
            for argument in self.step.arguments
            if self._is_missing(argument) and argument.kind not in kinds
            for name in re.findall(rf"\b{re.escape(argument.kind)}\b(?: \d+)?", text)
        )

    def _does(self, action: str) -> bool:
        return _fits(self.step, action, self.things, self.progress.used)

    def _list_ways(self, targets: Sequence[tuple[str, str]]) -> Iterator[str]:
        """Yield the ways to the places to try, the likeliest first."""
        moves, place = self._list_moves(), self.context.state.location
        if targets:
            since = {name.lower() for name in self._list_visited(self.progress.since)}
            fitting = [
                name
                for name in moves
                if name not in since and any(self._is_target(name, kind, exact) for kind, exact in targets)
            ]
            yield from (moves[name] for name in sorted(fitting, key=_number_of))
            return
        visited = {name.lower() for name in self._list_visited(0)}
        thing = next((argument.kind for argument in self.step.arguments if self._is_missing(argument)), "")
        instances = Counter(map(head_noun, (*moves, place)))
        # Its share is spread over the places of this kind, so a kind of many places is not searched to its end first.
        likelihood = {
            name: self.index.likelihood(thing, head_noun(name)) / instances[head_noun(name)] for name in moves
        }
        unseen = [name for name in moves if name not in visited]
        yield from (moves[name] for name in sorted(unseen, key=lambda name: (-likelihood[name], _number_of(name))))

    def list_new_ways(self) -> list[str]:
        """Return the ways to kinds of places that were not visited since the last step of the demonstration."""
        visited = set(map(head_noun, self._list_visited(self.progress.since - 1)))
        return [way for name, way in self._list_moves().items() if head_noun(name) not in visited]

    def _list_visited(self, since: int) -> set[str]:
        """Return the places where the episode has been since one of its steps."""
        return {step.post.location for step in self.context.history[since:]} | {self.context.state.location}


def _number_of(name: str) -> tuple[str, int, str]:
    """Return a key that orders `drawer 2` before `drawer 10`."""
    stem, _, last = name.rpartition(" ")
    number = read_whole(last)
    return (name, 0, "") if number is None else (stem, number, "")
