"""How programs take secrets on their command lines, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from toolfold.redaction.spans import words

__all__ = ["BY_PROGRAM", "Carrier"]


@dataclass(frozen=True, slots=True)
class Carrier:
    """The places in a program's words where a secret stands.

    Options are written with their dashes. All fields are about the words after `sub`, if there is one.
    """

    sub: tuple[str, ...] = ()
    """Words that must stand together among the program's words."""
    value: frozenset[str] = frozenset()
    """Options whose value is secret: `-p X`, `-pX`, `-p=X`, and `-xp X` for a cluster that ends with one."""
    exact: frozenset[str] = frozenset()
    """Options whose next word is secret, for programs with long options behind one dash."""
    attached: frozenset[str] = frozenset()
    """Options whose value is secret only where it is attached: `-pX`."""
    login: Mapping[str, str] = field(default_factory=dict)
    """Options whose value is a user and a secret, and what stands between the two."""
    prefix: tuple[str, ...] = ()
    """Beginnings of words whose rest is secret: `pass:X`, `/p:X`."""
    operands: tuple[int, ...] = ()
    """Which operands are secret, counted from 0, or from -1 backwards."""
    least: int = 1
    """How many operands there must be for `operands` to hold."""
    flag: str = ""
    """A letter that must stand among the short options for `operands` to hold."""
    pairs: bool = False
    """Operands are `NAME=secret`."""
    named: bool = False
    """Operands are a name and its value, which is secret if the name says so."""
    split: str = ""
    """Operands are a user and a secret with this between them, and perhaps `@host` behind."""
    stdin: frozenset[str] = frozenset()
    """Options that say that a secret is read from the input; `*`: always."""


def _login(text: str, sign: str = ":") -> Mapping[str, str]:
    return MappingProxyType(dict.fromkeys(text.split(), sign))


_MYSQL = (
    "mysql mysqldump mysqladmin mysqlimport mysqlshow mysqlsh mysqlcheck mariadb mariadb-dump mariadb-admin"
)
_CONTAINERS = "docker podman nerdctl buildah skopeo helm oras crane docker-compose"
_SSH_LIKE = "plink pscp psftp putty kitty"
_LDAP = "ldapsearch ldapadd ldapmodify ldapdelete ldapmodrdn ldapcompare ldapwhoami ldappasswd ldapexop"
_SMB = "smbclient rpcclient smbget smbcacls smbtree smbmap pdbedit"
_SNMP = "snmpwalk snmpget snmpset snmpbulkwalk snmptrap snmpgetnext snmptable snmpstatus snmptranslate"
_MONGO = "mongo mongosh mongodump mongorestore mongoexport mongoimport mongostat mongotop"
_ATTACKS = "hydra nxc netexec crackmapexec evil-winrm medusa winrm psexec psexec64"
_IMPACKET = "impacket-psexec impacket-smbexec impacket-wmiexec impacket-secretsdump secretsdump.py psexec.py"

_TABLE: tuple[tuple[str, Carrier], ...] = (
    (_MYSQL, Carrier(attached=words("-p"))),
    ("mysqladmin mariadb-admin", Carrier(sub=("password",), operands=(0,))),
    (_MONGO, Carrier(value=words("-p"))),
    ("redis-cli valkey-cli keydb-cli redis-benchmark", Carrier(value=words("-a"))),
    ("redis-cli valkey-cli", Carrier(sub=("AUTH",), operands=(-1,))),
    ("redis-cli valkey-cli", Carrier(sub=("auth",), operands=(-1,))),
    ("redis-cli valkey-cli", Carrier(named=True)),
    ("etcdctl", Carrier(login=_login("--user"))),
    ("sqlcmd bcp osql isql tsql", Carrier(value=words("-P"))),
    ("sqlplus sqlldr expdp impdp rman", Carrier(split="/")),
    ("cqlsh rabbitmqadmin elasticsearch-users", Carrier(value=words("-p"))),
    ("influx", Carrier(exact=words("-password"))),
    (
        "curl",
        Carrier(
            value=words("--oauth2-bearer --pass --proxy-pass --tlspassword"),
            login=_login("-u --user -U --proxy-user -E --cert"),
        ),
    ),
    ("curl", Carrier(login=_login("-b --cookie", "="))),
    (
        "wget wget2 aria2c",
        Carrier(value=words("--http-password --ftp-password --proxy-password --http-passwd")),
    ),
    ("ab", Carrier(login=_login("-A -P"))),
    ("hey", Carrier(login=_login("-a"))),
    ("http https xh xhs httpie", Carrier(login=_login("-a --auth"))),
    ("lftp ncftp", Carrier(login=_login("-u", ","))),
    ("ncftp ncftpget ncftpput", Carrier(value=words("-p"))),
    ("sshpass", Carrier(value=words("-p"))),
    (_SSH_LIKE, Carrier(exact=words("-pw"))),
    (_CONTAINERS, Carrier(sub=("login",), value=words("-p"), stdin=words("--password-stdin"))),
    (_CONTAINERS, Carrier(login=_login("--creds --src-creds --dest-creds"))),
    ("oc cf az ibmcloud crc", Carrier(sub=("login",), value=words("-p"))),
    ("az", Carrier(sub=("secret", "set"), value=words("--value"))),
    ("sudo doas", Carrier(stdin=words("-S --stdin"))),
    ("su passwd chpasswd kinit cryptsetup smbpasswd vncpasswd ssh-add", Carrier(stdin=words("*"))),
    ("useradd usermod adduser groupadd groupmod", Carrier(value=words("-p"))),
    ("gh", Carrier(sub=("auth", "login"), stdin=words("--with-token"))),
    ("gh", Carrier(sub=("secret", "set"), value=words("-b --body"), stdin=words("*"))),
    ("glab", Carrier(sub=("auth", "login"), value=words("-t"), stdin=words("--stdin"))),
    ("wrangler vercel netlify eas doppler", Carrier(sub=("secret", "put"), stdin=words("*"))),
    ("vercel", Carrier(sub=("env", "add"), stdin=words("*"))),
    ("vercel flyctl fly doctl", Carrier(value=words("-t"))),
    ("netlify", Carrier(value=words("--auth"))),
    ("openssl", Carrier(exact=words("-k -K"), prefix=("pass:",), stdin=words("stdin"))),
    ("openssl mkpasswd grub-mkpasswd-pbkdf2", Carrier(sub=("passwd",), operands=(-1,))),
    ("mkpasswd", Carrier(operands=(0,))),
    ("gpg gpg2", Carrier(stdin=words("--passphrase-fd"))),
    ("7z 7za 7zr 7zz p7zip", Carrier(attached=words("-p"))),
    ("zip zipcloak", Carrier(value=words("-P"))),
    ("unzip", Carrier(value=words("-P"))),
    ("rar unrar", Carrier(attached=words("-p -hp"))),
    ("ssh-keygen", Carrier(value=words("-N -P"))),
    (_LDAP, Carrier(value=words("-w"))),
    ("ldappasswd", Carrier(value=words("-s -a"))),
    (_SMB, Carrier(login=_login("-U --user", "%"))),
    ("net", Carrier(login=_login("-U", "%"))),
    ("net", Carrier(sub=("use",), operands=(2,), least=3)),
    ("net", Carrier(sub=("user",), operands=(1,), least=2)),
    ("xfreerdp wlfreerdp xfreerdp3 sdl-freerdp", Carrier(prefix=("/p:", "/password:", "/pth:"))),
    ("rdesktop", Carrier(value=words("-p"))),
    ("htpasswd", Carrier(operands=(-1,), least=2, flag="b")),
    (_SNMP, Carrier(value=words("-A -X -c"))),
    ("ansible-vault", Carrier(sub=("encrypt_string",), operands=(-1,))),
    ("aws", Carrier(sub=("configure", "set"), named=True)),
    ("aws", Carrier(sub=("put-parameter",), value=words("--value"))),
    ("aws", Carrier(value=words("--secret-string --master-user-password --secret-binary"))),
    (
        "kubectl oc k3s microk8s kubectl.exe",
        Carrier(sub=("create", "secret"), login=_login("--from-literal", "=")),
    ),
    ("vault bao", Carrier(sub=("put",), pairs=True)),
    ("vault bao", Carrier(sub=("patch",), pairs=True)),
    ("vault bao", Carrier(sub=("write",), pairs=True)),
    ("vault bao", Carrier(sub=("login",), operands=(0,), stdin=words("-"))),
    ("heroku", Carrier(sub=("config:set",), pairs=True)),
    ("fly flyctl supabase doppler infisical railway", Carrier(sub=("secrets", "set"), pairs=True)),
    ("npm yarn pnpm git pip pip3 hg dvc gem bun", Carrier(sub=("config", "set"), named=True)),
    ("git npm yarn bundle", Carrier(sub=("config",), named=True)),
    ("poetry", Carrier(sub=("config",), named=True)),
    ("poetry twine", Carrier(value=words("-p"))),
    ("poetry composer", Carrier(sub=("config",), operands=(2,), least=3)),
    ("composer", Carrier(sub=("config",), named=True)),
    ("cargo", Carrier(sub=("login",), operands=(0,))),
    ("dotnet nuget", Carrier(sub=("push",), value=words("-k"))),
    ("dotnet", Carrier(sub=("source",), value=words("-p"))),
    ("dotnet", Carrier(sub=("user-secrets", "set"), operands=(1,), least=2)),
    ("nuget", Carrier(sub=("setapikey",), operands=(0,))),
    (
        "keytool jarsigner apksigner",
        Carrier(exact=words("-storepass -keypass -srcstorepass -deststorepass")),
    ),
    ("security", Carrier(sub=("add-generic-password",), value=words("-w"))),
    ("security", Carrier(sub=("add-internet-password",), value=words("-w"))),
    ("security", Carrier(sub=("unlock-keychain",), value=words("-p"))),
    ("security", Carrier(sub=("create-keychain",), value=words("-p"))),
    ("security", Carrier(sub=("set-key-partition-list",), value=words("-k"))),
    ("security", Carrier(sub=("import",), value=words("-P"))),
    ("mosquitto_pub mosquitto_sub mosquitto_rr ipmitool", Carrier(value=words("-P"))),
    ("rabbitmqctl", Carrier(sub=("add_user",), operands=(1,))),
    ("rabbitmqctl", Carrier(sub=("change_password",), operands=(1,))),
    ("nmcli iwctl", Carrier(sub=("password",), operands=(0,))),
    ("wpa_passphrase", Carrier(operands=(1,), least=2)),
    ("ngrok", Carrier(sub=("add-authtoken",), operands=(0,))),
    ("ngrok", Carrier(sub=("authtoken",), operands=(0,))),
    ("wandb huggingface-cli hf railway sentry-cli", Carrier(sub=("login",), operands=(0,))),
    ("snyk codecov fossa", Carrier(sub=("auth",), operands=(0,))),
    ("consul", Carrier(sub=("set-agent-token",), operands=(1,))),
    ("gcloud", Carrier(sub=("activate-refresh-token",), operands=(-1,))),
    ("schtasks", Carrier(exact=words("/rp"))),
    ("cmdkey", Carrier(prefix=("/pass:",))),
    ("cloudflared", Carrier(sub=("service", "install"), operands=(0,))),
    ("mc mcli", Carrier(sub=("alias", "set"), operands=(3,), least=4)),
    ("bw", Carrier(sub=("unlock",), operands=(0,))),
    ("bw", Carrier(sub=("login",), operands=(1,), least=2)),
    ("rclone", Carrier(sub=("obscure",), operands=(0,))),
    ("pulumi", Carrier(sub=("config", "set"), operands=(1,), least=2)),
    ("dscl", Carrier(sub=("-passwd",), operands=(-1,), least=2)),
    ("set setx setenv", Carrier(named=True)),
    ("convertto-securestring", Carrier(operands=(0,))),
    (_IMPACKET, Carrier(split=":")),
    (_ATTACKS, Carrier(value=words("-p"))),
    ("restic", Carrier(login=_login("--password-command", " "))),
)


def _by_program() -> Mapping[str, tuple[Carrier, ...]]:
    found: dict[str, tuple[Carrier, ...]] = {}
    for programs, carrier in _TABLE:
        for program in programs.split():
            found[program] = (*found.get(program, ()), carrier)
    return MappingProxyType(found)


BY_PROGRAM = _by_program()
