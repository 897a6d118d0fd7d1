"""Notes about failed attempts."""

from hardwon.memory import Step, Trajectory

MOST_LINES = 3
"""Lines of a note about a failed attempt."""


def write_account(trajectory: Trajectory, hidden: frozenset[str] = frozenset()) -> str:
    """Return a note about a failed attempt: at most three steps that failed or went in circles, else its last ones.

    Args:
        trajectory: The attempt.
        hidden: Actions that the note must not name, such as those of a solution.
    """
    steps = [step for step in trajectory.steps if step.action and step.action not in hidden]
    wrong = [step for step in steps if not step.diagnosis.success or step.diagnosis.loop]
    chosen = (wrong or steps)[-MOST_LINES:]
    return "\n".join(f"{name_place(step)} : {step.action} failed ." for step in chosen)


def name_place(step: Step) -> str:
    """Return the place of a step, by its location or the first sentence of its observation."""
    return (step.pre.location or step.pre.observation.partition(".")[0]).lower()
