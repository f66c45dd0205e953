"""Python: read by its own parser, with what its strings and names stand for worked out where that is easy."""

from __future__ import annotations

import ast
import base64
import binascii
import bz2
import codecs
import lzma
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from toolfold.approval.foreign.nouns import HOME, Foreign, Found, is_shell
from toolfold.approval.foreign.sql import read_sql
from toolfold.approval.shell.words import GAP, STAR, Word
from toolfold.approval.verdict import Kind

__all__ = ["NotPython", "read_python"]

_DEEPEST_FOLD = 60
_DEEPEST_CODE = 4
_LONGEST_TEXT = 16_384
_MOST_FOLDS = 40_000  # expressions worked out in one text; beyond that nothing is known
_GAP_NAME = "text_nobody_knows_"

Value = str | bytes | int | list["Value"] | None


class NotPython(ValueError):
    """The text is nothing that Python's parser takes."""


def read_python(code: str, depth: int = 0) -> Foreign:
    """What the code does. Raises `NotPython` where it cannot be parsed."""
    reader = _Reader(_parsed(code), depth)
    reader.read()
    return reader.found.foreign


def _parsed(code: str) -> ast.Module:
    named = code.replace(GAP, _GAP_NAME)
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


_NETWORK = frozenset(
    {
        *(
            "urlopen",
            "urlretrieve",
            "recv",
            "recvfrom",
            "HTTPConnection",
            "HTTPSConnection",
            "requests",
            "httpx",
        ),
        *(
            "urllib",
            "urllib2",
            "urllib3",
            "aiohttp",
            "ftplib",
            "gethostbyname",
            "create_connection",
            "xmlrpc",
        ),
    }
)
_DECODING = frozenset(
    {
        *(
            "b64decode",
            "b32decode",
            "b16decode",
            "b85decode",
            "a85decode",
            "decodebytes",
            "urlsafe_b64decode",
        ),
        *(
            "unhexlify",
            "fromhex",
            "decompress",
            "a2b_base64",
            "a2b_hex",
            "rot13",
            "loads",
            "decrypt",
            "standard_b64decode",
        ),
    }
)
_SENDS = frozenset(
    {"post", "put", "urlopen", "request", "sendall", "send", "sendto", "storbinary", "sendmail", "patch"}
)

_SHELL = frozenset(
    {
        *(
            "os.system",
            "os.popen",
            "os.popen2",
            "os.popen3",
            "os.popen4",
            "posix.system",
            "posix.popen",
            "nt.system",
        ),
        *(
            "subprocess.getoutput",
            "subprocess.getstatusoutput",
            "commands.getoutput",
            "commands.getstatusoutput",
        ),
        *(
            "asyncio.create_subprocess_shell",
            "popen2.popen2",
            "popen2.popen3",
            "platform.popen",
            "pexpect.run",
        ),
        *(
            "pexpect.spawn",
            "invoke.run",
            "fabric.api.run",
            "fabric.api.local",
            "fabric.api.sudo",
            "fabric.operations.run",
        ),
    }
)
_PROCESS = frozenset(
    {
        "subprocess.run",
        "subprocess.call",
        "subprocess.check_call",
        "subprocess.check_output",
        "subprocess.Popen",
    }
)
_DELETE = frozenset(
    {
        "os.remove",
        "os.unlink",
        "os.rmdir",
        "os.removedirs",
        "posix.unlink",
        "posix.remove",
        "send2trash.send2trash",
    }
)
_TREE = frozenset(
    {"shutil.rmtree", "distutils.dir_util.remove_tree", "setuptools.distutils.dir_util.remove_tree"}
)
_EVERY_SHELL = frozenset(
    {"system", "popen", "getoutput", "getstatusoutput", "exec_command", "exec_run", "create_subprocess_shell"}
)
_EVERY_SQL = frozenset({"execute", "executescript", "executemany", "raw", "exec_driver_sql"})
_TWO_PATHS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "shutil.move": ("mv",),
        "os.rename": ("mv",),
        "os.replace": ("mv",),
        "os.renames": ("mv",),
        "shutil.copy": ("cp",),
        "shutil.copy2": ("cp",),
        "shutil.copyfile": ("cp",),
        "shutil.copytree": ("cp", "-r"),
        "os.symlink": ("ln", "-s"),
        "os.link": ("ln",),
    }
)


class _Reader:
    def __init__(self, tree: ast.Module, depth: int) -> None:
        self.tree, self.depth = tree, depth
        self.found = Found()
        self.names: dict[str, str] = {}  # what an imported or assigned name stands for
        self.values: dict[str, Value] = {}
        self.taints: dict[str, frozenset[str]] = {}
        self.connects = self.redirects = self.sends = False
        self.reads: list[str] = []
        self.folds = 0
        self.stars: list[str] = []  # modules all of whose names were taken over

    def read(self) -> None:
        nodes = list(_in_order(self.tree))
        for node in nodes:
            self._learn(node)
        for node in nodes:
            if isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.While):
                self._forks(node)
        self._between_calls()

    def _between_calls(self) -> None:
        """What only several calls together do."""
        handed_over = self.redirects or any(is_shell(script) for script in self.found.scripts)
        if self.connects and handed_over:
            self.found.effect(Kind.REVERSE_SHELL, detail="a connection is handed to a shell")
        for path in self.reads:
            self.found.command("cat", "--", path)
            if self.sends:
                last = next(reversed(self.found.scripts))
                self.found.script(f"{last} | curl -d @- {GAP}")

    # Names and values

    def _learn(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names=names):
                for name in names:
                    self.names[name.asname or name.name.partition(".")[0]] = (
                        name.name if name.asname else name.name.partition(".")[0]
                    )
            case ast.ImportFrom(module=module, names=names):
                self.stars += [str(module)] if any(name.name == "*" for name in names) else []
                for name in names:
                    self.names[name.asname or name.name] = f"{module}.{name.name}"
            case ast.Assign(targets=[target], value=value):
                self._bind(target, value)
            case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value) if (
                value
            ):
                self._bind(target, value)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                old, more = self.values.get(name), self.fold(value)
                self.values[name] = old + more if isinstance(old, str) and isinstance(more, str) else None
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend"), args=[more]):
                self._grows(name, self.fold(more))
            case ast.For(target=target, iter=items) | ast.comprehension(target=target, iter=items):
                self._bind_each(target, items)
            case ast.withitem(context_expr=value, optional_vars=ast.Name() as target):
                self._bind(target, value)

    def _bind(self, target: ast.AST, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its in zip(target.elts, value.elts, strict=False):
                self._bind(one, its)
            return
        if not isinstance(target, ast.Name):
            return
        folded = self.fold(value)
        known = target.id in self.values and self.values[target.id] != folded
        self.values[target.id] = None if known and folded is None else folded
        dotted = self.dotted(value) if folded is None else None
        if dotted is not None:
            self.names[target.id] = dotted
        self.taints[target.id] = self._evidence(value)

    def _grows(self, name: str, more: Value) -> None:
        """A list that gets more items."""
        known = self.values.get(name)
        if isinstance(known, list) and len(known) < 1024:
            self.values[name] = [*known, *(more if isinstance(more, list) else [more])]

    def _bind_each(self, target: ast.AST, items: ast.expr) -> None:
        """A loop over files stands for all of them at once."""
        pattern = self._files(items)
        names = [node for node in ast.walk(target) if isinstance(node, ast.Name)]
        for name in names:
            folded = self.fold(items) if pattern is None else None
            one = folded[0] if isinstance(folded, list) and len(folded) == 1 else None
            self.values[name.id] = pattern if pattern is not None else one
            self.taints[name.id] = self._evidence(items)

    def _files(self, node: ast.expr) -> str | None:
        if not isinstance(node, ast.Call):
            return None
        name = self.dotted(node.func) or ""
        last = name.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        if last in ("sorted", "list", "reversed", "enumerate", "set") and node.args:
            return self._files(node.args[0])
        given = self.text(node.args[0]) if node.args else None
        if last in ("glob", "iglob") and name.startswith("glob"):
            return (given or GAP).replace("*", STAR)
        if last in ("listdir", "scandir", "walk") and name.startswith("os"):
            return f"{(given or '.').rstrip('/')}/{STAR}"
        if last in ("iterdir", "glob", "rglob", "walk") and isinstance(node.func, ast.Attribute):
            base = self.text(node.func.value)
            return None if base is None else f"{base.rstrip('/')}/{(given or '*').replace('*', STAR)}"
        return None

    def dotted(self, node: ast.AST, depth: int = 0) -> str | None:
        """The full name of what an expression refers to."""
        if depth > _DEEPEST_FOLD:
            return None
        match node:
            case ast.Name(id=name):
                return self.names.get(name) or self._starred(name)
            case ast.Attribute(value=value, attr=attr):
                base = self.dotted(value, depth + 1)
                return None if base is None else f"{base}.{attr}"
            case ast.IfExp(body=first, orelse=second) | ast.BoolOp(values=[first, second]):
                names = (self.dotted(first, depth + 1), self.dotted(second, depth + 1))
                return next((name for name in names if name in _KNOWN), names[0])
            case ast.Call(func=func, args=args):
                return self._dotted_call(self.dotted(func, depth + 1), args, depth)
            case ast.Subscript(value=value, slice=key):
                base, text = self.dotted(value, depth + 1), self.fold(key)
                if base is None or not isinstance(text, str):
                    return None
                base = base.removesuffix(".__dict__")
                return (
                    text
                    if base in ("sys.modules", "globals", "__builtins__", "builtins", "locals")
                    else f"{base}.{text}"
                )
        return None

    def _starred(self, name: str) -> str:
        taken = (f"{module}.{name}" for module in self.stars)
        return next(
            (full for full in taken if full in _KNOWN or full.startswith(("os.exec", "os.spawn"))), name
        )

    def _dotted_call(self, name: str | None, args: list[ast.expr], depth: int) -> str | None:
        texts = [self.fold(arg) for arg in args[:2]]
        if name in ("__import__", "importlib.import_module", "importlib.__import__") and texts:
            return texts[0] if isinstance(texts[0], str) else None
        if name == "getattr" and len(args) > 1 and isinstance(texts[1], str):
            base = self.dotted(args[0], depth + 1)
            return f"{base}.{texts[1]}" if base else texts[1]
        if name in ("vars", "globals", "locals"):
            return self.dotted(args[0], depth + 1) if args else "globals"
        return None

    def text(self, node: ast.AST | None) -> str | None:
        """A folded string; bytes count as one."""
        value = self.fold(node)
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        return value if isinstance(value, str) else None

    def fold(self, node: ast.AST | None, depth: int = 0) -> Value:
        """The value of an expression where it can be worked out; a string may have gaps."""
        self.folds += 1
        if node is None or depth > _DEEPEST_FOLD or self.folds > _MOST_FOLDS:
            return None
        match node:
            case ast.Constant(value=str() as text):
                return text.replace(_GAP_NAME, GAP)
            case ast.Constant(value=bytes() | int() as value) if not isinstance(value, bool):
                return value
            case ast.Name(id=name):
                return GAP if name.startswith(_GAP_NAME) else self.values.get(name)
            case ast.JoinedStr(values=parts):
                return _bounded("".join(self._part(part, depth) for part in parts))
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self.fold(part, depth + 1) for part in parts[:1024]]
            case ast.GeneratorExp(elt=each, generators=[one]) | ast.ListComp(elt=each, generators=[one]):
                return self._each(each, one, depth)
            case ast.BinOp():
                return self._operation(node, depth)
            case ast.Subscript(value=value, slice=key):
                return self._piece(node, self.fold(value, depth + 1), key, depth)
            case ast.Call():
                return self._folded_call(node, depth)
            case ast.Attribute():
                return {"os.sep": "/", "os.curdir": ".", "os.devnull": "/dev/null"}.get(
                    self.dotted(node) or ""
                )
        return None

    def _each(self, each: ast.expr, one: ast.comprehension, depth: int) -> Value:
        items = self.fold(one.iter, depth + 1)
        if not isinstance(items, list | str | bytes) or not isinstance(one.target, ast.Name) or one.ifs:
            return None
        made: list[Value] = []
        for item in list(items)[:1024]:
            self.values[one.target.id] = item
            made.append(self.fold(each, depth + 1))
        self.values[one.target.id] = None
        return made

    def _part(self, part: ast.AST, depth: int) -> str:
        value = self.fold(part.value if isinstance(part, ast.FormattedValue) else part, depth + 1)
        return str(value) if isinstance(value, str | int) else GAP

    def _operation(self, node: ast.BinOp, depth: int) -> Value:
        left, right = self.fold(node.left, depth + 1), self.fold(node.right, depth + 1)
        match node.op:
            case ast.Add() if isinstance(left, list) and isinstance(right, list):
                return left + right
            case ast.Add() if isinstance(left, bytes) and isinstance(right, bytes):
                return left + right
            case ast.Add() if isinstance(left, str) or isinstance(right, str):
                return _bounded(
                    (left if isinstance(left, str) else GAP) + (right if isinstance(right, str) else GAP)
                )
            case ast.Mod() if isinstance(left, str):
                return _percent(left, right)
            case ast.Mult() if isinstance(left, str) and isinstance(right, int):
                return left * right if len(left) * abs(right) < _LONGEST_TEXT else None
            case ast.Div() if isinstance(left, str):
                return _joined_path([left, right if isinstance(right, str) else GAP])
        return None

    def _piece(self, node: ast.Subscript, value: Value, key: ast.expr, depth: int) -> Value:
        if self.dotted(node.value) == "os.environ":
            return HOME if self.fold(key) == "HOME" else GAP
        if not isinstance(value, str | bytes | list):
            return None
        if isinstance(key, ast.Slice):
            ends = [
                None if end is None else _number(self.fold(end, depth + 1), end)
                for end in (key.lower, key.upper, key.step)
            ]
            return None if 0 in ends[2:] or GAP in str(value) else value[slice(*ends)]
        index = self.fold(key, depth + 1)
        if isinstance(index, int) and -len(value) <= index < len(value):
            return value[index]
        return None

    def _folded_call(self, node: ast.Call, depth: int) -> Value:
        if isinstance(node.func, ast.Attribute):
            base = self.fold(node.func.value, depth + 1)
            if isinstance(base, str | bytes) and (made := self._method(base, node, depth)) is not None:
                return made
        args = [self.fold(arg, depth + 1) for arg in node.args[:64]]
        if len(args) > 1 and isinstance(args[1], list) and self.dotted(node.func) == "map":
            return [_made(self.dotted(node.args[0]) or "", [item]) for item in args[1]]
        return _made(self.dotted(node.func) or "", args)

    def _method(self, base: str | bytes, node: ast.Call, depth: int) -> Value:
        """A method of a string, of bytes, or of a path that is folded to its text."""
        args = [self.fold(arg, depth + 1) for arg in node.args[:64]]
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name == "decode" and isinstance(base, bytes):
            return base.decode("utf-8", "replace")
        if name == "encode" and isinstance(base, str):
            return base.encode("utf-8", "surrogatepass") if GAP not in base else None
        if name in ("strip", "lower", "upper", "lstrip", "rstrip", "swapcase", "title") and not args:
            return getattr(base, name)()  # type: ignore[no-any-return]
        if isinstance(base, bytes):
            return None
        if name == "join" and args and isinstance(args[0], list):
            return _bounded(base.join(part if isinstance(part, str) else GAP for part in args[0]))
        if name == "replace" and len(args) == 2 and all(isinstance(arg, str) for arg in args):
            return (
                base.replace(str(args[0]), str(args[1]))
                if args[0] and len(base) < 4096 and len(str(args[1])) < 64
                else None
            )
        if name == "split":
            return list(base.split(args[0] if args and isinstance(args[0], str) and args[0] else None)[:256])
        if name == "format":
            return _formatted(base, args)
        if name == "joinpath":
            return _joined_path([base, *(arg if isinstance(arg, str) else GAP for arg in args)])
        if name in ("expanduser", "resolve", "absolute", "as_posix", "__str__"):
            return _expanded(base)
        return None

    # Calls

    def _call(self, node: ast.Call) -> None:
        name = self.dotted(node.func)
        last = node.func.attr if isinstance(node.func, ast.Attribute) else (name or "").rpartition(".")[2]
        self._notice(name or last, last, node)
        if name is None or name not in _KNOWN:
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
        self.sends |= last in _SENDS and name not in ("os.sendfile",)
        if last in ("map", "filter", "submit", "Thread", "Process", "apply") and len(node.args) > 1:
            self._mapped(node)

    def _mapped(self, node: ast.Call) -> None:
        """`map(os.remove, glob.glob("*"))` calls its first argument with each of the others."""
        inner = ast.Call(func=node.args[0], args=[ast.Name(id="each of them", ctx=ast.Load())], keywords=[])
        self._bind_each(inner.args[0], node.args[1])
        if not isinstance(node.args[0], ast.Call):
            self._call(inner)

    def _by_name(self, node: ast.Call, name: str) -> None:
        first = self.text(node.args[0]) if node.args else None
        if name in _SHELL:
            self.found.script(first if first is not None else GAP)
        elif name in _PROCESS or name == "asyncio.create_subprocess_exec":
            self._process(node)
        elif name.startswith(("os.exec", "os.spawn", "os.posix_spawn", "posix.exec")):
            self._exec(node, name.rpartition(".")[2])
        elif name == "pty.spawn":
            self._process(node)
            self.found.effect(Kind.PRIVILEGE, first or "", detail="opens a shell that somebody can type into")
        elif name in _DELETE:
            self.found.delete(first if first is not None else GAP)
        elif name in _TREE:
            self.found.delete(first if first is not None else GAP, tree=True)
        elif name in _TWO_PATHS and len(node.args) > 1:
            second = self.text(node.args[1])
            self.found.command(*_TWO_PATHS[name], "--", first or GAP, second or GAP)
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
            if node.args and (traits := self._evidence(node.args[0])):
                self.found.unread(name, traits)
        elif name in ("os.setuid", "os.setreuid", "os.seteuid", "os.setresuid"):
            self.found.effect(Kind.PRIVILEGE, detail="becomes another user")
        elif name in ("getattr", "__import__", "importlib.import_module"):
            self._reaches(node, name)
        elif name == "os.chdir" and first is not None:
            self.found.folder = first
        elif name in ("os.chmod", "os.lchmod", "os.chown", "os.kill", "os.killpg", "os.truncate"):
            self._changes(node, name.rpartition(".")[2], first)
        elif name.startswith("sh.") and name.count(".") == 1:
            self.found.command(name.removeprefix("sh."), *(self.text(arg) or GAP for arg in node.args))

    def _by_method(self, node: ast.Call, name: str | None, last: str) -> None:
        """Methods of objects that nobody followed: what they are called is all there is to go by."""
        if not isinstance(node.func, ast.Attribute):
            return
        first = self.text(node.args[0]) if node.args else None
        path = self.text(node.func.value)
        if first is not None and self._runs_elsewhere(name or "", last):
            self.found.script(first)
        elif last in _EVERY_SQL and first is not None:
            self.found.merge(read_sql(Word(first), "sqlite"))
        elif last in ("delete", "raw_delete") and _chain(node.func.value) == "objects.all":
            self.found.effect(Kind.DATABASE, "", "delete-all", detail="every record of a model is deleted")
        elif last == "rmtree":
            self.found.delete(first or path or GAP, tree=True)
        elif path is not None and last in ("unlink", "rmdir"):
            self.found.delete(path)
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

    def _runs_elsewhere(self, name: str, last: str) -> bool:
        """Whether a method is one that hands its argument to a shell, here or on another machine."""
        if last in ("run", "sudo", "local"):
            return any(full.partition(".")[0] in ("fabric", "invoke") for full in self.names.values())
        return last in _EVERY_SHELL and name not in _SHELL

    def _process(self, node: ast.Call) -> None:
        given = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "args"), None)
        value = self.fold(given)
        in_shell = any(
            k.arg == "shell" and not (isinstance(k.value, ast.Constant) and not k.value.value)
            for k in node.keywords
        )
        if isinstance(value, list):
            words = [_word(part) for part in value]
            if in_shell and words:
                self.found.script(words[0])
            else:
                self.found.command(*words)
        elif (text := self.text(given)) is not None:
            self.found.script(text)
        else:
            self.found.script(GAP)

    def _exec(self, node: ast.Call, name: str) -> None:
        args = [self.fold(arg) for arg in node.args]
        if name.startswith("spawn"):
            args = args[1:]
        program = _word(args[0]) if args else GAP
        rest = args[2:] if "l" in name.removeprefix("exec").removeprefix("spawn") else None
        if rest is None:
            listed = args[1] if len(args) > 1 else None
            rest = listed[1:] if isinstance(listed, list) else [GAP]
        self.found.command(program, *(_word(part) for part in rest if not isinstance(part, dict)))

    def _open(self, node: ast.Call, path: str | None) -> None:
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
        traits = self._evidence(given)
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
            self.found.command("chown", f"{_word(value)}:{_word(group)}", path or GAP)
        elif name == "truncate":
            self.found.command("truncate", "-s", _word(value), path or GAP)
        else:
            number = _number(first, node.args[0]) if node.args else None
            self.found.command("kill", f"-{_word(value) if value is not None else 9}", "--", _word(number))

    def _evidence(self, node: ast.AST) -> frozenset[str]:
        """Where the text that an expression makes comes from."""
        traits: set[str] = set()
        for inner in ast.walk(node):
            name = (
                inner.attr
                if isinstance(inner, ast.Attribute)
                else inner.id
                if isinstance(inner, ast.Name)
                else ""
            )
            full = self.names.get(name, name).rpartition(".")[2] if name else ""
            traits |= (
                {"network"} if {name, full, self.names.get(name, "").partition(".")[0]} & _NETWORK else set()
            )
            traits |= {"decoded"} if name in _DECODING or full in _DECODING else set()
            traits |= self.taints.get(name, frozenset()) if isinstance(inner, ast.Name) else set()
        return frozenset(traits)

    def _forks(self, node: ast.While) -> None:
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        if endless and any(
            isinstance(n, ast.Call) and self.dotted(n.func) == "os.fork" for n in ast.walk(node)
        ):
            self.found.effect(Kind.FORK_BOMB, detail="a process copies itself without end")


def _chain(node: ast.expr) -> str:
    """`objects.all` of `User.objects.all()`."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute | ast.Name):
        base = node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id
        return f"{base}.{node.attr}"
    return ""


_KNOWN = frozenset(
    {
        *(*_SHELL, *_PROCESS, *_DELETE, *_TREE, *_TWO_PATHS),
        *(
            "os.chmod",
            "os.chown",
            "os.kill",
            "os.killpg",
            "os.truncate",
            "os.chdir",
            "os.dup2",
            "pty.spawn",
            "os.fork",
        ),
        *("os.open", "io.open", "codecs.open", "glob.glob", "os.listdir", "os.walk"),
    }
)


def _bounded(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + GAP


def _word(value: Value) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, str | int) else GAP


def _number(value: Value, node: ast.AST) -> int | None:
    if isinstance(value, int):
        return value
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
            return -number
    return None


def _percent(text: str, value: Value) -> str:
    rest = list(reversed(value)) if isinstance(value, list) else [value]
    parts = text.split("%s")
    out = [parts[0]]
    for part in parts[1:]:
        out += [_word(rest.pop()) if rest else GAP, part]
    return _bounded("".join(out))


def _formatted(text: str, args: list[Value]) -> str:
    out: list[str] = []
    rest = list(reversed(args))
    at = 0
    while (begin := text.find("{", at)) >= 0 and (end := text.find("}", begin)) >= 0:
        name = text[begin + 1 : end]
        out.append(text[at:begin])
        if name.isdigit() and int(name[:4]) < len(args):
            out.append(_word(args[int(name[:4])]))
        else:
            out.append(_word(rest.pop()) if not name and rest else GAP)
        at = end + 1
    return _bounded("".join([*out, text[at:]]))


def _joined_path(parts: Iterable[str]) -> str:
    path = ""
    for part in parts:
        path = part if part.startswith("/") else f"{path.rstrip('/')}/{part}" if path else part
    return _bounded(path)


def _expanded(path: str) -> str:
    return HOME + path[1:] if path == "~" or path.startswith("~/") else path


def _made(name: str, args: list[Value]) -> Value:
    """What a well-known function makes of what is known."""
    first = args[0] if args else None
    last = name.rpartition(".")[2]
    if name in (
        "pathlib.Path",
        "Path",
        "pathlib.PurePath",
        "os.path.join",
        "pathlib.PosixPath",
        "posixpath.join",
    ):
        return _joined_path(arg if isinstance(arg, str) else GAP for arg in args) if args else "."
    if name in ("pathlib.Path.home", "Path.home"):
        return HOME
    if name in (
        "os.path.expanduser",
        "os.path.abspath",
        "os.path.realpath",
        "os.fspath",
        "os.path.expandvars",
        "str",
    ):
        text = first if isinstance(first, str) else None
        return (
            _expanded(text).replace("$HOME", HOME)
            if text is not None
            else str(first)
            if isinstance(first, int)
            else None
        )
    if name in ("os.getenv", "os.environ.get"):
        return HOME if first == "HOME" else GAP
    if name == "chr" and isinstance(first, int) and 0 <= first < 0xD800:
        return chr(first)
    if (
        name in ("bytes", "bytearray")
        and isinstance(first, list)
        and all(isinstance(n, int) and 0 <= n < 256 for n in first)
    ):
        return bytes(n for n in first if isinstance(n, int))
    if name == "shlex.split" and isinstance(first, str):
        return list(first.split()[:256])
    if name in ("os.getcwd", "os.path.dirname", "tempfile.gettempdir"):
        return "." if name == "os.getcwd" else GAP
    if last in _DECODERS:
        return _decoded(last, first, args)
    return None


_DECODERS: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType(
    {
        "b64decode": base64.b64decode,
        "urlsafe_b64decode": base64.urlsafe_b64decode,
        "standard_b64decode": base64.b64decode,
        "decodebytes": base64.b64decode,
        "a2b_base64": base64.b64decode,
        "b32decode": base64.b32decode,
        "b16decode": base64.b16decode,
        "b85decode": base64.b85decode,
        "a85decode": base64.a85decode,
        "unhexlify": binascii.unhexlify,
        "a2b_hex": binascii.unhexlify,
        "fromhex": binascii.unhexlify,
        "decompress": lambda data: _unpacked(data),
        "decode": lambda data: data,
    }
)


def _unpacked(data: bytes) -> bytes:
    if data[:3] == b"BZh":
        return bz2.BZ2Decompressor().decompress(data, _LONGEST_TEXT)
    if data[:6] == b"\xfd7zXZ\0":
        return lzma.LZMADecompressor(memlimit=1 << 26).decompress(data, _LONGEST_TEXT)
    return zlib.decompressobj(wbits=47).decompress(data, _LONGEST_TEXT)


def _decoded(name: str, given: Value, args: list[Value]) -> Value:
    if (
        name == "decode"
        and len(args) > 1
        and isinstance(given, str)
        and str(args[1]).lower().replace("-", "_") in ("rot13", "rot_13")
    ):
        return codecs.decode(given, "rot13")
    if isinstance(given, str):
        given = (
            given.replace(" ", "").encode("utf-8", "replace")
            if name == "fromhex"
            else given.encode("utf-8", "replace")
        )
    if not isinstance(given, bytes) or GAP.encode() in given:
        return None
    if name == "decode" and (len(args) < 2 or args[1] not in ("hex", "base64")):
        return None
    decoder = _DECODERS[
        "unhexlify" if args[1:] == ["hex"] else "b64decode" if args[1:] == ["base64"] else name
    ]
    try:
        return decoder(given)
    except (ValueError, EOFError, OSError, zlib.error, lzma.LZMAError):
        return None
