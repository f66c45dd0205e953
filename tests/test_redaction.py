"""Secrets are redacted in all texts, other text stays readable, and the search is linear."""

from __future__ import annotations

import ast
import json
import re
import secrets
import string
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.redaction_corpus import LOOKALIKES, SPELLINGS
from tests.thorough import thorough_count, try_examples
from tests.timing import run_with_limit
from toolfold.safety.redaction import HIDDEN, Redaction
from toolfold.safety.redaction.commands import find_command_secrets
from toolfold.safety.redaction.secret_patterns import find_pattern_secrets

ROOT = Path(__file__).parents[1]
ALPHABET = string.ascii_letters + string.digits + " .,:;-_=+/%&\"'\\@#!\n\t\0é"
SECRETS = st.lists(
    st.text(ALPHABET, min_size=8, max_size=60).filter(lambda s: "\0" not in s), min_size=1, max_size=4
)


@try_examples(200)
@given(SECRETS, st.lists(st.text(ALPHABET, max_size=300), min_size=1, max_size=12), st.data())
def test_known_secrets_inserted_anywhere_in_a_text_are_all_redacted(
    secrets: list[str], pieces: list[str], data: st.DataObject
) -> None:
    text = ""
    for piece in pieces:
        text += piece + data.draw(st.sampled_from(secrets))
    redacted = Redaction(secrets, max_chars=400)(text)
    assert not any(secret in redacted for secret in secrets)


def test_no_part_of_a_known_secret_remains_in_text_truncated_within_the_secret() -> None:
    secret = "Kq7wZx3vT9nB2mLs8Yp4Rd6Hf1Jc5Gg0"
    parts = [secret[start : start + 6] for start in range(len(secret) - 6)]
    for before in range(260):
        redacted = Redaction([secret], max_chars=200)("x" * before + f" {secret}" * 200)
        assert len(redacted) <= 200 + len("… (cut)")
        assert not any(part in redacted for part in parts)


def test_secret_longer_than_the_length_limit_is_redacted() -> None:
    secret = "".join(f"{number:05}" for number in range(1000))
    redacted = Redaction([secret], max_chars=100)("the key was " + secret + " and more")
    assert redacted.startswith(f"the key was {HIDDEN}")
    assert "00001" not in redacted


def test_known_secret_is_redacted_in_text_with_thousands_of_null_characters() -> None:
    secret = "Kq7wZx3vT9nB"
    redacted = Redaction([secret])("\0".join(secret) + "\0" * 5000 + secret)
    assert secret not in redacted


def test_longer_secret_is_redacted_completely_if_another_secret_is_its_prefix() -> None:
    assert Redaction(["abcdefgh", "abcdefghijkl"])("abcdefghijkl") == HIDDEN


def test_empty_string_among_the_known_secrets_redacts_nothing() -> None:
    assert Redaction([""])("plain") == "plain"


def test_known_secret_that_contains_surrogate_characters_is_redacted() -> None:
    secret = b"caf\xe9-secret".decode("utf-8", "surrogateescape")
    assert secret not in Redaction([secret])(f"<{secret}>")


@check_cases("secret", ['pa"ss\\word\n1', "p@ss/w rd?&1", "geheim-ü-123"])
def test_known_secret_is_redacted_in_json_python_literals_and_urls(secret: str) -> None:
    redact = Redaction([secret])
    for spelling in (json.dumps({"k": secret}), repr([secret]), f"http://h/?q={quote(secret, safe='')}"):
        redacted = redact(spelling)
        assert HIDDEN in redacted
        assert json.dumps(secret)[1:-1] not in redacted
        assert repr(secret)[1:-1] not in redacted
        assert quote(secret, safe="") not in redacted


@check_cases(
    ("text", "token"),
    [
        ("key sk-abcdefghijklmnop1234 end", "sk-abcdefghijklmnop1234"),
        ("sk-proj-" + "a1B2" * 20, "a1B2"),
        ("ghp_" + "a" * 36, "aaaa"),
        ("github_pat_" + "b" * 40, "bbbb"),
        (f"user ann: tf_{secrets.token_urlsafe(32)}, made today", "tf_"),
        ("xoxb-123456789012-abcdef", "123456789012"),
        ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN7"),
        ("AIza" + "c" * 35, "cccc"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END", "MIIEpAIBAAKCAQEA"),
        ("Authorization: Bearer abc.def-ghi_jkl", "abc.def-ghi_jkl"),
        ("authorization: basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
        ("postgres://user:hunter22@db.example/x", "hunter22"),
        ("API_KEY=hunter22", "hunter22"),
        ("my_service_token: 'hunter22'", "hunter22"),
        ('{"password": "hunter22"}', "hunter22"),
        ("aws_secret_access_key = hunter22/x+y", "hunter22"),
        ('{"accessToken":"hunter22","apiKey":"hunter23"}', "hunter2"),
        ("https://h/path?api_key=hunter22&page=2", "hunter22"),
    ],
)
def test_token_of_a_known_format_is_redacted(text: str, token: str) -> None:
    redacted = Redaction()(text)
    assert token not in redacted
    assert HIDDEN in redacted


def test_text_around_a_redacted_token_is_unchanged() -> None:
    redacted = Redaction()("GET https://h/path?api_key=hunter22&page=2 failed: token: abcdef, try again")
    assert redacted == f"GET https://h/path?api_key={HIDDEN}&page=2 failed: token: {HIDDEN}, try again"


@check_cases(
    "text",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/keys/token.txt'",
        "max_tokens must be positive",
        "KeyError: 'monkey'",
        "the task-force asked for a token of friendship",
        "https://example.org:8080/a@b",
        "connect to db:5432 failed",
    ],
)
def test_ordinary_messages_are_not_changed_by_redaction(text: str) -> None:
    assert Redaction(["unrelated-secret"])(text) == text


@check_cases(
    "text",
    [
        "Set API_KEY and go on",
        "Set API_KEY first.",
        "set HASS_TOKEN, and homeassistant.url",
        "Set DB_PASSWORD in .env, then start again",
        "Set DAYTONA_API_KEY to a key from the dashboard.",
        "a gateway on another machine requires a token: create one there",
        "the next token: use `toolfold user disable`",
        "tiktoken: downloads its data on first use",
        "mcp.servers.git.env.GH_TOKEN contains a secret in plain text; toolfold config set x y",
        "toolfold credentials set tickets TOKEN --user ann",
        "the server has `credentials: per-user`.",
        "`--token VARIABLE` names an environment variable",
        "`--password=X` and `--password X`",
        "export ANTHROPIC_API_KEY=…",
        "http://127.0.0.1:8766/ui/#code=...",
        "def main(url: str, token: str) -> None:",
        'headers={"Authorization": f"Bearer {token}"}',
        '{"Authorization": "Bearer {env:SOME_TOKEN}"}',
        '{Authorization: "Bearer ${keyring:docs/my-token}"}',
        "`${user:TOKEN:-none}`.",
        "`WHERE token = ?`.",
        "--private-key= --key-file= --limit=",
        "PyJWT\n=====",
        'client = Client(api_key=os.environ.get("API_KEY"))',
    ],
)
def test_name_of_a_secret_without_a_value_is_not_changed_by_redaction(text: str) -> None:
    assert Redaction()(text) == text


@check_cases(
    "text",
    [
        "set API_KEY Hunter2xyz and go on",
        "SETX DB_PASSWORD Hunter2xyz",
        "set -gx DB_PASSWORD {s}",
        "my password: {s} thanks",
        "the token: {s}",
        "token: {s}, try again",
        "token: {s} user: bob",
        "token: {s}\nregion: north",
        "PASSWORD=${PASSWORD:-{s}}",
        "PASSWORD=${PASSWORD-{s}}",
    ],
)
def test_value_beside_prose_or_in_a_default_is_redacted(text: str) -> None:
    for secret in ("Hunter2xyz", "swordfish"):
        assert secret not in Redaction()(text.replace("{s}", secret))


def test_no_sentence_of_the_documentation_and_no_message_is_changed_by_redaction() -> None:
    redact = Redaction(max_chars=100_000)
    sentences = {*_read_sentences(), *_read_messages()}
    assert len(sentences) > 10_000
    assert [each for each in sentences if HIDDEN in redact(each) and HIDDEN not in each] == []


def _read_sentences() -> Iterator[str]:
    for file in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"):
        for paragraph in file.read_text("utf-8").split("\n\n"):
            yield from re.split(r"(?<=[.!?:])\s+(?=[A-Z`*])", paragraph)


def _read_messages() -> Iterator[str]:
    """Yield the strings in Toolfold's code, with `{name}` for the values in them."""
    for file in (ROOT / "src" / "toolfold").rglob("*.py"):
        if file.parent.name == "redaction":  # tables of programs
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield node.value
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(each.value) if isinstance(each, ast.Constant) else "{name}" for each in node.values
                )


@check_cases(
    "command",
    [
        "token=\"rm -rf docs\" sh -c '$token'",
        'password="rm -rf ~/docs"; $password',
        'password="rm -rf docs" && ${password}',
        "password='rm -rf docs'; eval \"$password\"",
        'token="rm -rf docs"; bash -c "$token"',
        'echo "rm -rf docs" | sudo -S sh',
        'echo "rm -rf docs" | sudo -u root -S bash -s',
        'sudo -S sh <<< "rm -rf docs"',
        "sudo -S bash <<E\nrm -rf docs\nE",
        'alias password="rm -rf docs"',
        "token=\nrm -rf docs",
    ],
)
def test_executed_command_that_looks_like_a_password_or_token_is_not_redacted(
    command: str,
) -> None:
    assert Redaction()(command) == command


@check_cases(
    "command",
    [
        "echo hunter22x | sudo -S apt update",
        "echo hunter22x | sudo -S apt install bash",
        "echo hunter22x | sudo -S -u bob ls",
        'echo hunter22x | sudo -S sh -c "apt update"',
        "echo hunter22x | sudo -S sh install.sh",
        "password=hunter22x; curl -u a:$password https://x.example",
        "token=hunter22x sh -c 'curl -H \"X: $token\" https://x.example'",
        'password=hunter22x; mysql --password "$password"',
        "alias db='mysql -phunter22x shop'",
        "password==hunter22x",
        'if password == "hunter22x":',
        "password=hunter22x(3)",
    ],
)
def test_password_passed_to_a_program_in_a_command_is_redacted(
    command: str,
) -> None:
    assert "hunter22x" not in Redaction()(command)


def test_no_part_of_a_token_remains_in_text_truncated_within_the_token() -> None:
    for before in range(40, 60):
        redacted = Redaction(max_chars=60)("x" * before + " sk-" + "Zq9" * 40)
        assert "Zq9" not in redacted


def test_contains_secret_searches_the_whole_text() -> None:
    redact = Redaction(["Kq7wZx3vT9nB"], max_chars=10)
    assert redact.contains_secret("x" * 5_000 + "Kq7wZx3vT9nB")
    assert redact.contains_secret("Kq7w\0Zx3vT9nB")
    assert redact.contains_secret("token=hunter22")
    assert not redact.contains_secret("x" * 5_000)


def test_redacting_known_secrets_twice_returns_the_same_text() -> None:
    redact = Redaction(["Kq7wZx3vT9nB"])
    once = redact("password=Kq7wZx3vT9nB and Bearer Kq7wZx3vT9nB")
    assert redact(once) == once
    assert "Kq7" not in once


@check_cases(
    "piece",
    ["a", "a_", "a-", "eyJ-", "eyJaaaaaaaa.", "sk-", "token", "token=", "bearer ", "a://", "a://b:",
     "-----BEGIN ", "password'", "-----BEGIN PRIVATE KEY-----", "AKIA", " ", "\0", "secret_secret_", ":@"],
)  # fmt: skip
def test_redaction_of_a_megabyte_of_adversarial_text_ends_within_the_time_limit(piece: str) -> None:
    redact = Redaction([f"secret-number-{number}" for number in range(50)])
    text = piece * (1_000_000 // len(piece))
    redacted = run_with_limit(lambda: redact(text))
    assert len(redacted) < 2_100


def test_redaction_truncates_long_text_and_marks_the_cut() -> None:
    assert Redaction(max_chars=10)("abcdefghijklmno") == "abcdefghij… (cut)"
    assert Redaction(max_chars=10)("abcdefghij") == "abcdefghij"


@check_cases("spelling", SPELLINGS)
def test_secret_is_redacted_in_each_of_300_spellings_in_commands_and_texts(spelling: str) -> None:
    for secret in ("Hunter2xyz", "p4ss!word+1"):
        text = spelling.replace("{s}", secret)
        redacted = Redaction(max_chars=20_000)(text)
        assert secret not in redacted
        assert HIDDEN in redacted
        assert redacted.split()[0] in text or HIDDEN in redacted.split()[0]


def test_redaction_test_data_has_at_least_300_texts_with_secrets_and_120_lookalikes() -> None:
    assert len(set(SPELLINGS)) >= 300
    assert len(set(LOOKALIKES)) >= 120


@check_cases("text", LOOKALIKES)
def test_text_that_only_looks_like_a_secret_is_not_redacted(text: str) -> None:
    assert Redaction(max_chars=20_000)(text) == text


@check_cases(
    ("command", "redacted"),
    [
        ("mysql -uroot -pHunter2 shop; rm -rf ~", f"mysql -uroot -p{HIDDEN} shop; rm -rf ~"),
        ("curl -u alice:Hunter2 https://x/", f"curl -u alice:{HIDDEN} https://x/"),
        ("curl --user 'alice:Hunter2' https://x/", f"curl --user 'alice:{HIDDEN}' https://x/"),
        ("echo Hunter2 | sudo -S rm -rf /srv", f"echo {HIDDEN} | sudo -S rm -rf /srv"),
        ("API_TOKEN=Hunter2 ./deploy.sh --all", f"API_TOKEN={HIDDEN} ./deploy.sh --all"),
        ("docker login -p 'two words' reg", f"docker login -p {HIDDEN} reg"),
        ("sudo -S id <<EOF\nHunter2\nEOF\nls", f"sudo -S id <<EOF\n{HIDDEN}\nEOF\nls"),
        ("smbclient -U 'bob%Hunter2' //s/c", f"smbclient -U 'bob%{HIDDEN}' //s/c"),
    ],
)
def test_redaction_removes_only_the_secret_from_a_command(command: str, redacted: str) -> None:
    assert Redaction()(command) == redacted


@check_cases(
    "command",
    [
        'PASSWORD="$(rm -rf ~/work)" make',
        "mysql -p$(rm -rf ~/work) shop",
        "TOKEN=`rm -rf ~/work` make",
        'curl -u "a:$(rm -rf ~/work)" https://x',
        "echo $(rm -rf ~/work) | sudo -S true",
    ],
)
def test_command_substitution_used_as_a_password_or_token_value_is_not_redacted(command: str) -> None:
    assert "rm -rf ~/work" in Redaction()(command)


FRAGMENTS = st.sampled_from(
    [*"'\"\\|;&()<>`$=: \n\t", "<<EOF\n", "\nEOF\n", "<<<", "$(", "mysql", "-p", "-pX1", "curl", "-u", "a:b",
     "--password", "echo", "sudo", "-S", "TOKEN=", "password: ", "http://a:b@c",
     "Bearer ", "?key=", "Authorization: ", HIDDEN,
     "sk-" + "a" * 20,
     "docker login", "--password-stdin", "vault kv put", "k=v", "… (cut)", "[redac"]
)  # fmt: skip


@try_examples(1_000)
@given(
    st.lists(st.one_of(FRAGMENTS, st.text(ALPHABET, max_size=6)), max_size=40),
    st.sampled_from([30, 200, 5_000]),
)
def test_redacting_arbitrary_text_twice_returns_the_same_text(pieces: list[str], max_chars: int) -> None:
    redact = Redaction(max_chars=max_chars)
    once = redact("".join(pieces))
    assert redact(once) == once
    assert len(once) <= max_chars + len("… (cut)")


@check_cases(
    "piece",
    ["'", '"', "\\", "\\\"", "<<", "<<E\n", "<<E ", "$(", "`", "mysql -p ", "mysql ", "echo | sudo -S ",
     "vault put ",
     "a=", "token=token=",
     "-p", "'\"", "\"'", "' \" ", "curl -u a:", "auth=('", "?key", "?key=",
     "<password>", "password '", "a:b@", "cookie:a=b;", "env:",
     "echo x|sudo -S|", "login "]
)  # fmt: skip
def test_redaction_of_an_adversarial_command_ends_within_the_time_limit(piece: str) -> None:
    text = piece * (thorough_count(400_000, 25_000) // len(piece))
    redacted = run_with_limit(lambda: Redaction(max_chars=20_000)(text))
    assert len(redacted) < 20_100


@given(st.from_regex(r"[A-Za-z0-9]{0,15}", fullmatch=True))
def test_no_secret_is_found_in_a_word_of_up_to_15_letters_and_digits(word: str) -> None:
    """Short words are not searched, so no search may find a secret in one."""
    assert not [*find_pattern_secrets(word), *find_command_secrets(word)]


def test_known_secret_of_seven_letters_is_redacted() -> None:
    assert Redaction(["hunter2"])("hunter2") == HIDDEN
