"""Table of the command-line arguments in which programs receive secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from toolfold.safety.redaction.spans import split_words

__all__ = ["BY_PROGRAM", "SecretArguments"]


_MAX_OPERANDS = 120


@dataclass(frozen=True, slots=True)
class SecretArguments:
    """The arguments of one program that contain a secret.

    Options are written with their dashes. All fields are about the words after `subcommand`, if it is set.
    """

    subcommand: tuple[str, ...] = ()
    """Consecutive words that must occur among the program's arguments."""
    value_options: frozenset[str] = frozenset()
    """Options whose value is secret: `-p X`, `-pX`, `-p=X`, and `-xp X` for a cluster that ends with one."""
    next_word_options: frozenset[str] = frozenset()
    """Options whose next word is secret, for programs with long options after one dash."""
    attached_options: frozenset[str] = frozenset()
    """Options whose value is secret only if it is attached: `-pX`."""
    login_options: Mapping[str, str] = field(default_factory=dict)
    """Options whose value is a user and a secret, with the separator between them."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of words whose rest is secret: `pass:X`, `/p:X`."""
    operands: tuple[int, ...] = ()
    """Indexes of the secret operands; negative ones count from the end."""
    min_operands: int = 1
    """Minimum number of operands for `operands` to apply."""
    max_operands: int = _MAX_OPERANDS
    """Number of operands, from the first, among which names and values are found."""
    required_flag: str = ""
    """A letter that must be among the short options for `operands` to apply."""
    are_pairs: bool = False
    """True if the operands have the form `NAME=secret`."""
    are_named_values: bool = False
    """True if the operands are a name and a value, which is secret if the name marks it as secret."""
    login_separator: str = ""
    """Separator of operands that are a user and a secret, optionally followed by `@host`."""
    stdin_options: frozenset[str] = frozenset()
    """Options with which the program reads a secret from standard input; `*` means that it always does."""


def _login_options(text: str, sign: str = ":") -> Mapping[str, str]:
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
_ATTACK_TOOLS = "hydra nxc netexec crackmapexec evil-winrm medusa winrm psexec psexec64"
_IMPACKET = "impacket-psexec impacket-smbexec impacket-wmiexec impacket-secretsdump secretsdump.py psexec.py"

_TABLE: tuple[tuple[str, SecretArguments], ...] = (
    (_MYSQL, SecretArguments(attached_options=split_words("-p"))),
    ("mysqladmin mariadb-admin", SecretArguments(subcommand=("password",), operands=(0,))),
    (_MONGO, SecretArguments(value_options=split_words("-p"))),
    ("redis-cli valkey-cli keydb-cli redis-benchmark", SecretArguments(value_options=split_words("-a"))),
    ("redis-cli valkey-cli", SecretArguments(subcommand=("AUTH",), operands=(-1,))),
    ("redis-cli valkey-cli", SecretArguments(subcommand=("auth",), operands=(-1,))),
    ("redis-cli valkey-cli", SecretArguments(are_named_values=True)),
    ("etcdctl", SecretArguments(login_options=_login_options("--user"))),
    ("sqlcmd bcp osql isql tsql", SecretArguments(value_options=split_words("-P"))),
    ("sqlplus sqlldr expdp impdp rman", SecretArguments(login_separator="/")),
    ("cqlsh rabbitmqadmin elasticsearch-users", SecretArguments(value_options=split_words("-p"))),
    ("influx", SecretArguments(next_word_options=split_words("-password"))),
    (
        "curl",
        SecretArguments(
            value_options=split_words("--oauth2-bearer --pass --proxy-pass --tlspassword"),
            login_options=_login_options("-u --user -U --proxy-user -E --cert"),
        ),
    ),
    ("curl", SecretArguments(login_options=_login_options("-b --cookie", "="))),
    (
        "wget wget2 aria2c",
        SecretArguments(
            value_options=split_words("--http-password --ftp-password --proxy-password --http-passwd")
        ),
    ),
    ("ab", SecretArguments(login_options=_login_options("-A -P"))),
    ("hey", SecretArguments(login_options=_login_options("-a"))),
    ("http https xh xhs httpie", SecretArguments(login_options=_login_options("-a --auth"))),
    ("lftp ncftp", SecretArguments(login_options=_login_options("-u", ","))),
    ("ncftp ncftpget ncftpput", SecretArguments(value_options=split_words("-p"))),
    ("sshpass", SecretArguments(value_options=split_words("-p"))),
    (_SSH_LIKE, SecretArguments(next_word_options=split_words("-pw"))),
    (
        _CONTAINERS,
        SecretArguments(
            subcommand=("login",),
            value_options=split_words("-p"),
            stdin_options=split_words("--password-stdin"),
        ),
    ),
    (_CONTAINERS, SecretArguments(login_options=_login_options("--creds --src-creds --dest-creds"))),
    ("oc cf az ibmcloud crc", SecretArguments(subcommand=("login",), value_options=split_words("-p"))),
    ("az", SecretArguments(subcommand=("secret", "set"), value_options=split_words("--value"))),
    ("sudo doas", SecretArguments(stdin_options=split_words("-S --stdin"))),
    (
        "su passwd chpasswd kinit cryptsetup smbpasswd vncpasswd ssh-add",
        SecretArguments(stdin_options=split_words("*")),
    ),
    ("useradd usermod adduser groupadd groupmod", SecretArguments(value_options=split_words("-p"))),
    ("gh", SecretArguments(subcommand=("auth", "login"), stdin_options=split_words("--with-token"))),
    (
        "gh",
        SecretArguments(
            subcommand=("secret", "set"),
            value_options=split_words("-b --body"),
            stdin_options=split_words("*"),
        ),
    ),
    (
        "glab",
        SecretArguments(
            subcommand=("auth", "login"),
            value_options=split_words("-t"),
            stdin_options=split_words("--stdin"),
        ),
    ),
    (
        "wrangler vercel netlify eas doppler",
        SecretArguments(subcommand=("secret", "put"), stdin_options=split_words("*")),
    ),
    ("vercel", SecretArguments(subcommand=("env", "add"), stdin_options=split_words("*"))),
    ("vercel flyctl fly doctl", SecretArguments(value_options=split_words("-t"))),
    ("netlify", SecretArguments(value_options=split_words("--auth"))),
    (
        "openssl",
        SecretArguments(
            next_word_options=split_words("-k -K"), prefixes=("pass:",), stdin_options=split_words("stdin")
        ),
    ),
    ("openssl mkpasswd grub-mkpasswd-pbkdf2", SecretArguments(subcommand=("passwd",), operands=(-1,))),
    ("mkpasswd", SecretArguments(operands=(0,))),
    ("gpg gpg2", SecretArguments(stdin_options=split_words("--passphrase-fd"))),
    ("7z 7za 7zr 7zz p7zip", SecretArguments(attached_options=split_words("-p"))),
    ("zip zipcloak", SecretArguments(value_options=split_words("-P"))),
    ("unzip", SecretArguments(value_options=split_words("-P"))),
    ("rar unrar", SecretArguments(attached_options=split_words("-p -hp"))),
    ("ssh-keygen", SecretArguments(value_options=split_words("-N -P"))),
    (_LDAP, SecretArguments(value_options=split_words("-w"))),
    ("ldappasswd", SecretArguments(value_options=split_words("-s -a"))),
    (_SMB, SecretArguments(login_options=_login_options("-U --user", "%"))),
    ("net", SecretArguments(login_options=_login_options("-U", "%"))),
    ("net", SecretArguments(subcommand=("use",), operands=(2,), min_operands=3)),
    ("net", SecretArguments(subcommand=("user",), operands=(1,), min_operands=2)),
    ("xfreerdp wlfreerdp xfreerdp3 sdl-freerdp", SecretArguments(prefixes=("/p:", "/password:", "/pth:"))),
    ("rdesktop", SecretArguments(value_options=split_words("-p"))),
    ("htpasswd", SecretArguments(operands=(-1,), min_operands=2, required_flag="b")),
    (_SNMP, SecretArguments(value_options=split_words("-A -X -c"))),
    ("ansible-vault", SecretArguments(subcommand=("encrypt_string",), operands=(-1,))),
    ("aws", SecretArguments(subcommand=("configure", "set"), are_named_values=True)),
    ("aws", SecretArguments(subcommand=("put-parameter",), value_options=split_words("--value"))),
    (
        "aws",
        SecretArguments(value_options=split_words("--secret-string --master-user-password --secret-binary")),
    ),
    (
        "kubectl oc k3s microk8s kubectl.exe",
        SecretArguments(subcommand=("create", "secret"), login_options=_login_options("--from-literal", "=")),
    ),
    ("vault bao", SecretArguments(subcommand=("put",), are_pairs=True)),
    ("vault bao", SecretArguments(subcommand=("patch",), are_pairs=True)),
    ("vault bao", SecretArguments(subcommand=("write",), are_pairs=True)),
    ("vault bao", SecretArguments(subcommand=("login",), operands=(0,), stdin_options=split_words("-"))),
    ("heroku", SecretArguments(subcommand=("config:set",), are_pairs=True)),
    (
        "fly flyctl supabase doppler infisical railway",
        SecretArguments(subcommand=("secrets", "set"), are_pairs=True),
    ),
    (
        "npm yarn pnpm git pip pip3 hg dvc gem bun",
        SecretArguments(subcommand=("config", "set"), are_named_values=True),
    ),
    ("git npm yarn bundle", SecretArguments(subcommand=("config",), are_named_values=True)),
    ("poetry", SecretArguments(subcommand=("config",), are_named_values=True)),
    ("poetry twine", SecretArguments(value_options=split_words("-p"))),
    ("poetry composer", SecretArguments(subcommand=("config",), operands=(2,), min_operands=3)),
    ("composer", SecretArguments(subcommand=("config",), are_named_values=True)),
    ("cargo", SecretArguments(subcommand=("login",), operands=(0,))),
    ("dotnet nuget", SecretArguments(subcommand=("push",), value_options=split_words("-k"))),
    ("dotnet", SecretArguments(subcommand=("source",), value_options=split_words("-p"))),
    ("dotnet", SecretArguments(subcommand=("user-secrets", "set"), operands=(1,), min_operands=2)),
    ("nuget", SecretArguments(subcommand=("setapikey",), operands=(0,))),
    (
        "keytool jarsigner apksigner",
        SecretArguments(next_word_options=split_words("-storepass -keypass -srcstorepass -deststorepass")),
    ),
    ("security", SecretArguments(subcommand=("add-generic-password",), value_options=split_words("-w"))),
    ("security", SecretArguments(subcommand=("add-internet-password",), value_options=split_words("-w"))),
    ("security", SecretArguments(subcommand=("unlock-keychain",), value_options=split_words("-p"))),
    ("security", SecretArguments(subcommand=("create-keychain",), value_options=split_words("-p"))),
    ("security", SecretArguments(subcommand=("set-key-partition-list",), value_options=split_words("-k"))),
    ("security", SecretArguments(subcommand=("import",), value_options=split_words("-P"))),
    ("mosquitto_pub mosquitto_sub mosquitto_rr ipmitool", SecretArguments(value_options=split_words("-P"))),
    ("rabbitmqctl", SecretArguments(subcommand=("add_user",), operands=(1,))),
    ("rabbitmqctl", SecretArguments(subcommand=("change_password",), operands=(1,))),
    ("nmcli iwctl", SecretArguments(subcommand=("password",), operands=(0,))),
    ("wpa_passphrase", SecretArguments(operands=(1,), min_operands=2)),
    ("ngrok", SecretArguments(subcommand=("add-authtoken",), operands=(0,))),
    ("ngrok", SecretArguments(subcommand=("authtoken",), operands=(0,))),
    ("wandb huggingface-cli hf railway sentry-cli", SecretArguments(subcommand=("login",), operands=(0,))),
    ("snyk codecov fossa", SecretArguments(subcommand=("auth",), operands=(0,))),
    ("consul", SecretArguments(subcommand=("set-agent-token",), operands=(1,))),
    ("gcloud", SecretArguments(subcommand=("activate-refresh-token",), operands=(-1,))),
    ("schtasks", SecretArguments(next_word_options=split_words("/rp"))),
    ("cmdkey", SecretArguments(prefixes=("/pass:",))),
    ("cloudflared", SecretArguments(subcommand=("service", "install"), operands=(0,))),
    ("mc mcli", SecretArguments(subcommand=("alias", "set"), operands=(3,), min_operands=4)),
    ("bw", SecretArguments(subcommand=("unlock",), operands=(0,))),
    ("bw", SecretArguments(subcommand=("login",), operands=(1,), min_operands=2)),
    ("rclone", SecretArguments(subcommand=("obscure",), operands=(0,))),
    ("pulumi", SecretArguments(subcommand=("config", "set"), operands=(1,), min_operands=2)),
    ("dscl", SecretArguments(subcommand=("-passwd",), operands=(-1,), min_operands=2)),
    ("set setx setenv", SecretArguments(are_named_values=True, max_operands=2)),
    ("convertto-securestring", SecretArguments(operands=(0,))),
    (_IMPACKET, SecretArguments(login_separator=":")),
    (_ATTACK_TOOLS, SecretArguments(value_options=split_words("-p"))),
    ("restic", SecretArguments(login_options=_login_options("--password-command", " "))),
)


def _group_by_program() -> Mapping[str, tuple[SecretArguments, ...]]:
    grouped: dict[str, tuple[SecretArguments, ...]] = {}
    for programs, arguments in _TABLE:
        for program in programs.split():
            grouped[program] = (*grouped.get(program, ()), arguments)
    return MappingProxyType(grouped)


BY_PROGRAM = _group_by_program()
