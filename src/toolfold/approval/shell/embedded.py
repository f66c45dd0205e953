"""Commands inside text that is not shell code itself: settings files, option values, other languages' strings.

Nobody can list every program that runs a part of its arguments, of its input or of a file. Where such text holds what
would be a harmful command, and a program that is not known to treat text as mere text may see it, the command is
judged as if it were run. Only the judge knows what is harmful; this module finds the candidates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from toolfold.approval.names import names
from toolfold.approval.shell.runs import Run, Stream
from toolfold.approval.shell.words import GAP, Word

__all__ = ["Planted", "calls_indirectly", "embedded_commands", "holds_command", "language_of", "words_that_may_run"]

MAX_CANDIDATES = 24  # commands that are judged for one text
MAX_CANDIDATE_LENGTH = 512
MAX_TEXT_LENGTH = 16_384

_START = re.compile(
    r"(?<![\w./$~-])(?:/(?:usr/)?(?:local/)?s?bin/)?"
    r"(?:rm|unlink|shred|srm|wipefs|dd|mkfs(?:\.\w+)?|truncate|chmod|chown|find|xargs|curl|wget|nc|ncat|socat|scp|rsync"
    r"|sudo|shutdown|reboot|poweroff|crontab|kill|killall|pkill|bash|sh|eval|tee|mv|cp)"
    r"(?=(?:\\?[ \t]|[\"'],|,|\$\{IFS\}|%20))"
)
_LIST_SEPARATOR = re.compile(r"[\"']\s*,\s*(?:\w{1,20}[\s(]\s*)?[\"']")
_BLANK = re.compile(r"\\[ \t]|\$\{IFS\}|%20|\\t")
_END = re.compile(r"[\"'`)}\]>\n;|&#\\]")

# Programs to which words are text: they print, search, compare or send them, or read them by rules of their own.
_TEXT_PROGRAMS = names(
    "echo printf cat tac head tail less more bat grep egrep fgrep zgrep rg ag ack cut sort uniq tr wc diff cmp comm "
    "sdiff colordiff jq yq gron ls ll stat file touch mkdir cd pushd popd read test [ [[ : true false export declare "
    "typeset local readonly set unset logger wall write notify-send say espeak figlet cowsay man info tldr cheat "
    "apropos whatis which type git gh glab hub svn hg jj curl wget http https xh httpie mail mailx mutt sendmail "
    "osascript R Rscript sed awk gawk mawk nawk toolfold "
    "ed vi vim nvim nano emacs code psql mysql mariadb mongosh redis-cli duckdb docker podman nerdctl kubectl oc ssh "
    "claude codex aider gemini llm ollama todo jrnl basename dirname realpath xclip pbcopy wl-copy column fold fmt "
    "nl rev tee sponge date sleep seq yes expr bc let alias trap history sh bash zsh dash ksh rbash pwsh "
    "zenity dialog whiptail kdialog rofi dmenu fzf envsubst base64 md5sum sha256sum xxd od hexdump strings gpg pass "
    "aws gcloud az terraform helm slack shellcheck explainshell npm pnpm yarn pip uv cargo go pytest jest vitest"
)
_INTERPRETERS = names("python pypy ipython node deno bun perl ruby php lua tclsh expect julia fish")
# Of these, some run nothing of a file; all the others may run or load a file that was just written.
_RUNS_NO_FILE = names(
    "echo printf cat tac head tail less more bat grep egrep fgrep zgrep rg ag ack cut sort uniq tr wc diff cmp comm "
    "sdiff colordiff jq yq gron ls ll tree stat file touch mkdir cd pushd popd read test [ [[ : true false export "
    "declare typeset local readonly set unset logger man info which type basename dirname realpath readlink date sleep "
    "seq yes expr bc let alias trap history column fold fmt nl rev tee sponge cp mv ln rm rmdir chmod chown mktemp "
    "base64 md5sum sha1sum sha256sum sha512sum xxd od hexdump strings gpg envsubst shellcheck shfmt ruff black mypy "
    "flake8 isort prettier yamllint markdownlint hadolint gh glab hub code nano docker podman nerdctl kubectl oc helm "
    "aws gcloud az terraform psql mysql mariadb redis-cli curl wget kill wait return exit break continue shift du df "
    "ps id whoami hostname uname env printenv pwd tar zip gzip gunzip unzip xz split csplit install dd sed paste "
    "join tput clear open xdg-open pbcopy xclip"
)
_DOCUMENTS = (".md", ".rst", ".adoc", ".html", ".htm", ".txt", ".tex", ".css", ".svg", ".csv", ".log", ".jsonl")
_BUILT_ELSEWHERE = re.compile(r"(?:.*/)?(?:(?:Docker|Container)file[\w.-]*|[\w.-]+\.dockerfile)\Z", re.IGNORECASE)
_LANGUAGES = {
    ".py": "python",
    ".pth": "python",
    ".js": "node",
    ".mjs": "node",
    ".cjs": "node",
    ".rb": "ruby",
    ".pl": "perl",
    ".pm": "perl",
    ".t": "perl",
    ".php": "php",
    ".lua": "lua",
    ".tcl": "tcl",
    ".exp": "tcl",
    ".awk": "awk",
    ".vim": "vim",
    ".mk": "make",
    ".sed": "sed",
    ".ts": "node",
    ".tsx": "node",
    ".jsx": "node",
    ".mts": "node",
    ".go": "go",
    ".c": "c",
    ".h": "c",
    ".cc": "c",
    ".cpp": "c",
    ".java": "jshell",
    ".kt": "kotlin",
    ".swift": "swift",
    ".ml": "ocaml",
    ".raku": "raku",
    ".cmake": "cmake",
}
_NAMES = {"makefile": "make", "gnumakefile": "make", "cmakelists.txt": "cmake", "rakefile": "ruby"}
# Ways of an interpreter to call what a string names, to load what was stored, or to run code inside a pattern.
_INDIRECT = re.compile(
    r"methodcaller|attrgetter|__getattribute__|__dict__|__globals__|\bvars\(|\bglobals\(|getattr\(|call_user_func"
    r"|\bFunction\(|Reflect\.|\.(?:call|apply)\(|\bsend\b|public_send|\bmethod\(|instance_eval|class_eval"
    r"|array_map|array_walk|usort|register_shutdown_function|ReflectionFunction|unserialize|\(\?\??\{|pickle"
    r"|marshal|Marshal|shelve|yaml\.(?:unsafe_)?load|\bdata:[\w/]+[,;]|\|\s*\Z|new Proxy|constructor\b|\bpsub\b"
)
_HARDLY_READ = frozenset({"jshell", "kotlin", "c", "go", "swift"})
_STARTS_PROGRAMS = re.compile("exec|[Pp]rocess|system|popen|spawn|Command")
_SHEBANG = re.compile(r"#!\s*\S*?(?:\benv\s+(?:-\S+\s+)*)?(python|perl|ruby|node|php|lua|tclsh|awk|sed)[\d.]*\b")
_GIT_CODE = ("-c", "--template", "--exec-path", "--config-env", "--config", "-u", "--upload-pack")


@dataclass(slots=True)
class Planted:
    """Texts that a later program of the same command may run: by text, the path it was written to and the span."""

    texts: dict[Word, tuple[str, tuple[int, int]]] = field(default_factory=dict)
    edits: dict[Word, tuple[int, int]] = field(default_factory=dict)  # words of editors and interpreters so far

    def note_edit(self, run: Run) -> None:
        """Keep the words of a program that can write files by itself; a script that runs later may hold them."""
        if run.name.rstrip("0123456789.") not in _WRITERS:
            return
        fed = run.stdin.text if run.stdin is not None else None
        for text in (*run.argv[1:], *((fed,) if fed is not None else ())):
            if holds_command(text):
                self.edits.setdefault(text, run.span)

    def run_edited(self) -> None:
        """A script is run whose content is not known: it may be one that was edited."""
        for text, span in self.edits.items():
            self.texts.setdefault(text, ("", span))
        self.edits.clear()

    def run_written(self, run: Run, files: dict[str, Stream]) -> None:
        """A program starts that may run a file which the command has written."""
        passive = runs_no_file(run)
        for path, stream in files.items():
            text = stream.text
            if text is None or text in self.texts or (passive and path.rpartition("/")[2] != run.name):
                continue
            if _may_be_code(path, text, run):
                self.texts[text] = (path, run.span)


_WRITERS = names(
    "sed gsed perl ruby python pypy node deno bun php lua awk gawk mawk nawk sqlite ed ex vim vi nvim patch git "
    "tclsh expect emacs yq jq crudini m4"
)


def runs_no_file(run: Run) -> bool:
    if run.name == "git":
        told = any(word.startswith(_GIT_CODE) for word in run.argv[1:])
        return not told and not any(name.startswith("GIT_") for name in run.assigned)
    return run.name in _RUNS_NO_FILE and "PATH" not in run.assigned


def treats_text_as_text(run: Run) -> bool:
    """Whether what such words say is never run, or is read by a reader that knows the language."""
    name = run.name.rstrip("0123456789.")
    if name not in _INTERPRETERS:
        return name in _TEXT_PROGRAMS or run.name in _TEXT_PROGRAMS
    return not any(calls_indirectly(word) for word in run.argv[1:])


def calls_indirectly(code: str, language: str = "") -> bool:
    """Whether code may run a string in a way that readers of its language do not follow."""
    if language in _HARDLY_READ and _STARTS_PROGRAMS.search(code[:MAX_TEXT_LENGTH]):
        return True
    return _INDIRECT.search(code[:MAX_TEXT_LENGTH]) is not None


def words_that_may_run(run: Run, *, known: bool) -> Iterator[Word]:
    """The words and the input that a program may run; of a program nobody knows, only the values of options."""
    if treats_text_as_text(run):
        return
    if known and run.stdin is not None and run.stdin.text is not None:
        yield run.stdin.text
    for before, word in zip(run.argv, run.argv[1:], strict=False):
        if known or word.startswith("-") or before.startswith("-"):
            yield word


def _may_be_code(path: str, text: str, run: Run) -> bool:
    if path.startswith("/dev/") or _BUILT_ELSEWHERE.match(path):
        return False
    if path.lower().endswith(_DOCUMENTS) and language_of(path, text) == "":
        name = path.rpartition("/")[2]
        return any(name in word for word in run.argv[1:]) and holds_command(text)
    return holds_command(text) or language_of(path, text) not in ("", "make")


def language_of(path: str, text: str) -> str:
    """The language of a file by its name or its first line; empty where neither tells."""
    name = path.rpartition("/")[2].lower()
    if name in _NAMES:
        return _NAMES[name]
    if found := _SHEBANG.match(text):
        return {"tclsh": "tcl"}.get(found[1], found[1])
    return _LANGUAGES.get(name[name.rfind(".") :] if "." in name else "", "")


def holds_command(text: str) -> bool:
    return _START.search(text[:MAX_TEXT_LENGTH]) is not None


def embedded_commands(text: str) -> Iterator[Word]:
    """What would be commands if something ran a part of the text."""
    text = text[:MAX_TEXT_LENGTH]
    for count, found in enumerate(_START.finditer(text)):
        if count == MAX_CANDIDATES:
            return
        rest = text[found.start() : found.start() + MAX_CANDIDATE_LENGTH]
        rest = _BLANK.sub(" ", _LIST_SEPARATOR.sub(" ", rest))
        if rest[found.end() - found.start() :][:1] == ",":
            rest = rest.replace(",", " ")
        ended = _END.search(rest)
        command = rest[: ended.start()] if ended else rest
        if command.strip().strip(GAP):
            yield Word(command)
