"""Numbers of the loop of an episode that somebody chose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LoopTuning:
    """Numbers that no setting changes."""

    # budgets
    min_successes: int = 5  # successes from which their lengths set the limit
    progress_steps: int = 3  # steps before the limit that decide about the extension

    # enforcement
    max_refusals: int = 3  # most refusals of the same call in one run, in `block` mode
    max_warnings: int = 1  # most refusals of the same call in one run, in `warn` mode

    # holdout
    override: float = 0.02
    """Probability that a forbidden action runs anyway; such runs measure the precision of guardrails."""
    measured_from: int = 20
    """Episodes of a library from which on all advice is withheld at random; a new library shows what it has."""
    withhold: float = 0.1  # probability that a fitting item, or all advice, is withheld for an episode

    # nodes
    max_replans: int = 2
    """How often the policy may choose again after a forbidden action; the last time it gets the full list."""
    max_policy_failures: int = 3  # consecutive policy failures that end an episode

    # nodes_advise
    guidance_tokens: int = 512  # budget of a recall, in tokens of the recalled text

    # routed_recall
    min_routed_episodes: int = 4  # episodes with a store, and of those without, from which its worth decides


TUNING = LoopTuning()
