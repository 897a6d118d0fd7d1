"""Numbers of values that somebody chose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ValuesTuning:
    """Numbers that no setting changes."""

    # cells
    memory: int = 50  # steps in the moving mean; older steps fade, so returns of a weaker policy do not linger
    prior_variance: float = 0.02
    """Prior variance of every key, worth two steps, so that two equal returns do not count as certain."""
    evidence_steps: int = 8  # step ids kept as evidence for a key
    min_episodes_of_thing: int = 3
    """Least episodes with a thing's full name, and with others of its kind, before the name counts."""
    doubt_of_thing: float = 9.0
    """Squared standard errors by which a thing must differ from others of its kind before its name counts."""

    # changes
    chance_of_change: float = 1e-4  # probability of a run of failures below which the form of action has changed
    min_failures_of_change: int = 3  # least failures in a row

    # choices
    prior_opportunities: float = 2.0  # weight of the share of a more general key, as a number of opportunities
    failure_slope: float = 5.0
    """Slope by which the weight of choices falls with the share of failed episodes; it reaches 0 at one fifth."""
    choice_episodes: int = 100  # successes that choices are read from, the newest ones
    max_tries: int = 2  # most tries in one state that is distinguished, as in the counts of the runtime
    reread_growth: float = 1.25  # growth factor of the number of successes after which choices are read again

    # demonstration_index
    demonstrations: int = 300  # demonstrations, the newest successes
    min_common_words: float = 0.5  # share of the words of two tasks, apart from names, that must be equal
    needed_share: float = 0.9
    """Share of the successes of a kind of task that must use a form of action to count it as needed."""
    compared_trials: int = 200  # episodes, the newest ones, whose outcomes with and without demonstrations are compared
    demonstration_doubt: float = 1.28
    """Standard errors by which the outcomes without demonstrations must be better to yield; one-sided, at 90 %."""
    min_trials: int = 4  # episodes with, and without, demonstrations that the comparison needs
    prior_sightings: float = 3.0
    """Sightings of things of any kind that count for a thing, spread over kinds of locations as they were."""

    # effects
    effect_episodes: int = 40  # episodes that count per item, world and arm, the newest ones
    min_arm_episodes: int = 3  # episodes that each arm needs before an item may be masked; two failures may be chance
    min_effect_deviation: float = 0.1  # least standard deviation of an item's effect between worlds
    masking_score: float = 0.4  # score below which an item is masked in a world while its effect there is unknown
    gain_episodes: int = 500  # episodes that count for the gain of all advice, the newest ones
    min_unadvised_episodes: int = 10  # episodes without advice that are needed before it may be switched off
    gain_quantile: float = 2.17  # normal quantile of the interval of the gain, so that it holds in 19 of 20 libraries

    # filed_lookahead
    lookahead_episodes: int = 300  # episodes that count, the newest ones
    refit_share: float = 0.05  # share of new episodes after which the tables are fitted again
    renewal_growth: float = 1.5
    """Growth of the number of episodes after which all keys are computed again, with the structural words of then."""
    novelty: float = 0.3  # worth of a step that shows much that is new, in units of the median reward
    max_novelties: float = 5.0  # new things after which a step is not more novel
    arrival_novelties: float = 3.0  # new things that the first visit to a location counts as

    # gains
    refinement_doubts: float = 2.0  # standard errors that the mean gain of a refinement must exceed
    min_predictions: int = 6  # predictions without which a refinement does not count
    alike: float = 0.1
    """Share of the mean gain below which the squared difference of two predictions tells nothing of which is better."""

    # lookahead
    imagined_after: int = 20
    """States in which a form must have been admissible before it is imagined with other arguments."""
    considered_places: int = 8  # locations that are considered, the nearest ones

    # lookahead_table
    lookahead_discount: float = 0.9  # worth of an action that becomes possible, relative to one that is possible now
    lost_task_cost: float = 2.0  # worth of the task, in units of the median reward, that a lost task costs
    tolerated_losses: float = 0.05  # share of lost tasks that costs nothing: an estimate is never exactly 0
    value_noise: float = 0.1  # increase of a value that counts as none
    sweeps: int = 8  # sweeps, and so the length of the chains that are learned
    max_key_weight: int = 30  # steps beyond which a key does not weigh more
    lookahead_variance: float = 0.1  # prior variance of a key, worth one step

    # outcomes
    max_unlisted: int = 3  # most actions that are not listed

    # value_table
    key_spread: float = 0.005
    """Variance between the mean return under a key and under the next more specific one."""


TUNING = ValuesTuning()
