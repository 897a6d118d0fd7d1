"""Numbers of the redaction of secrets that somebody chose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PrivacyTuning:
    """Numbers that no setting changes."""

    # redaction
    min_secret_length: int = 6  # length of the shortest secret that a form matches: `a@b.de`
    min_token_run: int = 16
    """Minimum run of letters, digits, `_` and `-` in every token that is recognized by its prefix."""
    min_random: int = 30
    """Minimum number of random letters and digits after the name of a vendor. Ids have fewer."""
    min_changes: float = 0.42
    """Share of the characters after which a random text changes between small letters, capitals and digits."""
    min_card_digits: int = 13  # digits of the shortest card number
    more_passes: int = 8  # most further passes over a text that had secrets
    remembered_texts: int = 2048
    """Size of the cache of redacted texts. The cache of short ones (actions, facts, keys) is eight times as large."""
    judged_characters: int = 400  # characters of a value that decide whether it is a secret
    max_short_text: int = 200  # maximum length of a short text in characters

    # secret_fields
    max_words: int = 6  # Most words in a label, and in a password. More are a sentence.
    max_brackets: int = 50  # open brackets that are remembered


TUNING = PrivacyTuning()
