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


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ('sudo -S <<< "{}"', "sudo -S"),
        ("sudo -u root -S apt update <<< {}", "apt update"),
        ("echo {} | sudo -S apt update", "apt update"),
        ("echo '{}'|sudo -S ls", "ls"),
        ("rsync --password-file=<(echo {}) a host::b", "host::b"),
        ("htpasswd -bc .htpasswd bob {}", ".htpasswd bob"),
        ("htpasswd -B -b users bob '{}'", "users bob"),
        ("openssl enc -aes-256-cbc -k {} -in a", "-in a"),
        ("net user bob {} /add", "net user bob"),
        ('dotnet user-secrets set "Db:Pw" "{}"', "Db:Pw"),
        ("nmcli dev wifi connect Home password {}", "connect Home"),
        ("wpa_passphrase 'Home' {}", "Home"),
        ("WIFI:T:WPA;S:Home;P:{};;", "S:Home"),
        ("sqlcmd -S host -U sa -P {} -i a.sql", "-U sa -P"),
        ("ldapsearch -x -D cn=admin -w {} -b dc=x", "-b dc=x"),
        ("ldapmodify -w '{}' -f a.ldif", "-f a.ldif"),
        ("curl --digest --user bob:{} https://host/x", "curl --digest --user bob:"),
        ("curl -s -u 'bob:{}' https://host/x", "https://host/x"),
        ("mysqli_connect('host', 'bob', '{}', 'shop')", "'host', 'bob'"),
        ('$db = new mysqli("host", "bob", "{}", "shop");', '"host", "bob"'),
    ],
)
def test_a_password_in_a_command_is_redacted_even_if_it_is_a_word(line, kept):
    for password in ("Tr0ub4dor&3", "correcthorse"):
        redacted = redact(line.format(password))
        assert password not in redacted
        assert kept in redacted


@pytest.mark.parametrize(
    "line",
    [
        "echo done | sudo tee log",
        "sudo -S true",
        "htpasswd -c .htpasswd bob",
        "openssl x509 -in a -noout",
        "net user bob /add",
        "nmcli dev wifi connect Home",
        "wpa_passphrase $SSID $PASS",
        "WIFI:T:nopass;S:Cafe;;",
        "sqlcmd -S host -E -i a.sql",
        "ldapsearch -x -W -b dc=x uid=bob",
        "curl -u bob:$PASSWORD https://host/x",
        "curl --user-agent Mozilla:5 https://host:8443/x",
        "new mysqli($host, $user, $password)",
    ],
)
def test_a_command_without_a_password_stays(line):
    assert redact(line) == line
