"""SQL, and the commands of the shells that send it.

A text is cut into tokens, so that names in strings, comments and quoted identifiers count for nothing, and
into statements. Only the beginning of a statement says what it does: `SELECT * FROM dropped_tables` drops
nothing. Dialects differ where a difference could hide a statement: in comments, in strings, and in what ends
one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shellverdict.foreign.nouns import Foreign, Found
from shellverdict.shell.words import GAP, Word
from shellverdict.verdict import Kind

__all__ = ["read_sql"]

_FAR = 4096  # how far a statement is looked for that runs a string set before
_DEEPEST = 4  # code in a string in code in a string…

_BACKSLASHES = frozenset({"mysql", "bigquery", "clickhouse", "hive", "snowflake"})
_HASHES = frozenset({"mysql", "bigquery"})


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # word, name, string, body, meta, mark
    text: str
    at: int

    @property
    def upper(self) -> str:
        return self.text.upper() if self.kind == "word" else ""


def _pattern(dialect: str) -> re.Pattern[str]:
    escaped = r"[^'\\]|\\.|''" if dialect in _BACKSLASHES else r"[^']|''"
    double = r'[^"\\]|\\.|""' if dialect in _BACKSLASHES else r'[^"]|""'
    dashes = r"--(?=\s|$)[^\n]*" if dialect == "mysql" else r"--[^\n]*"
    hashes = r"|\#[^\n]*" if dialect in _HASHES else ""
    live = r"(?P<live>/\*!\d*|\*/)|" if dialect == "mysql" else ""
    return re.compile(
        rf"{live}(?P<space>\s+|{dashes}{hashes}|/\*(?:.*?\*/|.*\Z))"
        rf"|(?P<string>[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)|[nNxXbBuU]?&?'(?:{escaped})*(?:'|\Z))"
        rf'|(?P<name>"(?:{double})*(?:"|\Z)|`[^`]*(?:`|\Z)|\[[^\[\]\n]*\])'
        r"|(?P<body>\$\$(?:.*?\$\$|.*\Z)|\$(?P<tag>[A-Za-z_]\w*)\$(?:.*?\$(?P=tag)\$|.*\Z))"
        r"|(?P<meta>\\[^\s\w;]|\\\w+)"
        rf"|(?P<word>[^\W\d][\w$@]*|{GAP}[\ufdd5-\ufdd8]*)"
        r"|(?P<mark>\d[\w.]*|[^\w\s'\"`\[$\\;/\-#]+|.)",
        re.DOTALL,
    )


_PATTERNS = {name: _pattern(name) for name in (*_BACKSLASHES, "other")}


def read_sql(code: Word, dialect: str) -> Foreign:
    """What a text of SQL statements and shell commands does."""
    found = Found()
    _read(code, dialect, found, 0)
    return found.foreign


def _read(code: str, dialect: str, found: Found, depth: int) -> None:
    if depth > _DEEPEST:
        found.unreadable(code)
        return
    if dialect in ("sqlite", "duckdb"):
        code = _dot_commands(code, found)
    elif dialect in ("mysql", "oracle"):
        code = _line_commands(code, dialect, found)
    for statement in _statements(code, dialect, found):
        _Statement(statement, code, dialect, found, depth).judge()


def _tokens(code: str, dialect: str) -> Iterator[_Token]:
    pattern = _PATTERNS.get(dialect, _PATTERNS["other"])
    for match in pattern.finditer(code):
        kind = match.lastgroup or "mark"
        if kind == "tag":
            kind = "body"
        if kind not in ("space", "live"):
            yield _Token(kind, match[0], match.start())


def _statements(code: str, dialect: str, found: Found) -> Iterator[list[_Token]]:
    """The statements, without the commands of the shell that stand between them."""
    statement: list[_Token] = []
    skip_to = 0
    for token in _tokens(code, dialect):
        if token.at < skip_to:
            continue
        if token.kind == "meta" and dialect in ("postgres", "mysql"):
            end = code.find("\n", token.at)
            skip_to = len(code) if end < 0 else end
            _meta_command(code[token.at : skip_to], dialect, found)
        elif token.text == ";" or (dialect == "mssql" and token.upper == "GO"):
            yield statement
            statement = []
        else:
            statement.append(token)
    yield statement


_META = re.compile(r"\\(!|[A-Za-z_]+)\s*(.*)", re.DOTALL)


def _meta_command(line: str, dialect: str, found: Found) -> None:
    """psql's and mysql's commands behind a backslash."""
    match = _META.match(line)
    if not match:
        return
    name, rest = match[1], match[2].strip()
    if (name == "!" and rest) or (dialect == "mysql" and name == "P" and rest):
        found.script(rest)
    elif dialect == "mysql" and name == "T" and rest:
        found.effect(Kind.OVERWRITE, rest)
    elif dialect == "postgres" and name in ("o", "out", "w", "write", "g", "gx"):
        _output(rest.rpartition(" ")[2] if name.startswith("g") and not rest.startswith("|") else rest, found)
    elif dialect == "postgres" and name == "copy":
        _copy_program(rest, found)
    elif dialect == "postgres" and name == "setenv":
        return


_PROGRAM = re.compile(r"\bprogram\s+'((?:[^']|'')*)'", re.IGNORECASE)


def _copy_program(text: str, found: Found) -> None:
    for match in _PROGRAM.finditer(text):
        found.script(match[1].replace("''", "'"))


def _output(target: str, found: Found) -> None:
    target = target.strip().strip("'\"")
    if target.startswith("|"):
        found.script(target[1:].strip())
    elif target and target not in ("stdout", "off", "on"):
        found.effect(Kind.OVERWRITE, target)


def _dot_commands(code: str, found: Found) -> str:
    """sqlite's commands stand on lines of their own that begin with a dot; the rest is SQL."""
    kept = []
    for line in code.split("\n"):
        if line.lstrip().startswith("."):
            _dot_command(line.strip(), found)
        else:
            kept.append(line)
    return "\n".join(kept)


def _dot_command(line: str, found: Found) -> None:
    name, _, rest = line[1:].partition(" ")
    rest = rest.strip()
    if not name or not rest:
        return
    if "system".startswith(name) or ("shell".startswith(name) and len(name) > 1):
        found.script(rest)
    elif len(name) > 1 and ("output".startswith(name) or "once".startswith(name)):
        _output(rest.rpartition(" ")[2] if not rest.startswith(("|", "'|", '"|')) else rest, found)
    elif name in ("import", "imp", "impo"):
        for part in re.findall(r"[\"']?\|([^\"']+)", rest):
            found.script(part)
    elif len(name) > 2 and "load".startswith(name):
        found.effect(Kind.RUN_UNREAD, rest.split()[0].strip("'\""), "unread")
    elif len(name) > 2 and ("backup".startswith(name) or "save".startswith(name) or "clone".startswith(name)):
        found.effect(Kind.OVERWRITE, rest.rpartition(" ")[2].strip("'\""))
    elif len(name) > 2 and "restore".startswith(name):
        found.effect(Kind.DATABASE, rest, "drop", detail=line[:80])


_MYSQL_LINE = re.compile(r"\s*(system|pager|nopager|tee|source)\b[ \t]*(.*)", re.IGNORECASE)
_ORACLE_LINE = re.compile(r"\s*(host?|spool|!)[ \t]*(.*)", re.IGNORECASE)


def _line_commands(code: str, dialect: str, found: Found) -> str:
    """`system rm x` (mysql), `HOST rm x` and `!rm x` (sqlplus): whole lines or statements."""
    pattern = _MYSQL_LINE if dialect == "mysql" else _ORACLE_LINE
    kept = []
    for line in code.split("\n"):
        match = pattern.match(line)
        if not match:
            kept.append(line)
            continue
        rest = match[2].strip().rstrip(";")
        if rest and match[1].lower() in ("system", "pager", "ho", "host", "hos", "!"):
            found.script(rest)
        elif rest and match[1].lower() in ("tee", "spool"):
            _output(rest, found)
    return "\n".join(kept)


_OPENERS = frozenset({"BEGIN", "THEN", "ELSE", "LOOP", "AS", "DECLARE", "DO", "START"})
_CALLS_SHELL = frozenset({"XP_CMDSHELL", "SYS_EXEC", "SYS_EVAL", "SYSTEM", "EXECUTE_COMMAND"})
_CALLS_SQL = frozenset({"SP_EXECUTESQL", "DBLINK_EXEC", "DBLINK", "EXECUTE_IMMEDIATE", "QUERY_TO_XML"})


def _opens(token: _Token) -> bool:
    return token.upper in _OPENERS or not token.text.strip("(")


class _Statement:
    """One statement: what its first words make of it."""

    def __init__(self, tokens: list[_Token], code: str, dialect: str, found: Found, depth: int) -> None:
        self.tokens, self.code, self.dialect, self.found, self.depth = tokens, code, dialect, found, depth
        self.prepares = "prepare" in code[:_FAR].lower() or "exec" in code[:_FAR].lower()

    def judge(self) -> None:
        at = 0
        while at < len(self.tokens) - 1 and _opens(self.tokens[at]):
            if self.tokens[at].upper == "DO" and self._bodies():
                return
            at += 1
        tokens = self.tokens[at:]
        if not tokens:
            return
        if tokens[0].kind == "word" and tokens[0].text.startswith(GAP):
            self.found.effect(Kind.UNREADABLE, tokens[0].text, detail="a statement that is not known")
            return
        self._by_first_word(tokens)
        self._calls(tokens)
        if self.dialect == "mssql":
            self._without_semicolons(tokens)

    def _bodies(self) -> bool:
        bodies = [t for t in self.tokens if t.kind in ("body", "string")]
        for token in bodies:
            _read(_inside(token), self.dialect, self.found, self.depth + 1)
        return bool(bodies)

    def _by_first_word(self, tokens: Sequence[_Token]) -> None:
        first = tokens[0].upper
        words = [token.upper for token in tokens]
        match first:
            case "DROP" if len(tokens) > 1:
                self._database("drop", tokens)
            case "TRUNCATE":
                self._database("truncate", tokens)
            case "DELETE" if _unbounded(tokens):
                self._database("delete-all", tokens)
            case "UPDATE" if "SET" in words and _unbounded(tokens):
                self._database("update-all", tokens)
            case "ALTER":
                self._alter(words, tokens)
            case "GRANT" if _generous(words):
                self._database("grant", tokens)
            case "CREATE" if {"USER", "ROLE", "LOGIN"} & set(words[1:4]) and "SUPERUSER" in words:
                self._database("grant", tokens)
            case "WITH" | "EXPLAIN" | "MERGE":
                self._nested(words, tokens)
            case "COPY" | "SELECT" | "UNLOAD":
                self._to_files(words, tokens)
            case "SET" if self.prepares:
                self._strings_as_code(tokens)
            case "EXEC" | "EXECUTE" | "PREPARE" | "CALL" | "EXEC_SQL":
                self._strings_as_code(tokens)
            case "RESET" | "PURGE" | "SHUTDOWN" | "FLUSHALL" | "WIPE" | "OPTIMIZE" | "DETACH":
                if first not in ("RESET", "OPTIMIZE", "DETACH") or words[1:2] in (
                    ["MASTER"],
                    ["REPLICA"],
                    ["SLAVE"],
                ):
                    self._database("drop", tokens)
            case "LOAD" if len(tokens) > 1 and tokens[1].kind == "string":
                self.found.effect(Kind.RUN_UNREAD, _inside(tokens[1]), "unread")
            case "INSTALL" | "UNDROP" | "VACUUM":
                return

    def _alter(self, words: Sequence[str], tokens: Sequence[_Token]) -> None:
        dropped = {"DROP", "DELETE", "TRUNCATE"} & set(words)
        if dropped or (words[1:2] == ["SYSTEM"] and "SET" in words):
            self._database("alter-drop", tokens)
        elif words[1:2] in (["USER"], ["ROLE"], ["LOGIN"]) and {"SUPERUSER", "PASSWORD", "IDENTIFIED"} & set(
            words
        ):
            self._database("grant", tokens)

    def _nested(self, words: Sequence[str], tokens: Sequence[_Token]) -> None:
        """`WITH gone AS (DELETE FROM users RETURNING *) SELECT …`, `EXPLAIN ANALYZE DELETE …` do it."""
        if words[0] == "EXPLAIN" and "ANALYZE" not in words[:6] and "ANALYSE" not in words[:6]:
            return
        for place in range(1, len(tokens) - 1):
            word, after = words[place], words[place + 1]
            if word in ("DELETE", "TRUNCATE", "DROP") and after in ("FROM", "TABLE", ""):
                trait = "delete-all"
            elif word == "UPDATE" and words[0] != "MERGE" and "SET" in words[place : place + 8]:
                trait = "update-all"
            else:
                continue
            if word not in ("DELETE", "UPDATE") or _unbounded(tokens[place:]):
                self._database(trait, tokens[place:])
            return

    def _to_files(self, words: Sequence[str], tokens: Sequence[_Token]) -> None:
        for place, word in enumerate(words[:-1]):
            following = tokens[place + 1]
            if following.kind != "string" and not following.text.startswith('"'):
                continue
            if word == "PROGRAM":
                self.found.script(_inside(following))
            elif word in ("OUTFILE", "DUMPFILE") or (word == "TO" and words[0] == "COPY"):
                self.found.effect(Kind.OVERWRITE, _inside(following))

    def _calls(self, tokens: Sequence[_Token]) -> None:
        for place, token in enumerate(tokens):
            name = token.upper
            if name in _CALLS_SHELL and (
                len(tokens) <= place + 1 or tokens[place + 1].kind != "mark" or name != "SYSTEM"
            ):
                for text in self._strings(tokens[place + 1 : place + 4]):
                    self.found.script(text)
            elif name in _CALLS_SHELL and self.dialect in ("postgres", "mssql", "mysql"):
                continue
            elif name in _CALLS_SQL:
                for text in self._strings(tokens[place + 1 : place + 8]):
                    _read(text, self.dialect, self.found, self.depth + 1)
            elif name in (
                "LO_EXPORT",
                "WRITEFILE",
                "PG_FILE_WRITE",
                "LOAD_EXTENSION",
                "PG_TERMINATE_BACKEND",
            ):
                self._function(name, self._strings(tokens[place + 1 : place + 6]), tokens)

    def _function(self, name: str, texts: Sequence[str], tokens: Sequence[_Token]) -> None:
        if name == "PG_TERMINATE_BACKEND":
            self._database("terminate", tokens)
        elif texts and name == "LOAD_EXTENSION":
            self.found.effect(Kind.RUN_UNREAD, texts[0], "unread")
        elif texts:
            self.found.effect(Kind.OVERWRITE, texts[0])

    def _strings(self, tokens: Sequence[_Token]) -> list[str]:
        return [_inside(token) for token in tokens if token.kind == "string"]

    def _strings_as_code(self, tokens: Sequence[_Token]) -> None:
        for token in tokens[:16]:
            if token.kind in ("string", "body"):
                _read(_inside(token), self.dialect, self.found, self.depth + 1)

    def _without_semicolons(self, tokens: Sequence[_Token]) -> None:
        """Transact-SQL needs no semicolon between statements."""
        for place in range(1, len(tokens) - 1):
            word, after = tokens[place].upper, tokens[place + 1].upper
            if (
                word == "DROP"
                and after in ("TABLE", "DATABASE", "SCHEMA", "VIEW", "PROCEDURE", "LOGIN", "USER")
            ) or (word == "TRUNCATE" and after == "TABLE"):
                self._database("drop", tokens[place:])
                return

    def _database(self, trait: str, tokens: Sequence[_Token]) -> None:
        last = tokens[min(len(tokens), 12) - 1]
        text = " ".join(self.code[tokens[0].at : last.at + len(last.text)][:200].split())
        name = next((t.text for t in tokens[1:] if t.kind in ("name", "word") and t.upper not in _NOISE), "")
        self.found.effect(Kind.DATABASE, name.strip('"`[]'), trait, detail=text)


_NOISE = frozenset(
    {
        *(
            "TABLE",
            "DATABASE",
            "SCHEMA",
            "FROM",
            "IF",
            "EXISTS",
            "ONLY",
            "INDEX",
            "VIEW",
            "ALL",
            "ON",
            "SET",
            "USER",
        ),
        *(
            "ROLE",
            "COLUMN",
            "SYSTEM",
            "TEMPORARY",
            "MATERIALIZED",
            "SEQUENCE",
            "FUNCTION",
            "TYPE",
            "KEYSPACE",
        ),
    }
)


def _inside(token: _Token) -> str:
    """The text of a string or of a body between dollars."""
    text = token.text
    if token.kind == "body":
        end = text.find("$", 1) + 1
        return text[end : len(text) - end] if end and text.endswith(text[:end]) else text[end:]
    quote = '"' if token.kind == "name" else "'"
    body = text[text.find(quote) + 1 :]
    return body.removesuffix(quote).replace(quote * 2, quote)


_ALWAYS_TRUE = re.compile(r"TRUE|1|(\S+) = \1|NOT FALSE", re.IGNORECASE)


def _unbounded(tokens: Sequence[_Token]) -> bool:
    """Whether every row is meant: there is no condition, or one that is always true."""
    at = next((place for place, token in enumerate(tokens) if token.upper == "WHERE"), None)
    if at is None:
        return True
    condition = " ".join(token.text for token in tokens[at + 1 : at + 5])
    return not condition or _ALWAYS_TRUE.fullmatch(condition) is not None


def _generous(words: Sequence[str]) -> bool:
    given = set(words)
    return bool(given & {"ALL", "SUPER", "PUBLIC", "SUPERUSER", "DBA", "OWNERSHIP"}) or (
        "OPTION" in given and bool(given & {"GRANT", "ADMIN"}) and "WITH" in given
    )
