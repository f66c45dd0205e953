"""Resolve names in Python code to the modules, functions, strings and files they refer to.

Assignments are recorded in source order. A name that is used before its assignment, as in a function body,
has the last value that is assigned to it anywhere.
"""

from __future__ import annotations

import ast

from shellverdict.embedded_code.analysis import HOME
from shellverdict.embedded_code.python_functions import DECODING_NAMES, KNOWN_FUNCTIONS, NETWORK_NAMES
from shellverdict.embedded_code.python_values import (
    MAX_VALUE_CHARS,
    FoldedValue,
    evaluate_call,
    expand_home,
    format_braces,
    format_percent,
    join_path,
    limit_text,
    to_number,
)
from shellverdict.shell.words import GAP, STAR

__all__ = ["GAP_NAME", "PythonNames"]

GAP_NAME = "unknown_text_placeholder_"  # identifier that replaces a gap, so that the code can be parsed

_MAX_FOLD_DEPTH = 60
_ALL_SUBDIRECTORIES = f"{STAR}{STAR}/"  # glob for all directories below
_CODECS = frozenset({"hex", "base64", "rot13", "rot_13", "zlib", "bz2", "hex_codec", "base64_codec"})
_MAX_FOLDS = 40_000  # expressions evaluated per analysis; values are unknown after that


class PythonNames:
    """The names of one piece of Python code and their known values."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # full name of each imported or assigned name
        self.values: dict[str, FoldedValue] = {}
        self.last_values: dict[str, FoldedValue] = {}  # value of each name at the end of the first pass
        self.possible_texts: dict[str, dict[str, None]] = {}  # every text assigned to a name
        self.source_traits: dict[str, frozenset[str]] = {}
        self.star_imports: list[str] = []  # modules of `from module import *`
        self.folds = 0

    def start_second_pass(self) -> None:
        """Start a second pass over the code, in which names are known even before their assignment."""
        self.last_values, self.values = self.values, {}

    def record_names(self, node: ast.AST) -> None:
        """Record the names that a syntax node (import, assignment, loop or comprehension) binds."""
        match node:
            case ast.Import(names=names):
                for name in names:
                    self.names[name.asname or name.name.partition(".")[0]] = (
                        name.name if name.asname else name.name.partition(".")[0]
                    )
            case ast.ImportFrom(module=module, names=names):
                self.star_imports += [str(module)] if any(name.name == "*" for name in names) else []
                for name in names:
                    self.names[name.asname or name.name] = f"{module}.{name.name}"
            case ast.Assign(targets=[target], value=value):
                self._bind_target(target, value)
            case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value) if (
                value
            ):
                self._bind_target(target, value)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                old, more = self.values.get(name), self.fold_value(value)
                self.values[name] = old + more if isinstance(old, str) and isinstance(more, str) else None
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend"), args=[more]):
                self._extend_list(name, self.fold_value(more))
            case ast.For(target=target, iter=items) | ast.AsyncFor(target=target, iter=items):
                self.bind_loop_target(target, items)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                for (
                    generator
                ) in node.generators:  # generators come after the expression that uses their names
                    self.bind_loop_target(generator.target, generator.iter)
            case ast.withitem(context_expr=value, optional_vars=ast.Name() as target):
                self._bind_target(target, value)

    def _bind_target(self, target: ast.AST, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for inner_target, inner_value in zip(target.elts, value.elts, strict=False):
                self._bind_target(inner_target, inner_value)
            return
        if not isinstance(target, ast.Name):
            return
        folded = self.fold_value(value)
        known = target.id in self.values and self.values[target.id] != folded
        self.values[target.id] = None if known and folded is None else folded
        if isinstance(folded, str) and len(self.possible_texts.setdefault(target.id, {})) < 16:
            self.possible_texts[target.id][folded] = None
        full_name = self.full_name(value) if folded is None else None
        if full_name is not None:
            self.names[target.id] = full_name
        self.source_traits[target.id] = self.find_source_traits(value)

    def _extend_list(self, name: str, more: FoldedValue) -> None:
        """Add items to the known value of a list variable."""
        known = self.values.get(name)
        if isinstance(known, list) and len(known) < 1024:
            self.values[name] = [*known, *(more if isinstance(more, list) else [more])][:1024]

    def bind_loop_target(self, target: ast.AST, items: ast.expr) -> None:
        """Record the value of a loop variable; in a loop over files, record a glob pattern for the files."""
        pattern = self._listed_files(items)
        names = [node for node in ast.walk(target) if isinstance(node, ast.Name)]
        folded = self.fold_value(items) if pattern is None else None
        only_item = folded[0] if isinstance(folded, list) and len(folded) == 1 else None
        traits = self.find_source_traits(items)
        for name in names:
            self.values[name.id] = pattern if pattern is not None else only_item
            self.source_traits[name.id] = traits

    def _listed_files(self, node: ast.expr) -> str | None:
        """Return a glob pattern for the files that an expression such as `os.listdir(x)` lists, or None."""
        if not isinstance(node, ast.Call):
            return None
        name = self.full_name(node.func) or ""
        last = name.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        if last in ("sorted", "list", "reversed", "enumerate", "set") and node.args:
            return self._listed_files(node.args[0])
        argument = self.fold_text(node.args[0]) if node.args else None
        if last in ("glob", "iglob") and name.startswith("glob"):
            return (argument or GAP).replace("*", STAR)
        if last in ("listdir", "scandir", "walk") and name.startswith("os"):
            return f"{(argument or '.').rstrip('/')}/{_ALL_SUBDIRECTORIES if last == 'walk' else ''}{STAR}"
        if last in ("iterdir", "glob", "rglob", "walk") and isinstance(node.func, ast.Attribute):
            base = self.fold_text(node.func.value)
            deep = _ALL_SUBDIRECTORIES if last in ("rglob", "walk") else ""
            return (
                None if base is None else f"{base.rstrip('/')}/{deep}{(argument or '*').replace('*', STAR)}"
            )
        return None

    def full_name(self, node: ast.AST, depth: int = 0) -> str | None:
        """Return the dotted name of the module or function that an expression refers to, or None."""
        if depth > _MAX_FOLD_DEPTH:
            return None
        match node:
            case ast.Name(id=name):
                return self.names.get(name) or self._resolve_star_import(name)
            case ast.Attribute(value=value, attr=attr):
                base = self.full_name(value, depth + 1)
                return base if base is None or attr == "__call__" else _member_name(base, attr)
            case ast.IfExp(body=first, orelse=second) | ast.BoolOp(values=[first, second]):
                names = (self.full_name(first, depth + 1), self.full_name(second, depth + 1))
                return next((name for name in names if name in KNOWN_FUNCTIONS), names[0])
            case ast.Call(func=func, args=args):
                return self._call_full_name(self.full_name(func, depth + 1), args, depth)
            case ast.Subscript(value=value, slice=key):
                base, text = self.full_name(value, depth + 1), self.fold_value(key)
                if base is None or not isinstance(text, str):
                    return None
                base = base.removesuffix(".__dict__")
                return (
                    text
                    if base in ("sys.modules", "globals", "__builtins__", "builtins", "locals")
                    else f"{base}.{text}"
                )
        return None

    def _resolve_star_import(self, name: str) -> str:
        taken = (f"{module}.{name}" for module in self.star_imports)
        return next(
            (full for full in taken if full in KNOWN_FUNCTIONS or full.startswith(("os.exec", "os.spawn"))),
            name,
        )

    def _call_full_name(self, name: str | None, args: list[ast.expr], depth: int) -> str | None:
        texts = [self.fold_value(arg) for arg in args[:2]]
        if name in ("__import__", "importlib.import_module", "importlib.__import__") and texts:
            return texts[0] if isinstance(texts[0], str) else None
        if name == "getattr" and len(args) > 1 and isinstance(texts[1], str):
            base = self.full_name(args[0], depth + 1)
            return _member_name(base, texts[1]) if base else texts[1]
        if name in ("vars", "globals", "locals"):
            return self.full_name(args[0], depth + 1) if args else "globals"
        return None

    def fold_text(self, node: ast.AST | None) -> str | None:
        """Return the value of an expression as text if it is a string or bytes, else None."""
        value = self.fold_value(node)
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        return value if isinstance(value, str) else None

    def fold_texts(self, node: ast.AST | None) -> list[str]:
        """Return every string that an expression may evaluate to, depending on the branches taken."""
        text = self.fold_text(node)
        others = self.possible_texts.get(node.id, {}) if isinstance(node, ast.Name) else {}
        return list(dict.fromkeys([*([] if text is None else [text]), *others])) or [GAP]

    def fold_value(self, node: ast.AST | None, depth: int = 0) -> FoldedValue:
        """Return the value of an expression if it can be computed; unknown parts of strings are marked."""
        self.folds += 1
        if node is None or depth > _MAX_FOLD_DEPTH or self.folds > _MAX_FOLDS:
            return None
        match node:
            case ast.Constant(value=str() as text):
                return text.replace(GAP_NAME, GAP)
            case ast.Constant(value=bytes() | int() as value) if not isinstance(value, bool):
                return value
            case ast.Name(id=name):
                return GAP if name.startswith(GAP_NAME) else self.values.get(name, self.last_values.get(name))
            case ast.JoinedStr(values=parts):
                return limit_text("".join(self._fold_format_part(part, depth) for part in parts))
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                items = (self.fold_value(part, depth + 1) for part in parts[:1024])
                return [None if isinstance(item, list) else item for item in items]
            case (
                ast.GeneratorExp(elt=element, generators=[generator])
                | ast.ListComp(elt=element, generators=[generator])
            ):
                return self._fold_comprehension(element, generator, depth)
            case ast.BinOp():
                return self._fold_operation(node, depth)
            case ast.Subscript(value=value, slice=key):
                return self._fold_subscript(node, self.fold_value(value, depth + 1), key, depth)
            case ast.Call():
                return self._fold_call(node, depth)
            case ast.Attribute():
                return {
                    "os.sep": "/",
                    "os.curdir": ".",
                    "os.devnull": "/dev/null",
                    "sys.executable": "python3",
                }.get(self.full_name(node) or "")
        return None

    def _fold_comprehension(self, element: ast.expr, generator: ast.comprehension, depth: int) -> FoldedValue:
        items = self.fold_value(generator.iter, depth + 1)
        if (
            not isinstance(items, list | str | bytes)
            or not isinstance(generator.target, ast.Name)
            or generator.ifs
        ):
            return None
        values: list[FoldedValue] = []
        for item in list(items)[:1024]:
            self.values[generator.target.id] = item
            values.append(self.fold_value(element, depth + 1))
        self.values[generator.target.id] = None
        return values

    def _fold_format_part(self, part: ast.AST, depth: int) -> str:
        value = self.fold_value(part.value if isinstance(part, ast.FormattedValue) else part, depth + 1)
        return str(value) if isinstance(value, str | int) else GAP

    def _fold_operation(self, node: ast.BinOp, depth: int) -> FoldedValue:
        left, right = self.fold_value(node.left, depth + 1), self.fold_value(node.right, depth + 1)
        match node.op:
            case ast.Add() if isinstance(left, list) and isinstance(right, list):
                return left + right
            case ast.Add() if isinstance(left, bytes) and isinstance(right, bytes):
                return left + right
            case ast.Add() if isinstance(left, str) or isinstance(right, str):
                return limit_text(
                    (left if isinstance(left, str) else GAP) + (right if isinstance(right, str) else GAP)
                )
            case ast.Mod() if isinstance(left, str):
                return format_percent(left, right)
            case ast.Mult() if isinstance(left, str) and isinstance(right, int):
                return left * right if len(left) * abs(right) < MAX_VALUE_CHARS else None
            case ast.Div() if isinstance(left, str):
                return join_path([left, right if isinstance(right, str) else GAP])
        return None

    def _fold_subscript(
        self, node: ast.Subscript, value: FoldedValue, key: ast.expr, depth: int
    ) -> FoldedValue:
        if self.full_name(node.value) == "os.environ":
            return HOME if self.fold_value(key) == "HOME" else GAP
        if not isinstance(value, str | bytes | list):
            return None
        if isinstance(key, ast.Slice):
            ends = [
                None if end is None else to_number(self.fold_value(end, depth + 1), end)
                for end in (key.lower, key.upper, key.step)
            ]
            return None if 0 in ends[2:] or GAP in str(value) else value[slice(*ends)]
        index = self.fold_value(key, depth + 1)
        if isinstance(index, int) and -len(value) <= index < len(value):
            return value[index]
        return None

    def _fold_call(self, node: ast.Call, depth: int) -> FoldedValue:
        if isinstance(node.func, ast.Attribute):
            base = self.fold_value(node.func.value, depth + 1)
            if isinstance(base, str | bytes) and (value := self._fold_method(base, node, depth)) is not None:
                return value
        args = [self.fold_value(arg, depth + 1) for arg in node.args[:64]]
        if len(args) > 1 and isinstance(args[1], list) and self.full_name(node.func) == "map":
            return [evaluate_call(self.full_name(node.args[0]) or "", [item]) for item in args[1]]
        return evaluate_call(self.full_name(node.func) or "", args)

    def _fold_method(self, base: str | bytes, node: ast.Call, depth: int) -> FoldedValue:
        """Evaluate a method call on a known string, bytes or path."""
        args = [self.fold_value(arg, depth + 1) for arg in node.args[:64]]
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
            return limit_text(base.join(part if isinstance(part, str) else GAP for part in args[0]))
        if name == "replace" and len(args) == 2 and all(isinstance(arg, str) for arg in args):
            return (
                base.replace(str(args[0]), str(args[1]))
                if args[0] and len(base) < 4096 and len(str(args[1])) < 64
                else None
            )
        if name == "split":
            return list(base.split(args[0] if args and isinstance(args[0], str) and args[0] else None)[:256])
        if name == "format":
            return format_braces(base, args)
        if name == "joinpath":
            return join_path([base, *(arg if isinstance(arg, str) else GAP for arg in args)])
        if name in ("expanduser", "resolve", "absolute", "as_posix", "__str__"):
            return expand_home(base)
        return None

    def find_source_traits(self, node: ast.AST) -> frozenset[str]:
        """Return the origins of an expression's text: `network` if downloaded, `decoded` if decoded."""
        traits: set[str] = set()
        for inner in ast.walk(node):
            name = (
                inner.attr
                if isinstance(inner, ast.Attribute)
                else inner.id
                if isinstance(inner, ast.Name)
                else ""
            )
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value in _CODECS:
                traits.add("decoded")
            full = self.names.get(name, name).rpartition(".")[2] if name else ""
            traits |= (
                {"network"}
                if {name, full, self.names.get(name, "").partition(".")[0]} & NETWORK_NAMES
                else set()
            )
            traits |= {"decoded"} if name in DECODING_NAMES or full in DECODING_NAMES else set()
            traits |= self.source_traits.get(name, frozenset()) if isinstance(inner, ast.Name) else set()
        return frozenset(traits)


def _member_name(module: str, name: str) -> str:
    """Return the full name of a member of a module; the functions of `builtins` have no prefix."""
    return name if module in ("builtins", "__builtins__") else f"{module}.{name}"
