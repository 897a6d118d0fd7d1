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
        ("gpg --batch --passphrase {} -c a.txt", "-c a.txt"),
        ("gpg2 --passphrase={} -d a.gpg", "-d a.gpg"),
        ("rclone obscure {}", "rclone obscure"),
        ("bw login bob {} --raw", "--raw"),
        ("pdftk a.pdf input_pw {} output b.pdf", "output b.pdf"),
        ("http -a bob:{} https://a.example", "https://a.example"),
        ("wg set wg0 private-key <(echo {})", "wg0"),
        ("veracrypt -p {} --mount a", "--mount a"),
        ("cryptsetup luksOpen /dev/sda1 a <<< {}", "/dev/sda1"),
        ("pass insert -m mail <<< '{}'", "mail"),
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
        "gpg --passphrase-file a.txt --passphrase $PASS -d a.gpg",
        "rclone obscure --help",
        "bw unlock --check",
        "http -a $USER:$PASS https://a.example",
        "http server -a localhost:8080",
        "Password for bob: incorrect",
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


@pytest.mark.parametrize("place", ["prd", "dev_personal", "stg-eu"])
def test_a_token_with_the_name_of_its_place_is_one(place):
    token = f"dp.st.{place}.R4y9ojfljoQoaF1LlqsajAIxNKu8iS2G8NPRVdD53X8"
    assert redact(f"use {token} now") == "use [redacted:api_key] now"


def test_more_forms_around_a_secret():
    key = "00abcDEFxyz123456789012345678901234567890"
    assert redact(f"the header SSWS {key}, please") == "the header SSWS [redacted:api_key], please"
    assert redact("JSESSIONID=4D30D3FC4D83CEE9B9BCCA0FCE9594DC; Path=/") == "JSESSIONID=[redacted:token]; Path=/"
    assert redact("Password for bob@host: bg7SVmqb1MOK") == "Password for bob@host: [redacted:password]"


@pytest.mark.parametrize(
    "digest",
    [
        "cb14c050a70bc36977410430ae03f1f4", "df44854f7d49192d", "fa296f652e9ca6c20023f207",
        "AF56FBAA62124E9E9ACB35C5555239D6", "aa852dc2-09d8-789a-f7e1-ecb45be1842a",
    ],
)  # fmt: skip
def test_a_digest_whose_check_digits_are_right_by_chance_is_no_account(digest):
    """One of 2,000 has them. By digests, an import knows what it has read."""
    assert redact(f"at {digest}") == f"at {digest}"
    assert redact("pay be68539007547034, gb82WEST12345698765432") == "pay [redacted:iban], [redacted:iban]"
