"""A third set of planted secrets, as settings, scripts and logs of well-known products show them.

It was written before the patterns were changed for it, and its first measurement was noted then (docs/trust.md).
"""

import base64
from collections.abc import Iterator
from random import Random

from .normal_set import read_lines
from .secrets_set import ALNUM, B64, HEX, URLSAFE, A, Make, P, Planted, password, text

UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def pair(chance: Random) -> str:
    """Return a user and a password in base64, as Docker keeps them."""
    return base64.b64encode(f"ci-bot:{password(chance)}".encode()).decode()


def uuid(chance: Random) -> str:
    """Return a key that has the form of a UUID."""
    return "-".join(text(chance, length, HEX) for length in (8, 4, 4, 4, 12))


SECRETS: dict[str, tuple[Make, str]] = {
    "npmrc password": (lambda c: base64.b64encode(password(c).encode()).decode(), "//npm.corp.io/:_password={}"),
    "npmrc old auth": (pair, "always-auth=true\n_auth = {}"),
    "pypirc colon": (P, "[distutils]\n[corp]\nrepository: https://pypi.corp.io\nusername: ci\npassword: {}"),
    "netrc lines": (P, "machine git.corp.io\nlogin ci\npassword {}"),
    "wp salt": (A(64, ALNUM + "!@#%^&*"), "define( 'LOGGED_IN_SALT',   '{}' );"),
    "wp db": (P, "define( 'DB_PASSWORD', '{}' );"),
    "django databases": (P, "'default': {{'NAME': 'shop', 'USER': 'app', 'PASSWORD': '{}', 'HOST': 'db'}}"),
    "flask secret": (A(24, HEX), "app.secret_key = b'{}'"),
    "docker config": (pair, '"registry.corp.io": {{"auth": "{}", "email": ""}}'),
    "docker identity": (A(90, URLSAFE), '{{"identitytoken": "{}"}}'),
    "tfvars": (P, 'rds_master_password   = "{}"'),
    "tfvars map": (P, 'db = {{ username = "app", password = "{}" }}'),
    "ansible vault pass": (P, "ansible-playbook site.yml --extra-vars 'db_pass={}'"),
    "k8s stringData": (P, "kind: Secret\nstringData:\n  smtp-password: {}"),
    "k8s data": (lambda c: base64.b64encode(password(c).encode()).decode(), "kind: Secret\ndata:\n  api.token: {}"),
    "jenkins secret": (A(64, B64), "<secret>{{AQAAABAAAAAw{}}}</secret>"),
    "jenkins api": (A(34, HEX, "11"), "curl -u admin:{} https://ci.corp.io/job/x/build"),
    "wireguard set": (A(43, B64), "[Peer]\nPresharedKey={}=\nEndpoint = vpn:51820"),
    "openvpn inline": (P, "<auth-user-pass>\nmia\n{}\n</auth-user-pass>"),
    "putty ppk": (A(40, HEX), "Private-MAC: {}"),
    "rails master": (A(32, HEX), "RAILS_MASTER_KEY={}"),
    "rails credentials": (A(32, HEX), "echo {} > config/master.key"),
    "firebase": (A(35, URLSAFE, "AIza"), 'apiKey: "{}",'),
    "fcm": (A(140, URLSAFE), "Authorization: key=AAAAx1y2z3a:APA91b{}"),
    "slack hook": (A(24), "https://hooks.slack.com/services/T01AB2CD3/B04EF5GH6/{}"),
    "slack app": (A(64, HEX), "xapp-1-A012B3C4D5E-1234567890123-{}"),
    "telegram": (lambda c: f"{c.randrange(10**8, 10**9)}:AA{text(c, 33, URLSAFE)}", "bot = TeleBot('{}')"),
    "discord hook": (A(68, URLSAFE), "https://discord.com/api/webhooks/1098765432109876543/{}"),
    "discord login": (
        lambda c: f"MTA5{text(c, 22)}.{text(c, 6)}.{text(c, 38, URLSAFE)}",
        "client.login('{}')",
    ),
    "stripe": (A(24), "stripe.api_key = 'sk_live_{}'"),
    "stripe restricted": (A(24), "STRIPE=rk_test_{}"),
    "shopify": (A(32, HEX), "X-Shopify-Access-Token: shpat_{}"),
    "heroku": (uuid, "machine api.heroku.com\n  login mia@corp.io\n  password {}"),
    "digitalocean": (A(64, HEX), "doctl auth init -t dop_v1_{}"),
    "azure devops": (A(52, "abcdefghijklmnopqrstuvwxyz234567"), "git clone https://pat:{}@dev.azure.com/o/p/_git/r"),
    "azure sas": (A(44, B64), "?sv=2023-01-03&ss=b&srt=sco&sp=rl&se=2026-01-01&sig={}%3D"),
    "azure cosmos": (A(86, B64), "AccountEndpoint=https://x.documents.azure.com:443/;AccountKey={}==;"),
    "azure iothub": (A(43, B64), "HostName=x.azure-devices.net;DeviceId=d1;SharedAccessKey={}="),
    "jdbc oracle": (P, "jdbc:oracle:thin:app/{}@db:1521:orcl"),
    "jdbc sqlserver": (P, "jdbc:sqlserver://db:1433;databaseName=shop;user=sa;password={};encrypt=true"),
    "spring": (P, "spring.datasource.password={}"),
    "ldap bind": (P, "ldapsearch -x -D cn=admin,dc=corp,dc=io -w {} -b dc=corp"),
    "sssd": (P, "ldap_default_authtok = {}"),
    "bindpw": (P, "binddn cn=admin\nbindpw {}"),
    "snmp community": (P, "snmpwalk -v2c -c {} 10.0.0.1 sysName"),
    "snmpd conf": (P, "rocommunity {} 10.0.0.0/8"),
    "snmp v3": (P, "snmpget -v3 -u ops -l authPriv -a SHA -A {} -x AES -X x 10.0.0.1"),
    "sshpass equals": (P, "SSHPASS={} sshpass -e ssh root@10.0.0.4"),
    "sshpass": (P, "sshpass -p '{}' scp f root@10.0.0.4:/tmp"),
    "curl api header": (A(32), 'curl -H "X-API-Key: {}" https://api.corp.io'),
    "curl token scheme": (A(40, HEX), 'curl -H "Authorization: Token {}" https://api.corp.io'),
    "wget": (P, "wget --user=mia --password={} https://files.corp.io/a.tgz"),
    "wget http": (P, "wget --http-user mia --http-password {} https://files.corp.io/a.tgz"),
    "psql": (P, "PGPASSWORD={} psql -h db -U app shop"),
    "psql dsn": (P, 'psql "host=db dbname=shop user=app password={}"'),
    "redis-cli": (P, "redis-cli -h cache -p 6379 -a {} ping"),
    "redis url": (P, "REDIS_URL=redis://:{}@cache:6379/0"),
    "mongosh": (P, "mongosh mongodb://db/shop -u app -p {} --authenticationDatabase admin"),
    "openssl passin": (P, "openssl rsa -in k.pem -passin pass:{} -out o.pem"),
    "openssl enc": (P, "openssl enc -aes-256-cbc -pbkdf2 -k {} -in a -out b"),
    "gpg": (P, "gpg --pinentry-mode loopback --passphrase '{}' -c f"),
    "smbclient": (P, "smbclient -U 'CORP\\mia%{}' //fs/share -c ls"),
    "rsync": (P, "rsync -a --password-file=<(echo {}) x rsync://mia@h/m"),
    "rsyncd": (P, "# rsyncd.secrets\nbackup:{}"),
    "ftp script": (P, "open ftp.corp.io\nuser mia {}\nbinary"),
    "ftp quote": (P, "ftp> quote PASS {}"),
    "curl ftp": (P, "curl -T f ftp://ftp.corp.io --user mia:{}"),
    "mysqldump": (P, "mysqldump -u root -p{} shop > s.sql"),
    "sql alter": (P, "ALTER ROLE app WITH LOGIN PASSWORD '{}';"),
    "sql create": (P, "CREATE USER 'app'@'%' IDENTIFIED BY '{}';"),
    "sql login": (P, "CREATE LOGIN app WITH PASSWORD = N'{}';"),
    "sentry dsn": (A(32, HEX), "SENTRY_DSN=https://{}@o12345.ingest.sentry.io/67890"),
    "sendgrid": (lambda c: f"SG.{text(c, 22, URLSAFE)}.{text(c, 43, URLSAFE)}", "sgMail.setApiKey('{}')"),
    "mailchimp": (A(32, HEX), "mc = Client('{}-us14')"),
    "algolia": (A(32, HEX), "algoliasearch('B1G2GM9NG0', '{}')"),
    "newrelic": (A(40, HEX), "license_key: '{}'"),
    "datadog yaml": (A(32, HEX), "api_key: {}\nsite: datadoghq.eu"),
    "vault token": (A(24), "export VAULT_TOKEN=hvs.{}"),
    "consul acl": (uuid, "CONSUL_HTTP_TOKEN={}"),
    "gitlab runner": (A(20, URLSAFE), 'token = "glrt-{}"'),
    "kafka jaas": (P, 'PlainLoginModule required username="app" password="{}";'),
    "keystore props": (P, "ssl.keystore.password={}"),
    "tomcat connector": (P, '<Connector port="8443" keystorePass="{}" clientAuth="false"/>'),
    "zabbix": (P, "DBPassword={}"),
    "grafana env": (P, "GF_SECURITY_ADMIN_PASSWORD={}"),
    "airflow fernet": (A(43, URLSAFE), "fernet_key = {}="),
    "celery broker": (P, 'broker_url = "amqp://app:{}@mq:5672//"'),
    "git credentials": (A(36, ALNUM, "ghp_"), "https://mia:{}@github.com"),
    "svn": (P, "svn co https://svn.corp.io/r --username mia --password {}"),
    "hg": (P, "[auth]\ncorp.prefix = hg.corp.io\ncorp.password = {}"),
    "maven master": (A(40, B64), "<master>{{{}=}}</master>"),
    "vnc": (P, "x11vnc -passwd {} -display :0"),
    "rdp": (P, "xfreerdp /v:srv /u:mia /p:{}"),
    "wifi nmcli": (P, "nmcli dev wifi connect home password {}"),
    "macos security": (P, "security add-generic-password -a mia -s corp -w {}"),
    "zip": (P, "zip -r -P {} a.zip docs"),
    "ios plist": (P, "<key>Password</key>\n<string>{}</string>"),
    "unattend": (P, "<AutoLogon><Password><Value>{}</Value></Password></AutoLogon>"),
    "cisco wlc": (P, "wpa-psk ascii 0 {}"),
    "proxy env": (P, "export https_proxy=http://mia:{}@proxy.corp.io:3128"),
}
NORMAL = (*read_lines("normal_config.txt"), "<key>CFBundleVersion</key>\n<string>1.2.3</string>", "secrets:\n  inherit")


def configured(seed: int = 0) -> Iterator[Planted]:
    """Yield one line of every kind."""
    for kind, (make, line) in SECRETS.items():
        secret = make(Random(f"configured {kind} {seed}"))
        yield Planted(kind, line.format(secret), secret)
