"""Numbers of teams that somebody chose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TeamsTuning:
    """Numbers that no setting changes."""

    # chat_roles
    part_chars: int = 4_000  # maximum characters of a step, a task, or an answer in a prompt
    shown_keys: int = 40  # most keys in a prompt; the newest are used

    # sharing
    key_words: int = 20  # most words of a key
    max_keys: int = 60  # most keys of other teams in a prompt; the newest are used
    max_pulls: int = 4  # most pulls before a policy has to act
    value_chars: int = 4_000  # maximum characters of pulled values in a prompt; the newest are kept

    # sharing_policy
    same_key: float = 0.8  # similarity to an existing key from which a step is not new
    cheap_step: float = 0.5  # relative cost up to which a step is too cheap to share; 1 is the average step
    verb_classes: int = 12  # hash classes of action verbs, each with a feature


TUNING = TeamsTuning()
