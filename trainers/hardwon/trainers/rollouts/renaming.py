"""Renamed things: in an episode with other names, only the hint tells which action is right.

    names = Names(list_actions(environment, paths))
    rename = names.shuffle(random.Random(7))
    rename("put dirty bra in washing machine")     # "put warm scarf in hat rack", everywhere in this episode

A policy that imitates demonstrations can remember where each thing belongs, and then has no reason to read a hint. If
things have each other's names, such a memory is wrong. The hint is right: its names change with the observation and the
actions. The idea is symbol tuning (arXiv 2305.08298), which replaces the labels of examples in a prompt by arbitrary
words. Here the words are the names of other things in the same role.
"""

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from hardwon.memory.errors import EnvironmentFailure
from hardwon.memory.situations.actions import parse_action
from hardwon.runtime.interfaces.types import Environment
from hardwon.runtime.llm.conversation import Conversation

from .explore import Task

Rename = Callable[[str], str]
"""Replaces every name in a text."""


class Names:
    """The names of things in listed actions, grouped by role: those that stand in the same place of an action."""

    def __init__(self, actions: Iterable[str]) -> None:
        """Group the arguments of actions.

        Args:
            actions: Actions as text, such as `put coat in wardrobe`. Two arguments are in one group if they stand in
                the same slot of the same form, such as `put {1} in {2}`, directly or by way of other arguments.
        """
        slots: dict[tuple[str, int], set[str]] = {}
        for action in actions:
            parsed = parse_action(action)
            for number, name in enumerate(parsed.slots):
                if any(letter.isalpha() for letter in name):
                    slots.setdefault((parsed.template, number), set()).add(name.lower())
        self.groups = _merge_sets(slots.values())
        """Names by role, sorted; each name is in one group."""
        names = sorted((name for group in self.groups for name in group), key=lambda name: (-len(name), name))
        # the longest first, so that `coat hanger` is not read as `coat`
        alternatives = "|".join(map(re.escape, names))
        self._pattern = re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)", re.IGNORECASE) if names else None

    def shuffle(self, chance: random.Random) -> Rename:
        """Return a function that gives the names of each group to each other, drawn at random."""
        pattern, partners = self._pattern, dict[str, str]()
        for group in self.groups:
            partners.update(zip(group, chance.sample(group, len(group)), strict=True))
        if pattern is None:
            return str

        def rename(text: str) -> str:
            return pattern.sub(lambda match: _like(match[0], partners[match[0].lower()]), text)

        return rename


def list_actions(environment: Environment, paths: Mapping[Task, Sequence[str]]) -> set[str]:
    """Return the actions that are listed on the way along recorded paths; a world that fails adds none."""
    actions: set[str] = set()
    for world, path in paths.items():
        try:
            state = environment.reset(*world)
            for action in path:
                actions.update(environment.admissible(state) or ())
                state, _, over, _ = environment.step(action)
                if over:
                    break
        except EnvironmentFailure:
            continue
    return actions


def rename_conversation(chat: Conversation, rename: Rename) -> Conversation:
    """Return a copy of a conversation with other names; tokens that stand for an answer stay as they are."""
    turns = [
        replace(
            turn,
            user=rename(turn.user),
            answer=turn.answer if turn.answer is None else rename(turn.answer),
            text=turn.text if turn.text is None else rename(turn.text),
            seen=rename(turn.seen),
            advice=rename(turn.advice),
            ids=None,
        )
        for turn in chat.turns
    ]
    return replace(chat, system=rename(chat.system), tool_system=rename(chat.tool_system), turns=turns)


def _merge_sets(sets: Iterable[set[str]]) -> tuple[tuple[str, ...], ...]:
    """Return the unions of sets that share a member, each sorted."""
    groups: list[set[str]] = []
    for new in sets:
        apart = [group for group in groups if group.isdisjoint(new)]
        touching = [group for group in groups if not group.isdisjoint(new)]
        groups = [*apart, new.union(*touching)]
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def _like(before: str, name: str) -> str:
    """Return a name with a capital at its beginning if the name before had one."""
    return name[:1].upper() + name[1:] if before[:1].isupper() else name
