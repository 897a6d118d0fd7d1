"""A second set of planted secrets, of kinds that files, tools and cloud services show; made when a test runs.

It was written before the patterns were changed for it, and its first measurement was noted then (docs/trust.md).
"""

import base64
from collections.abc import Iterator
from random import Random

from .normal_set import read_lines
from .secrets_set import ALNUM, B64, HEX, URLSAFE, A, Make, P, Planted, text

UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
BASE = "./" + ALNUM
LOWER = "abcdefghijklmnopqrstuvwxyz0123456789"


def encoded(chance: Random) -> str:
    """Return what base64 makes of a key in PEM."""
    return base64.b64encode(f"-----BEGIN RSA PRIVATE KEY-----\n{text(chance, 120, B64)}".encode()).decode()


def aws_id(chance: Random) -> str:
    """Return an id of an access key."""
    return f"AKIA{text(chance, 16, UPPER)}"


# files of systems
FILES: dict[str, tuple[Make, str]] = {
    "kubeconfig key": (encoded, "users:\n- name: admin\n  user:\n    client-key-data: {}\n"),
    "kubeconfig token": (A(60, URLSAFE), "  user:\n    token: {}\n"),
    "docker auth": (A(44, B64), '{{"auths": {{"https://index.docker.io/v1/": {{"auth": "{}"}}}}}}'),
    "shadow sha512": (A(86, BASE), "root:$6$rounds=5000$Xy7kQ2pw${}:19000:0:99999:7:::"),
    "shadow yescrypt": (A(43, BASE), "bo:$y$j9T$F5Jx5fExrKuPp53xLKQ..1${}:19000:0:99999:7:::"),
    "shadow md5": (A(22, BASE), "ftp:$1$saltsalt${}:17000:0:99999:7:::"),
    "htpasswd apr1": (A(22, BASE), "mia:$apr1$r31.....${}"),
    "htpasswd bcrypt": (A(53, BASE), "mia:$2y$05${}"),
    "htpasswd sha": (A(27, B64), "mia:{{SHA}}{}="),
    "ldap ssha": (A(36, B64), "userPassword: {{SSHA}}{}"),
    "argon2": (A(43, B64), "hash=$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ${}"),
    "django pbkdf2": (A(44, B64), "pbkdf2_sha256$260000$aB3dE5fG7hI9${}"),
    "netrc": (P, "machine ftp.example.com login bo password {}"),
    "pgpass": (P, "db.example.com:5432:shop:app:{}"),
    "wpa psk": (P, 'network={{\n  ssid="home"\n  psk="{}"\n}}'),
    "wpa hex psk": (A(64, HEX), "psk={}"),
    "hostapd": (P, "wpa_passphrase={}"),
    "ipsec": (P, '10.0.0.1 10.0.0.2 : PSK "{}"'),
    "wireguard": (A(43, B64), "[Interface]\nPrivateKey = {}=\nAddress = 10.0.0.2/32"),
    "wireguard psk": (A(43, B64), "PresharedKey = {}="),
    "mysql cnf": (P, "[client]\nuser=root\npassword={}"),
    "ansible inventory": (P, "web1 ansible_host=10.0.0.5 ansible_password={}"),
    "ansible become": (P, "ansible_become_pass: {}"),
    "aws csv": (A(40, B64), "Access key ID,Secret access key\nAKIAQ3EGR7TX5KLM2NPZ,{}"),
    "aws pair": (A(40, B64), "keys: AKIAQ3EGR7TX5KLM2NPZ / {}"),
    "aws json": (A(40, B64), '{{"AccessKeyId": "AKIAQ3EGR7TX5KLM2NPZ", "SecretAccessKey": "{}"}}'),
    "aws session": (A(120, B64), "aws_session_token = {}"),
    "gcp private key id": (A(40, HEX), '"private_key_id": "{}",'),
    "gcp refresh": (A(60, URLSAFE, "1//0"), '"refresh_token": "{}"'),
    "azure storage": (
        A(86, B64),
        "DefaultEndpointsProtocol=https;AccountName=shop;AccountKey={}==;EndpointSuffix=core.windows.net",
    ),
    "azure servicebus": (
        A(43, B64),
        "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=r;SharedAccessKey={}=",
    ),
    "azure sas": (A(43, B64), "https://x.blob.core.windows.net/c/f?sv=2022-11-02&sp=r&sig={}%3D"),
    "azure client": (A(34, URLSAFE, "8Q~"), "AZURE_CLIENT_SECRET={}"),
    "npmrc": (A(36, ALNUM, "npm_"), "//registry.npmjs.org/:_authToken={}"),
    "npmrc auth": (A(40, B64), "_auth={}"),
    "pypirc": (P, "[pypi]\nusername = bo\npassword = {}"),
    "maven": (P, "<server><id>nexus</id><username>ci</username><password>{}</password></server>"),
    "gradle": (P, "signing.password={}"),
    "jenkins xml": (A(40, B64), "<passwordHash>#jbcrypt:$2a$10${}</passwordHash>"),
    "tomcat": (P, '<user username="admin" password="{}" roles="manager-gui"/>'),
    "web.config": (P, 'connectionString="Server=db;Database=shop;User Id=sa;Password={};"'),
    "jdbc": (P, "jdbc:mysql://db:3306/shop?user=app&password={}"),
    "odbc": (P, "DRIVER={{ODBC Driver 18}};SERVER=db;UID=sa;PWD={}"),
    "rails": (A(128, HEX), "secret_key_base: {}"),
    "laravel": (A(43, B64), "APP_KEY=base64:{}="),
    "django": (A(50, LOWER + "!@#%^&*"), "SECRET_KEY = 'django-insecure-{}'"),
    "wordpress": (A(64, ALNUM + "!@#%^&*"), "define('AUTH_KEY', '{}');"),
    "php db": (P, "define('DB_PASSWORD', '{}');"),
    "rclone": (A(40, URLSAFE), "[drive]\ntype = sftp\nuser = bo\npass = {}"),
    "terraform": (P, 'variable "db_password" {{\n  default = "{}"\n}}'),
    "terraform state": (P, '"master_password": "{}",'),
    "sealed k8s": (A(40, B64), "apiVersion: v1\nkind: Secret\ndata:\n  password: {}\n"),
    "k8s env": (P, "- name: DB_PASSWORD\n  value: {}"),
    "compose": (P, "POSTGRES_PASSWORD: {}"),
    "systemd": (P, 'Environment="REDIS_PASSWORD={}"'),
    "grafana ini": (P, "admin_password = {}"),
    "redis conf": (P, "requirepass {}"),
    "rabbit": (P, "amqp://app:{}@mq.local:5672/vhost"),
    "mongo": (P, "mongodb+srv://app:{}@cluster0.x.mongodb.net/shop"),
    "snmp": (P, "snmp-server user ops grp v3 auth sha {} priv aes 128"),
    "cisco": (A(22, BASE), "enable secret 5 $1$mERr${}"),
    "cisco user": (P, "username admin privilege 15 secret 0 {}"),
    "junos": (A(40, BASE), 'encrypted-password "$6$abcdefgh${}"; ## SECRET-DATA'),
    "netplan": (P, "access-points:\n  home:\n    password: {}"),
    "openvpn": (P, "auth-user-pass\nbo\npassword: {}"),
    "smb creds": (P, "username=bo\npassword={}\ndomain=CORP"),
}
# command lines
COMMANDS: dict[str, tuple[Make, str]] = {
    "sqlplus": (P, "sqlplus scott/{}@orcl"),
    "sqlplus sys": (P, "sqlplus sys/{}@//db:1521/XE as sysdba"),
    "rman": (P, "rman target sys/{}@prod"),
    "expdp": (P, "expdp system/{}@orcl schemas=hr"),
    "net use": (P, "net use \\\\srv\\share {} /user:CORP\\bo"),
    "net use z": (P, "net use Z: \\\\srv\\share {} /user:bo /persistent:no"),
    "runas cmdkey": (P, "cmdkey /add:srv /user:bo /pass:{}"),
    "wmic": (P, "wmic /node:srv /user:bo /password:{} os get name"),
    "schtasks": (P, "schtasks /create /tn t /tr x.exe /ru bo /rp {}"),
    "psexec": (P, "psexec \\\\srv -u CORP\\bo -p {} cmd"),
    "powershell": (P, "ConvertTo-SecureString '{}' -AsPlainText -Force"),
    "mount cifs": (P, "mount -t cifs //srv/share /mnt -o username=bo,password={}"),
    "mount cifs pass": (P, "mount.cifs //srv/share /mnt -o user=bo,pass={},vers=3.0"),
    "smbclient": (P, "smbclient //srv/share -U bo%{}"),
    "lftp": (P, "lftp -u bo,{} sftp://host"),
    "curl bearer": (A(40, URLSAFE), "curl -H 'Authorization: Bearer {}' https://api"),
    "curl private token": (A(20, URLSAFE), "curl --header 'PRIVATE-TOKEN: {}' https://git.local/api/v4"),
    "helm": (P, "helm install db bitnami/postgresql --set auth.postgresPassword={}"),
    "kubectl": (P, "kubectl create secret generic db --from-literal=password={}"),
    "az": (A(34, URLSAFE), "az login --service-principal -u app -p {} --tenant t"),
    "vault": (P, "vault kv put secret/db password={}"),
    "consul": (A(36, HEX), "consul acl token read -token={}"),
    "ipmitool": (P, "ipmitool -I lanplus -H bmc -U admin -P {} power status"),
    "mongodump": (P, "mongodump --uri 'mongodb://h/x' -u app -p '{}'"),
    "keytool": (P, "keytool -list -keystore k.jks -storepass {}"),
    "useradd": (A(86, BASE), "useradd -p '$6$salt${}' bo"),
    "expect": (P, 'expect "assword:" {{ send "{}\\r" }}'),
    "rsync": (P, "RSYNC_PASSWORD={} rsync -a x rsync://bo@host/m"),
    "restic": (P, "export RESTIC_PASSWORD={}"),
    "borg": (P, "BORG_PASSPHRASE='{}' borg list"),
    "gpg": (P, "gpg --batch --passphrase {} -d f.gpg"),
    "snowsql": (P, "snowflake://bo:{}@acct/db"),
    "impala": (P, "beeline -u jdbc:hive2://h -n bo -p {}"),
    "twilio": (A(32, HEX), "TWILIO_ACCOUNT_SID=AC0123456789abcdef0123456789abcdef TWILIO_AUTH_TOKEN={}"),
    "twilio pair": (A(32, HEX), 'Client("AC0123456789abcdef0123456789abcdef", "{}")'),
    "twilio curl": (A(32, HEX), "curl https://api.twilio.com -u AC0123456789abcdef0123456789abcdef:{}"),
    "mailgun": (lambda c: f"key-{text(c, 32, HEX)}", "curl --user 'api:{}'"),
    "telegram": (
        lambda c: f"{c.randrange(10**8, 10**9)}:AA{text(c, 33, URLSAFE)}",
        "https://api.telegram.org/bot{}/getMe",
    ),
    "datadog": (A(32, HEX), "DD_API_KEY={}"),
    "heroku": (A(36, HEX), "HEROKU_API_KEY={}"),
    "cloudflare": (A(40, URLSAFE), "CLOUDFLARE_API_TOKEN={}"),
}
NORMAL = read_lines("normal_fresh.txt")


def fresh(seed: int = 0) -> Iterator[Planted]:
    """Yield one line of every kind."""
    for kind, (make, line) in {**FILES, **COMMANDS}.items():
        secret = make(Random(f"fresh {kind} {seed}"))
        yield Planted(kind, line.format(secret), secret)
