"""Settings of a role's loss and optimizer. See `algorithms.learner` for the training step."""

from dataclasses import dataclass, field
from typing import Any, Literal

from hardwon.memory.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """What a training step minimizes."""

    kind: Literal["ppo", "gspo", "cispo", "aepo", "imitation"] = "ppo"
    """Loss: see losses.policy_loss. imitation is -A log p, which is cross-entropy where the advantages are 1."""
    ratio: Literal["auto", "token", "turn", "sequence"] = "auto"
    """What has one ratio to the old policy: every token, every turn or every packed sequence, by the mean of the
    log-ratios. auto: the sequence for gspo, which is the whole episode where prompts extend each other, else the token.
    """
    low: float = 0.2
    """The ratio to the old policy is clipped below 1 - low."""
    high: float = 0.28
    """The ratio to the old policy is clipped above 1 + high."""
    old: Literal["sampled", "trainer"] = "sampled"
    """Source of the old policy's log-probabilities: the engine that sampled, or the trainer, which computes
    them before the update. With `trainer`, tokens are weighted by importance, by 2 at most.
    """
    max_mismatch: float | None = None
    """Leave out whatever has one ratio (a turn, with ratio=turn) if the geometric mean of its tokens' probabilities, of
    the trainer's over those of sampling, exceeds this (ROME); None leaves out nothing."""
    kl: float = 0.0
    """Weight of the KL divergence from the reference, in nats per token."""
    entropy: float = 0.0
    """Weight of the entropy bonus, in nats per token."""
    terms: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further terms by name with their settings, such as epo: {}. Only the policy uses them."""

    def __post_init__(self) -> None:
        if self.kind == "gspo" and self.ratio == "token":
            raise ConfigError("ratio is token, and kind gspo has one ratio per turn or sequence; use kind: ppo.")


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """How a training step minimizes the loss."""

    lr: float = 3e-4
    """Peak learning rate of AdamW. 0 freezes the role: it acts, and is not trained."""
    warmup: int = 0
    """Updates over which the learning rate rises linearly to its peak."""
    decay: int | None = None
    """Updates after which the linearly falling learning rate reaches 0; None for no decay."""
    budget: int = 4096
    """Tokens of a micro-batch, also of a warm start, padding included. Set it to as many as fit in memory."""
    epochs: int = 1
    """Passes over the same sequences in one step."""
    minibatches: int = 1
    """Updates per epoch. Every epoch assigns the traces to them at random."""
    order: Literal["together", "reverse-turns"] = "together"
    """together: an update trains all turns. reverse-turns: one update per turn of the episodes, the last turn first; an
    advantage is scaled by how the updates of later turns have moved these (SeeUPO).
    """
    denominator: Literal["tokens", "traces", "turns", "constant"] = "tokens"
    """Normalization of the loss: mean over all tokens of the update, mean over traces or over turns of their token
    means, or sum over tokens divided by traces x `constant` (Dr. GRPO).
    """
    constant: int = 1024
    """Tokens that each trace counts for with denominator=constant."""
    recompute: bool | None = None
    """Use gradient checkpointing: less memory, a tenth to a quarter more time. Default: only for a micro-batch whose
    activations need more than half of the free memory, and not in several processes.
    """

    def __post_init__(self) -> None:
        if self.order == "reverse-turns" and self.epochs * self.minibatches > 1:
            raise ConfigError(
                f"order is reverse-turns, which makes one update per turn, and epochs is {self.epochs} and minibatches "
                f"{self.minibatches}; set both to 1."
            )
