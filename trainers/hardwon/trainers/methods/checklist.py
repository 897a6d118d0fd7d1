"""CM2 (arXiv:2602.12268)."""

from collections.abc import Sequence
from dataclasses import replace

from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.judging.checklists import read_checklist


@PARTS.add(
    "shaper",
    "CM2",
    "arXiv:2602.12268",
    evidence="P C",
    needs=("items",),
    name="checklist",
    example={
        "roles.policy.sources.items.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.items.file": "examples/methods/checklist.json",
    },
)
def pay_checklist(siblings: Sequence[Trace]) -> list[Trace]:
    """Set the outcome to the sum of the weights of the items that were paid (CM2, arXiv:2602.12268, trace level).

    An item is paid at a turn if it becomes satisfied there and its dependencies were satisfied before. Use an
    estimator that does not divide by the standard deviation, and large groups. A task without a checklist is not
    shaped.
    """
    checked = [(trace, read_checklist(trace)) for trace in siblings]
    return [trace if own is None else replace(trace, outcome=own.reward) for trace, own in checked]
