"""The cost of calls of a model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """The cost of one or more model calls; add two usages to sum them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    calls: int = 0
    """Requests to a model, failed ones included."""

    def __add__(self, other: "ModelUsage") -> "ModelUsage":
        return ModelUsage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cost_usd + other.cost_usd,
            self.calls + other.calls,
        )


NO_USAGE = ModelUsage()
