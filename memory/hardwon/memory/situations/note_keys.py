"""Keys of what notes tell of the arguments of an action: one for each word, and a common one."""

from functools import lru_cache

from .keys import TOLD


@lru_cache(maxsize=8192)  # every key of every step comes here
def find_told_action(key: str) -> str:
    """Return the action of a key of a word that notes told of it, such as `cook {1} | 1 dice`; "" for other keys."""
    action, _, word = key.rpartition(" | ")
    return action if word[:1].isdigit() and ":" not in word else ""


def is_about_notes(key: str) -> bool:
    """Return whether a key is that of a word that notes told, or the common key of these."""
    return key.endswith(TOLD) or bool(find_told_action(key))


def complete_told(keys: list[str]) -> list[str]:
    """Return keys of a step with the common key of what notes told, which keys before version 6 lack."""
    actions = [action for key in keys if (action := find_told_action(key))]
    if not actions or any(key.endswith(TOLD) for key in keys):
        return keys
    return [*keys, *dict.fromkeys(action + TOLD for action in actions)]
