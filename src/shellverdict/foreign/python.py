"""Python, read by its own parser: what its calls do."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from itertools import islice

from shellverdict.foreign.clients import destroys, services
from shellverdict.foreign.nouns import Foreign, Found, address, is_shell
from shellverdict.foreign.pyfunctions import (
    DELETE,
    EVERY_SHELL,
    EVERY_SQL,
    KNOWN,
    NETWORK,
    PROCESS,
    SENDS,
    SHELL,
    TREE,
    TWO_PATHS,
)
from shellverdict.foreign.pynames import GAP_NAME, Names
from shellverdict.foreign.pyown import own_commands
from shellverdict.foreign.pyvalues import as_number, as_word
from shellverdict.foreign.sql import read_sql
from shellverdict.shell.words import GAP, STAR, Word
from shellverdict.verdict import Kind

__all__ = ["NotPython", "read_python"]

_DEEPEST_CODE = 4
_MOST_NODES = 5_000
_STARTS = SHELL | PROCESS | DELETE | TREE
_TAKES_CODE = frozenset(
    {"timeit.timeit", "timeit.repeat", "cProfile.run", "profile.run", "pdb.run", "trace.run"}
)


class NotPython(ValueError):
    """The text is nothing that Python's parser takes."""


def read_python(code: str, depth: int = 0) -> Foreign:
    """What the code does. Raises `NotPython` where it cannot be parsed."""
    reader = _Reader(_parsed(code), depth)
    reader.read()
    return reader.found.foreign


def _parsed(code: str) -> ast.Module:
    named = code.replace(GAP, GAP_NAME)
    for text in (named, named.replace('\\"', '"'), named.strip()):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    raise NotPython


def _in_order(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node, parents first, in the order of the text, without recursion."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(list(ast.iter_child_nodes(node))))


class _Reader(Names):
    """One text on its way through the tables."""

    def __init__(self, tree: ast.Module, depth: int) -> None:
        super().__init__()
        self.tree, self.depth = tree, depth
        self.found = Found()
        self.connects = self.redirects = self.sends = self.asks = self.authorizes = False
        self.variables: dict[str, None] = {}  # of the environment; no name stands for all
        self.looked_up: set[int] = set()
        self.addresses: dict[str, None] = {}
        self.reads: list[str] = []
        self.services: frozenset[Kind] = frozenset()
        self.ends = False  # whether processes are ended by their methods
        self.aws = ""  # the service of Amazon's that the code speaks to

    def read(self) -> None:
        nodes = list(islice(_in_order(self.tree), _MOST_NODES + 1))
        if len(nodes) > _MOST_NODES:
            self.found.unreadable("more code than is read")
        for node in nodes:
            self.learn(node)
        self.start_again()
        self.services = services(self.names.values())
        methods = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        self.ends = bool(methods & {"kill", "terminate", "send_signal"})
        if "boto3" in self.names.values():
            self.aws = next((name for node in nodes if (name := self._aws_service(node))), "")
        for node in nodes:
            self.learn(node)
            for words in own_commands(node):
                self.found.command(*words)
            if isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.While):
                self._forks(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "://" in node.value:
                self.addresses[node.value[:256]] = None
            self._environment(node)
        self._between_calls()

    def _aws_service(self, node: ast.AST) -> str:
        """`ec2` of `boto3.client("ec2")`, with a session or without."""
        match node:
            case ast.Call(func=ast.Attribute(attr="client" | "resource"), args=[service, *_]):
                return self.text(service) or ""
        return ""

    def _environment(self, node: ast.AST) -> None:
        """Which variables the code looks up; where it names none, it has them all."""
        match node:
            case ast.Subscript(value=ast.Attribute() as whole, slice=key) if (
                self.dotted(whole) == "os.environ"
            ):
                self.looked_up.add(id(whole))
                self._looks_up(key)
            case ast.Call(
                func=ast.Attribute(value=whole, attr="get" | "pop" | "setdefault"), args=[key, *_]
            ) if self.dotted(whole) == "os.environ":
                self.looked_up.add(id(whole))
                self._looks_up(key)
            case ast.Call(func=function, args=[key, *_]) if self.dotted(function) == "os.getenv":
                self._looks_up(key)
            case ast.Attribute() if id(node) not in self.looked_up and self.dotted(node) == "os.environ":
                self.variables[""] = None

    def _looks_up(self, key: ast.expr) -> None:
        name = self.text(key)
        if name is not None and name.isidentifier():
            self.variables[name] = None

    def _between_calls(self) -> None:
        """What only several calls together do."""
        handed_over = self.redirects or any(is_shell(script) for script in self.found.scripts)
        if self.connects and handed_over:
            self.found.effect(Kind.REVERSE_SHELL, detail="a connection is handed to a shell")
        if self.sends or self.asks:
            sent = [name for name in self.variables if not (name and self.authorizes)]
            self.found.sends_environment(sent, address(self.addresses))
        for path in self.reads:
            self.found.command("cat", "--", path)
            if self.sends:
                self.found.sends_file(path, address(self.addresses))

    def _call(self, node: ast.Call) -> None:
        name = self.dotted(node.func)
        last = node.func.attr if isinstance(node.func, ast.Attribute) else (name or "").rpartition(".")[2]
        self._notice(name or last, last, node)
        self._handed_over(node, name)
        if name is None or name not in KNOWN:
            self._by_method(node, name, last)
        if name is None and isinstance(node.func, ast.Subscript) and self._mentions(node.func):
            self.found.unreadable(last or "a call")
        if name is not None:
            self._by_name(node, name)

    def _mentions(self, node: ast.AST) -> bool:
        """Whether an expression has a module in it that starts programs."""
        names = {
            self.names.get(inner.id, inner.id) for inner in ast.walk(node) if isinstance(inner, ast.Name)
        }
        return bool(
            {name.partition(".")[0] for name in names} & {"os", "subprocess", "shutil", "pty", "builtins"}
        )

    def _notice(self, name: str, last: str, node: ast.Call) -> None:
        self.connects |= (
            last in ("connect", "connect_ex", "create_connection", "accept", "open_connection")
            and "sql" not in name
        )
        self.redirects |= name in ("os.dup2", "pty.spawn", "socket.dup2")
        self.sends |= last in SENDS and name not in ("os.sendfile",)
        self.asks |= last in ("get", "head") and name.partition(".")[0] in NETWORK
        self.asks |= last in ("gethostbyname", "getaddrinfo", "gethostbyname_ex") or "dns.resolver" in name
        self.authorizes |= any(keyword.arg in ("headers", "auth") for keyword in node.keywords)
        if last in ("map", "filter", "submit", "Thread", "Process", "apply") and len(node.args) > 1:
            self._mapped(node)

    def _handed_over(self, node: ast.Call, name: str | None) -> None:
        """`Thread(target=os.system, args=("…",))`: a function given away is called with what goes with it."""
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        functions = [value for value in values if self.dotted(value) in _STARTS]
        if not functions or name in _STARTS or name in ("map", "filter"):
            return
        rest = [value for value in values if value is not functions[0]]
        arguments = [
            item for value in rest for item in (value.elts if isinstance(value, ast.Tuple) else [value])
        ]
        self._by_name(
            ast.Call(func=functions[0], args=arguments, keywords=[]), self.dotted(functions[0]) or ""
        )

    def _mapped(self, node: ast.Call) -> None:
        """`map(os.remove, glob.glob("*"))` calls its first argument with each of the others."""
        inner = ast.Call(func=node.args[0], args=[ast.Name(id="each of them", ctx=ast.Load())], keywords=[])
        self.bind_each(inner.args[0], node.args[1])
        if not isinstance(node.args[0], ast.Call):
            self._call(inner)

    def _by_name(self, node: ast.Call, name: str) -> None:
        first = self.text(node.args[0]) if node.args else None
        if name in SHELL:
            for text in self.texts(node.args[0] if node.args else None):
                self.found.script(text)
        elif name in PROCESS or name == "asyncio.create_subprocess_exec":
            self._process(node)
        elif name.startswith(("os.exec", "os.spawn", "os.posix_spawn", "posix.exec")):
            self._exec(node, name.rpartition(".")[2])
        elif name == "pty.spawn":
            self._process(node)
            self.found.effect(Kind.PRIVILEGE, first or "", detail="opens a shell that somebody can type into")
        elif name in DELETE:
            self._deletes(first if first is not None else GAP)
        elif name in TREE:
            self.found.delete(first if first is not None else GAP, tree=True)
        elif name in TWO_PATHS and len(node.args) > 1:
            second = self.text(node.args[1])
            self.found.command(*TWO_PATHS[name], "--", first or GAP, second or GAP)
        elif name in ("open", "io.open", "codecs.open", "builtins.open", "os.open"):
            self._open(node, first)
        elif name in (
            "exec",
            "eval",
            "builtins.exec",
            "builtins.eval",
            "compile",
            "runpy.run_path",
            "execfile",
        ):
            self._evaluates(node, name)
        elif name in ("pickle.loads", "marshal.loads", "dill.loads", "cPickle.loads", "yaml.unsafe_load"):
            if node.args and (traits := self.evidence(node.args[0])):
                self.found.unread(name, traits)
        elif name in ("os.setuid", "os.setreuid", "os.seteuid", "os.setresuid"):
            self.found.effect(Kind.PRIVILEGE, detail="becomes another user")
        elif name in _TAKES_CODE:
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                if (code := self.text(argument)) is not None:
                    self._code(code)
        elif name in ("getattr", "__import__", "importlib.import_module"):
            self._reaches(node, name)
        elif name in ("urllib.request.urlretrieve", "urlretrieve", "wget.download") and len(node.args) > 1:
            self.found.command("curl", "-o", self.text(node.args[1]) or GAP, first or GAP)
        elif name == "os.chdir" and first is not None:
            self.found.folder = first
        elif name in ("os.chmod", "os.lchmod", "os.chown", "os.kill", "os.killpg", "os.truncate"):
            self._changes(node, name.rpartition(".")[2], first)
        elif name.startswith(("sh.", "plumbum.local.")):
            program = name.removeprefix("sh.").removeprefix("plumbum.local.")
            self.found.command(program, *(self.text(arg) or GAP for arg in node.args))
        elif name == "shutil.make_archive" and len(node.args) > 2:
            self.found.command("tar", "-czf", first or GAP, self.text(node.args[2]) or GAP)
        elif name == "fileinput.input" and any(keyword.arg == "inplace" for keyword in node.keywords):
            self.found.command("sed", "-i", "s/a/b/", first or GAP)
        elif name == "keyring.get_password":
            self.found.command("secret-tool", "lookup", *(self.text(arg) or GAP for arg in node.args))
        elif name == "psutil.process_iter" and self.ends:
            self.found.command("pkill", "-f", GAP)

    def _by_method(self, node: ast.Call, name: str | None, last: str) -> None:
        """Methods of objects that nobody followed: what they are called is all there is to go by."""
        if not isinstance(node.func, ast.Attribute):
            return
        first = self.text(node.args[0]) if node.args else None
        path = self.text(node.func.value)
        if first is not None and self._runs_elsewhere(name or "", last):
            self.found.script(first)
        elif last in EVERY_SQL and first is not None:
            self.found.merge(read_sql(Word(first), "sqlite"))
        elif last in ("delete", "raw_delete") and _chain(node.func.value) == "objects.all":
            self.found.effect(Kind.DATABASE, "", "delete-all", detail="every record of a model is deleted")
        elif last == "extractall" and first is not None:
            self.found.command("tar", "-C", first, "-xf", GAP)
        elif last == "remove_all" and "crontab" in self.names.values():
            self.found.command("crontab", "-r")
        elif last == "rmtree":
            self.found.delete(first or path or GAP, tree=True)
        elif path is not None and last in ("unlink", "rmdir"):
            self._deletes(path)
        elif path is not None and last in ("write_text", "write_bytes"):
            self.found.overwrite(path)
        elif path is not None and last in ("read_text", "read_bytes"):
            self.reads.append(path)
        elif path is not None and last == "open":
            self._mode(path, self.text(node.args[0]) if node.args else "r")
        elif path is not None and last in ("rename", "replace") and first is not None and "/" in path:
            self.found.command("mv", "--", path, first)
        elif path is not None and last == "chmod":
            mode = self.fold(node.args[0]) if node.args else None
            self.found.command("chmod", f"{mode:o}" if isinstance(mode, int) else GAP, path)

        self._destroys(node, last)
        self._asks_aws(node, last)
        self._asks_git(node, last)
        if last == "delete" and (name or "").partition(".")[0] in ("requests", "httpx") and first is not None:
            self.found.command("curl", "-X", "DELETE", first)

    def _deletes(self, path: str) -> None:
        self.found.delete_each(path) if STAR in path else self.found.delete(path)

    def _destroys(self, node: ast.Call, last: str) -> None:
        """A method of a client that loses what a service holds."""
        if any(keyword.arg == "DryRun" for keyword in node.keywords):
            return
        limited = [argument for argument in node.args if not isinstance(argument, ast.Dict) or argument.keys]
        method = _chain(node.func) or last
        kind = destroys(method, self.services, everything=not limited and not node.keywords)
        if kind is not None:
            self.found.effect(kind, method, "drop", detail=f"{method}()")

    def _asks_aws(self, node: ast.Call, last: str) -> None:
        """boto3's methods are the commands of Amazon's own program, spelled with underscores."""
        if not self.aws or "_" not in last:
            return
        if last in ("upload_file", "upload_fileobj") and len(node.args) > 1:
            texts = [self.text(argument) or GAP for argument in node.args[:3]]
            self.found.command("aws", "s3", "cp", texts[0], "s3://" + "/".join(texts[1:]))
            return
        options = [
            word
            for keyword in node.keywords[:16]
            if keyword.arg is not None
            for word in (f"--{_dashed(keyword.arg)}", self.text(keyword.value) or GAP)
        ]
        service = "s3api" if self.aws == "s3" else self.aws
        self.found.command("aws", service, last.replace("_", "-"), *options)

    def _asks_git(self, node: ast.Call, last: str) -> None:
        """GitPython hands `repo.git.push("--force")` to git as it is."""
        if "git" not in self.names.values():
            return
        if _chain(node.func) == f"git.{last}":
            self.found.command("git", last.replace("_", "-"), *(self.text(arg) or GAP for arg in node.args))
        elif last == "reset" and any(keyword.arg == "working_tree" for keyword in node.keywords):
            self.found.command("git", "reset", "--hard", *(self.text(arg) or GAP for arg in node.args[:1]))

    def _runs_elsewhere(self, name: str, last: str) -> bool:
        """Whether a method is one that hands its argument to a shell, here or on another machine."""
        if last in ("run", "sudo", "local"):
            return any(full.partition(".")[0] in ("fabric", "invoke") for full in self.names.values())
        return last in EVERY_SHELL and name not in SHELL

    def _process(self, node: ast.Call) -> None:
        given = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "args"), None)
        value = self.fold(given)
        in_shell = any(
            k.arg == "shell" and not (isinstance(k.value, ast.Constant) and not k.value.value)
            for k in node.keywords
        )
        if isinstance(value, list):
            words = [as_word(part) for part in value]
            if in_shell and words:
                self.found.script(words[0])
            else:
                self.found.command(*words)
        else:
            for text in self.texts(given):
                self.found.script(text)

    def _exec(self, node: ast.Call, name: str) -> None:
        args = [self.fold(arg) for arg in node.args]
        if name.startswith("spawn"):
            args = args[1:]
        program = as_word(args[0]) if args else GAP
        rest = args[2:] if "l" in name.removeprefix("exec").removeprefix("spawn") else None
        if rest is None:
            listed = args[1] if len(args) > 1 else None
            rest = listed[1:] if isinstance(listed, list) else [GAP]
        self.found.command(program, *(as_word(part) for part in rest if not isinstance(part, dict)))

    def _open(self, node: ast.Call, path: str | None) -> None:
        flags = {
            inner.attr
            for argument in node.args[1:2]
            for inner in ast.walk(argument)
            if isinstance(inner, ast.Attribute)
        }
        if flags & {"O_WRONLY", "O_RDWR", "O_TRUNC"} and path is not None:
            self.found.overwrite(path)
            return
        mode = (
            node.args[1]
            if len(node.args) > 1
            else next((k.value for k in node.keywords if k.arg == "mode"), None)
        )
        self._mode(path if path is not None else GAP, self.text(mode) if mode is not None else "r")

    def _mode(self, path: str, mode: str | None) -> None:
        if mode is None or path == GAP:
            return
        if "w" in mode or "x" in mode or "+" in mode:
            self.found.overwrite(path)
        elif "a" in mode:
            self.found.append(path)
        else:
            self.reads.append(path)

    def _evaluates(self, node: ast.Call, name: str) -> None:
        given = node.args[0] if node.args else None
        if given is None:
            return
        if name in ("runpy.run_path", "execfile"):
            self.found.command("python3", self.text(given) or GAP)
            return
        if isinstance(given, ast.Call) and self.dotted(given.func) == "compile":
            return  # the call of compile is looked at by itself
        traits = self.evidence(given)
        code = self.text(given)
        if code is not None and code.strip() != GAP:
            if "decoded" in traits:
                self.found.unread(code, traits)
            self._code(code)
        elif traits:
            self.found.unread(ast.unparse(given)[:80] if self.depth < _DEEPEST_CODE else "", traits)
        elif (path := self._read_file(given)) is not None:
            self.found.command("python3", path)
        else:
            self.found.unreadable(ast.dump(given)[:80])

    def _code(self, code: str) -> None:
        if self.depth >= _DEEPEST_CODE:
            self.found.unreadable(code)
            return
        try:
            self.found.merge(read_python(code, self.depth + 1))
        except NotPython:
            self.found.unreadable(code)

    def _read_file(self, node: ast.expr) -> str | None:
        """The path in `open(path).read()`."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and self.dotted(inner.func) in ("open", "io.open") and inner.args:
                return self.text(inner.args[0])
        return None

    def _reaches(self, node: ast.Call, name: str) -> None:
        """A name that is put together while the code runs can be any."""
        key = (
            node.args[1] if name == "getattr" and len(node.args) > 1 else node.args[0] if node.args else None
        )
        folded = self.fold(key)
        if not isinstance(folded, str) or GAP in folded:
            owner = self.dotted(node.args[0]) if name == "getattr" and node.args else name
            if owner in (
                "os",
                "subprocess",
                "shutil",
                "builtins",
                "__builtins__",
                "__import__",
                "importlib.import_module",
            ):
                self.found.unreadable(f"{owner}…")

    def _changes(self, node: ast.Call, name: str, path: str | None) -> None:
        value = self.fold(node.args[1]) if len(node.args) > 1 else None
        first = self.fold(node.args[0]) if node.args else None
        if name in ("chmod", "lchmod"):
            self.found.command("chmod", f"{value:o}" if isinstance(value, int) else GAP, path or GAP)
        elif name == "chown":
            group = self.fold(node.args[2]) if len(node.args) > 2 else None
            self.found.command("chown", f"{as_word(value)}:{as_word(group)}", path or GAP)
        elif name == "truncate":
            self.found.command("truncate", "-s", as_word(value), path or GAP)
        else:
            number = as_number(first, node.args[0]) if node.args else None
            self.found.command(
                "kill", f"-{as_word(value) if value is not None else 9}", "--", as_word(number)
            )

    def _forks(self, node: ast.While) -> None:
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        if endless and any(
            isinstance(n, ast.Call) and self.dotted(n.func) == "os.fork" for n in ast.walk(node)
        ):
            self.found.effect(Kind.FORK_BOMB, detail="a process copies itself without end")


def _dashed(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name[:64]).lower()


def _chain(node: ast.expr) -> str:
    """`objects.all` of `User.objects.all()`."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute | ast.Name):
        base = node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id
        return f"{base}.{node.attr}"
    return ""
