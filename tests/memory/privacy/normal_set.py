"""Lines without any secret: prose, games, code, logs and results of tools that redaction must leave alone."""

from collections.abc import Iterator
from random import Random

from .secrets_set import HEX, Half, text, uuid

TUNING = """
access key: needed for door 3
password: the one on the note
The password is written on the back of the painting.
key: rusty, opens the cellar
secret: the butler did it
You need a token: put one into the slot.
Token: bronze coin (worth 2 points)
The secret passage is behind the bookcase.
private key: needed for the study
pass: north gate, open until dusk
PIN the note to the board.
The bearer of this token may enter the vault.
Your password is too short. Passwords must have 12 characters.
I forgot my password, can you reset it?
api key: see the settings page
auth: required
credentials: ask the guard at the gate
The secret to a good roast is patience.
password=password
password: ********
export PASSWORD=$(cat /run/secrets/pw)
PASSWORD="${DB_PASSWORD:-}"
--password PASSWORD    the password to use
--token TOKEN  personal access token, read from the environment when left out
usage: tool [--user USER] [--password] [--api-key KEY]
def login(user: str, password: str) -> Token:
password = getpass.getpass("Password: ")
token = tokenizer.encode(text)
tokens = 4096, max_tokens = 512, total_tokens: 1234
self.password = password
const password = process.env.DB_PASSWORD;
key = (row, column)
key=lambda item: item.score
for key, value in secrets.items():
if not token: raise PermissionError("token missing")
secret_name: db-credentials
secretKeyRef: {name: db, key: password}
passwordField.clear()
<input type="password" name="password" placeholder="Password">
<label for="password">Password</label>
<password></password>
"password": "string"
"token": {"type": "string", "description": "The token to use"}
token_type: bearer
Authorization: required
Cookie: consent
X-Request-Id: 7f3a9c
Set-Cookie banner was dismissed
authorization failed for user app
primary key: id
PRIMARY KEY (namespace, id)
foreign key: orders.user_id references users.id
sort key: created_at
partition key: customer_id
public key: published on the website
key bindings: ctrl+shift+p opens the palette
keyboard key: Enter
passenger: Mia Li
passed: 128, failed: 3, skipped: 2
pass 3 of 10 done
compass: points north
bypass: enabled
PASS tests/test_login.py
PASSED [ 45%]
passport: needed at the border
2 passes over the data
pwd
PWD=/home/mia/project
cd "$OLDPWD"
git log --oneline -p src/app.py
mkdir -p build/out
docker run -p 8080:80 nginx
ssh -p 2222 deploy@host
tar -xpf archive.tar
python -u train.py
curl -u "$USER:$PASS" https://ci.local
curl -s https://api.local/v1/items
redis-cli -a "$REDIS_PASS" ping
sort -u names.txt
unzip -P . archive
nc -u 10.0.0.4 514
my name is Pin, I live at 3 Hill Road
The pin is stuck in the map at the harbor.
pin: brass, 3 cm long
Your order 123-4567890-1234567 has shipped.
call 555-12-34567 after six
part no. 900-12-3456
ISBN 978-3-16-148410-0
flight HAT136 on 2024-05-20 for $1,234.56
GB: 82 west, DE: 89 open
DE89 is a chess opening; FR14 is a road.
commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b
sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824
image: data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB
etag: "33a64df551425fcc55e4d42a148795d9f25f89d4"
ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQ mia
See https://en.wikipedia.org/wiki/Basic_access_authentication
https://shop.local/item?id=42&sort=price&token_type=x
https://docs.local/api-key#create
http://localhost:8080/login?next=/home
user:pass is the form of basic credentials
host:port:db:user:password is the form of a line
The verification code is sent by mail.
Enter the code 3 times.
one-time pad: unbreakable when used once
Code: 404 Not Found
zip code: 94110
promo code is SPRING
The safe combination is hidden in three paintings.
take token
unlock chest with brass key
put secret letter in drawer 3
You see a password note on the fridge.
insert access card into reader
Simon says, 'take token'.
read(path='/etc/passwd')
grep -n password config.py
chmod 600 ~/.ssh/id_rsa
x = secrets.token_hex(16)
tok = next(tokens)
pass
raise KeyError(key)
return {"key": key, "value": value}
{"id": "mia_li_3668", "key": "value"}
{"keys": ["a", "b"], "values": [1, 2]}
type: kubernetes.io/dockerconfigjson
-----BEGIN CERTIFICATE-----
-----BEGIN PUBLIC KEY-----
BEGIN TRANSACTION; COMMIT;
"""

HELD_OUT = """
account key: ask the clerk in room 4
password: it is under the mat
The password was changed by the night porter.
key: silver; door: oak
secret: she never left the house
Give the guard a token: he lets you through.
token: ten points each
A secret drawer opens with a click.
encryption key: stored in the vault upstairs
pass: granted by the mayor
Pin: the lamp to the wall, then leave.
Bearer bonds were found in the safe.
Password incorrect. Try again in 30 seconds.
Please choose a password that you can remember.
api key: not configured
auth: disabled
credentials: missing or expired
What is the secret of the old mill?
password=changeme is refused by the server
password: <hidden>
export TOKEN=$(gh auth token)
TOKEN=${CI_JOB_TOKEN}
  --password-stdin     take the password from stdin
  -p, --password string   Password
usage: login [-u NAME] [-p PASSWORD] SERVER
async def refresh(token: str | None = None, *, secret: bytes = b"") -> None:
pw = input("Enter password: ")
tokens = sentence.split()
prompt_tokens=128 completion_tokens=64
if password != confirm_password:
const token = await getToken();
key = hash(name) % size
sorted(items, key=itemgetter(1))
secret = os.environ["SECRET"]
assert response.json()["token"]
secretName: tls-cert
name: DB_PASSWORD, valueFrom: secretKeyRef
form.password.errors
<PasswordInput value={password} onChange={setPassword} />
<span class="token">hello</span>
<token/>
password (string, required): the password of the user
"api_key": null
grant_type=client_credentials
Authorization header is missing
Cookies: accept all
X-Trace: abc-123
cookie jar: full of biscuits
authentication: token or basic
index key: name
UNIQUE KEY user_email (email)
sort by key: ascending
cache key: user:42:profile
public key: shown below
hot key: F5 reloads the page
answer key: A, C, B, D
passes: 3
12 passed, 1 failed in 3.45s
pass through the arch
trespassing: forbidden
overpass: closed for repair
PASS  src/login.test.ts (5.1 s)
passed=True score=0.9
mountain pass: snowed in
a boarding pass: gate B12
pwd && ls
PWD=/srv/app/releases/42
echo $PWD
git add -p notes.md
cp -p a.txt b.txt
docker compose -p shop up -d
scp -P 2222 a.txt host:
mysql -u root -p shop
date -u +%H:%M
curl -u user https://ci.local
wget -q https://files.local/a.zip
kubectl create secret generic db --from-file=password.txt
ls -a
pip install -U pip
iptables -p tcp --dport 443
Pin Li sent 2 messages.
A pin is found in the haystack.
pin: 2 of 10 bowling pins stand
tracking 9400 1000 0000 0000 0000 00
tel 030-12-3456
serial 12-345-6789
ISSN 2049-3630
reservation 4WQ150, seat 12A, 2 bags
BE 12, NL 3 at half time
GB29 and NL91 are postcodes of nothing.
checkout abcdef0123456789abcdef0123456789abcdef01
md5 d41d8cd98f00b204e9800998ecf8427e
url(data:font/woff2;base64,d09GMgABAAAAAA)
If-None-Match: W/"0815-abcdef"
ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTY bo
See https://example.com/reset-password
https://shop.local/cart?step=2&coupon=none
https://docs.local/tokens/#rotate
http://127.0.0.1:5000/auth/callback
name:age:city are the columns
a:b:c:d
A code was sent to your phone.
code: 0 on success, 1 on failure
two-factor: on
error code is 42
postal code: 10115
coupon code: none
The lock has four digits and no hint.
drop token in well
open secret door with iron key
give password note to wizard
The sign reads: password, please.
swipe access card through slot
Simon says, 'smell key'.
cat /etc/shadow
rg -i token src/
ssh-keygen -t ed25519
y = uuid.uuid4().hex
lexer.token()
key_error = KeyError("x")
raise ValueError(f"bad token: {token!r}")
result = {"secret": secret, "key": None}
{"user_id": "bo_ng_1234", "token": ""}
{"secrets": [], "tokens": 0}
kind: SealedSecret
-----BEGIN CERTIFICATE REQUEST-----
-----BEGIN RSA PUBLIC KEY-----
BEGIN; SELECT 1; END;
"""

THINGS = ("mug", "key", "token", "secret note", "brass key", "pass card", "potato", "lamp", "map", "coin")
PLACES = ("drawer 3", "sinkbasin 1", "cabinet 12", "the cellar", "room 101", "shelf 2", "the vault", "bed 1")


def _generated(half: Half) -> Iterator[str]:
    """Yield lines of games, logs and tools with other names and numbers each."""
    for number in range(10):
        chance = Random(f"{half} {number}")
        thing, place = chance.choice(THINGS), chance.choice(PLACES)
        n = chance.randrange
        yield f"You put the {thing} in {place}. It is {chance.choice(('closed', 'open', 'locked'))}."
        yield f"put {thing} in/on {place} | tried {n(3)} to new | 1:T,inventory 2:T | 1: key; 2: -"
        job = n(10**9)
        yield f"2024-{n(1, 12):02d}-{n(1, 28):02d}T12:{n(60):02d}:07Z INFO worker-{n(9)} took {n(999)} ms for job {job}"
        yield f'{{"order_id": "#W{n(10**6, 10**7)}", "amount": {n(10**5) / 100}, "zip": "{n(10**4, 10**5)}"}}'
        yield f"{n(256)}.{n(256)}.{n(256)}.{n(256)} - - GET /v1/items/{n(999)}?page={n(9)} 200 {n(9999)}"
        yield f"get_user(user_id='{chance.choice(('mia_li', 'bo_ng'))}_{n(1000, 9999)}', key='{thing}')"
        yield f"id {uuid(chance)} of {thing}, trace {text(chance, 32, HEX)}"
        yield f"epoch {n(99)}: loss={n(999) / 100}, tokens/s={n(9999)}, key={thing.split()[0]}"
        yield f"the {thing} in {place} opens door {n(9)}; pass through it {n(2, 9)} times"


def normal(half: Half) -> list[str]:
    """Return the lines of one half."""
    return [*(TUNING if half == "tuning" else HELD_OUT).strip().splitlines(), *_generated(half)]
