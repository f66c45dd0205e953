"""Find the dangerous functions that an indirect call in Python code may reach.

A function such as `os.system` may be called through a container, an attribute, a parameter or reflection.
Every place where such a function or its module is used as a value is a source. Sources are followed through
assignments, containers, attributes, parameters and return values, by name and without regard to scopes or
order. A call is reported only if its callee can be traced to a source; other callees are the code's own.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from shellverdict.embedded_code.python_functions import (
    DELETE_FUNCTIONS,
    DELETE_TREE_FUNCTIONS,
    EVALUATION_FUNCTIONS,
    PROCESS_FUNCTIONS,
    SHELL_FUNCTIONS,
    TWO_PATH_COMMANDS,
)
from shellverdict.embedded_code.python_names import PythonNames
from shellverdict.shell.words import GAP

__all__ = ["ANY_FUNCTION", "INSPECTING_FUNCTIONS", "STORING_NAMES", "IndirectCallees"]

ANY_FUNCTION = ""
"""Stands for a function that may be any, because it is looked up by a name that is unknown."""

Sources = frozenset[str]  # names of functions, of modules with `.*` after them, or ANY_FUNCTION

_MAX_PASSES = 6
_NO_SOURCES: Sources = frozenset()
_FUNCTIONS = frozenset(
    {
        *(*SHELL_FUNCTIONS, *PROCESS_FUNCTIONS, *DELETE_FUNCTIONS, *DELETE_TREE_FUNCTIONS),
        *(*TWO_PATH_COMMANDS, *EVALUATION_FUNCTIONS, "asyncio.create_subprocess_exec", "pty.spawn"),
        *("os.chmod", "os.chown", "os.kill", "os.killpg", "os.truncate"),
    }
)
_MODULES = frozenset(
    {
        *("os", "posix", "nt", "subprocess", "shutil", "pty", "builtins", "__builtins__", "importlib"),
        *("commands", "ctypes", "ctypes.cdll", "runpy", "asyncio.subprocess", "_posixsubprocess"),
    }
)
_IMPORTERS = frozenset({"__import__", "importlib.import_module", "importlib.__import__"})
_LOOKUP_FUNCTIONS = frozenset(
    {
        *("gc.get_objects", "gc.get_referrers", "gc.get_referents", "pydoc.locate", "pkgutil.resolve_name"),
        *("types.FunctionType", "types.CodeType", "marshal.loads"),
    }
)
_NATIVE_LIBRARIES = frozenset(
    {"ctypes.CDLL", "ctypes.PyDLL", "ctypes.cdll.LoadLibrary", "ctypes.pydll.LoadLibrary"}
)
_REFLECTIVE_ATTRIBUTES = frozenset(
    {
        *("__subclasses__", "__globals__", "__builtins__", "__loader__"),
        *("f_globals", "f_builtins", "f_locals"),
    }
)
_DATA_ATTRIBUTES = frozenset(
    {
        "__version__",
        "__file__",
        "__name__",
        "__doc__",
        "__path__",
        "__package__",
        "__qualname__",
        "__module__",
    }
)
_CONTAINER_METHODS = frozenset(
    name for kind in (str, bytes, dict, list, set, tuple) for name in dir(kind)
) - {
    "__getattribute__",
    "__call__",
    "__class__",
}
_METHOD_GETTERS = frozenset({"operator.methodcaller", "operator.attrgetter", "operator.itemgetter"})
_CALLING_NAMES = frozenset(
    {
        *("map", "filter", "reduce", "submit", "apply", "apply_async", "partial", "starmap", "imap"),
        *(
            "Thread",
            "Process",
            "to_thread",
            "register",
            "call_soon",
            "run_in_executor",
            "Timer",
            "call_later",
        ),
    }
)
_FUNCTION_KEYWORDS = frozenset({"target", "func", "function", "callback", "key", "default_factory"})
INSPECTING_FUNCTIONS = frozenset(
    {
        *("print", "repr", "str", "id", "hash", "help", "callable", "hasattr", "isinstance", "issubclass"),
        *("dir", "len", "bool", "pprint.pprint", "format", "getattr", "delattr", "vars"),
        *("inspect.getsource", "inspect.signature", "inspect.getdoc", "inspect.getfile", "inspect.isbuiltin"),
        *("inspect.getsourcefile", "inspect.getmodule", "inspect.isfunction", "inspect.ismodule"),
        *("importlib.reload", "typing.get_type_hints"),
    }
)
"""Functions that look at a function or module that is passed to them, but do not call or keep it."""
STORING_NAMES = frozenset(
    {
        *("append", "add", "insert", "extend", "update", "setdefault", "put", "appendleft", "push"),
        *(
            "dict",
            "list",
            "tuple",
            "set",
            "iter",
            "next",
            "SimpleNamespace",
            "staticmethod",
            "type",
            "deque",
            "setattr",
        ),
    }
)
"""Functions and methods that keep a function that is passed to them, but do not call it."""


class IndirectCallees:
    """The dangerous functions that the callees in one piece of Python code may be."""

    def __init__(self, names: PythonNames, nodes: Sequence[ast.AST]) -> None:
        self._names, self._nodes = names, nodes
        self._parents = {id(child): node for node in nodes for child in ast.iter_child_nodes(node)}
        self._annotations = {
            id(inner)
            for node in nodes
            for hint in (getattr(node, "annotation", None), getattr(node, "returns", None))
            if isinstance(hint, ast.AST)
            for inner in ast.walk(hint)
        }
        self._classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
        self._defined: dict[str, list[ast.arguments]] = defaultdict(list)
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._defined[node.name].append(node.args)
        self._own_sources = {id(node): found for node in nodes if (found := self._find_source(node))}
        self._sources: dict[int, Sources] = {}
        self._variables: dict[str, Sources] = {}
        self._attributes: dict[str, Sources] = {}
        self._has_changed = False
        if self._own_sources:
            self._propagate()

    def find_called(self, call: ast.Call) -> Sources:
        """Return the functions that the callee of a call may be, if it cannot be resolved by its name."""
        function = call.func
        if not self._own_sources or self._names.full_name(function) in _FUNCTIONS:
            return _NO_SOURCES
        if isinstance(function, ast.Name):
            is_own = function.id in self._defined or function.id in self._classes
            found = _NO_SOURCES if is_own else self._variables.get(function.id, _NO_SOURCES)
            return _without_modules(found)
        if isinstance(function, ast.Attribute):
            return self._find_called_method(function)
        if isinstance(function, ast.Lambda):
            return _NO_SOURCES
        getter = self._names.full_name(function.func) if isinstance(function, ast.Call) else None
        if getter == "type":  # creates a class
            return _NO_SOURCES
        if getter in _METHOD_GETTERS:
            owners = [self._names.full_name(argument) in _MODULES for argument in call.args]
            return frozenset({ANY_FUNCTION}) if any(owners) else self._passed_sources(call.args)
        return _without_modules(self._sources_of(function))

    def find_passed(self, call: ast.Call) -> Iterator[tuple[ast.expr, Sources]]:
        """Yield the arguments of a call that the called function calls and that may be dangerous."""
        if not self._own_sources:
            return
        last = _last_name(call.func)
        second = last in ("run_in_executor", "Timer", "call_later")
        values = list(call.args[1:2] if second else call.args[:1]) if last in _CALLING_NAMES else []
        values += [keyword.value for keyword in call.keywords if keyword.arg in _FUNCTION_KEYWORDS]
        for value in values:
            if not isinstance(value, ast.Lambda) and self._names.full_name(value) not in _FUNCTIONS:
                yield value, _without_modules(self._sources_of(value))

    def _find_called_method(self, function: ast.Attribute) -> Sources:
        own = self._sources_of(function.value)
        if function.attr in ("__call__", "__getattribute__", "func"):
            return _without_modules(own)
        found = set(self._find_attribute(own, function.attr))
        if function.attr not in self._defined:
            found |= _without_modules(self._attributes.get(function.attr, _NO_SOURCES))
        if not hasattr(object, function.attr):
            found |= _without_modules(self._attributes.get("*", _NO_SOURCES))
        if ANY_FUNCTION in own and function.attr not in _CONTAINER_METHODS:
            found.add(ANY_FUNCTION)
        return frozenset(found)

    def _find_attribute(self, owners: Sources, name: str | None) -> Sources:
        """Return the functions that an attribute of the given modules may be; all of them without a name."""
        if name is None:
            return frozenset({ANY_FUNCTION})
        found = (f"{each[:-2]}.{name}" for each in owners if each.endswith(".*"))
        return frozenset(each for each in found if is_dangerous_function(each))

    def _fold_name(self, node: ast.AST | None) -> str | None:
        """Return the text of an expression if it is completely known, else None."""
        text = self._names.fold_text(node)
        return None if text is None or GAP in text else text

    # --- Sources ---

    def _find_source(self, node: ast.AST) -> Sources:
        """Return the functions or modules that an expression makes available as a value."""
        match node:
            case ast.Attribute(attr="__self__", value=ast.Name(id=name)):
                return frozenset({ANY_FUNCTION}) if hasattr(builtins, name) else _NO_SOURCES
            case ast.Attribute(attr=attr, value=value) if attr in _REFLECTIVE_ATTRIBUTES:
                is_own = (
                    attr == "__subclasses__" and isinstance(value, ast.Name) and value.id in self._classes
                )
                return _NO_SOURCES if is_own else frozenset({ANY_FUNCTION})
            case ast.Attribute(attr="__dict__", value=value) if self._names.full_name(value) in _MODULES:
                return _NO_SOURCES if self._is_resolved_item(node) else frozenset({ANY_FUNCTION})
            case ast.Attribute(attr="__getattribute__"):
                return frozenset({ANY_FUNCTION}) if self._is_dynamic_attribute(node) else _NO_SOURCES
            case ast.Attribute() | ast.Name(ctx=ast.Load()):
                return self._find_stored(node)
            case ast.Subscript(value=value, slice=key):
                return self._find_item_source(value, key)
            case ast.Call():
                return self._find_call_source(node) | self._find_stored(node)
        return _NO_SOURCES

    def _find_stored(self, node: ast.expr) -> Sources:
        name = self._names.full_name(node) or ""
        if name == "sys.modules":
            return _NO_SOURCES if self._is_resolved_item(node) else frozenset({ANY_FUNCTION})
        is_function = is_dangerous_function(name) or name in _IMPORTERS
        if not (is_function or name in _MODULES) or not self._is_stored(node):
            return _NO_SOURCES
        if name in _IMPORTERS:
            return frozenset({ANY_FUNCTION})
        return frozenset({name if is_function else f"{name}.*"})

    def _find_item_source(self, value: ast.expr, key: ast.expr) -> Sources:
        is_module = self._names.full_name(value) in _MODULES
        return frozenset({ANY_FUNCTION}) if is_module and self._fold_name(key) is None else _NO_SOURCES

    def _find_call_source(self, node: ast.Call) -> Sources:
        name = self._names.full_name(node.func) or ""
        first = self._names.full_name(node.args[0]) if node.args else None
        if name in _NATIVE_LIBRARIES:
            return frozenset({"os.*"})
        if name in _LOOKUP_FUNCTIONS or (name in _IMPORTERS and self._names.full_name(node) is None):
            return frozenset({ANY_FUNCTION})
        if name in ("globals", "locals", "vars") and not node.args and not self._is_resolved_item(node):
            return frozenset(
                each if each not in _MODULES else f"{each}.*"
                for each in self._names.names.values()
                if each in _MODULES or is_dangerous_function(each)
            )
        if name in ("vars", "inspect.getmembers") and first in _MODULES and not self._is_resolved_item(node):
            return frozenset({ANY_FUNCTION})
        if name == "getattr" and len(node.args) > 1 and first in _MODULES:
            return frozenset({ANY_FUNCTION}) if self._fold_name(node.args[1]) is None else _NO_SOURCES
        return _NO_SOURCES

    def _is_dynamic_attribute(self, node: ast.Attribute) -> bool:
        """Return True for `os.__getattribute__` and for `object.__getattribute__(os, …)`."""
        call = self._parents.get(id(node))
        owners: list[ast.expr] = [node.value, *(call.args[:1] if isinstance(call, ast.Call) else [])]
        return any(self._names.full_name(owner) in _MODULES for owner in owners)

    def _is_resolved_item(self, node: ast.AST) -> bool:
        """Return True if only a known item of a namespace is used, as in `vars(os)["sep"]`."""
        parent = self._parents.get(id(node))
        if isinstance(parent, ast.Subscript) and parent.value is node:
            is_own = isinstance(parent.slice, ast.Name) and parent.slice.id == "__name__"
            return is_own or self._fold_name(parent.slice) is not None
        return isinstance(parent, ast.Compare)

    def _is_stored(self, node: ast.expr) -> bool:
        """Return False if an expression is only called, inspected, compared, or given another name."""
        parent = self._parents.get(id(node))
        match parent:
            case ast.Call(func=function):
                is_inspected = self._names.full_name(function) in INSPECTING_FUNCTIONS
                return function is not node and not is_inspected
            case ast.Assign(targets=[ast.Name()]):
                return isinstance(self._parents.get(id(parent)), ast.ClassDef)
            case ast.AnnAssign(target=ast.Name()) | ast.NamedExpr():
                return False
            case ast.Attribute() | ast.Subscript() | ast.Compare() | ast.Expr() | ast.FormattedValue():
                return False
        return parent is not None and id(node) not in self._annotations

    # --- Propagation ---

    def _propagate(self) -> None:
        for _ in range(_MAX_PASSES):
            self._has_changed = False
            self._compute_sources()
            for node in self._nodes:
                self._bind_names(node)
            if not self._has_changed:
                return

    def _compute_sources(self) -> None:
        """Compute the sources in each expression from those of its parts; parents come first in the nodes."""
        self._sources = {}
        for node in reversed(self._nodes):
            found = self._own_sources.get(id(node), _NO_SOURCES)
            if isinstance(node, ast.Name):
                found |= self._variables.get(node.id, _NO_SOURCES)
            elif isinstance(node, ast.Attribute):
                found |= self._attributes.get(node.attr, _NO_SOURCES)
            for child in self._relevant_children(node):
                found |= self._sources_of(child)
            if found and isinstance(node, ast.Call) and _last_name(node.func) == "getattr" and node.args[1:]:
                found |= self._find_attribute(found, self._fold_name(node.args[1]))
            if found:
                self._sources[id(node)] = found

    def _relevant_children(self, node: ast.AST) -> Iterable[ast.AST]:
        if isinstance(node, ast.Attribute) and node.attr in _DATA_ATTRIBUTES:
            return ()
        if isinstance(node, ast.Compare | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return ()
        if isinstance(node, ast.Call) and self._names.full_name(node.func) in INSPECTING_FUNCTIONS - {
            "getattr",
            "vars",
        }:
            return ()
        return ast.iter_child_nodes(node)

    def _sources_of(self, node: ast.AST) -> Sources:
        return self._sources.get(id(node), _NO_SOURCES)

    def _passed_sources(self, values: Iterable[ast.AST]) -> Sources:
        return frozenset(each for value in values for each in self._sources_of(value))

    def _bind_names(self, node: ast.AST) -> None:
        """Record the sources that a statement gives to variables, attributes and parameters."""
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, self._sources_of(value))
            case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value) if (
                value
            ):
                self._bind(target, self._sources_of(value))
            case ast.AugAssign(target=target, value=value):
                self._bind(target, self._sources_of(value))
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                self._bind(target, self._sources_of(value))
            case ast.comprehension(target=target, iter=value):
                self._bind(target, self._sources_of(value))
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                self._bind(target, self._sources_of(value))
            case ast.Match(subject=value, cases=cases):
                for pattern in (inner for case in cases for inner in ast.walk(case.pattern)):
                    name = getattr(pattern, "name", None) or getattr(pattern, "rest", None)
                    if name is not None:
                        self._add(self._variables, name, self._sources_of(value))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._bind_definition(node)
            case ast.Lambda(args=arguments):
                self._bind_defaults(arguments)
            case ast.ClassDef(body=body):
                self._bind_class(body)
            case ast.Call():
                self._bind_call(node)

    def _bind(self, target: ast.AST, sources: Sources) -> None:
        match target:
            case ast.Name(id=name):
                self._add(self._variables, name, sources)
            case ast.Attribute(attr=attr):
                self._add(self._attributes, attr, sources)
            case ast.Subscript(value=value) | ast.Starred(value=value):
                self._bind(value, sources)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._bind(part, sources)

    def _add(self, table: dict[str, Sources], name: str, sources: Sources) -> None:
        known = table.get(name, _NO_SOURCES)
        if not sources <= known:
            table[name] = known | sources
            self._has_changed = True

    def _bind_definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._bind_defaults(node.args)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Return | ast.Yield | ast.YieldFrom) and inner.value is not None:
                self._add(self._variables, node.name, self._sources_of(inner.value))
                self._add(self._attributes, node.name, self._sources_of(inner.value))

    def _bind_defaults(self, arguments: ast.arguments) -> None:
        positional = [*arguments.posonlyargs, *arguments.args]
        for argument, value in zip(reversed(positional), reversed(arguments.defaults), strict=False):
            self._add(self._variables, argument.arg, self._sources_of(value))
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if default is not None:
                self._add(self._variables, argument.arg, self._sources_of(default))

    def _bind_parameters(self, arguments: ast.arguments, sources: Sources) -> None:
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        for argument in (*every, arguments.vararg, arguments.kwarg):
            if argument is not None:
                self._add(self._variables, argument.arg, sources)

    def _bind_class(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._add(self._attributes, name, self._sources_of(value))

    def _bind_call(self, node: ast.Call) -> None:
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        passed = self._passed_sources(values)
        if not passed:
            return
        last = _last_name(node.func)
        if isinstance(node.func, ast.Attribute) and last in STORING_NAMES:
            self._bind(node.func.value, passed)
        if last == "setattr" and len(node.args) > 2:
            name = self._fold_name(node.args[1])
            self._add(self._attributes, name or "*", self._sources_of(node.args[2]))
        for keyword in node.keywords:
            self._add(self._attributes, keyword.arg or "*", self._sources_of(keyword.value))
        for value in node.args:
            for key, item in (
                zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ()
            ):
                name = self._fold_name(key)
                self._add(self._attributes, name or "*", self._sources_of(item))
        for function in (node.func, *values):
            if isinstance(function, ast.Lambda):
                self._bind_parameters(function.args, passed)
        for arguments in self._defined.get("__init__" if last in self._classes else last, ()):
            self._bind_parameters(arguments, passed)


def is_dangerous_function(name: str) -> bool:
    """Return True for functions that start programs, delete or overwrite files, or evaluate code."""
    return name in _FUNCTIONS or name.startswith(("os.exec", "os.spawn", "os.posix_spawn", "posix.exec"))


def _without_modules(sources: Iterable[str]) -> Sources:
    return frozenset(each for each in sources if not each.endswith(".*"))


def _last_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
