"""Counts and sums of a training step, and the metrics that they make."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Counts and token sums of one step, from which the metrics are computed."""

    updates: int = 0
    skipped: int = 0
    tokens: int = 0
    trained: int = 0
    norms: list[float] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, totals: Mapping[str, float]) -> None:
        """Add the totals of one update."""
        sums = dict(totals)
        self.tokens += int(sums.pop("tokens"))
        self.trained += int(sums.pop("trained"))
        for name, value in sums.items():
            self.sums[name] += value

    def to_totals(self) -> dict[str, float]:
        """Return the counts of tokens and the sums by name, in the form that processes exchange."""
        return {"tokens": float(self.tokens), "trained": float(self.trained), **self.sums}


def summarize(tally: Tally, seconds: float) -> dict[str, float]:
    """Return means over the tokens of all updates of the step.

    `ess` is the effective sample size as a share of the tokens.
    """
    n = max(1, tally.trained)
    sums = dict(tally.sums)
    loss = sums.pop("loss", 0.0) / max(1, tally.updates + tally.skipped)
    weight, squared = sums.pop("weight", 0.0), sums.pop("weight_squared", 0.0)
    norms = tally.norms or [0.0]
    return {
        "loss": loss,
        **{name: total / n for name, total in sums.items()},
        **({"ess": weight**2 / (squared * n)} if squared else {}),
        "grad_norm": sum(norms) / len(norms),
        "grad_norm_max": max(norms),
        "updates": tally.updates,
        "skipped": tally.skipped,
        "tokens": tally.tokens,
        "tokens_trained": tally.trained,
        "tokens_per_second": tally.tokens / max(seconds, 1e-9),
    }
