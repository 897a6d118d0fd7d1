"""Numbers of policies that somebody chose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PoliciesTuning:
    """Numbers that no setting changes."""

    # episodic
    many_tries: int = 2
    """Tries of an action at this location after which trouble or a loop turns the policy to less tried actions."""
    place_wear: float = 0.1
    """Penalty on an action's value, in frozen episodes, for each time that it was taken at this location. Tries since
    the last reward count if the library has an estimate of the action, otherwise all tries of the episode do.
    Estimates cover repetition in the same state. If a detail such as a door or a lamp changes, the state is new to
    them, and only the location shows the repetition."""
    optimism: float = 0.1
    """Bonus on the value of an action while learning, scaled by 1/sqrt(1 + n) after n tries in its context."""
    likely_loss: float = 0.5
    """Probability of losing the task above which a frozen agent takes it off an action's value. While learning, losing
    a task teaches what to avoid."""

    # lookahead
    promising: float = 0.5
    """Score of the best action from which a random one is rarely taken: what is known to lead on is not left."""
    rarely: float = 0.03  # probability of a random action instead of a promising one
    promise_weight: float = 1.0  # weight of the promise of an action while learning
    stuck_score: float = 0.2
    """Score of the best action below which nothing is known to lead on, so that a lost task costs little."""
    slight_chance: float = 0.02  # chance of being paid from which a stuck agent tries what became possible last
    returns_weight: float = 1.0  # weight of the estimated returns for a frozen agent that is stuck
    wear: float = 0.3  # penalty on an action for each time that it was taken in exactly this state
    repeat_wear: float = 0.1
    """Penalty on an action for each time that it was taken at this location since the last reward."""
    max_dead_share: float = 0.8  # share of steps without any effect beyond which an action is not taken

    # ranked
    enough_steps: int = 3  # similar steps from which an estimate counts


TUNING = PoliciesTuning()
