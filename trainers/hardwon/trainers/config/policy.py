"""How the policy answers: the limits of an answer, the history that it reads, and thinking before acting."""

from dataclasses import dataclass
from typing import Literal

from hardwon.runtime.llm.action_lists import Listing
from hardwon.runtime.llm.conversation import PromptBuilder

MAX_TOKENS = 256
"""Default length limit of an answer, in tokens."""


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """Settings of the policy: what it reads and how it answers, in training and in production."""

    speech: Literal["none", "free", "tagged", "predicted"] = "none"
    """free: before each action, the policy may think in one line of free text, which is trained with the action's
    advantage. tagged: it first chooses planning, explore, reflection or monitor, and a chat model then thinks.
    predicted: it first says what it will see. none: it answers at once."""
    speech_tokens: int = 48
    """Maximum number of tokens of such a thought."""
    max_tokens: int = MAX_TOKENS
    """Maximum number of tokens of a tool call or of free text, where no actions are listed."""
    history: int | None = None
    """Past turns in a prompt; of more, half are left out at once. null keeps all, so a prompt only grows and each token
    is read once."""
    actions: Listing = "full"
    """full: every message lists the admissible actions. changes: a message lists what is new and what is gone since the
    one before, where that is shorter; an episode has fewer tokens."""

    @property
    def spoken(self) -> int:
        """Return the maximum number of tokens before an action; 0 if the policy answers at once."""
        return 0 if self.speech == "none" else self.speech_tokens

    def build_prompts(self) -> PromptBuilder:
        """Return the builder of the messages that the policy reads."""
        return PromptBuilder(history=self.history, speech=self.spoken, actions=self.actions)
