"""Words for the causes of failure, for pages and terminals; `--json` has the names that are stored."""

_WORDS = {
    "environment_crash": "the environment crashed",
    "environment_hang": "the environment did not answer",
    "policy_error": "the agent itself failed",
    "blocked": "a guardrail refused it",
    "task_lost": "the task was lost",
    "invalid_action": "the action was not possible",
    "unavailable": "the service was not available",
    "rejected": "a person refused it",
    "tool_error": "the tool reported an error",
    "penalty": "it was penalized",
    "precondition": "something had to be done first",
    "no_effect": "nothing changed",
    "step_limit": "the episode ran out of steps",
}


def name_failure(failure: str) -> str:
    """Return the words for a cause of failure: `nothing changed`; an unknown one is named as it is."""
    return _WORDS.get(failure, failure)
