"""The prompts of a pretrained model: its own chat template, with the messages that `ChatPolicy` sends.

    prompts = ChatFormat(tokenizer)
    print(prompts.template.describe())
    ids = prompts.open_prompt(conversation, context)

An episode is one conversation whose token ids only grow: what was sent and what was sampled stays as it was. An answer
that the model did not sample, such as a guardrail's substitute, is encoded as part of the prompt. A sampled answer that
the length limit cut gets the end token in the next prompt, so neither is trained on.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hardwon.memory import Trajectory
from hardwon.memory.errors import CannotLearn
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.llm import prompts
from hardwon.runtime.llm.conversation import ChatTurn, Conversation, Conversations, PromptBuilder
from hardwon.runtime.llm.tool_messages import build_turn, find_call, format_call, list_tools
from hardwon.trainers.algorithms.samples import Ids, Sample, compute_anchor
from hardwon.trainers.engines.grammar import PLAIN, CallForm
from hardwon.trainers.engines.tool_form import ToolForm
from hardwon.trainers.engines.trie import Trie

from .base import Purpose, Query, Verdicts
from .instructions import INSTRUCTIONS
from .template import ChatTemplate


class ChatFormat:
    """Encodes episodes and questions with the chat template of a tokenizer."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        builder: PromptBuilder | None = None,
        manual: str = "",
        tools: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Create a format, and probe the tokenizer's template."""
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer)
        self.end = self.template.end
        self._builder, self._manual, self._tools = builder or PromptBuilder(), manual, tools or {}
        self.opening: Ids = self.template.encode("\n") if self._builder.speech else ()

    def describe(self) -> str:
        """Return in one line how prompts are made."""
        return self.template.describe()

    # -- episodes -----------------------------------------------------------------------------------

    def open_prompt(self, conversation: Conversation, context: Context) -> Ids:
        """Return the tokens up to the next action of an episode, whose open turn is the last of `conversation`."""
        return tuple(token for tokens in self.parts(conversation) for token in tokens)

    def parts(self, conversation: Conversation) -> Iterator[Ids]:
        """Yield the tokens of each message that is not left out, and of the answer to it.

        A message is rendered once, and once more if it becomes the first one. The tokens then continue nothing that was
        sent before, so they begin a training row of their own.
        """
        before: ChatTurn | None = None
        for turn in conversation.turns[conversation.omitted :]:
            if turn.ids is None or turn.opens != (before is None):
                turn.ids = (
                    self._open(conversation, turn) if before is None else self._resume(conversation, before, turn)
                )
                turn.opens = before is None
            yield turn.ids
            if turn.answer is not None:
                yield self._answer(conversation, turn)
            before = turn

    def call_form(self, conversation: Conversation) -> CallForm:
        """Return the form of the calls in a conversation: the template's own, or JSON, as the messages ask for."""
        form = self._find_tools(conversation)
        return PLAIN if form is None else form.call

    def _find_tools(self, conversation: Conversation) -> ToolForm | None:
        return self.template.tools if conversation.tools else None

    def _open(self, conversation: Conversation, turn: ChatTurn) -> Ids:
        """Return the tokens of the first message of a conversation, with the system message and the tools."""
        if self._find_tools(conversation) is None:
            return self.template.open(conversation.system, turn.user)
        (message,) = build_turn(turn, None, 0)
        return self.template.open(conversation.tool_system, message["content"], list_tools(conversation))

    def _resume(self, conversation: Conversation, before: ChatTurn, turn: ChatTurn) -> Ids:
        """Return the tokens of a message behind the end token of the answer before it."""
        form = self._find_tools(conversation)
        if form is None:
            return self.template.resume(turn.user)
        call = find_call(conversation, before)
        messages = build_turn(turn, None if call is None else call[0], 0)
        return self.template.resume(messages[0]["content"]) if call is None else form.resume(messages)

    def _answer(self, conversation: Conversation, turn: ChatTurn) -> Ids:
        """Return the tokens of an answer as they were sampled, or those of its text."""
        if not turn.sampled:
            form, call = self._find_tools(conversation), find_call(conversation, turn)
            return self.text(turn.answer or "") if form is None or call is None else (*form.encode(*call), self.end)
        return turn.sampled if turn.sampled[-1] == self.end else (*turn.sampled, self.end)

    def answer(self, conversation: Conversation, action: str) -> Ids:
        """Return the tokens of an action as an answer to the open turn: its text, or a call as it is sampled."""
        form, call = self._find_tools(conversation), find_call(conversation, conversation.turns[-1], action)
        if call is None:
            return self.text(action)
        return self.text(format_call(*call)) if form is None else (*form.encode(*call), self.end)

    def actions(self, actions: Sequence[str]) -> tuple[Trie, dict[Ids, str]]:
        """Return the listed actions as a trie, and the action by tokens; the first of two with equal tokens wins."""
        actions_by_tokens: dict[Ids, str] = {}
        for action in actions:
            actions_by_tokens.setdefault(self.text(action), action)
        return Trie(actions_by_tokens), actions_by_tokens

    def hide(self) -> Ids:
        """Return the tokens of a message of the environment that shows nothing, up to the next action."""
        return self.template.resume("No information found.")

    def rows(self, trajectory: Trajectory, memory: str | None = None, *, role: str = "policy") -> list[Sample]:
        """Return the actions of a recorded episode as samples to imitate, exactly as the policy would see them."""
        rows: list[Sample] = []
        conversation: Conversation | None = None
        for t, step in enumerate(trajectory.steps):
            context = Context(
                step.pre,
                tuple(sorted(step.admissible)),
                guidance=memory,
                history=trajectory.steps[:t],
                manual=self._manual,
                tools=self._tools,
            )
            conversation = self._builder.advance(conversation, context)
            prompt = self.open_prompt(conversation, context)
            completion = (*self.opening, *self.answer(conversation, step.action))
            n, forced = len(completion), len(self.opening)
            mask = (*(False for _ in self.opening), *(True for _ in range(n - forced)))
            fields = (role, 0, trajectory.arm, "", compute_anchor(step.pre.signature, memory), trajectory.id, t)
            rows.append(Sample(prompt, completion, (0.0,) * n, mask, (None,) * n, *fields))
            Conversations.answer(conversation, step.action, completion)
        return rows

    # -- questions to the roles ---------------------------------------------------------------------

    def query(self, query: Query) -> Ids:
        """Return the tokens of a question to a role, up to its answer."""
        instruction = INSTRUCTIONS[query.purpose]
        parts = [_format_section(name, value) for name, value in query.sections.items()]
        return self.template.open(instruction.text, "\n".join(part for part in (*parts, instruction.ask) if part))

    def verdicts(self, purpose: Purpose) -> Verdicts:
        """Return the two answers to a yes-or-no question, as ordinary words."""
        words = INSTRUCTIONS[purpose]
        # A guide's hint follows its verdict, on the next line of the same answer.
        after = self.template.encode("\n") if purpose == "guide" else (self.end,)
        yes, no = (*self.template.encode(words.yes), *after), self.text(words.no)
        if yes[0] == no[0]:
            raise CannotLearn(
                f"the tokenizer begins the answers {words.yes!r} and {words.no!r} to {purpose!r} with the same token; "
                "use another base."
            )
        return Verdicts(yes, no, Trie([yes, no]))

    def text(self, text: str) -> Ids:
        """Return the tokens of a text as an answer, with the end token. Control tokens in it are plain text."""
        return (*self.template.encode(text), self.end)

    def read(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer, without control tokens."""
        kept = [token for token in tokens if token not in self.template.controls]
        return str(self.tokenizer.decode(kept)).strip()


def _format_section(name: str, value: str | Sequence[str]) -> str:
    """Return a section as a block of data; several texts are numbered lines. An empty section is left out."""
    if isinstance(value, str):
        return prompts.block(name, value) if value.strip() else ""
    lines = [f"{n}. {' '.join(text.split())}" for n, text in enumerate(value, 1)]
    return prompts.block(name, "\n".join(lines)) if lines else ""
