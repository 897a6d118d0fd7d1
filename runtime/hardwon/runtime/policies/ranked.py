"""A policy whose suggestions are ranked by the library: several samples, and the one that paid most is taken.

    Agent(RankedPolicy("openai:gpt-5"), library, environment)

A policy that reads text sees no estimates. It proposes; among its proposals, those with enough similar steps behind
them are compared by what these steps returned. Without such steps, it decides as ever, with one call.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from hardwon.memory import Reasons
from hardwon.memory.errors import ConfigError, PolicyFailure
from hardwon.runtime.interfaces.extension import ValueModel
from hardwon.runtime.interfaces.methods import METHODS
from hardwon.runtime.interfaces.types import Context, Decision, Policy
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.planning.proposals import RecalledValue

from .tuning import TUNING


class SampledActions:
    """The actions that a policy chooses when it is asked several times."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def propose(self, context: Context, n: int) -> tuple[Decision, ...]:
        """Return the different choices of n calls, the first one first; the prior is the share of the calls."""
        samples = []
        for _ in range(n):
            try:
                samples.append(self._policy.decide(context))
            except PolicyFailure:
                if not samples:
                    raise  # without any choice the step has failed
        return merge_samples(samples)

    async def apropose(self, context: Context, n: int) -> tuple[Decision, ...]:
        """Return the choices of n calls that run at the same time."""
        answers = await asyncio.gather(*(self._policy.adecide(context) for _ in range(n)), return_exceptions=True)
        samples = [answer for answer in answers if isinstance(answer, Decision)]
        if not samples:
            raise next(answer for answer in answers if isinstance(answer, BaseException))
        return merge_samples(samples)


def merge_samples(samples: Sequence[Decision]) -> tuple[Decision, ...]:
    """Return one decision for each action, in the order of their first choice, with its share of the samples."""
    counts = Counter(sample.action for sample in samples)
    first: dict[str, Decision] = {}
    usages: dict[str, ModelUsage] = {}
    for sample in samples:
        first.setdefault(sample.action, sample)
        usages[sample.action] = usages.get(sample.action, ModelUsage()) + sample.usage
    return tuple(
        replace(
            decision,
            why=decision.why.merged(Reasons(extra={"prior": counts[action] / len(samples)})),
            usage=usages[action],
        )
        for action, decision in first.items()
    )


@METHODS.add(
    "Step-level Q models",
    "arXiv:2409.09345",
    evidence="C",
    reach='`RankedPolicy(policy)`, `Agent("ranked:openai:MODEL", ...)`, `--policy ranked:NAME`, '
    "`--policy ranked@EXPORT:NAME`",
    reading="the library's estimates, where an action has 3 similar steps; or a policy trained with the credit "
    "`step-q`, whose log-ratio to its base is the value of a listed action",
)
class RankedPolicy:
    """Asks another policy several times, and takes the answer after which similar steps earned most."""

    def __init__(self, inner: Policy, *, n: int = 5, value: ValueModel | None = None) -> None:
        """Wrap a policy."""
        if n < 1:
            raise ConfigError(f"n is {n}; ask at least once.")
        self.name, self.reads = f"ranked {inner.name}", inner.reads
        self._inner, self._n = inner, n
        self._sampled = SampledActions(inner)
        self._value = value or RecalledValue()

    reads: Literal["values", "text"]

    @property
    def looks_ahead(self) -> bool:
        """Whether the inner policy reads the lookahead."""
        return bool(getattr(self._inner, "looks_ahead", False))

    def decide(self, context: Context) -> Decision:
        """Return the best of several choices; one choice where no estimate can tell them apart."""
        if not self._can_rank(context):
            return self._inner.decide(context)
        return self._select(context, self._sampled.propose(context, self._n))

    async def adecide(self, context: Context) -> Decision:
        """Return the best of several choices, which are awaited together."""
        if not self._can_rank(context):
            return await self._inner.adecide(context)
        return self._select(context, await self._sampled.apropose(context, self._n))

    def _can_rank(self, context: Context) -> bool:
        """Return whether at least one action that may be chosen has enough steps behind its estimate."""
        open_actions = (action for action in context.actions if action not in context.forbidden)
        return any(self._value.judge(context, action).n >= TUNING.enough_steps for action in open_actions)

    def _select(self, context: Context, proposals: Sequence[Decision]) -> Decision:
        estimates = {proposal.action: self._value.judge(context, proposal.action) for proposal in proposals}
        judged = [proposal for proposal in proposals if estimates[proposal.action].n >= TUNING.enough_steps]
        # Of equal values the first stays; nothing depends on the scale.
        chosen = max(judged, key=lambda proposal: estimates[proposal.action].value) if judged else proposals[0]
        estimate = estimates[chosen.action]
        why = chosen.why.merged(Reasons(extra={"proposals": [proposal.action for proposal in proposals]}))
        if judged:
            why = why.updated(
                value=round(estimate.value, 4), count=estimate.n, key=estimate.key, similar=estimate.steps
            )
        return replace(chosen, why=why, usage=sum((proposal.usage for proposal in proposals), ModelUsage()))
