"""Lines with planted secrets and lines without, made when a test runs so that no scanner finds any here.

Every kind of secret has two lines: `tuning` was looked at while the patterns were written, `held_out` was written
before them and is for measuring alone. The same holds for the two halves of the normal lines.
"""

import base64
import json
import string
from collections.abc import Callable, Iterator
from random import Random
from typing import Literal, NamedTuple

Half = Literal["tuning", "held_out"]
ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
B64 = ALNUM + "+/"
URLSAFE = ALNUM + "-_"


class Planted(NamedTuple):
    """A line, and the text in it that must be gone."""

    kind: str
    line: str
    secret: str


def text(chance: Random, length: int, alphabet: str = ALNUM) -> str:
    """Return random characters, a letter and a digit among them."""
    letters, digits = [one for one in alphabet if one.isalpha()], [one for one in alphabet if one.isdigit()]
    found = "".join(chance.choices(alphabet, k=length - 2))
    return f"{found[: length // 2]}{chance.choice(letters)}{chance.choice(digits)}{found[length // 2 :]}"


def password(chance: Random) -> str:
    """Return a password as people choose them."""
    words = ("tulip", "Walnut", "harbor", "Meadow", "copper", "Falcon", "orchid", "Granite")
    return f"{chance.choice(words)}{chance.choice('!_-.')}{chance.choice(words)}{chance.randrange(10, 9999)}"


def luhn(chance: Random, prefix: str, length: int) -> str:
    """Return the number of a payment card with its check digit."""
    digits = prefix + "".join(chance.choices("0123456789", k=length - len(prefix) - 1))
    total = sum(sum(divmod(2 * int(one), 10)) if at % 2 == 0 else int(one) for at, one in enumerate(reversed(digits)))
    return f"{digits}{-total % 10}"


def grouped(digits: str, separator: str) -> str:
    """Return digits in groups of four."""
    return separator.join(digits[at : at + 4] for at in range(0, len(digits), 4))


def iban(chance: Random, country: str, length: int) -> str:
    """Return an account number with its check digits."""
    body = "".join(chance.choices("0123456789", k=length - 4))
    numeric = "".join(str(int(one, 36)) for one in f"{body}{country}00")
    return f"{country}{98 - int(numeric) % 97:02d}{body}"


def wide(plain: str) -> str:
    """Return full-width letters and digits."""
    return "".join(chr(ord(one) + 0xFEE0) if 33 <= ord(one) <= 126 else one for one in plain)


def jwt(chance: Random) -> str:
    """Return a signed token."""
    parts = [json.dumps(one).encode() for one in ({"alg": "HS256", "typ": "JWT"}, {"sub": chance.randrange(10**9)})]
    told = [base64.urlsafe_b64encode(one).decode().rstrip("=") for one in parts]
    return ".".join([*told, text(chance, 43, URLSAFE)])


def basic(chance: Random) -> str:
    """Return a user and a password as HTTP's basic scheme tells them."""
    return base64.b64encode(f"svc-{chance.randrange(99)}:{password(chance)}".encode()).decode()


def ssn(chance: Random) -> str:
    """Return a social security number of the United States."""
    return f"{chance.randrange(100, 665)}-{chance.randrange(10, 99)}-{chance.randrange(1000, 9999)}"


def uuid(chance: Random) -> str:
    """Return an id of 32 hex digits in five groups."""
    digits = text(chance, 32, HEX)
    return "-".join([digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]])


Make = Callable[[Random], str]
P: Make = password


def A(length: int, alphabet: str = ALNUM, before: str = "") -> Make:
    """Return a maker of random texts."""
    return lambda chance: before + text(chance, length, alphabet)


UPPER = string.ascii_uppercase + "234567"
KINDS: dict[str, tuple[Make, str, str]] = {
    # command lines
    "--password X": (P, "$ mysqldump --user root --password {} shop > dump.sql", "cli login --user bo --password {}"),
    "--password=X": (P, "mysql -h db --password={} -e 'show tables'", "restic --password={} snapshots"),
    "-p of mysql": (P, "mysql -u root -p{} shop", "mysqladmin -uroot -p{} ping"),
    "-p of sshpass": (P, "sshpass -p {} ssh deploy@host uptime", "sshpass -p '{}' scp a.txt host:"),
    "--token X": (A(28), "gh auth login --token {}", "vercel deploy --prod --token {}"),
    "--api-key X": (A(32), "fastly --api-key {} purge all", "datadog-ci upload --api-key '{}' junit.xml"),
    "--secret X": (A(30), "terraform import --client-secret {} app", "tool sync --secret {} --region eu"),
    "curl -u": (P, "curl -u admin:{} https://ci.local/job", "curl -s --user 'deploy:{}' https://nexus.local/x.jar"),
    "wget --http-password": (
        P,
        "wget --http-user=bo --http-password={} https://x.local/f",
        "wget --password={} ftp://f/a",
    ),
    "docker login -p": (
        P,
        "docker login -u ci -p {} registry.local",
        "podman login --username ci --password {} quay.local",
    ),
    "redis-cli -a": (P, "redis-cli -h cache -a {} ping", "redis-cli -a '{}' --no-auth-warning info"),
    "PGPASSWORD": (P, "PGPASSWORD={} psql -h db -U app shop", "export PGPASSWORD='{}'"),
    "openssl passin": (
        P,
        "openssl rsa -in k.pem -passin pass:{}",
        "openssl pkcs12 -export -passout pass:{} -out b.p12",
    ),
    "net use": (P, "net use Z: \\\\srv\\share /user:bo /password:{}", "sqlcmd -S db -U sa -P {}"),
    "chpasswd": (P, "echo 'root:{}' | chpasswd", 'echo "deploy:{}" | sudo chpasswd'),
    "-H header": (A(36), "curl -H 'X-Api-Key: {}' https://api.local", 'http GET api.local "X-Auth-Token: {}"'),
    # environment files and settings
    "DB_PASS": (P, "DB_PASS={}", "export DB_PASS='{}'"),
    "SMTP_PASS": (P, "SMTP_PASS: {}", "MAIL_PASS={} # relay"),
    "DATABASE_PASSWORD": (P, "DATABASE_PASSWORD={}", "SPRING_DATASOURCE_PASSWORD={}"),
    "SECRET_KEY": (A(40), "SECRET_KEY = '{}'", "DJANGO_SECRET_KEY={}"),
    "ENCRYPTION_KEY": (A(32, HEX), "ENCRYPTION_KEY={}", "MASTER_KEY: {}"),
    "AUTH": (A(30), "NPM_AUTH={}", "SENTRY_AUTH={}"),
    "npmrc": (A(36), "//registry.npmjs.org/:_authToken={}", "//npm.local/:_auth={}"),
    "netrc": (P, "machine api.local login bo password {}", "machine git.local\n  login ci\n  password {}"),
    "pgpass": (P, "db.local:5432:shop:app:{}", "10.0.0.4:5432:*:postgres:{}"),
    "ini": (P, "[smtp]\nuser = bo\npass = {}", "[client]\nuser=root\npasswd={}"),
    "toml": (P, '[db]\npassword = "{}"', "[pypi]\n  username = 'bo'\n  password = '{}'"),
    "yaml": (P, "db:\n  user: app\n  password: {}", "redis:\n  requirepass: '{}'"),
    "yaml block": (P, "password: |\n  {}", "db_password: >-\n    {}"),
    "next line": (P, "Password:\n{}", "Your temporary password is:\n\n    {}"),
    "properties": (P, "spring.datasource.password={}", "javax.net.ssl.keyStorePassword={}"),
    "xml element": (
        P,
        "<password>{}</password>",
        "<server><username>ci</username><passphrase>{}</passphrase></server>",
    ),
    "xml attribute": (P, '<user name="bo" password="{}"/>', "<add key='DbPassword' value='{}' />"),
    "xml add": (A(32), '<add key="ApiKey" value="{}"/>', '<property name="secret.token" value="{}" />'),
    "json": (P, '{{"user": "bo", "password": "{}"}}', '{{"auth":{{"username":"ci","pass":"{}"}}}}'),
    "json escaped": (P, '{{"body": "{{\\"password\\": \\"{}\\"}}"}}', '"{{\\\\\\"passwd\\\\\\": \\\\\\"{}\\\\\\"}}"'),
    "json5": (P, "{{ user: 'bo', password: '{}' }}", "{{password:`{}`}}"),
    "json token": (A(30), '{{"access_token":"{}","expires_in":3600}}', '{{"refresh_token": "{}"}}'),
    "json list": (P, '{{"passwords": ["{}"]}}', '{{"name": "DB_PASSWORD", "value": "{}"}}'),
    "k8s secret": (
        lambda c: base64.b64encode(P(c).encode()).decode(),
        "data:\n  db-password: {}",
        "  tls_passphrase: {}",
    ),
    "python": (P, 'connect(host="db", password="{}")', "PASSWORD: Final = '{}'"),
    "ruby hash": (P, ":password => '{}',", "password: '{}', user: 'bo'"),
    "java": (P, 'ds.setPassword("{}");', 'DriverManager.getConnection(url, "app", "{}");'),
    "php": (P, "define('DB_PASSWORD', '{}');", "$cfg['password'] = '{}';"),
    "powershell": (P, "ConvertTo-SecureString '{}' -AsPlainText -Force", '$env:DB_PASSWORD = "{}"'),
    "sql": (P, "CREATE USER app IDENTIFIED BY '{}';", "ALTER ROLE app WITH PASSWORD '{}';"),
    "tfvars": (P, 'db_password = "{}"', 'variable "pw" {{ default_password = "{}" }}'),
    "prose": (P, "the password for the wifi is {}", "my password was {} until yesterday"),
    "german": (P, "Passwort: {}", "Kennwort: {}"),
    "spanish": (P, "contraseña: {}", "mot de passe : {}"),
    "pin": (lambda c: f"{c.randrange(1000, 9999)}", "PIN: {}", "the card's pin is {}"),
    "otp": (lambda c: f"{c.randrange(100000, 999999)}", "Your verification code is {}.", "OTP: {}"),
    # URLs, headers, cookies
    "url password": (P, "postgres://app:{}@db.local:5432/shop", "amqps://ci:{}@mq.local/vhost"),
    "redis url": (P, "redis://:{}@cache.local:6379/0", "REDIS_URL=rediss://:{}@c.local:6380"),
    "mongodb url": (P, "mongodb+srv://bo:{}@cluster0.local/?w=1", "mongodb://root:{}@m1.local,m2.local/admin"),
    "git url": (A(36), "git clone https://oauth2:{}@git.local/a/b.git", "https://x-access-token:{}@git.local/a.git"),
    "query token": (A(30), "GET /v1/items?access_token={}&page=2", "https://api.local/x?api_key={}"),
    "query sig": (
        A(44, B64),
        "https://b.blob.local/c/f?sv=2022&sig={}",
        "https://s3.local/f?X-Amz-Signature={}&X-Amz-Date=1",
    ),
    "url encoded": (P, "grant_type=password&username=bo&password={}", "redirect=%2Flogin%3Fpassword%3D{}%26next%3D1"),
    "bearer": (A(40, URLSAFE), "Authorization: Bearer {}", "-H 'authorization: bearer {}'"),
    "basic": (basic, "Authorization: Basic {}", '"Proxy-Authorization": "Basic {}"'),
    "token header": (A(40, HEX), "Authorization: token {}", "PRIVATE-TOKEN: {}"),
    "cookie": (A(40), "Cookie: theme=dark; sessionid={}; lang=en", "Set-Cookie: connect.sid={}; Path=/; HttpOnly"),
    "csrf": (A(36), "X-CSRF-Token: {}", 'name="csrfmiddlewaretoken" value="{}"'),
    "odbc": (P, "Server=db;Database=shop;Uid=app;Pwd={};", "Driver=x;Server=db;UID=sa;PWD={}"),
    "jdbc": (P, "jdbc:mysql://db/shop?user=app&password={}", "jdbc:sqlserver://db;user=sa;password={};encrypt=true"),
    "azure storage": (
        A(86, B64),
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={}==;EndpointSuffix=x",
        "SharedAccessKeyName=root;SharedAccessKey={}=",
    ),
    # tokens of vendors
    "openai": (A(48, ALNUM, "sk-"), "key {}", "OPENAI: {}"),
    "openai project": (A(60, URLSAFE, "sk-proj-"), "use {} here", "({})"),
    "anthropic": (A(80, URLSAFE, "sk-ant-api03-"), "x {}", "client('{}')"),
    "github": (A(36, ALNUM, "ghp_"), "remote {}", "token: {}"),
    "github fine": (A(70, ALNUM + "_", "github_pat_"), "{}", "with {} as user"),
    "gitlab": (A(20, URLSAFE, "glpat-"), "set {}", "ci {}"),
    "slack": (A(40, ALNUM + "-", "xoxb-"), "bot {}", "{} posted"),
    "slack webhook": (
        lambda c: f"T{text(c, 8, UPPER)}/B{text(c, 8, UPPER)}/{text(c, 24)}",
        "https://hooks.slack.com/services/{}",
        "url=https://hooks.slack.com/services/{}",
    ),
    "discord webhook": (
        lambda c: f"{c.randrange(10**17, 10**18)}/{text(c, 68, URLSAFE)}",
        "https://discord.com/api/webhooks/{}",
        "https://discordapp.com/api/webhooks/{}",
    ),
    "discord bot": (
        lambda c: f"M{text(c, 23)}.G{text(c, 5)}.{text(c, 38, URLSAFE)}",
        "client.run('{}')",
        "discord {}",
    ),
    "stripe": (A(24, ALNUM, "sk_live_"), "charge with {}", "rk {}"),
    "aws id": (A(16, UPPER, "AKIA"), "aws_access_key_id = {}", "id {} of ci"),
    "aws secret": (A(40, B64), "aws_secret_access_key = {}", "AWS_SECRET_ACCESS_KEY={}"),
    "aws session": (A(120, B64), "AWS_SESSION_TOKEN={}", "aws_session_token = {}"),
    "google": (A(35, URLSAFE, "AIza"), "maps {}", "key={}"),
    "google oauth": (A(60, URLSAFE, "ya29."), "{}", "got {} back"),
    "google secret": (A(28, URLSAFE, "GOCSPX-"), "{}", "oauth {}"),
    "azure ad": (A(34, ALNUM + "~._", "q8Q~"), "AZURE_CLIENT_SECRET={}", "client_secret: {}"),
    "digitalocean": (A(64, HEX, "dop_v1_"), "doctl {}", "{}"),
    "heroku": (uuid, "HEROKU_API_KEY={}", "heroku_api_key: {}"),
    "sendgrid": (lambda c: f"SG.{text(c, 22, URLSAFE)}.{text(c, 43, URLSAFE)}", "mail {}", "{}"),
    "twilio": (A(32, HEX, "SK"), "{}", "twilio {}"),
    "mailgun": (A(32, HEX, "key-"), "{}", "mailgun {}"),
    "mailchimp": (lambda c: f"{text(c, 32, HEX)}-us{c.randrange(1, 20)}", "mc {}", "list {}"),
    "telegram": (lambda c: f"{c.randrange(10**8, 10**9)}:AA{text(c, 33, URLSAFE)}", "bot{}", "token {}"),
    "npm": (A(36, ALNUM, "npm_"), "publish {}", "{}"),
    "pypi": (A(80, URLSAFE, "pypi-AgEI"), "twine {}", "{}"),
    "huggingface": (A(34, ALNUM, "hf_"), "pull {}", "{}"),
    "databricks": (A(32, HEX, "dapi"), "dbx {}", "{}"),
    "shopify": (A(32, HEX, "shpat_"), "{}", "shop {}"),
    "vault": (A(90, URLSAFE, "hvs."), "{}", "vault {}"),
    "square": (A(22, URLSAFE, "sq0atp-"), "{}", "sq {}"),
    "dropbox": (A(60, URLSAFE, "sl.B"), "dbx {}", "{}"),
    "airtable": (lambda c: f"pat{text(c, 14)}.{text(c, 64, HEX)}", "{}", "table {}"),
    "facebook": (A(100, ALNUM, "EAAC"), "graph {}", "{}"),
    "linear": (A(40, ALNUM, "lin_api_"), "{}", "x {}"),
    "new relic": (A(27, UPPER, "NRAK-"), "{}", "x {}"),
    "age": (A(58, UPPER, "AGE-SECRET-KEY-1"), "{}", "x {}"),
    "jwt": (jwt, "got {}", "id_token={}"),
    "pem": (
        A(64, B64),
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
        "key: |\n  -----BEGIN PRIVATE KEY-----\n  {}\n  -----END PRIVATE KEY-----",
    ),
    "pgp": (
        A(64, B64),
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{}\n=ab12\n-----END PGP PRIVATE KEY BLOCK-----",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\n\n{}",
    ),
    "putty": (A(64, B64), "PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 1\n{}\n", "Private-Lines: 2\n{}\nab12"),
    # people
    "email": (lambda c: f"mia.{text(c, 6)}@example.com", "write to {}", "From: Mia <{}>"),
    "card": (lambda c: luhn(c, "4", 16), "card {}", "paid with {}."),
    "card groups": (lambda c: grouped(luhn(c, "52", 16), " "), "card {}", "{} exp 04/29"),
    "card dashes": (lambda c: grouped(luhn(c, "6011", 16), "-"), "no {}", "cc={}"),
    "amex": (lambda c: luhn(c, "37", 15), "amex {}", "charged {}"),
    "iban": (lambda c: iban(c, "DE", 22), "IBAN {}", "transfer to {} please"),
    "iban groups": (lambda c: grouped(iban(c, "FR", 27), " "), "account {}", "pay {} today"),
    "ssn": (ssn, "SSN: {}", "her social security number is {}"),
    "zero width": (P, "pass\u200bword: {}", "pass\u2060word={}"),
    "full width": (lambda c: wide(P(c)), "ｐａｓｓｗｏｒｄ：{}", "ｐａｓｓｗｏｒｄ＝{}"),
    "full width card": (lambda c: wide(luhn(c, "4", 16)), "card {}", "no {}"),
    "zero width token": (
        lambda c: "ghp_\u200b" + text(c, 36),
        "use {}",
        "{} works",
    ),
}


def planted(half: Half, seed: int = 0) -> Iterator[Planted]:
    """Yield one line of every kind."""
    for kind, (make, tuning, held_out) in KINDS.items():
        secret = make(Random(f"{kind} {half} {seed}"))
        line = tuning if half == "tuning" else held_out
        yield Planted(kind, line.format(secret), secret)
