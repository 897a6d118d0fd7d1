"""PROVE (graduated validity, arXiv:2606.03892)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.shapers import set_rewards


@PARTS.add(
    "shaper",
    "PROVE (graduated validity)",
    "arXiv:2606.03892",
    evidence="A",
    needs=("calls",),
    reading="no code and no formula was found: the rungs are the abstract's, equally spaced; the price of a call "
    "beyond the shortest success is multiplied by the share of siblings that succeed (own)",
    example={
        "roles.policy.credit.name": "gigpo",
        "environment.name": "bfcl",
        "environment.game": "base",
        "environment.params": "choices=8",
        "environment.max_steps": 12,
        "tasks.train.seeds": "0-19",
        "tasks.eval.seeds": "0-9",
        "explore.worlds.seeds": "0-9",
        "explore.steps": 12,
        "explore.tries": 2,
        "model.tiny.context": 4096,
        "arms.control": 4,
        "warmstart": None,
        "eval.copies": 1,
        "run.groups": 2,
    },
)
def rungs(siblings: Sequence[Trace], *, weight: float = 0.2, price: float = 0.05) -> list[Trace]:
    """Add weight (rung / 4 - 1) to the reward of each call, and take a price for needless calls (arXiv:2606.03892).

    A call that runs gets 0, and one on each lower rung a quarter of the weight less, so no number of calls earns
    anything. Each call of a success beyond the number of the shortest success costs price x p, where p is the share of
    siblings that succeed: nothing while none does. Use an estimator that reads rewards, such as `gigpo`.

    Worked example: of three siblings two succeed, with 2 and with 4 calls that run. p is 2/3, so the last two calls of
    the longer one get -2/3 price each.

    Args:
        siblings: Traces of one group.
        weight: What a turn without a call costs.
        price: What a needless call costs if all siblings succeed.
    """
    solved = [trace for trace in siblings if trace.outcome >= 1]
    fewest = min((len(trace.turns) for trace in solved), default=0)
    due = price * len(solved) / max(1, len(siblings))
    shaped = []
    for trace in siblings:
        grades = trace.read_signal("calls")
        rewards = [
            turn.reward
            + (0.0 if grade is None else weight * (grade / 4 - 1))
            - (due if trace.outcome >= 1 and t >= fewest else 0.0)
            for t, (turn, grade) in enumerate(zip(trace.turns, grades, strict=True))
        ]
        shaped.append(set_rewards(trace, rewards))
    return shaped
