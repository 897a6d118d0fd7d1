"""Numbers of learning that somebody chose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LearningTuning:
    """Numbers that no setting changes."""

    # consolidation
    episodes_read: int = 500
    """Newest episodes that the first `evolve` of a process reads for skills and remedies, by trust."""
    common_states: int = 200  # newest states in which words are counted for the titles of strategies
    common_share: float = 0.9  # share of these states that must show a word for it to tell nothing about a situation

    # contrast
    contrast_texts: int = 2  # texts on each side without which a contrast says nothing
    contrast_words: int = 3  # most words that a title names as the difference
    contrast_rest: float = 0.25  # largest share of the other texts that these words need not tell apart

    # curator
    capacity: int = 2000  # most active items of one kind in one namespace
    quarantine_capacity: int = 500
    """Most items of one kind in quarantine, so that an untrusted source cannot flood the library."""
    half_life: int = 400  # episodes without use after which the strength of an item is halved
    max_evidence: int = 64  # step ids stored on an item, the newest ones
    max_places: int = 64  # clusters, places and tags stored on an item, the newest ones
    duplicate_similarity: float = 0.85  # similarity of two texts above which the second is a duplicate (SLEA-RL)
    conflict_overlap: float = 0.5
    """Overlap of two triggers above which different contents are a conflict (MineEvolve eq. 6)."""
    firm_confidence: float = 0.8
    """Least confidence with which an item prevails over a contradicting candidate (MineEvolve eq. 6)."""
    min_content_words: int = 3  # content words that must remain after the generic phrases are removed
    compared_items: int = 8  # similar items that a candidate is compared with
    compared_rows: int = 500  # rows with a word that are compared, the newest ones

    # extraction
    max_operations: int = 3  # most operations per episode (Complementary RL)

    # generalization
    max_choices: int = 8  # most values of an argument that are choices
    chance_odds: int = 10
    """Odds against chance from which words decide a value: two values need them, so that both are rarely chance."""
    read_characters: int = 2000  # of a request and of each result, of which the words are compared

    # item_credit
    min_score_rate: float = 0.1  # least learning rate of a utility, so that old episodes fade
    caution: float = 0.1  # weight of an item without positive utility when a negative error is distributed
    baseline_episodes: int = 200  # recent episodes of a task in a baseline
    retiring_overrides: int = 2  # successful overrides that retire a guardrail

    # rule_mining
    guardrail_episodes: int = 4  # failed episodes since the call last worked that a guardrail needs
    wide_episodes: int = 8  # the same for a guardrail with an open argument, unless most of the failures lost the task
    repetition_episodes: int = 3 * wide_episodes
    """Episodes with repetitions of several forms of calls after which repeating is considered useless in general."""
    guardrail_failure_rate: float = 0.95  # least share of failed episodes that a guardrail needs
    losing_episodes: int = 3  # the same if most of the failures lost the task: each costs an episode
    lost_share: float = 0.5
    """Share of failed episodes that lost the task from which an open argument needs no more episodes than a named
    one."""
    counterexample_weight: float = 1.5
    """A call must have failed in `counterexample_weight` * sqrt(n) episodes here, with n those in which it worked in
    any situation."""
    losing_weight: float = 0.3
    """`counterexample_weight` for calls whose failures lost the task: an error costs an episode, and trying again
    costs another one."""
    warning_episodes: int = 5  # failed episodes that a warning needs
    warning_rate: float = 0.7  # least share of failed episodes that a warning needs
    release_rate: float = 0.8  # share of failed episodes below which a guardrail is retired
    strategy_episodes: int = 3  # episodes that a strategy needs
    strategy_evidence: int = 5  # steps that a strategy needs in them
    strategy_gain: float = 0.15  # least advantage in discounted return of a strategy over the action's average
    condition_gain: float = 0.05  # least advantage in discounted return of a strategy over each wider condition

    # skill_mining
    max_skill_steps: int = 8  # most steps of a skill; of a longer run, the last ones are used
    repair_within: int = 4  # most steps between a failure and the success of the same action
    max_preparing_steps: int = 3  # most steps that `find_preparation` returns
    min_support: int = 2  # runs, and distinct episodes, that a shape needs before it is proposed
    prior_runs: int = 2  # prior runs without a gain, which shrink the score of a skill with few runs towards 0.5
    max_runs: int = 16  # most runs of one shape that are compared, the newest ones
    max_uses: int = 256  # most uses of one form of call that are compared, the newest ones
    max_remedies: int = 4096  # most candidates of remedies; beyond it, those of a single episode are forgotten


TUNING = LearningTuning()
