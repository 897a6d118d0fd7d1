"""The kinds of guidance that an arm can show, and what no run can feed."""

GUIDANCE = {
    "none": "No guidance.",
    "library": "Items and steps recalled from the library, where a situation is new and in trouble.",
    "episodes": "Earlier episodes as they were: those of the recalled steps. A baseline that learns nothing from them.",
    "items": "The items of the library alone, without steps, counts and returns: the worth of lessons by themselves.",
    "experience": "The path of an exploring episode of the same task instance, at the start.",
    "another": "The path of an exploring episode of another instance: a control for unrelated memory.",
    "role": "The text of a role, such as the guide, at the start.",
    "guide": "What the library recalls, in the situations in which the guide says that it helps.",
    "all": "Both: what the library recalls and, at the start, the text of a role.",
}
"""Kinds of guidance that an arm can show, by name."""
ARM_GUIDANCE = {"control": "none", "retrieved": "library", "guided": "role"}
"""Guidance of the arms with these names, unless the settings name another."""
LESSONS = frozenset({"items"})
"""Guidance that shows recalled items alone."""
ASKS = frozenset({"guide"})
"""Guidance that the guide is asked about, in every situation."""
TRIES = frozenset({"library", "all"}) | LESSONS
"""Guidance that is recalled and always shown, beside which candidates for the library can be tried."""
PASTES = frozenset({"episodes"})
"""Guidance that shows recalled episodes as they were."""
RECALLS, TELLS = TRIES | ASKS | PASTES, frozenset({"role", "all"})
"""Guidance that is recalled from the library, and guidance that a role writes."""
SHOWS_PATHS = frozenset({"experience", "another"})
"""Guidance that is the path of an exploring episode."""
LEARNS = RECALLS | TELLS
"""Guidance that changes during training. Arms with it are also evaluated in their initial state."""
