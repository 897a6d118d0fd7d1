"""Demonstrations: recorded paths, played again in the environment, as samples to imitate.

    policy = DemonstrationPolicy(prompts, {("train", 7): ("take coat", "put coat in wardrobe")})

The policy takes the actions of a path in the runtime's own loop. So its prompts are exactly those of a rollout: the
same messages, the hints that the library gives at each step, and the same listed actions.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from hardwon.memory.errors import EnvironmentFailure, PolicyFailure
from hardwon.memory.reasons import Reasons
from hardwon.runtime.interfaces.types import Context, Decision, Environment, Info
from hardwon.runtime.llm import prompts as messages
from hardwon.runtime.llm.conversation import Conversation, Conversations, PromptBuilder
from hardwon.trainers.algorithms.samples import Allowed, Ids, Sample
from hardwon.trainers.engines.trie import Trie
from hardwon.trainers.prompting.base import PromptFormat

from .explore import Task
from .renaming import Rename, rename_conversation
from .rollout import Spec, current_episode


class DemonstrationPolicy:
    """A policy that takes the actions of a recorded path and keeps each as a sample to imitate."""

    name = "demonstration"
    reads: Literal["values", "text"] = "text"

    def __init__(
        self,
        prompts: PromptFormat,
        paths: Mapping[Task, Sequence[str]],
        *,
        role: str = "policy",
        builder: PromptBuilder | None = None,
        rename: Callable[[Spec], Rename] = lambda _: str,
    ) -> None:
        """Create a policy of paths."""
        self._prompts, self._paths, self._role, self._rename = prompts, paths, role, rename
        self._log = Conversations(builder)

    async def adecide(self, context: Context) -> Decision:
        """Return the next action of the path of the running rollout."""
        episode = current_episode()
        turn, path = len(context.history), self._paths[episode.spec.task, episode.spec.seed]
        choices = messages.choices(context)
        if turn >= len(path) or (context.actions and path[turn] not in choices):
            raise PolicyFailure(f"the path of {episode.spec.group} does not go on at step {turn + 1}.")
        action, chat = path[turn], self._log.advance(context)
        rename = self._rename(episode.spec)
        renamed_chat = rename_conversation(chat, rename)
        prompt = self._prompts.open_prompt(renamed_chat, context)
        fields = (self._role, 0, episode.spec.arm, "", "", episode.spec.session, turn)
        sample = build_sample(
            self._prompts, prompt, rename(action), [*map(rename, choices)], *fields, chat=renamed_chat
        )
        Conversations.answer(chat, action, sample.completion)
        episode.keep(turn, action, sample)
        return Decision(action, Reasons(tokens=sample.completion, memory=chat.turns[-1].hint))

    def decide(self, context: Context) -> Decision:
        """Run `adecide` for a loop without asyncio."""
        return asyncio.run(self.adecide(context))


def build_sample(
    prompts: PromptFormat,
    prompt: Ids,
    action: str,
    choices: Sequence[str],
    *fields: Any,
    chat: Conversation | None = None,
) -> Sample:
    """Return an action that was given, not sampled, as a sample."""
    opening = prompts.opening
    tokens, allowed = _encode(prompts, action, choices, chat)
    tokens, allowed = (*opening, *tokens), (*((token,) for token in opening), *allowed)
    mask = tuple(at >= len(opening) for at in range(len(tokens)))
    return Sample(prompt, tokens, (0.0,) * len(tokens), mask, allowed, *fields)


def _encode(
    prompts: PromptFormat, action: str, choices: Sequence[str], chat: Conversation | None
) -> tuple[Ids, tuple[Allowed, ...]]:
    """Return the tokens of an action and the tokens that were possible at each position."""
    if not choices:
        tokens = prompts.text(action) if chat is None else prompts.answer(chat, action)
        return tokens, (None,) * len(tokens)
    trie, actions = prompts.actions(choices)
    tokens = next(tokens for tokens, listed in actions.items() if listed == action)
    return tokens, _list_allowed(trie, tokens)


def find_path(environment: Environment, world: Task, clean: Sequence[str], whole: Sequence[str]) -> tuple[str, ...]:
    """Return the cleaned path if it succeeds, else the whole one, shortened by replay; the cleaned one if neither does.

    A step that shows nothing new may be the one that counts: a cooled potato looks like a warm one. Cleaning takes it
    for a circle, so what is left is played before it is believed.
    """
    if getattr(environment, "branches", "replay") is None:  # its actions must not be repeated
        return tuple(clean)
    succeeding = (path for path in (clean, whole) if path and _succeeds(environment, world, path))
    return shorten_path(environment, world, next(succeeding, clean))


def shorten_path(environment: Environment, world: Task, path: Sequence[str]) -> tuple[str, ...]:
    """Return a path without the actions that it succeeds without, found by playing it again.

    A demonstration with a detour teaches the detour. Each action is left out once, from the last to the first; it stays
    out if the rest is admissible and still succeeds.
    """
    kept = tuple(path)
    if getattr(environment, "branches", "replay") is None:  # its actions must not be repeated
        return kept
    for at in range(len(path) - 1, -1, -1):  # from the end, so that earlier positions stay the same
        shorter = (*kept[:at], *kept[at + 1 :])
        if shorter and _succeeds(environment, world, shorter):
            kept = shorter
    return kept


def _succeeds(environment: Environment, world: Task, path: Sequence[str]) -> bool:
    """Return whether a path succeeds in a task instance."""
    try:
        state, info = environment.reset(*world), Info()
        for action in path:
            if action not in (environment.admissible(state) or (action,)):
                return False
            state, _, over, info = environment.step(action)
            if over:
                break
    except EnvironmentFailure:
        return False
    return bool(info.get("success"))


def _list_allowed(trie: Trie, tokens: Ids) -> tuple[Allowed, ...]:
    return tuple(trie.allowed(tokens[:at]) for at in range(len(tokens)))
