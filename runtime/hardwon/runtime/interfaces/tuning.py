"""Numbers of the judgment of steps and results that somebody chose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class InterfacesTuning:
    """Numbers that no setting changes."""

    # diagnosis
    stagnant_below: float = 0.10  # the progress below which a failed step counts as stagnant
    failure_window: int = 4  # steps over which the failure rate is computed
    replan_failure_rate: float = 0.5  # share of failed steps in the window that triggers a replan
    loop_window: int = 12  # newest pairs of situation and action in which a loop is looked for
    loop_repeats: int = 3  # times that the newest of these pairs occurs in a loop
    no_news: int = 8  # steps without a new situation that count as a loop

    # error_texts
    error_head: int = 400  # characters at the beginning of a text that are read, and at the end for an exit code
    max_message: int = 300  # most characters of an answer that is a mere message; longer texts may begin with any words

    # results
    max_literal: int = 20_000  # most characters of a result that is read as a Python literal
    result_depth: int = 6  # objects within each other that are read

    # working_memory
    max_notes: int = 60  # sentences of feedback to keep; the oldest are dropped first


TUNING = InterfacesTuning()
