"""Analyze Python code by its syntax tree, and report the effects of the functions it calls."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType

from shellverdict.embedded_code.analysis import (
    HOME,
    AnalysisBuilder,
    CodeAnalysis,
    find_remote_url,
    is_connected_shell,
)
from shellverdict.embedded_code.client_libraries import find_destroyed_kind, find_service_kinds
from shellverdict.embedded_code.python_callees import (
    ANY_FUNCTION,
    INSPECTING_FUNCTIONS,
    STORING_NAMES,
    IndirectCallees,
)
from shellverdict.embedded_code.python_functions import (
    DELETE_FUNCTIONS,
    DELETE_TREE_FUNCTIONS,
    EVALUATION_FUNCTIONS,
    KNOWN_FUNCTIONS,
    NETWORK_NAMES,
    PROCESS_FUNCTIONS,
    SENDING_NAMES,
    SHELL_FUNCTIONS,
    SHELL_METHODS,
    SQL_METHODS,
    TWO_PATH_COMMANDS,
)
from shellverdict.embedded_code.python_names import GAP_NAME, PythonNames
from shellverdict.embedded_code.python_values import to_number, to_word
from shellverdict.embedded_code.runtime_access import find_runtime_commands
from shellverdict.embedded_code.sql import analyze_sql
from shellverdict.python_syntax import parse_module
from shellverdict.shell.words import GAP, STAR, Word
from shellverdict.verdict import EffectKind

__all__ = ["NotPython", "analyze_python"]

_MAX_CODE_DEPTH = 4
_MAX_NODES = 5_000
_PROGRAM_FUNCTIONS = SHELL_FUNCTIONS | PROCESS_FUNCTIONS | DELETE_FUNCTIONS | DELETE_TREE_FUNCTIONS
_CONNECTING_NAMES = frozenset(
    {
        *("connect", "connect_ex", "create_connection", "open_connection", "accept", "start_server"),
        *("TCPServer", "ThreadingTCPServer", "ForkingTCPServer", "create_server"),
    }
)
_CODE_FUNCTIONS = frozenset(
    {"timeit.timeit", "timeit.repeat", "cProfile.run", "profile.run", "pdb.run", "trace.run"}
)


_LOADING_FUNCTIONS: Mapping[str, int] = MappingProxyType(  # index of the argument with the file
    {
        "importlib.util.spec_from_file_location": 1,
        "importlib.machinery.SourceFileLoader": 1,
        "importlib.machinery.SourcelessFileLoader": 1,
        "importlib.machinery.ExtensionFileLoader": 1,
        "imp.load_source": 1,
        "imp.load_dynamic": 1,
        "zipimport.zipimporter": 0,
        "site.addsitedir": 0,
    }
)
# Functions that read Python code from standard input.
_INTERACTIVE_FUNCTIONS = frozenset(
    {
        *("code.interact", "code.InteractiveConsole", "pdb.set_trace", "breakpoint", "IPython.embed"),
        *("IPython.start_ipython", "pdb.post_mortem"),
    }
)
# Names of modules in pickled data that can start programs or evaluate code.
_PICKLED_MODULE = re.compile(
    rb"(?:^|[^A-Za-z_])[ci]?(?:os|posix|nt|subprocess|builtins|__builtin__|shutil|pty|runpy|importlib|ctypes)\b"
)


class NotPython(ValueError):
    """Raised when a text cannot be parsed as Python."""


def analyze_python(code: str, depth: int = 0) -> CodeAnalysis:
    """Return the effects of Python code, and the shell scripts that it runs. Raises `NotPython`."""
    analyzer = _PythonAnalyzer(_parse_python(code), depth)
    analyzer.analyze()
    return analyzer.analysis.build()


def _parse_python(code: str) -> ast.Module:
    named = code.replace(GAP, GAP_NAME)
    for text in (named, named.replace('\\"', '"'), named.strip()):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return parse_module(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    raise NotPython


def _walk_in_order(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node of a syntax tree in source order, parents first, without recursion."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(list(ast.iter_child_nodes(node))))


class _PythonAnalyzer(PythonNames):
    """Analyzes the function calls of one Python module."""

    def __init__(self, tree: ast.Module, depth: int) -> None:
        super().__init__()
        self.tree, self.depth = tree, depth
        self.analysis = AnalysisBuilder()
        self.opens_connection = self.redirects_streams = self.sends_data = self.makes_requests = (
            self.sends_credentials
        ) = False
        self.environment_variables: dict[str, None] = {}  # an empty name means all
        self.environ_nodes: set[int] = set()
        self.urls: dict[str, None] = {}
        self.files_read: list[str] = []
        self.service_kinds: frozenset[EffectKind] = frozenset()
        self.kills_processes = False  # True if a method that ends a process is called
        self.aws_service = ""  # AWS service used by the code
        self.callees = IndirectCallees(self, ())

    def analyze(self) -> None:
        nodes = list(islice(_walk_in_order(self.tree), _MAX_NODES + 1))
        if len(nodes) > _MAX_NODES:
            self.analysis.add_unreadable("code beyond the analysis limit")
        for node in nodes:
            self.record_names(node)
        self.start_second_pass()
        self.callees = IndirectCallees(self, nodes[:_MAX_NODES])
        self.service_kinds = find_service_kinds(self.names.values())
        methods = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        self.kills_processes = bool(methods & {"kill", "terminate", "send_signal"})
        if "boto3" in self.names.values():
            self.aws_service = next((name for node in nodes if (name := self._find_aws_service(node))), "")
        for node in nodes:
            self.record_names(node)
            for words in find_runtime_commands(node):
                self.analysis.add_command(*words)
            if isinstance(node, ast.Call):
                self._analyze_call(node)
            elif isinstance(node, ast.While):
                self._check_fork_bomb(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "://" in node.value:
                self.urls[node.value[:256]] = None
            self._note_environment_access(node)
        self._add_combined_effects()

    def _find_aws_service(self, node: ast.AST) -> str:
        """Return the AWS service of a client: `ec2` for `boto3.client("ec2")`; empty if there is none."""
        match node:
            case ast.Call(func=ast.Attribute(attr="client" | "resource"), args=[service, *_]):
                return self.fold_text(service) or ""
        return ""

    def _note_environment_access(self, node: ast.AST) -> None:
        """Record the environment variables that a syntax node reads; `os.environ` alone means all of them."""
        match node:
            case ast.Subscript(value=ast.Attribute() as whole, slice=key) if (
                self.full_name(whole) == "os.environ"
            ):
                self.environ_nodes.add(id(whole))
                self._note_variable(key)
            case ast.Call(
                func=ast.Attribute(value=whole, attr="get" | "pop" | "setdefault"), args=[key, *_]
            ) if self.full_name(whole) == "os.environ":
                self.environ_nodes.add(id(whole))
                self._note_variable(key)
            case ast.Call(func=function, args=[key, *_]) if self.full_name(function) == "os.getenv":
                self._note_variable(key)
            case ast.Attribute() if (
                id(node) not in self.environ_nodes and self.full_name(node) == "os.environ"
            ):
                self.environment_variables[""] = None

    def _note_variable(self, key: ast.expr) -> None:
        name = self.fold_text(key)
        if name is not None and name.isidentifier():
            self.environment_variables[name] = None

    def _add_combined_effects(self) -> None:
        """Add effects that result from a combination of calls, such as opening a reverse shell."""
        starts_shell = self.redirects_streams or any(
            is_connected_shell(script) for script in self.analysis.scripts
        )
        if self.opens_connection and starts_shell:
            self.analysis.add_effect(EffectKind.REVERSE_SHELL, detail="connects a shell to the network")
        if self.sends_data or self.makes_requests:
            sent = [name for name in self.environment_variables if not (name and self.sends_credentials)]
            self.analysis.add_environment_upload(sent, find_remote_url(self.urls))
        for path in self.files_read:
            self.analysis.add_command("cat", "--", path)
            if self.sends_data:
                self.analysis.add_file_upload(path, find_remote_url(self.urls))

    def _analyze_call(self, node: ast.Call) -> None:
        name = self.full_name(node.func)
        last = node.func.attr if isinstance(node.func, ast.Attribute) else (name or "").rpartition(".")[2]
        self._note_network_use(name or last, last, node)
        self._analyze_passed_function(node, name)
        if name is None or name not in KNOWN_FUNCTIONS:
            self._analyze_method(node, name, last)
        if name is not None:
            self._analyze_known_function(node, name)
        for called in sorted(self.callees.find_called(node)):
            self._analyze_indirect_call(node.func, called, node.args, node.keywords)
        for function, sources in self.callees.find_passed(node):
            rest = [each for each in node.args if each is not function]
            for called in sorted(sources):
                self._analyze_indirect_call(function, called, rest, [])

    def _analyze_indirect_call(
        self, callee: ast.expr, name: str, arguments: list[ast.expr], keywords: list[ast.keyword]
    ) -> None:
        """Analyze a call of the function `name`, which the expression `callee` may refer to."""
        if name == ANY_FUNCTION:
            self.analysis.add_unreadable("a call of a function that is looked up at run time")
        else:
            call = ast.Call(func=callee, args=arguments, keywords=keywords)
            self._analyze_known_function(call, name)

    def _note_network_use(self, name: str, last: str, node: ast.Call) -> None:
        self.opens_connection |= last in _CONNECTING_NAMES and "sql" not in name
        self.redirects_streams |= name in ("os.dup2", "pty.spawn", "socket.dup2")
        self.sends_data |= last in SENDING_NAMES and name not in ("os.sendfile",)
        self.makes_requests |= last in ("get", "head") and name.partition(".")[0] in NETWORK_NAMES
        self.makes_requests |= (
            last in ("gethostbyname", "getaddrinfo", "gethostbyname_ex") or "dns.resolver" in name
        )
        self.sends_credentials |= any(keyword.arg in ("headers", "auth") for keyword in node.keywords)
        if last in ("map", "filter", "submit", "Thread", "Process", "apply") and len(node.args) > 1:
            self._analyze_map(node)

    def _analyze_passed_function(self, node: ast.Call, name: str | None) -> None:
        """Analyze a function passed with its arguments: `Thread(target=os.system, args=("…",))`."""
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        functions = [value for value in values if self.full_name(value) in _PROGRAM_FUNCTIONS]
        last = (name or "").rpartition(".")[2] or getattr(node.func, "attr", "")
        if (
            not functions
            or name in _PROGRAM_FUNCTIONS
            or name in ("map", "filter")
            or name in INSPECTING_FUNCTIONS
            or last in STORING_NAMES
        ):
            return
        rest = [value for value in values if value is not functions[0]]
        arguments = [
            item for value in rest for item in (value.elts if isinstance(value, ast.Tuple) else [value])
        ]
        self._analyze_known_function(
            ast.Call(func=functions[0], args=arguments, keywords=[]), self.full_name(functions[0]) or ""
        )

    def _analyze_map(self, node: ast.Call) -> None:
        """Analyze `map(os.remove, glob.glob("*"))` as calls of `os.remove`, one for each item."""
        inner = ast.Call(func=node.args[0], args=[ast.Name(id="each of them", ctx=ast.Load())], keywords=[])
        self.bind_loop_target(inner.args[0], node.args[1])
        if not isinstance(node.args[0], ast.Call):
            self._analyze_call(inner)

    def _analyze_known_function(self, node: ast.Call, name: str) -> None:
        """Analyze a call of a function of the standard library or of a well-known package."""
        first = self.fold_text(node.args[0]) if node.args else None
        if self._analyze_process_call(node, name, first) or self._analyze_file_call(node, name, first):
            return
        self._analyze_code_call(node, name)

    def _analyze_process_call(self, node: ast.Call, name: str, first: str | None) -> bool:
        """Analyze a call that starts, ends or changes processes; return False for other functions."""
        if name in SHELL_FUNCTIONS:
            for text in self.fold_texts(node.args[0] if node.args else None):
                self.analysis.add_script(text)
        elif name in PROCESS_FUNCTIONS or name == "asyncio.create_subprocess_exec":
            self._add_process(node)
        elif name.startswith(("os.exec", "os.spawn", "os.posix_spawn", "posix.exec")):
            self._add_exec(node, name.rpartition(".")[2])
        elif name == "pty.spawn":
            self._add_process(node)
            self.analysis.add_effect(EffectKind.PRIVILEGE, first or "", detail="opens an interactive shell")
        elif name in ("os.setuid", "os.setreuid", "os.seteuid", "os.setresuid"):
            self.analysis.add_effect(EffectKind.PRIVILEGE, detail="becomes another user")
        elif name == "os.chdir" and first is not None:
            self.analysis.workdir = first
        elif name.startswith(("sh.", "plumbum.local.")):
            program = name.removeprefix("sh.").removeprefix("plumbum.local.")
            self.analysis.add_command(program, *(self.fold_text(arg) or GAP for arg in node.args))
        elif name == "keyring.get_password":
            self.analysis.add_command(
                "secret-tool", "lookup", *(self.fold_text(arg) or GAP for arg in node.args)
            )
        elif name == "psutil.process_iter" and self.kills_processes:
            self.analysis.add_command("pkill", "-f", GAP)
        else:
            return False
        return True

    def _analyze_file_call(self, node: ast.Call, name: str, first: str | None) -> bool:
        """Analyze a call that deletes, opens, copies or changes files; return False for other functions."""
        path = first if first is not None else GAP
        if name in DELETE_FUNCTIONS:
            self._add_deletion(path)
        elif name in DELETE_TREE_FUNCTIONS:
            self.analysis.add_delete(path, tree=True)
        elif name in TWO_PATH_COMMANDS and len(node.args) > 1:
            second = self.fold_text(node.args[1])
            self.analysis.add_command(*TWO_PATH_COMMANDS[name], "--", first or GAP, second or GAP)
        elif name in ("open", "io.open", "codecs.open", "builtins.open", "os.open"):
            self._add_open(node, first)
        elif name in ("urllib.request.urlretrieve", "urlretrieve", "wget.download") and len(node.args) > 1:
            self.analysis.add_command("curl", "-o", self.fold_text(node.args[1]) or GAP, first or GAP)
        elif name in ("os.chmod", "os.lchmod", "os.chown", "os.kill", "os.killpg", "os.truncate"):
            self._add_attribute_change(node, name.rpartition(".")[2], first)
        elif name == "shutil.make_archive" and len(node.args) > 2:
            self.analysis.add_command("tar", "-czf", first or GAP, self.fold_text(node.args[2]) or GAP)
        elif name == "fileinput.input" and any(keyword.arg == "inplace" for keyword in node.keywords):
            self.analysis.add_command("sed", "-i", "s/a/b/", first or GAP)
        else:
            return False
        return True

    def _analyze_code_call(self, node: ast.Call, name: str) -> None:
        """Analyze a call that runs or loads code."""
        if name in EVALUATION_FUNCTIONS:
            self._add_evaluation(node, name)
        elif name in ("pickle.loads", "marshal.loads", "dill.loads", "cPickle.loads", "yaml.unsafe_load"):
            data = self.fold_value(node.args[0]) if node.args else None
            if node.args and (traits := self.find_source_traits(node.args[0])):
                self.analysis.add_unread_code(name, traits)
            elif isinstance(data, bytes) and _PICKLED_MODULE.search(data):
                self.analysis.add_unreadable(f"the objects that {name} creates")
        elif name in _CODE_FUNCTIONS:
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                if (code := self.fold_text(argument)) is not None:
                    self._add_code(code)
        elif name in _LOADING_FUNCTIONS:
            self._add_loaded_file(node, name)
        elif name in _INTERACTIVE_FUNCTIONS:
            self.analysis.add_command("python3")  # reads the same standard input
            if name.startswith("code."):
                self.analysis.add_unread_code(f"the input of {name}", frozenset())

    def _analyze_method(self, node: ast.Call, name: str | None, last: str) -> None:
        """Analyze a method of an object of unknown type by the method's name alone."""
        if not isinstance(node.func, ast.Attribute):
            return
        first = self.fold_text(node.args[0]) if node.args else None
        path = self.fold_text(node.func.value)
        if first is not None and self._is_shell_method(name or "", last):
            self.analysis.add_script(first)
        elif last in ("runsource", "runcode") and node.args:
            self._add_evaluation(node, "exec")
        elif last in SQL_METHODS and first is not None:
            self.analysis.merge(analyze_sql(Word(first), "sqlite"))
        elif last in ("delete", "raw_delete") and _last_two_names(node.func.value) == "objects.all":
            self.analysis.add_effect(
                EffectKind.DATABASE, "", "delete-all", detail="every record of a model is deleted"
            )
        elif last == "extractall" and first is not None:
            self.analysis.add_command("tar", "-C", first, "-xf", GAP)
        elif last == "remove_all" and "crontab" in self.names.values():
            self.analysis.add_command("crontab", "-r")
        elif last == "rmtree":
            self.analysis.add_delete(first or path or GAP, tree=True)
        elif path is not None and last in ("unlink", "rmdir"):
            self._add_deletion(path)
        elif path is not None and last in ("write_text", "write_bytes"):
            self.analysis.add_overwrite(path)
        elif path is not None and last in ("read_text", "read_bytes"):
            self.files_read.append(path)
        elif path is not None and last == "open":
            self._add_open_mode(path, self.fold_text(node.args[0]) if node.args else "r")
        elif path is not None and last in ("rename", "replace") and first is not None and "/" in path:
            self.analysis.add_command("mv", "--", path, first)
        elif path is not None and last == "chmod":
            mode = self.fold_value(node.args[0]) if node.args else None
            self.analysis.add_command("chmod", f"{mode:o}" if isinstance(mode, int) else GAP, path)

        self._check_client_method(node, last)
        self._add_aws_command(node, last)
        self._add_git_command(node, last)
        if last == "delete" and (name or "").partition(".")[0] in ("requests", "httpx") and first is not None:
            self.analysis.add_command("curl", "-X", "DELETE", first)

    def _add_deletion(self, path: str) -> None:
        self.analysis.add_delete_each(path) if STAR in path else self.analysis.add_delete(path)

    def _check_client_method(self, node: ast.Call, last: str) -> None:
        """Add the effect of a client library's method that deletes data in a cloud service or database."""
        if any(keyword.arg == "DryRun" for keyword in node.keywords):
            return
        limited = [argument for argument in node.args if not isinstance(argument, ast.Dict) or argument.keys]
        method = _last_two_names(node.func) or last
        kind = find_destroyed_kind(method, self.service_kinds, everything=not limited and not node.keywords)
        if kind is not None:
            self.analysis.add_effect(kind, method, "drop", detail=f"{method}()")

    def _add_aws_command(self, node: ast.Call, last: str) -> None:
        """Add a boto3 method call as the equivalent command of the AWS command line."""
        if not self.aws_service or "_" not in last:
            return
        if last in ("upload_file", "upload_fileobj") and len(node.args) > 1:
            texts = [self.fold_text(argument) or GAP for argument in node.args[:3]]
            self.analysis.add_command("aws", "s3", "cp", texts[0], "s3://" + "/".join(texts[1:]))
            return
        options = [
            word
            for keyword in node.keywords[:16]
            if keyword.arg is not None
            for word in (f"--{_to_dashes(keyword.arg)}", self.fold_text(keyword.value) or GAP)
        ]
        service = "s3api" if self.aws_service == "s3" else self.aws_service
        self.analysis.add_command("aws", service, last.replace("_", "-"), *options)

    def _add_git_command(self, node: ast.Call, last: str) -> None:
        """Add a GitPython call as a git command: `repo.git.push("--force")` is `git push --force`."""
        if "git" not in self.names.values():
            return
        if _last_two_names(node.func) == f"git.{last}":
            self.analysis.add_command(
                "git", last.replace("_", "-"), *(self.fold_text(arg) or GAP for arg in node.args)
            )
        elif last == "reset" and any(keyword.arg == "working_tree" for keyword in node.keywords):
            self.analysis.add_command(
                "git", "reset", "--hard", *(self.fold_text(arg) or GAP for arg in node.args[:1])
            )

    def _is_shell_method(self, name: str, last: str) -> bool:
        """Return True if a method of a Python library passes its argument to a local or remote shell."""
        if last in ("run", "sudo", "local"):
            return any(full.partition(".")[0] in ("fabric", "invoke") for full in self.names.values())
        return last in SHELL_METHODS and name not in SHELL_FUNCTIONS

    def _add_process(self, node: ast.Call) -> None:
        argument = (
            node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "args"), None)
        )
        value = self.fold_value(argument)
        in_shell = any(
            k.arg == "shell" and not (isinstance(k.value, ast.Constant) and not k.value.value)
            for k in node.keywords
        )
        if isinstance(value, list):
            words = [to_word(part) for part in value]
            if in_shell and words:
                self.analysis.add_script(words[0])
            else:
                self.analysis.add_command(*words)
        else:
            for text in self.fold_texts(argument):
                self.analysis.add_script(text)

    def _add_exec(self, node: ast.Call, name: str) -> None:
        args = [self.fold_value(arg) for arg in node.args]
        if name.startswith("spawn"):
            args = args[1:]
        program = to_word(args[0]) if args else GAP
        rest = args[2:] if "l" in name.removeprefix("exec").removeprefix("spawn") else None
        if rest is None:
            listed = args[1] if len(args) > 1 else None
            rest = listed[1:] if isinstance(listed, list) else [GAP]
        self.analysis.add_command(program, *(to_word(part) for part in rest if not isinstance(part, dict)))

    def _add_open(self, node: ast.Call, path: str | None) -> None:
        flags = {
            inner.attr
            for argument in node.args[1:2]
            for inner in ast.walk(argument)
            if isinstance(inner, ast.Attribute)
        }
        if flags & {"O_WRONLY", "O_RDWR", "O_TRUNC"} and path is not None:
            self.analysis.add_overwrite(path)
            return
        mode = (
            node.args[1]
            if len(node.args) > 1
            else next((k.value for k in node.keywords if k.arg == "mode"), None)
        )
        self._add_open_mode(
            path if path is not None else GAP, self.fold_text(mode) if mode is not None else "r"
        )

    def _add_open_mode(self, path: str, mode: str | None) -> None:
        if mode is None or path == GAP:
            return
        if "w" in mode or "x" in mode or "+" in mode:
            self.analysis.add_overwrite(path)
        elif "a" in mode:
            self.analysis.add_append(path)
        else:
            self.files_read.append(path)

    def _add_evaluation(self, node: ast.Call, name: str) -> None:
        argument = node.args[0] if node.args else None
        if argument is None:
            return
        if name in ("runpy.run_path", "execfile"):
            self.analysis.add_command("python3", self.fold_text(argument) or GAP)
            return
        if isinstance(argument, ast.Call) and self.full_name(argument.func) == "compile":
            return  # the call of compile is analyzed separately
        traits = self.find_source_traits(argument)
        code = self.fold_text(argument)
        if code is not None and code.strip() != GAP:
            if "decoded" in traits:
                self.analysis.add_unread_code(code, traits)
            self._add_code(code)
        elif traits:
            self.analysis.add_unread_code(
                ast.unparse(argument)[:80] if self.depth < _MAX_CODE_DEPTH else "", traits
            )
        elif (path := self._find_opened_path(argument)) is not None:
            self.analysis.add_command("python3", path)
        else:
            self.analysis.add_unreadable(ast.dump(argument)[:80])

    def _add_loaded_file(self, node: ast.Call, name: str) -> None:
        """Add the import of a module from a file that is named by its path."""
        at = _LOADING_FUNCTIONS[name]
        named = next((k.value for k in node.keywords if k.arg in ("location", "path", "pathname")), None)
        path = self.fold_text(node.args[at] if len(node.args) > at else named) or GAP
        self.analysis.add_command("python3", path)
        if path.startswith((GAP, "/", HOME)):
            self.analysis.add_unread_code(path, frozenset())

    def _add_code(self, code: str) -> None:
        if self.depth >= _MAX_CODE_DEPTH:
            self.analysis.add_unreadable(code)
            return
        try:
            self.analysis.merge(analyze_python(code, self.depth + 1))
        except NotPython:
            self.analysis.add_unreadable(code)

    def _find_opened_path(self, node: ast.expr) -> str | None:
        """Return the path in the first `open(path)` call of an expression; None if there is none."""
        for inner in ast.walk(node):
            if (
                isinstance(inner, ast.Call)
                and self.full_name(inner.func) in ("open", "io.open")
                and inner.args
            ):
                return self.fold_text(inner.args[0])
        return None

    def _add_attribute_change(self, node: ast.Call, name: str, path: str | None) -> None:
        """Add the effect of `os.chmod`, `os.chown`, `os.truncate`, `os.kill` or a similar function."""
        value = self.fold_value(node.args[1]) if len(node.args) > 1 else None
        first = self.fold_value(node.args[0]) if node.args else None
        if name in ("chmod", "lchmod"):
            self.analysis.add_command("chmod", f"{value:o}" if isinstance(value, int) else GAP, path or GAP)
        elif name == "chown":
            group = self.fold_value(node.args[2]) if len(node.args) > 2 else None
            self.analysis.add_command("chown", f"{to_word(value)}:{to_word(group)}", path or GAP)
        elif name == "truncate":
            self.analysis.add_command("truncate", "-s", to_word(value), path or GAP)
        else:
            number = to_number(first, node.args[0]) if node.args else None
            self.analysis.add_command(
                "kill", f"-{to_word(value) if value is not None else 9}", "--", to_word(number)
            )

    def _check_fork_bomb(self, node: ast.While) -> None:
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        if endless and any(
            isinstance(n, ast.Call) and self.full_name(n.func) == "os.fork" for n in ast.walk(node)
        ):
            self.analysis.add_effect(EffectKind.FORK_BOMB, detail="forks processes without limit")


def _to_dashes(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name[:64]).lower()


def _last_two_names(node: ast.expr) -> str:
    """Return the last two names of a call, joined by a dot: `objects.all` for `User.objects.all()`."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute | ast.Name):
        base = node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id
        return f"{base}.{node.attr}"
    return ""
