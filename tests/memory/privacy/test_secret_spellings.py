"""Further spellings of passwords, PINs, card numbers and wallets, each with a normal line that looks like it."""

import time

import pytest

from hardwon.memory.privacy.redaction import redact

WORDS = "legal winner thank year wave sausage worth useful legal winner thank yellow"
LINES = [
    ('login(user="bob", pw="Tr0ub4dor&3")', "Tr0ub4dor&3"),
    ("kubectl create secret generic db --from-literal=pw=Tr0ub4dor", "Tr0ub4dor"),
    ('set_wifi(ssid="Home", psk="correcthorse9")', "correcthorse9"),
    ("- name: DB_PASSWORD\n  value: Tr0ub4dor9", "Tr0ub4dor9"),
    ("My password is: Tr0ub4dor9", "Tr0ub4dor9"),
    ("password (Tr0ub4dor9)", "Tr0ub4dor9"),
    ('{"pin":"4829"}', "4829"),
    ("CVV 123, exp 04/27", "123"),
    ('{"cvv": "123"}', "123"),
    ("4111.1111.1111.1111", "4111.1111"),
    ("paid with 4111.1111.1111.1111.", "4111.1111"),
    ("keytool -storepass Tr0ub4dor9 -list", "Tr0ub4dor9"),
    ("zip -P Tr0ub4dor9 a.zip f", "Tr0ub4dor9"),
    ("7z x -pTr0ub4dor9 a.7z", "Tr0ub4dor9"),
    ("rar a -hpTr0ub4dor9 a.rar", "Tr0ub4dor9"),
    ("ldapsearch -w Tr0ub4dor9 -D cn=admin", "Tr0ub4dor9"),
    ("gh secret set FOO --body Tr0ub4dor9xyz", "Tr0ub4dor9xyz"),
    ("smbclient //h/s -U bob%Tr0ub4dor9", "Tr0ub4dor9"),
    (f"seed phrase: {WORDS}", "sausage"),
    (f'mnemonic="{WORDS}"', "sausage"),
]
NORMAL = [
    "zip -P asks for a password, and zip -r does not",
    "zip -r v2.zip src2",
    "fold -w 80 notes1.txt",
    "ldapsearch -w 80",
    "7z x a1.7z -o/tmp/out2",
    "the pin is 4 cm long",
    "pin 4829 boxes to the wall",
    "CVV is printed on the back",
    "CVC has 3 digits",
    "4111.1111.1111.1112",
    "10.1111.2222.3333 and 3.1415.9265.3589",
    "password (SHA256hash)",
    "password (Argon2id)",
    "password (8-64 characters)",
    "my password is: too short",
    "- name: PORT2\n  value: abc123",
    "- name: DB_PASSWORD\n  valueFrom: secret3",
    "the seed phrase: write all of these words down and store them with your papers in one safe place",
    "gh pr create --body fix2",
    "keytool -list -alias key2",
    "upw=ard7a1",
    "the upwind pw1 gate",
]


@pytest.mark.parametrize(("line", "secret"), LINES)
def test_a_secret_in_a_rarer_spelling_is_redacted(line, secret):
    assert secret not in redact(line)
    assert redact(redact(line)) == redact(line)


@pytest.mark.parametrize("line", NORMAL)
def test_a_normal_line_that_looks_like_it_stays(line):
    assert redact(line) == line


@pytest.mark.parametrize(
    "part",
    [
        "pw=", 'pw="', "password is: a1", "password (A1a", "name: password\n", "zip -P 7z -p ", "ldapx -w ",
        "gh secret set ", "smbclient -U a", "mnemonic: abc ", "abc ", "4111.", "cvv ", "pin\" ",
    ],
)  # fmt: skip
def test_a_long_text_of_spellings_takes_no_time(part):
    began = time.process_time()
    redact("mnemonic: pw -P 1 " + part * (100_000 // len(part)))
    assert time.process_time() - began < 2
