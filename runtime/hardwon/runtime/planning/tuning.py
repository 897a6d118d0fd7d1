"""Numbers of planning that somebody chose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PlanningTuning:
    """Numbers that no setting changes."""

    # answer_tree
    local: float = 0.1  # weight of the comparison with the parent; the rank has the rest
    scale: float = 10.0  # largest worth of an answer
    child_weight: float = 0.1  # weight of a child in the worth of its parent
    answer_exploration: float = 1.4  # weight of the bonus of answers that were seldom visited
    first_bonus: float = 0.1  # bonus of an answer that was not improved yet
    max_children: int = 2  # most answers written after one

    # composer
    max_demonstrations: int = 6  # different demonstrations that are tried in one episode

    # composition
    revealing_share: float = 0.2
    """Share of the steps of a form that must have revealed something, to try it while searching."""
    step_tries: int = 3  # attempts at one step after which the demonstration is abandoned

    # proposals
    temperature: float = 0.2  # difference of estimated returns that makes one action e times as likely as another

    # search
    discount: float = 0.95  # worth of a return one step later
    search_exploration: float = 1.5  # weight of the prior of an action that was looked at less often
    max_path: int = 8  # most actions of a path that is looked at
    search_s: float = 5.0  # seconds after which a search ends

    # search_planner
    candidates: int = 10  # actions to consider in a state
    simulations: int = 100
    """Looks ahead of one plan. More than the 40 of AlphaMath, whose proposals come from a trained model."""


TUNING = PlanningTuning()
