"""Analyze SQL statements and the commands of SQL shells such as psql and sqlite3.

The text is split into tokens, so that words in strings, comments and quoted identifiers are ignored, and into
statements. Only the first words of a statement decide what it does: `SELECT * FROM dropped_tables` drops
nothing. Dialects are distinguished where a difference could hide a statement: comments, strings and statement
separators.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shellverdict.embedded_code.analysis import AnalysisBuilder, CodeAnalysis
from shellverdict.shell.words import GAP, Word
from shellverdict.verdict import EffectKind

__all__ = ["analyze_sql"]

_MAX_PREPARE_CHARS = 4096  # searched for a statement that runs a string variable
_MAX_DEPTH = 4  # code in strings in code

_BACKSLASH_DIALECTS = frozenset({"mysql", "bigquery", "clickhouse", "hive", "snowflake"})
_HASH_COMMENT_DIALECTS = frozenset({"mysql", "bigquery"})


@dataclass(frozen=True, slots=True)
class _SqlToken:
    kind: str  # word, name, string, body, meta, mark
    text: str
    at: int

    @property
    def upper(self) -> str:
        return self.text.upper() if self.kind == "word" else ""


def _build_pattern(dialect: str) -> re.Pattern[str]:
    """Return the regular expression for the tokens of an SQL dialect."""
    escaped = r"[^'\\]|\\.|''" if dialect in _BACKSLASH_DIALECTS else r"[^']|''"
    double = r'[^"\\]|\\.|""' if dialect in _BACKSLASH_DIALECTS else r'[^"]|""'
    dashes = r"--(?=\s|$)[^\n]*" if dialect == "mysql" else r"--[^\n]*"
    hashes = r"|\#[^\n]*" if dialect in _HASH_COMMENT_DIALECTS else ""
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


_PATTERNS = {name: _build_pattern(name) for name in (*_BACKSLASH_DIALECTS, "other")}


def analyze_sql(code: Word, dialect: str) -> CodeAnalysis:
    """Return the effects of SQL statements, and of the commands of SQL shells such as psql."""
    analysis = AnalysisBuilder()
    _analyze_statements(code, dialect, analysis, 0)
    return analysis.build()


def _analyze_statements(code: str, dialect: str, analysis: AnalysisBuilder, depth: int) -> None:
    if depth > _MAX_DEPTH:
        analysis.add_unreadable(code)
        return
    if dialect in ("sqlite", "duckdb"):
        code = _take_dot_commands(code, analysis)
    elif dialect in ("mysql", "oracle"):
        code = _take_line_commands(code, dialect, analysis)
    for statement in _split_statements(code, dialect, analysis):
        _SqlStatement(statement, code, dialect, analysis, depth).analyze()


def _tokenize_sql(code: str, dialect: str) -> Iterator[_SqlToken]:
    pattern = _PATTERNS.get(dialect, _PATTERNS["other"])
    for match in pattern.finditer(code):
        kind = match.lastgroup or "mark"
        if kind == "tag":
            kind = "body"
        if kind not in ("space", "live"):
            yield _SqlToken(kind, match[0], match.start())


def _split_statements(code: str, dialect: str, analysis: AnalysisBuilder) -> Iterator[list[_SqlToken]]:
    """Yield the tokens of each SQL statement; add SQL shell commands between them to `analysis`."""
    statement: list[_SqlToken] = []
    skip_to = 0
    for token in _tokenize_sql(code, dialect):
        if token.at < skip_to:
            continue
        if token.kind == "meta" and dialect in ("postgres", "mysql"):
            end = code.find("\n", token.at)
            skip_to = len(code) if end < 0 else end
            _add_meta_command(code[token.at : skip_to], dialect, analysis)
        elif token.text == ";" or (dialect == "mssql" and token.upper == "GO"):
            yield statement
            statement = []
        else:
            statement.append(token)
    yield statement


_META = re.compile(r"\\(!|[A-Za-z_]+)\s*(.*)", re.DOTALL)


def _add_meta_command(line: str, dialect: str, analysis: AnalysisBuilder) -> None:
    """Add the effect of a backslash command of psql or mysql (`\\! rm x`) to `analysis`."""
    match = _META.match(line)
    if not match:
        return
    name, rest = match[1], match[2].strip()
    if (name == "!" and rest) or (dialect == "mysql" and name == "P" and rest):
        analysis.add_script(rest)
    elif dialect == "mysql" and name == "T" and rest:
        analysis.add_effect(EffectKind.OVERWRITE, rest)
    elif dialect == "postgres" and name in ("o", "out", "w", "write", "g", "gx"):
        _add_output(
            rest.rpartition(" ")[2] if name.startswith("g") and not rest.startswith("|") else rest, analysis
        )
    elif dialect == "postgres" and name == "copy":
        _add_copy_program(rest, analysis)
    elif dialect == "postgres" and name == "setenv":
        return


_PROGRAM = re.compile(r"\b(to\s+)?program\s+'((?:[^']|'')*)'", re.IGNORECASE)


def _add_copy_program(text: str, analysis: AnalysisBuilder) -> None:
    for match in _PROGRAM.finditer(text):
        _add_program(match[2].replace("''", "'"), bool(match[1]), analysis)


def _add_program(program: str, gets_rows: bool, analysis: AnalysisBuilder) -> None:
    """Add a program that `COPY` starts; `COPY … TO` feeds it with rows, which may be commands."""
    analysis.add_script(f"cat rows | {program}" if gets_rows else program)


def _add_output(target: str, analysis: AnalysisBuilder) -> None:
    target = target.strip().strip("'\"")
    if target.startswith("|"):
        analysis.add_script(target[1:].strip())
    elif target and target not in ("stdout", "off", "on"):
        analysis.add_effect(EffectKind.OVERWRITE, target)


def _take_dot_commands(code: str, analysis: AnalysisBuilder) -> str:
    """Add sqlite's dot commands (`.shell rm x`) to `analysis` and return the other lines."""
    sql_lines = []
    for line in code.split("\n"):
        if line.lstrip().startswith("."):
            _add_dot_command(line.strip(), analysis)
        else:
            sql_lines.append(line)
    return "\n".join(sql_lines)


def _add_dot_command(line: str, analysis: AnalysisBuilder) -> None:
    name, _, rest = line[1:].partition(" ")
    rest = rest.strip()
    if not name or not rest:
        return
    if "system".startswith(name) or ("shell".startswith(name) and len(name) > 1):
        analysis.add_script(rest)
    elif len(name) > 1 and ("output".startswith(name) or "once".startswith(name)):
        _add_output(rest.rpartition(" ")[2] if not rest.startswith(("|", "'|", '"|')) else rest, analysis)
    elif name in ("import", "imp", "impo"):
        for part in re.findall(r"[\"']?\|([^\"']+)", rest):
            analysis.add_script(part)
    elif len(name) > 2 and "load".startswith(name):
        analysis.add_effect(EffectKind.RUN_UNREAD, rest.split()[0].strip("'\""), "unread")
    elif len(name) > 2 and ("backup".startswith(name) or "save".startswith(name) or "clone".startswith(name)):
        analysis.add_effect(EffectKind.OVERWRITE, rest.rpartition(" ")[2].strip("'\""))
    elif len(name) > 2 and "restore".startswith(name):
        analysis.add_effect(EffectKind.DATABASE, rest, "drop", detail=line[:80])


_MYSQL_LINE = re.compile(r"\s*(system|pager|nopager|tee|source)\b[ \t]*(.*)", re.IGNORECASE)
_ORACLE_LINE = re.compile(r"\s*(host?|spool|!)[ \t]*(.*)", re.IGNORECASE)


def _take_line_commands(code: str, dialect: str, analysis: AnalysisBuilder) -> str:
    """Add the shell commands that SQL clients run, such as `system rm x` in mysql, to the analysis.

    Return the other lines.
    """
    pattern = _MYSQL_LINE if dialect == "mysql" else _ORACLE_LINE
    sql_lines = []
    for line in code.split("\n"):
        match = pattern.match(line)
        if not match:
            sql_lines.append(line)
            continue
        rest = match[2].strip().rstrip(";")
        if rest and match[1].lower() in ("system", "pager", "ho", "host", "hos", "!"):
            analysis.add_script(rest)
        elif rest and match[1].lower() in ("tee", "spool"):
            _add_output(rest, analysis)
    return "\n".join(sql_lines)


_OPENERS = frozenset({"BEGIN", "THEN", "ELSE", "LOOP", "AS", "DECLARE", "DO", "START"})
_CALLS_SHELL = frozenset({"XP_CMDSHELL", "SYS_EXEC", "SYS_EVAL", "SYSTEM", "EXECUTE_COMMAND"})
_CALLS_SQL = frozenset({"SP_EXECUTESQL", "DBLINK_EXEC", "DBLINK", "EXECUTE_IMMEDIATE", "QUERY_TO_XML"})


def _opens_block(token: _SqlToken) -> bool:
    """Return True if an SQL token, such as BEGIN, only opens a block, so that a statement follows it."""
    return token.upper in _OPENERS or not token.text.strip("(")


class _SqlStatement:
    """One SQL statement, classified by its first words."""

    def __init__(
        self, tokens: list[_SqlToken], code: str, dialect: str, analysis: AnalysisBuilder, depth: int
    ) -> None:
        self.tokens, self.code, self.dialect, self.analysis, self.depth = (
            tokens,
            code,
            dialect,
            analysis,
            depth,
        )
        self.prepares = (
            "prepare" in code[:_MAX_PREPARE_CHARS].lower() or "exec" in code[:_MAX_PREPARE_CHARS].lower()
        )

    def analyze(self) -> None:
        at = 0
        while at < len(self.tokens) - 1 and _opens_block(self.tokens[at]):
            if self.tokens[at].upper == "DO" and self._analyze_bodies():
                return
            at += 1
        tokens = self.tokens[at:]
        if not tokens:
            return
        if tokens[0].kind == "word" and tokens[0].text.startswith(GAP):
            self.analysis.add_effect(EffectKind.UNREADABLE, tokens[0].text, detail="an unknown SQL statement")
            return
        self._analyze_first_word(tokens)
        self._add_function_calls(tokens)
        if self.dialect == "mssql":
            self._add_unseparated_drops(tokens)

    def _analyze_bodies(self) -> bool:
        bodies = [t for t in self.tokens if t.kind in ("body", "string")]
        for token in bodies:
            _analyze_statements(_unquote_token(token), self.dialect, self.analysis, self.depth + 1)
        return bool(bodies)

    def _analyze_first_word(self, tokens: Sequence[_SqlToken]) -> None:
        first = tokens[0].upper
        words = [token.upper for token in tokens]
        match first:
            case "DROP" if len(tokens) > 1:
                self._add_database_effect("drop", tokens)
            case "TRUNCATE":
                self._add_database_effect("truncate", tokens)
            case "DELETE" if _affects_every_row(tokens):
                self._add_database_effect("delete-all", tokens)
            case "UPDATE" if "SET" in words and _affects_every_row(tokens):
                self._add_database_effect("update-all", tokens)
            case "ALTER":
                self._add_alter(words, tokens)
            case "GRANT" | "REVOKE" if _grants_broadly(words):
                self._add_database_effect("grant", tokens)
            case "CREATE" if {"USER", "ROLE", "LOGIN"} & set(words[1:4]) and "SUPERUSER" in words:
                self._add_database_effect("grant", tokens)
            case "WITH" | "EXPLAIN" | "MERGE":
                self._add_nested(words, tokens)
            case "COPY" | "SELECT" | "UNLOAD":
                self._add_file_outputs(words, tokens)
            case "SET" if self.prepares:
                self._analyze_strings(tokens)
            case "EXEC" | "EXECUTE" | "PREPARE" | "CALL" | "EXEC_SQL":
                self._analyze_strings(tokens)
            case "RESET" | "PURGE" | "SHUTDOWN" | "FLUSHALL" | "WIPE" | "OPTIMIZE" | "DETACH":
                if first not in ("RESET", "OPTIMIZE", "DETACH") or words[1:2] in (
                    ["MASTER"],
                    ["REPLICA"],
                    ["SLAVE"],
                ):
                    self._add_database_effect("drop", tokens)
            case "LOAD" if len(tokens) > 1 and tokens[1].kind == "string":
                self.analysis.add_effect(EffectKind.RUN_UNREAD, _unquote_token(tokens[1]), "unread")
            case "INSTALL" | "UNDROP" | "VACUUM":
                return

    def _add_alter(self, words: Sequence[str], tokens: Sequence[_SqlToken]) -> None:
        dropped = {"DROP", "DELETE", "TRUNCATE"} & set(words)
        if dropped or (words[1:2] == ["SYSTEM"] and "SET" in words):
            self._add_database_effect("alter-drop", tokens)
        elif words[1:2] in (["USER"], ["ROLE"], ["LOGIN"]) and {"SUPERUSER", "PASSWORD", "IDENTIFIED"} & set(
            words
        ):
            self._add_database_effect("grant", tokens)

    def _add_nested(self, words: Sequence[str], tokens: Sequence[_SqlToken]) -> None:
        """Add the effects of nested statements: `WITH x AS (DELETE FROM users …) SELECT …`."""
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
            if word not in ("DELETE", "UPDATE") or _affects_every_row(tokens[place:]):
                self._add_database_effect(trait, tokens[place:])
            return

    def _add_file_outputs(self, words: Sequence[str], tokens: Sequence[_SqlToken]) -> None:
        for place, word in enumerate(words[:-1]):
            following = tokens[place + 1]
            if following.kind != "string" and not following.text.startswith('"'):
                continue
            if word == "PROGRAM":
                _add_program(_unquote_token(following), words[place - 1] == "TO", self.analysis)
            elif word in ("OUTFILE", "DUMPFILE") or (word == "TO" and words[0] == "COPY"):
                self.analysis.add_effect(EffectKind.OVERWRITE, _unquote_token(following))

    def _add_function_calls(self, tokens: Sequence[_SqlToken]) -> None:
        for place, token in enumerate(tokens):
            name = token.upper
            if name in _CALLS_SHELL and (
                len(tokens) <= place + 1 or tokens[place + 1].kind != "mark" or name != "SYSTEM"
            ):
                for text in self._string_texts(tokens[place + 1 : place + 4]):
                    self.analysis.add_script(text)
            elif name in _CALLS_SHELL and self.dialect in ("postgres", "mssql", "mysql"):
                continue
            elif name in _CALLS_SQL:
                for text in self._string_texts(tokens[place + 1 : place + 8]):
                    _analyze_statements(text, self.dialect, self.analysis, self.depth + 1)
            elif name in (
                "LO_EXPORT",
                "WRITEFILE",
                "PG_FILE_WRITE",
                "LOAD_EXTENSION",
                "PG_TERMINATE_BACKEND",
            ):
                self._add_function_call(name, self._string_texts(tokens[place + 1 : place + 6]), tokens)

    def _add_function_call(self, name: str, texts: Sequence[str], tokens: Sequence[_SqlToken]) -> None:
        if name == "PG_TERMINATE_BACKEND":
            self._add_database_effect("terminate", tokens)
        elif texts and name == "LOAD_EXTENSION":
            self.analysis.add_effect(EffectKind.RUN_UNREAD, texts[0], "unread")
        elif texts:
            self.analysis.add_effect(EffectKind.OVERWRITE, texts[0])

    def _string_texts(self, tokens: Sequence[_SqlToken]) -> list[str]:
        return [_unquote_token(token) for token in tokens if token.kind == "string"]

    def _analyze_strings(self, tokens: Sequence[_SqlToken]) -> None:
        for token in tokens[:16]:
            if token.kind in ("string", "body"):
                _analyze_statements(_unquote_token(token), self.dialect, self.analysis, self.depth + 1)

    def _add_unseparated_drops(self, tokens: Sequence[_SqlToken]) -> None:
        """Add the effects of DROP and TRUNCATE without a semicolon before them, which Transact-SQL allows."""
        for place in range(1, len(tokens) - 1):
            word, after = tokens[place].upper, tokens[place + 1].upper
            if (
                word == "DROP"
                and after in ("TABLE", "DATABASE", "SCHEMA", "VIEW", "PROCEDURE", "LOGIN", "USER")
            ) or (word == "TRUNCATE" and after == "TABLE"):
                self._add_database_effect("drop", tokens[place:])
                return

    def _add_database_effect(self, trait: str, tokens: Sequence[_SqlToken]) -> None:
        last = tokens[min(len(tokens), 12) - 1]
        text = " ".join(self.code[tokens[0].at : last.at + len(last.text)][:200].split())
        name = next(
            (t.text for t in tokens[1:] if t.kind in ("name", "word") and t.upper not in _SKIPPED_WORDS), ""
        )
        self.analysis.add_effect(EffectKind.DATABASE, name.strip('"`[]'), trait, detail=text)


_SKIPPED_WORDS = frozenset(
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


def _unquote_token(token: _SqlToken) -> str:
    """Return the content of an SQL string, quoted name or dollar-quoted body."""
    text = token.text
    if token.kind == "body":
        end = text.find("$", 1) + 1
        return text[end : len(text) - end] if end and text.endswith(text[:end]) else text[end:]
    quote = '"' if token.kind == "name" else "'"
    body = text[text.find(quote) + 1 :]
    return body.removesuffix(quote).replace(quote * 2, quote)


_ALWAYS_TRUE = re.compile(r"TRUE|1|(\S+) = \1|NOT FALSE", re.IGNORECASE)


def _affects_every_row(tokens: Sequence[_SqlToken]) -> bool:
    """Return True if an SQL statement has no WHERE condition, or one that is always true."""
    at = next((place for place, token in enumerate(tokens) if token.upper == "WHERE"), None)
    if at is None:
        return True
    condition = " ".join(token.text for token in tokens[at + 1 : at + 5])
    return not condition or _ALWAYS_TRUE.fullmatch(condition) is not None


def _grants_broadly(words: Sequence[str]) -> bool:
    """Return True if a GRANT gives all privileges, superuser rights or the right to grant privileges."""
    unique_words = set(words)
    return bool(unique_words & {"ALL", "SUPER", "PUBLIC", "SUPERUSER", "DBA", "OWNERSHIP"}) or (
        "OPTION" in unique_words and bool(unique_words & {"GRANT", "ADMIN"}) and "WITH" in unique_words
    )
