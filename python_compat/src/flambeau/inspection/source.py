"""Python files as text and as syntax trees, with limits: what is read may be hostile."""

from __future__ import annotations

import ast
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

LARGEST_FILE = 2 << 20  # bytes of a Python file that is read
DEEPEST = 400  # nodes below each other that the compiler is trusted with


class Unreadable(Exception):
    """A Python file that this Python cannot compile, or that is not read. `line` is 0 when there is none to name."""

    def __init__(self, text: str, line: int = 0, is_syntax: bool = False, is_skipped: bool = False) -> None:
        """With `is_skipped` nothing is known to be wrong with the file: it was not looked at."""
        super().__init__(text)
        self.line = line
        self.is_syntax = is_syntax
        self.is_skipped = is_skipped


class Module:
    """A Python file that was parsed, and what can be said of the names that it has once it has run."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        """`name` is the module's full name. Raises RecursionError for trees that are too deep for the caller's stack."""
        self.name = name
        self.path = path
        self.tree = tree
        self.bound: Dict[str, ast.AST] = {}  # name -> the statement that binds it last
        self.stars: List[ast.ImportFrom] = []
        self.dynamic = False  # it may have names that no statement shows
        self.own_path = False  # it may have sub-modules that no folder shows
        self.registered: Set[str] = set()  # full names of modules that it puts into sys.modules
        _Names(self).read()

    def has(self, name: str) -> bool:
        """Whether a statement binds `name`. Names that come by a star are not looked for."""
        return name in self.bound

    def defines_path(self) -> bool:
        """Whether it says itself where its sub-modules are."""
        return self.own_path or "__path__" in self.bound


def parse(name: str, path: str, strict: bool = False) -> Module:
    """Read a file. With `strict` it is also compiled, which finds what the parser alone lets pass. Raises Unreadable."""
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST_FILE + 1)
    except OSError as err:
        raise Unreadable("it cannot be read: %s" % (err.strerror or err)) from None
    if len(text) > LARGEST_FILE:
        raise Unreadable("it is larger than %d MiB" % (LARGEST_FILE >> 20), is_skipped=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes, and `is` with literals
            tree = ast.parse(text, path)
            if strict and _depth(tree) <= DEEPEST:
                compile(tree, path, "exec", dont_inherit=True)
        return Module(name, path, tree)
    except SyntaxError as err:
        raise Unreadable(err.msg or "invalid syntax", err.lineno or 0, is_syntax=True) from None
    except ValueError as err:  # null bytes
        raise Unreadable(str(err), is_syntax=True) from None
    except (RecursionError, MemoryError):
        raise Unreadable("it is nested too deeply to be read") from None


def _depth(tree: ast.AST) -> int:
    depth, level = 0, [tree]
    while level:
        depth += 1
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return depth


class _Names:
    """Fills a Module. Functions are looked at only for what they do to the module's names."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def read(self) -> None:
        for node, inside in _walk(self._module.tree):
            if isinstance(node, ast.Global):
                for name in node.names:
                    self._bind(name, node)
            elif not inside:
                self._outside(node)
            self._anywhere(node, inside)

    def _bind(self, name: str, node: ast.AST) -> None:
        self._module.bound[name] = node

    def _outside(self, node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._bind(node.name, node)
            if node.name == "__getattr__":
                self._module.dynamic = self._module.own_path = True
        elif isinstance(node, ast.Import):
            for alias in node.names:
                self._bind(alias.asname or alias.name.partition(".")[0], node)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    self._module.stars.append(node)
                else:
                    self._bind(alias.asname or alias.name, node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self._bind(node.id, node)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            self._bind(node.name, node)
        else:
            for name in _captures(node):
                self._bind(name, node)

    def _anywhere(self, node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.Call):
            self._call(node, inside)
        elif isinstance(node, ast.ClassDef):
            # enum's decorator puts the members into the module.
            self._module.dynamic |= any(
                getattr(one, "attr", getattr(one, "id", "")) == "global_enum" for one in node.decorator_list
            )
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if _is_modules(node.value):
                self._register(node.slice)
            elif _calls(node.value, "globals"):
                self._module.dynamic = True

    def _call(self, node: ast.Call, inside: bool) -> None:
        func = node.func
        if isinstance(func, ast.Name):
            self._call_by_name(func.id, node.args, inside)
        elif isinstance(func, ast.Attribute):
            if func.attr in ("_convert_", "_convert"):  # enum puts its members into the module
                self._module.dynamic = True
            elif func.attr in ("update", "setdefault", "__setitem__"):
                if _calls(func.value, "globals"):
                    self._module.dynamic = True
                elif _is_modules(func.value) and node.args:
                    self._register(node.args[0])
            elif func.attr in ("attach", "attach_stub", "define_import_structure"):  # lazy_loader and transformers
                self._module.dynamic = self._module.own_path = True

    def _call_by_name(self, name: str, arguments: List[ast.expr], inside: bool) -> None:
        if name == "exec" and (not inside or any(_calls(argument, "globals") for argument in arguments)):
            self._module.dynamic = self._module.own_path = True
        elif name in ("globals", "vars", "locals"):
            self._module.dynamic |= not arguments and not inside
        elif name == "setattr":
            self._module.dynamic |= not inside or (bool(arguments) and _mentions_modules(arguments[0]))

    def _register(self, key: ast.AST) -> None:
        """Note that something is put into sys.modules under `key`."""
        if type(key).__name__ == "Index":  # Python 3.8 wraps it
            key = getattr(key, "value", key)
        text = self._text(key)
        if text is None or text == self._module.name:
            self._module.dynamic = self._module.own_path = True
        else:
            self._module.registered.add(text)

    def _text(self, key: ast.AST) -> Optional[str]:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            return key.value
        if isinstance(key, ast.Name) and key.id == "__name__":
            return self._module.name
        if isinstance(key, ast.BinOp) and isinstance(key.op, ast.Add):
            left, right = self._text(key.left), self._text(key.right)
            return None if left is None or right is None else left + right
        if isinstance(key, ast.JoinedStr):
            parts = [
                self._text(getattr(part, "value", part) if isinstance(part, ast.FormattedValue) else part) for part in key.values
            ]
            return None if None in parts else "".join(part or "" for part in parts)
        return None


def _captures(node: ast.AST) -> Tuple[str, ...]:
    """The names that a pattern of a match statement binds."""
    kind = type(node).__name__
    if kind in ("MatchAs", "MatchStar", "TypeAlias"):
        name: Any = getattr(node, "name", None)
        name = getattr(name, "id", name)
        return (name,) if name else ()
    if kind == "MatchMapping" and getattr(node, "rest", None):
        return (str(getattr(node, "rest", "")),)
    return ()


def _walk(tree: ast.AST) -> Iterator[Tuple[ast.AST, bool]]:
    """All nodes in the order of the text, and whether each is inside of a function or a class."""
    stack: List[Tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, inside = stack.pop()
        yield node, inside
        deeper = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda))
        scoped = isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))
        for child in reversed(list(ast.iter_child_nodes(node))):
            stack.append((child, inside or deeper or (scoped and isinstance(child, ast.comprehension))))


def _is_modules(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "modules"


def _mentions_modules(node: ast.AST) -> bool:
    return any(_is_modules(part) for part in ast.walk(node))


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
