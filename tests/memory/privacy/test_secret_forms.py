"""Forms of secrets: what hides a secret from a pattern, and which letters a form is made of."""

import pytest

from hardwon.memory.privacy.redaction import redact
from hardwon.memory.privacy.secret_forms import is_masked


@pytest.mark.parametrize("text", ["pass\u200bword", "\uff50assword", "\ufeffkey"])
def test_hidden_letters_are_noticed(text):
    assert is_masked(text)


@pytest.mark.parametrize("text", ["password", "café", "über die Tür"])
def test_letters_of_other_languages_hide_nothing(text):
    assert not is_masked(text)


def test_an_account_number_is_redacted_by_its_form_alone():
    """Two capitals and digits, with a check digit that is right; no word beside it says what it is."""
    assert "370400440532013000" not in redact("send it to DE89370400440532013000 today")
