"""Derive a server's name from its command or URL.

`uvx mcp-server-time` gives `time`, `npx -y @modelcontextprotocol/server-filesystem /srv` gives `filesystem`.
Only the words are inspected: nothing is looked up or started.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from urllib.parse import urlsplit

from toolfold.mcp.importing import normalise_server_name

_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_RUNNERS = frozenset(
    {"uvx", "npx", "bunx", "pipx", "uv", "npm", "pnpm", "yarn", "bun", "deno", "go", "dotnet"}
)
_INTERPRETERS = frozenset({"node", "tsx", "ts-node", "ruby", "php", "java", "perl", "bash", "sh", "pwsh"})
_NESTED_RUNNERS = frozenset({"tsx", "ts-node"})  # as in `npx tsx server.ts`
_PYTHON = re.compile(r"^(?:python|pypy)[\d.]*$")
_DIRECTORY_OPTIONS = frozenset({"--directory", "--project", "--cwd", "--prefix", "-C"})
_SUBCOMMANDS = frozenset({"run", "tool", "dlx", "exec", "x"})
# Options of launchers that take the following word as their value.
_OPTIONS_WITH_VALUE = frozenset(
    {
        "--from",
        "--with",
        "--with-editable",
        "--python",
        "-p",
        "--package",
        "--directory",
        "--project",
        "--index-url",
        "--default-index",
        "--index",
        "--env-file",
        "--spec",
        "--cwd",
        "--prefix",
        "-C",
        "--config",
        "-r",
        "--require",
        "--import",
        "--loader",
        "--extra",
        "--group",
        "--project-name",
        "-W",
        "-X",
        "--registry",
        "--node-options",
    }
)
_CONTAINER_OPTIONS_WITH_VALUE = frozenset(
    {
        "-e",
        "--env",
        "--env-file",
        "-v",
        "--volume",
        "--mount",
        "-p",
        "--publish",
        "--name",
        "--network",
        "--net",
        "-w",
        "--workdir",
        "-u",
        "--user",
        "--entrypoint",
        "--platform",
        "--pull",
        "--add-host",
        "-l",
        "--label",
        "-m",
        "--memory",
        "--cpus",
        "--gpus",
        "--device",
        "--cap-add",
        "--cap-drop",
        "--security-opt",
        "-h",
        "--hostname",
        "--ip",
        "--dns",
        "--restart",
        "--tmpfs",
        "--log-driver",
        "--runtime",
        "--shm-size",
        "--ulimit",
        "--context",
        "-H",
        "--host",
        "--ipc",
        "--pid",
        "--userns",
        "--volumes-from",
        "--log-opt",
        "--group-add",
        "--cidfile",
        "--link",
        "--expose",
        "--secret",
    }
)
# Words that say nothing about a server's purpose.
_GENERIC_WORDS = frozenset(
    {
        "mcp",
        "server",
        "servers",
        "modelcontextprotocol",
        "index",
        "main",
        "app",
        "cli",
        "run",
        "start",
        "dist",
        "build",
        "src",
        "bin",
        "lib",
        "out",
        "target",
        "release",
        "debug",
        "scripts",
        "__main__",
        "__init__",
        "py",
        "js",
        "ts",
        "jar",
        "venv",
        "stdio",
    }
)
_PROXIES = frozenset({"mcp-remote", "supergateway", "mcp-proxy"})
_GENERIC_HOST_LABELS = frozenset({"www", "api", "mcp", "server", "sse"})
_MAX_NESTING = 4
_MAX_WORDS = 200


def is_launcher(word: str) -> bool:
    """Return True if a word is a known program, a path or a URL, and therefore not a server's name."""
    return _is_known_program(word) or is_url(word) or "/" in word or "\\" in word


def is_command_or_url(word: str) -> bool:
    """Return True if a word is a URL or the name of a known program.

    False for `tsx` and `ts-node`, which are arguments of `npx`.
    """
    return is_url(word) or (_is_known_program(word) and word not in _NESTED_RUNNERS)


def _is_known_program(word: str) -> bool:
    program = _program_name(word)
    return program in _CONTAINERS | _RUNNERS | _INTERPRETERS or bool(_PYTHON.match(program))


def is_url(word: str) -> bool:
    return word.startswith(("http://", "https://"))


def derive_name(words: Sequence[str]) -> str:
    """Return a valid server name for a command line or a URL."""
    return normalise_server_name(_derive_raw_name(list(words[:_MAX_WORDS]), _MAX_NESTING))


def _derive_raw_name(words: list[str], nesting: int) -> str:
    if not words or not nesting:
        return "server"
    first, rest = words[0], words[1:]
    program = _program_name(first)
    if is_url(first):
        return _host_name(first)
    if program in _CONTAINERS:
        return _package_name(_image_name(rest)) or program
    if _PYTHON.match(program) and "-m" in rest[:-1]:
        return _package_name(rest[rest.index("-m") + 1]) or program
    if not _is_known_program(first):
        return _package_name(first) if program == first.lower() else _script_name(first)
    launched = _skip_options(
        rest, _OPTIONS_WITH_VALUE, skip=_SUBCOMMANDS if program in _RUNNERS else frozenset()
    )
    name = _launched_name(launched, nesting) or program
    directory = next((after for word, after in pairwise(rest) if word in _DIRECTORY_OPTIONS), "")
    return name if _strip_generic_words(name) or not directory else _script_name(directory)


def _launched_name(words: list[str], nesting: int) -> str:
    """Return the name of the package or script that a runner such as `npx` starts; empty if there is none."""
    if not words:
        return ""
    if words[0].partition("@")[0] in _PROXIES:
        address = next((each for each in words[1:] if is_url(each)), None)
        if address:
            return _host_name(address)
    if _is_script(words[0]):
        return _script_name(words[0])
    return (
        _derive_raw_name(words, nesting - 1)
        if is_launcher(words[0]) and _is_bare_program(words[0])
        else _package_name(words[0])
    )


def _is_bare_program(word: str) -> bool:
    """Return True if a word is a plain name such as `node`, not a package such as `@scope/name@1.0`."""
    return not re.search(r"[@:/\\]", word)


def _is_script(word: str) -> bool:
    """Return True if a word is the path of a script that an interpreter runs."""
    path = word.replace("\\", "/")
    return path.startswith(("/", "./", "../", "~", "${")) or bool(
        re.search(r"\.(?:[cm]?[jt]sx?|py|rb|php|jar|sh|pl|ps1|dll)$", path)
    )


def _program_name(word: str) -> str:
    name = word.replace("\\", "/").rpartition("/")[2].lower()
    return re.sub(r"\.(?:exe|cmd|bat)$", "", name)


def _skip_options(words: list[str], with_value: frozenset[str], *, skip: frozenset[str]) -> list[str]:
    """Skip a program's leading options, their values and words in `skip`; return the remaining words."""
    position = 0
    while position < len(words):
        word = words[position]
        if word in with_value:
            position += 1
        elif not word.startswith("-") and word not in skip:
            return words[position:]
        position += 1
    return []


def _image_name(words: list[str]) -> str:
    found = _skip_options(
        words, _CONTAINER_OPTIONS_WITH_VALUE, skip=frozenset({"run", "container", "start", "exec"})
    )
    return re.sub(r"(?:@sha256)?:[^/]*$", "", found[0]) if found else ""


def _package_name(package: str) -> str:
    """Return `name` for the package `@scope/server-name@1.2`; the scope if the name is generic."""
    bare = re.sub(r"^(?:git\+|npm:|jsr:|file:|github:)", "", package)
    bare = re.split(r"[\[<>=!~;#\s]", bare.removesuffix("/"), maxsplit=1)[0]
    bare = re.sub(r"(?<=[^/])@[^/]*$", "", bare)
    parts = [each for each in bare.removesuffix(".git").lstrip("@").split("/") if each]
    return next(
        (name for each in reversed(parts) if (name := _strip_generic_words(each))), parts[-1] if parts else ""
    )


def _script_name(path: str) -> str:
    """Return the name of a script file, or of the nearest parent directory with a specific name."""
    parts = [each for each in re.split(r"[/\\]", path) if each and each not in (".", "..", "~")]
    if not parts:
        return ""
    parts[-1] = re.sub(r"\.\w{1,4}$", "", parts[-1])
    return next((name for each in reversed(parts) if (name := _strip_generic_words(each))), parts[-1])


def _strip_generic_words(text: str) -> str:
    """Strip words such as `mcp` and `server` from both ends of a name; "" if nothing else is left."""
    words = [each for each in re.split(r"[-_.]+", text) if each]
    while words and words[0].lower() in _GENERIC_WORDS:
        words.pop(0)
    while words and words[-1].lower() in _GENERIC_WORDS:
        words.pop()
    return "-".join(words)


def _host_name(url: str) -> str:
    """Return the name in a server's URL: `linear` for `https://mcp.linear.app/sse`."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return "server"
    if re.fullmatch(r"[\d.]+|.*:.*", host):  # a numeric address
        return "server"
    labels = host.split(".")
    return next(_specific_labels(labels), labels[0])


def _specific_labels(labels: Sequence[str]) -> Iterator[str]:
    for label in labels[:-1] if len(labels) > 1 else labels:
        if label not in _GENERIC_HOST_LABELS and (name := _strip_generic_words(label)):
            yield name
