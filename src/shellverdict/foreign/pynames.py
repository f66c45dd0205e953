"""What names and expressions of Python code stand for: modules, functions, strings, files.

Names are learned in the order of the text. Where one is used before it is set, as in a function's body, the
last value it gets anywhere counts.
"""

from __future__ import annotations

import ast

from shellverdict.foreign.nouns import HOME
from shellverdict.foreign.pyfunctions import DECODING, KNOWN, NETWORK
from shellverdict.foreign.pyvalues import (
    LONGEST_TEXT,
    Value,
    as_number,
    bounded,
    expanded,
    formatted,
    joined_path,
    made_by,
    percent,
)
from shellverdict.shell.words import GAP, STAR

__all__ = ["GAP_NAME", "Names"]

GAP_NAME = "text_nobody_knows_"

_DEEPEST_FOLD = 60
_DEEP = f"{STAR}{STAR}/"  # all folders below
_CODECS = frozenset({"hex", "base64", "rot13", "rot_13", "zlib", "bz2", "hex_codec", "base64_codec"})
_MOST_FOLDS = 40_000  # expressions worked out in one text; beyond that nothing is known


class Names:
    """The names of one text."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # what an imported or assigned name stands for
        self.values: dict[str, Value] = {}
        self.later: dict[str, Value] = {}  # the last value of each name
        self.every: dict[str, dict[str, None]] = {}  # all texts a name may stand for
        self.taints: dict[str, frozenset[str]] = {}
        self.stars: list[str] = []  # modules all of whose names were taken over
        self.folds = 0

    def start_again(self) -> None:
        """Go through the text once more, knowing what comes later."""
        self.later, self.values = self.values, {}

    def learn(self, node: ast.AST) -> None:
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
            case ast.For(target=target, iter=items) | ast.AsyncFor(target=target, iter=items):
                self.bind_each(target, items)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                for generator in node.generators:  # they stand behind what uses them
                    self.bind_each(generator.target, generator.iter)
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
        if isinstance(folded, str) and len(self.every.setdefault(target.id, {})) < 16:
            self.every[target.id][folded] = None
        dotted = self.dotted(value) if folded is None else None
        if dotted is not None:
            self.names[target.id] = dotted
        self.taints[target.id] = self.evidence(value)

    def _grows(self, name: str, more: Value) -> None:
        """A list that gets more items."""
        known = self.values.get(name)
        if isinstance(known, list) and len(known) < 1024:
            self.values[name] = [*known, *(more if isinstance(more, list) else [more])][:1024]

    def bind_each(self, target: ast.AST, items: ast.expr) -> None:
        """A loop over files stands for all of them at once."""
        pattern = self._files(items)
        names = [node for node in ast.walk(target) if isinstance(node, ast.Name)]
        folded = self.fold(items) if pattern is None else None
        one = folded[0] if isinstance(folded, list) and len(folded) == 1 else None
        evidence = self.evidence(items)
        for name in names:
            self.values[name.id] = pattern if pattern is not None else one
            self.taints[name.id] = evidence

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
            return f"{(given or '.').rstrip('/')}/{_DEEP if last == 'walk' else ''}{STAR}"
        if last in ("iterdir", "glob", "rglob", "walk") and isinstance(node.func, ast.Attribute):
            base = self.text(node.func.value)
            deep = _DEEP if last in ("rglob", "walk") else ""
            return None if base is None else f"{base.rstrip('/')}/{deep}{(given or '*').replace('*', STAR)}"
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
                return base if base is None or attr == "__call__" else f"{base}.{attr}"
            case ast.IfExp(body=first, orelse=second) | ast.BoolOp(values=[first, second]):
                names = (self.dotted(first, depth + 1), self.dotted(second, depth + 1))
                return next((name for name in names if name in KNOWN), names[0])
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
            (full for full in taken if full in KNOWN or full.startswith(("os.exec", "os.spawn"))), name
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

    def texts(self, node: ast.AST | None) -> list[str]:
        """Every text an expression may be: a name may have had another value on another way."""
        one = self.text(node)
        others = self.every.get(node.id, {}) if isinstance(node, ast.Name) else {}
        return list(dict.fromkeys([*([] if one is None else [one]), *others])) or [GAP]

    def fold(self, node: ast.AST | None, depth: int = 0) -> Value:
        """The value of an expression where it can be worked out; a string may have gaps."""
        self.folds += 1
        if node is None or depth > _DEEPEST_FOLD or self.folds > _MOST_FOLDS:
            return None
        match node:
            case ast.Constant(value=str() as text):
                return text.replace(GAP_NAME, GAP)
            case ast.Constant(value=bytes() | int() as value) if not isinstance(value, bool):
                return value
            case ast.Name(id=name):
                return GAP if name.startswith(GAP_NAME) else self.values.get(name, self.later.get(name))
            case ast.JoinedStr(values=parts):
                return bounded("".join(self._part(part, depth) for part in parts))
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                items = (self.fold(part, depth + 1) for part in parts[:1024])
                return [None if isinstance(item, list) else item for item in items]
            case ast.GeneratorExp(elt=each, generators=[one]) | ast.ListComp(elt=each, generators=[one]):
                return self._each(each, one, depth)
            case ast.BinOp():
                return self._operation(node, depth)
            case ast.Subscript(value=value, slice=key):
                return self._piece(node, self.fold(value, depth + 1), key, depth)
            case ast.Call():
                return self._folded_call(node, depth)
            case ast.Attribute():
                return {
                    "os.sep": "/",
                    "os.curdir": ".",
                    "os.devnull": "/dev/null",
                    "sys.executable": "python3",
                }.get(self.dotted(node) or "")
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
                return bounded(
                    (left if isinstance(left, str) else GAP) + (right if isinstance(right, str) else GAP)
                )
            case ast.Mod() if isinstance(left, str):
                return percent(left, right)
            case ast.Mult() if isinstance(left, str) and isinstance(right, int):
                return left * right if len(left) * abs(right) < LONGEST_TEXT else None
            case ast.Div() if isinstance(left, str):
                return joined_path([left, right if isinstance(right, str) else GAP])
        return None

    def _piece(self, node: ast.Subscript, value: Value, key: ast.expr, depth: int) -> Value:
        if self.dotted(node.value) == "os.environ":
            return HOME if self.fold(key) == "HOME" else GAP
        if not isinstance(value, str | bytes | list):
            return None
        if isinstance(key, ast.Slice):
            ends = [
                None if end is None else as_number(self.fold(end, depth + 1), end)
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
            return [made_by(self.dotted(node.args[0]) or "", [item]) for item in args[1]]
        return made_by(self.dotted(node.func) or "", args)

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
            return bounded(base.join(part if isinstance(part, str) else GAP for part in args[0]))
        if name == "replace" and len(args) == 2 and all(isinstance(arg, str) for arg in args):
            return (
                base.replace(str(args[0]), str(args[1]))
                if args[0] and len(base) < 4096 and len(str(args[1])) < 64
                else None
            )
        if name == "split":
            return list(base.split(args[0] if args and isinstance(args[0], str) and args[0] else None)[:256])
        if name == "format":
            return formatted(base, args)
        if name == "joinpath":
            return joined_path([base, *(arg if isinstance(arg, str) else GAP for arg in args)])
        if name in ("expanduser", "resolve", "absolute", "as_posix", "__str__"):
            return expanded(base)
        return None

    def evidence(self, node: ast.AST) -> frozenset[str]:
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
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value in _CODECS:
                traits.add("decoded")
            full = self.names.get(name, name).rpartition(".")[2] if name else ""
            traits |= (
                {"network"} if {name, full, self.names.get(name, "").partition(".")[0]} & NETWORK else set()
            )
            traits |= {"decoded"} if name in DECODING or full in DECODING else set()
            traits |= self.taints.get(name, frozenset()) if isinstance(inner, ast.Name) else set()
        return frozenset(traits)
