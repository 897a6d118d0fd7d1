"""An episode as a chat: the messages that a policy model reads, the same in production and in training.

    builder = PromptBuilder()
    log = Conversations(builder)
    chat = log.advance(context)          # system message, past turns, and the current turn, which has no answer yet
    chat.messages()                      # (("system", ...), ("user", ...), ("assistant", ...), ("user", ...))

A conversation is append-only: a turn stays as it was sent, so a model (or its prefix cache) reads each token once.
Everything that changes every turn, such as the recalled experience and the admissible actions, stands in the last
message; with `actions="changes"`, it has what is new and what is gone since the list before, not the whole list. If the
loop replaced an answer, such as a guardrail or a plan, the conversation has the action that ran. An episode that this
process has not seen from its start, as after a crash, is rebuilt from its recorded steps.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from hardwon.memory.errors import ConfigError
from hardwon.memory.records import State, Step
from hardwon.runtime.interfaces.types import Context

from . import prompts
from .action_lists import Listing, Offer, describe_actions, find_known
from .context_builders import AllTurns, AnswersCount, ContextBuilder, as_builder


@dataclass(slots=True)
class ChatTurn:
    """One message of the environment and the action that answered it."""

    user: str
    """The message as it was sent."""
    state: State
    """The state that the message shows."""
    answer: str | None = None
    """The action that ran; None while the turn is open, and empty if the answer was no action."""
    text: str | None = None
    """The answer in the model's own words, such as a tool call in JSON; None if they are those of the action."""
    sampled: tuple[int, ...] | None = None
    """The token ids that the model sampled for the answer; None if the model did not sample what ran."""
    ids: tuple[int, ...] | None = None
    """The token ids of the rendered message, as a tokenizer's cache; None if it is not rendered yet."""
    opens: bool = False
    """Whether `ids` begin a conversation, with the system message before this one."""
    hint: str | None = None
    """The guidance that the message shows; None if it shows none, or if an earlier message shows the same."""
    seen: str = ""
    """The part of the message about the last action and the state, in a conversation that has tools."""
    advice: str = ""
    """The part of the message behind it, without the form of a call."""
    calls: bool = False
    """Whether the answer is a call of a tool."""
    offer: Offer | None = None
    """The actions that are admissible, where messages list changes; None if the message says nothing about them."""


@dataclass(slots=True)
class Conversation:
    """The system message and the turns of one episode, oldest first."""

    system: str
    turns: list[ChatTurn] = field(default_factory=list)
    omitted: int = 0
    """Number of first turns that are left out of the messages."""
    builder: ContextBuilder = field(default_factory=AllTurns)
    """Chooses the form of the past turns."""
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The tools at the start, for a model with a form of its own for them; empty if the actions are no calls."""
    tool_system: str = ""
    """The system message for such a model, which names no form of a call."""

    def messages(self) -> tuple[tuple[str, str], ...]:
        """Return the messages as pairs of role and text; the last one is the open turn, if there is one."""
        answered = [turn for turn in self.turns[self.omitted :] if turn.answer is not None]
        past = [(turn.user, (turn.answer or "") if turn.text is None else turn.text) for turn in answered]
        if not self.turns or self.turns[-1].answer is not None:  # all turns are answered
            pairs = [pair for user, answer in past for pair in (("user", user), ("assistant", answer))]
            return (("system", self.system), *pairs)
        current = self.turns[-1].user
        if isinstance(self.builder, AnswersCount):
            return (("system", self.system), *self.builder.build_from(past, current, self.omitted))
        return (("system", self.system), *self.builder.build(past, current))


class PromptBuilder:
    """Writes the messages of a conversation from the contexts of an episode."""

    def __init__(
        self,
        *,
        instructions: str = "",
        history: int | None = None,
        speech: int = 0,
        context: str | ContextBuilder = "all",
        actions: Listing = "full",
    ) -> None:
        """Create a builder."""
        self._builder, self._actions = as_builder(context), actions
        _check_listing(actions, self._builder)
        rules = self._builder.rules if isinstance(self._builder, AnswersCount) else ""
        self._instructions, self._history = "\n\n".join(filter(None, (rules, instructions))), history
        self.speech = speech

    @property
    def lists_changes(self) -> bool:
        """Return whether messages list the changes of the admissible actions, in words and without numbers."""
        return self._actions == "changes"

    def system(self, context: Context, *, has_form: bool = False) -> str:
        """Return the system message: the rules, the task, and the environment's instructions."""
        return prompts.system_prompt(
            context.state.task,
            self._instructions,
            context.manual,
            calls=_acts_by_calls(context),
            has_form=has_form,
            speech=self.speech,
            changes=self.lists_changes,
        )

    def keep(self, answer: str, action: str) -> str | None:
        """Return the text of an answer that the conversation keeps in place of the action; None for the action."""
        return self._builder.keep(answer, action) if isinstance(self._builder, AnswersCount) else None

    def turn(self, context: Context, *, remembered: bool, listing: str) -> str:
        """Return the message of the current turn; see `prompts.turn_prompt`."""
        return prompts.turn_prompt(context, remembered=remembered, speech=self.speech > 0, listing=listing)

    def past(self, step: Step, before: Step | None) -> str:
        """Return the message of a recorded step, and the result of the step before, that this process did not send."""
        return prompts.past_prompt(step, before)

    def advance(self, conversation: Conversation | None, context: Context) -> Conversation:
        """Return the conversation with the steps of the context's history and an open turn for its state."""
        if conversation is not None and not _belongs(conversation, context):
            conversation = None
        chat = conversation or self._open(context)
        # A turn at or after the current step was superseded, as by a retry after a refusal.
        del chat.turns[len(context.history) :]
        for turn, step in zip(chat.turns, context.history, strict=False):
            if turn.answer != step.action:
                turn.answer, turn.sampled, turn.text = step.action, None, None
        for at in range(len(chat.turns), len(context.history)):
            step, before = context.history[at], context.history[at - 1] if at else None
            message = self.past(step, before)
            turn = ChatTurn(message, step.pre, step.action)
            if chat.tools:
                turn.seen, turn.calls = message, not step.admissible
            chat.turns.append(turn)
        self._omit_old(chat)
        # The conversation keeps what it showed, so a hint that still holds is not read again in every turn.
        sent = reversed(chat.turns[chat.omitted :])
        last = next((turn.hint for turn in sent if turn.hint is not None), None)
        fresh = replace(context, guidance=None) if context.guidance == last else context
        offer, listing = self._offer(chat, context)
        message = self.turn(fresh, remembered=chat.omitted > 0, listing=listing)
        turn = ChatTurn(message, context.state, hint=fresh.guidance, offer=offer)
        if chat.tools:
            self._split(turn, fresh, remembered=chat.omitted > 0, listing=listing)
        chat.turns.append(turn)
        return chat

    def _split(self, turn: ChatTurn, context: Context, *, remembered: bool, listing: str) -> None:
        """Give a turn the parts of its message. The form of a call is not among them: the model has its own."""
        parts = prompts.split_turn(context, remembered=remembered, speech=self.speech > 0, listing=listing)
        turn.seen, turn.calls = parts[0], _acts_by_calls(context)
        turn.advice = parts[1] if turn.calls else prompts.join_parts(*parts[1:])

    def _open(self, context: Context) -> Conversation:
        if not _acts_by_calls(context):
            return Conversation(self.system(context), builder=self._builder)
        # The instructions of an environment with tools list them. A model that reads the list itself reads it once.
        is_listed = all(schema.get("description") for schema in context.tools.values())
        system = self.system(replace(context, manual="") if is_listed else context, has_form=True)
        return Conversation(self.system(context), builder=self._builder, tools=context.tools, tool_system=system)

    def _offer(self, chat: Conversation, context: Context) -> tuple[Offer | None, str]:
        """Return what the next message offers, with its text; nothing if the message has the whole numbered list."""
        if not self.lists_changes:
            return None, ""
        before = find_known(turn.offer for turn in chat.turns[chat.omitted :])
        return describe_actions(prompts.choices(context), before)

    def _omit_old(self, chat: Conversation) -> None:
        """Leave out the oldest turns if there are too many."""
        past = len(chat.turns)
        chat.omitted = min(chat.omitted, past)
        if self._history is not None and past - chat.omitted > self._history:
            chat.omitted = past - self._history // 2


def _acts_by_calls(context: Context) -> bool:
    """Return whether the actions are calls of tools whose schemas are known."""
    return bool(context.tools and not context.actions)


def _check_listing(actions: str, builder: ContextBuilder) -> None:
    """Check that a list of changes has the messages before it."""
    if actions not in get_args(Listing):
        raise ConfigError(f"actions is {actions!r}; use {' or '.join(get_args(Listing))}.")
    if actions == "changes" and not isinstance(builder, AllTurns):
        raise ConfigError(
            f"actions is changes, and {type(builder).__name__} leaves messages out that a change refers to; use "
            "context='all', or actions='full'."
        )


def _belongs(chat: Conversation, context: Context) -> bool:
    """Return whether a conversation is about the steps of a context.

    Two agents may share a policy and use the same thread id. One must not read the messages of the other's episode.
    """
    seen = ((turn.state.task, turn.state.observation) for turn in chat.turns)
    return all(
        visible == (step.pre.task, step.pre.observation) for visible, step in zip(seen, context.history, strict=False)
    )


class Conversations:
    """The conversations of the running episodes, by thread."""

    def __init__(self, builder: PromptBuilder | None = None, *, most: int = 1024) -> None:
        """Create an empty log."""
        self.builder = builder or PromptBuilder()
        self._most = most
        self._open: OrderedDict[str, Conversation] = OrderedDict()

    def advance(self, context: Context) -> Conversation:
        """Return the conversation of the context's thread, with an open turn for its state.

        A context without a thread gets a conversation of its own, rebuilt from its history.
        """
        if not context.thread:
            return self.builder.advance(None, context)
        # A thread that begins anew, as at a second attempt, must not continue the old conversation.
        before = self._open.pop(context.thread, None) if context.history else None
        chat = self._open[context.thread] = self.builder.advance(before, context)
        while len(self._open) > self._most:
            self._open.popitem(last=False)
        return chat

    def fork(self, parent: str, thread: str, turns: int) -> None:
        """Begin the conversation of a thread with the first turns of another one, as they were sent.

        Without the parent's conversation, the turns are rebuilt from the recorded steps, as after a crash.
        """
        chat = self._open.get(parent)
        if chat is None or len(chat.turns) < turns:
            return
        own = [replace(turn) for turn in chat.turns[:turns]]
        self._open[thread] = replace(chat, turns=own, omitted=min(chat.omitted, turns))

    @staticmethod
    def answer(
        conversation: Conversation, action: str, sampled: Sequence[int] | None = None, *, text: str | None = None
    ) -> None:
        """Record the answer to the open turn."""
        turn = conversation.turns[-1]
        turn.answer, turn.sampled = action, None if sampled is None else tuple(sampled)
        turn.text = None if text == action else text
