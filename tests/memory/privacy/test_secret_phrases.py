"""Secrets told in passing: in rarer commands, tables and forms, in other languages, and in letters that look alike."""

import time
from random import Random

import pytest
from tests.memory.privacy.secrets_set import HEX, password, text

from hardwon.memory.privacy.redaction import redact

LINES = [
    # commands
    "mongo -u bo -p {} db",
    "evil-winrm -i 10.0.0.7 -u bo -p '{}'",
    "zip -P {} a.zip x",
    "7z a -p{} a.7z x",
    "ldapsearch -D cn=admin -w {} -b dc=x",
    "openssl enc -aes-256-cbc -k {} -in a",
    "htpasswd -b users bo {}",
    "smbclient //srv/x -U bo%{}",
    "lftp -u bo,{} host",
    "curl -ubo:{} https://ci.local",
    "java -jar cli.jar -auth bo:{}",
    "net user bo {} /add",
    "rabbitmqctl add_user bo {}",
    "New-LocalUser bo -Password (ConvertTo-SecureString {} -AsPlainText -Force)",
    "nmcli dev wifi connect home password {}",
    "rclone config create x webdav pass {}",
    "enable secret {}",
    "SSHPASS={} sshpass -e ssh host",
    'psk="{}"',
    # markup, tables and forms
    "<password><![CDATA[{}]]></password>",
    "<wsse:Password Type='text'>{}</wsse:Password>",
    "&lt;password&gt;{}&lt;/password&gt;",
    "password: &pw {}",
    "password: !!str {}",
    "passwords:\n  - {}",
    "password%253D{}%2526x",
    "| password | {} |",
    "user,password\nbo,{}",
    "INSERT INTO users (name, password) VALUES ('bo', '{}')",
    'Content-Disposition: form-data; name="password"\r\n\r\n{}',
    'new NetworkCredential("bo", "{}")',
    "type[password, {}]",
    'type "{}" into the password field',
    "login: bo / {}",
    # sentences
    "log in with user bo and password {}",
    "Use {} as the password.",
    "pw is {}",
    "Ihr Passwort lautet:\n{}",
    "Votre mot de passe est {}",
    "tu clave es {}",
    "la password è {}",
    "a senha é {}",
    "пароль: {}",
    "密码：{}",
    "パスワード：{}",
    "비밀번호: {}",
    "hasło: {}",
    "wachtwoord: {}",
    "şifre: {}",
    "كلمة المرور: {}",
    "The admin password has been set to {}",
    "reset the password to {}",
    "MOT_DE_PASSE={}",
    "echo {} | sudo -S ls",
    "echo '{}' | docker login -u bo --password-stdin",
    "<input type=password value='{}'>",
    "psexec 'dom/bo:{}@10.0.0.1'",
    "sftp bo:{}@host",
    # letters that look alike
    "\U0001d429\U0001d41a\U0001d42c\U0001d42c\U0001d430\U0001d428\U0001d42b\U0001d41d: {}",
    "ⓟⓐⓢⓢⓦⓞⓡⓓ: {}",
    "pаssword: {}",  # the second letter is Cyrillic
    "\u202epassword\u202c: {}",
]
TOKENS = [
    "aws configure set aws_secret_access_key {}",
    "RAILS_MASTER_KEY={}",
    "fly secrets set STRIPE_KEY={}",
    "curl -b 'session={}' https://x.local",
    "Your API key:\n{}",
    "Ocp-Apim-Subscription-Key: {}",
]
PEOPLE = [
    ("account {}", "DE89-3704-0044-0532-0130-00"),
    ("account {}", "de89 3704 0044 0532 0130 00"),
    ("SSN {}", "219 09 9999"),
    ("social security number {}", "219099999"),
    ("ITIN: {}", "912-70-1234"),
]
NORMAL = [
    "login(password={1}, token={2})",
    "assert token == expected",
    "the password must be changed every 90 days",
    "password Reset was requested at 11:30",
    "docker run -u 1000 -p 8080:80 nginx",
    "ssh -p 2222 -u host1 deploy",
    "zip -r archive2.zip build",
    "net user list 2024",
    "user,password\nbo,unknown",
    "la clave está debajo de la alfombra 3",
    "ключ лежит под ковриком 3",
    "password: !!str",
    "the secret room2 is behind the painting",
    "PRIMARY_KEY=customer_number_2024_id",
    "GB12 and GB13 are gates",
    "de12 3704 0044 0532 0130 00",  # the check digits are wrong
]


@pytest.mark.parametrize("line", LINES)
def test_a_password_told_in_passing_is_redacted(line):
    secret = password(Random(line)).replace(".", "!").replace("_", "!").replace("-", "!")
    told = line.format(secret)
    assert secret not in redact(told)
    assert redact(redact(told)) == redact(told)


@pytest.mark.parametrize("line", TOKENS)
def test_a_token_told_in_passing_is_redacted(line):
    secret = text(Random(line), 36)
    assert secret not in redact(line.format(secret))


@pytest.mark.parametrize(("line", "number"), PEOPLE)
def test_numbers_of_people_are_redacted_in_any_spelling(line, number):
    assert number not in redact(line.format(number))


def test_tokens_of_more_vendors_are_redacted():
    chance = Random(1)
    for token in (
        f"tgp_v1_{text(chance, 32)}", f"pul-{text(chance, 40, HEX)}", f"AKCp{text(chance, 64)}",
        f"{text(chance, 14)}.atlasv1.{text(chance, 64)}",
    ):  # fmt: skip
        assert token not in redact(f"use {token} here")


@pytest.mark.parametrize("line", NORMAL)
def test_what_only_stands_beside_such_a_word_stays(line):
    assert redact(line) == line


@pytest.mark.parametrize(
    "line",
    [
        "Your new password\n{}\nCopy",
        "Client secret\n  {}\n",
        "API key\r\n{}\r\n",
        "====== Data ======\nKey                 Value\n---                 -----\npassword            {}\nuser  joe",
        "| Name | Value |\n|---|---|\n| DB_PASSWORD | {} |\n| PORT | 8080 |",
        "Field,Value\napi_key,{}\nhost,db1",
        "| SecretAccessKey   | {} |",
        "aws ssm put-parameter --name /db --value {} --type SecureString",
        "az keyvault secret set --vault-name v --name db --value '{}'",
        "aws secretsmanager create-secret --name x --secret-string {}",
        "vercel env add DB_PASSWORD production <<< {}",
        "printf '{}' | gcloud secrets create db-pass --data-file=-",
        "oathtool --totp -b {}",
        "Le mot de passe est : {}",
        'gpg --batch --passphrase "{} lake old town" -c f',
        *(f"gpg --passphrase '{phrase}' -c f" for phrase in (" a {}", "a {} ", "a   {}", "a\t{}")),
    ],
)
def test_a_value_below_its_name_in_a_row_or_for_a_store_of_secrets_is_redacted(line):
    secret = "q7LmX2vNc9RtKw4b"
    assert secret not in redact(line.format(secret))


@pytest.mark.parametrize(
    "line",
    [
        "Password\nPassword confirmation\n",
        "Password\n12 characters or more",
        "API key\nv2 endpoints\n",
        "Key      Value\n---      -----\ntoken_count    1843\npassword_policy  strong8chars",
        "Key                Value\n---                -----\nSealed             false\nTotal Shares       5",
        "| primary_key | user_id2 |",
        "az keyvault secret show --name db2 --vault-name v1",
        'x --passphrase "$MY PASS 2"',
        "Username\nPassword\nSign in 2",
    ],
)
def test_a_line_below_a_name_that_is_no_value_stays(line):
    assert redact(line) == line


def test_letters_of_another_alphabet_stay():
    """A secret in a Russian sentence takes no other letter of it along."""
    assert redact("Войти: пароль: Tulip!Harbor482, затем дальше") == "Войти: пароль: [redacted:password], затем дальше"


@pytest.mark.parametrize(
    "part",
    [
        "login a1,",
        "a1 as the password ",
        "-u a1 -p ",
        "<a1pass ",
        "(password, ",
        "пароль ",
        "user,password\n1,",
        "ssn 1 ",
    ],
)
def test_long_texts_take_no_time(part):
    began = time.process_time()
    redact(part * 5_000)
    assert time.process_time() - began < 2
