"""How a role learns: what is minimised, and how. Settings alone; see `algorithms.learner` for the step."""

from dataclasses import dataclass
from typing import Literal

from hardwon.memory.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """What is minimised."""

    kind: Literal["ppo", "gspo", "cispo", "imitation"] = "ppo"
    """See losses.policy_loss; imitation is -A log p: cross-entropy where the advantages are 1."""
    low: float = 0.2
    """The ratio to the old policy is clipped below 1 - low."""
    high: float = 0.28
    """And above 1 + high."""
    dual: float | None = None
    """A token with a negative advantage costs at most this times it; None for no bound."""
    old: Literal["sampled", "trainer"] = "sampled"
    """Whose log-probabilities the old policy's are: the engine's, or the trainer's own, read before the
    update; the engine's then weigh the tokens, see `cap`."""
    cap: float = 2.0
    """Tokens sampled by another program weigh at most this."""
    kl: float = 0.0
    """Weight of the divergence from the reference, in nats a token."""
    kl_kind: Literal["k1", "k2", "k3"] = "k3"
    """Which estimate of it is differentiated."""
    entropy: float = 0.0
    """Weight of the entropy, in nats a token: a bonus."""
    max_kl: float | None = None
    """No more updates in this step once the policy is so far from the old one, in nats a token; None for all."""
    temperature: float = 1.0
    """At which the tokens were sampled."""

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ConfigError(f"temperature is {self.temperature}; log-probabilities need one above 0: use 1.")


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """How it is minimised."""

    lr: float = 3e-4
    """Learning rate of AdamW, at its highest."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of AdamW's two averages."""
    weight_decay: float = 0.0
    """Of every parameter, by update and learning rate."""
    warmup: int = 0
    """Updates over which the learning rate rises to its highest."""
    decay: int | None = None
    """Updates after which the learning rate, falling linearly, is 0; None: it does not fall."""
    clip: float = 1.0
    """The gradient's norm is cut to this."""
    budget: int = 4096
    """Tokens of a micro-batch, padding included: as many as fit the memory."""
    epochs: int = 1
    """Times that the same streams are gone through in a step."""
    minibatches: int = 1
    """Updates of an epoch; each trace is in one of them, drawn anew every epoch."""
    denominator: Literal["tokens", "traces", "constant"] = "tokens"
    """The loss is a mean over all the update's tokens, or over traces of their means over tokens, or a sum
    over tokens divided by traces x `constant` (Dr. GRPO)."""
    constant: int = 1024
    """Tokens that a trace counts for with the denominator `constant`."""
    recompute: bool = False
    """Gradient checkpointing: less memory, a third more time."""
    compile: bool = False
    """torch.compile of the layers in the training step: minutes at the first step, then faster."""
    seed: int = 0
    """Of the draw of minibatches."""

    def __post_init__(self) -> None:
        for name in ("budget", "epochs", "minibatches", "constant"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; use 1 or more.")
