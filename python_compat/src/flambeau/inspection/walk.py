"""Goes through a module's statements in the order in which they run, and says which imports would fail."""

from __future__ import annotations

import ast
import os
import sys

from flambeau.inspection.resolver import LOCAL, OURS, Found, Resolver, absolute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple, Union

# How sure it is that a statement runs when the model is loaded.
CERTAIN, MAYBE, GUARDED = 2, 1, 0

_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


class Missing:
    """An import that fails."""

    def __init__(self, kind: str, node: ast.stmt, certainty: int, function: str, module: str, name: str = "") -> None:
        """`kind` is module, name or relative; `function` is the one that the import stands in, "" for none."""
        self.kind = kind
        self.line = node.lineno
        self.certainty = certainty
        self.function = function
        self.module = module
        self.name = name


class Walk:
    """One module's imports. `missing` has those that fail, `reached` the archive's and our own modules that it imports."""

    def __init__(self, found: Found, tree: ast.Module, resolver: Resolver, certainty: int) -> None:
        self.missing: List[Missing] = []
        self.reached: List[Tuple[Found, int, int]] = []  # module, certainty, line
        self._found = found
        self._resolver = resolver
        self._function = ""
        self._functions_too = found.origin != OURS
        self._statements(tree.body, certainty)

    def _statements(self, statements: List[ast.stmt], certainty: int) -> None:
        for node in statements:
            visit: Any = getattr(self, "_" + type(node).__name__.lower().replace("async", ""), None)
            if visit is not None:
                visit(node, certainty)

    # ---- imports

    def _import(self, node: ast.Import, certainty: int) -> None:
        for alias in node.names:
            self._module(alias.name, node, certainty)

    def _importfrom(self, node: ast.ImportFrom, certainty: int) -> None:
        if node.level == 0 and node.module == "__future__":
            return
        target = absolute(node, self._found)
        if not target:
            self.missing.append(Missing("relative", node, certainty, self._function, "." * node.level + (node.module or "")))
            return
        found = self._module(target, node, certainty)
        if found is None:
            return
        for alias in node.names:
            if alias.name == "*":
                continue
            if self._resolver.has_name(found, alias.name):
                sub = self._resolver.find("%s.%s" % (target, alias.name)) if found.folders is not None else None
                self._reach(sub, node, certainty)
            elif not (found.name == self._found.name and node.level):
                self.missing.append(Missing("name", node, certainty, self._function, target, alias.name))

    def _module(self, name: str, node: Union[ast.Import, ast.ImportFrom], certainty: int) -> Optional[Found]:
        """Follow the import of a module and of its parents. Gives None when it fails."""
        parts = name.split(".")
        found = None
        for end in range(1, len(parts) + 1):
            found = self._resolver.find(".".join(parts[:end]))
            if found is None:
                self.missing.append(Missing("module", node, certainty, self._function, name, ".".join(parts[:end])))
                return None
            self._reach(found, node, certainty)
        return found

    def _reach(self, found: Optional[Found], node: ast.stmt, certainty: int) -> None:
        if found is not None and found.origin in (LOCAL, OURS) and found.file is not None:
            self.reached.append((found, certainty, node.lineno))

    # ---- statements that hold others

    def _functiondef(self, node: Any, certainty: int) -> None:
        if not self._functions_too:
            return
        before, self._function = self._function, self._function or node.name
        self._statements(node.body, min(certainty, MAYBE))
        self._function = before

    def _classdef(self, node: ast.ClassDef, certainty: int) -> None:
        self._statements(node.body, certainty)

    def _if(self, node: ast.If, certainty: int) -> None:
        truth = verdict(node.test)
        if truth is not False:
            self._statements(node.body, certainty if truth else min(certainty, MAYBE))
        if truth is not True:
            self._statements(node.orelse, certainty if truth is False else min(certainty, MAYBE))

    def _for(self, node: Any, certainty: int) -> None:
        self._statements(node.body, min(certainty, MAYBE))
        self._statements(node.orelse, min(certainty, MAYBE))

    _while = _for

    def _with(self, node: Any, certainty: int) -> None:
        if any(_suppresses_import_errors(item.context_expr) for item in node.items):
            certainty = GUARDED
        self._statements(node.body, certainty)

    def _match(self, node: Any, certainty: int) -> None:
        for case in node.cases:
            self._statements(case.body, min(certainty, MAYBE))

    def _try(self, node: Any, certainty: int) -> None:
        catching = next((handler for handler in node.handlers if _catches_import_error(handler.type)), None)
        before = len(self.missing)
        if catching is None:
            self._statements(node.body, certainty)
        else:
            reached = len(self.reached)
            self._statements(node.body, certainty)
            tried, self.missing[before:] = self.missing[before:], []
            failed = any(one.certainty == certainty for one in tried)
            # What the modules behind it lack is caught as well.
            self.reached[reached:] = [(found, min(sure, GUARDED), line) for found, sure, line in self.reached[reached:]]
            if failed and _raises(catching.body):
                self.missing += tried
            if failed:
                self._statements(catching.body, certainty)
        if len(self.missing) == before and (catching is None or not failed):
            self._statements(node.orelse, certainty)
        for handler in node.handlers:
            if handler is not catching:
                self._statements(handler.body, min(certainty, MAYBE))
        self._statements(node.finalbody, certainty)

    _trystar = _try


def verdict(test: ast.expr) -> Optional[bool]:
    """What a condition is when the model is loaded, None when that cannot be known here."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = verdict(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        known = [verdict(value) for value in test.values]
        decisive = isinstance(test.op, ast.Or)
        if decisive in known:
            return decisive
        return None if None in known else not decisive
    if dotted(test).rpartition(".")[2] == "TYPE_CHECKING":
        return False
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test.left, test.ops[0], test.comparators[0])
    if isinstance(test, ast.Call) and dotted(test.func) == "sys.platform.startswith" and len(test.args) == 1:
        prefix = getattr(test.args[0], "value", None)
        return sys.platform.startswith(prefix) if isinstance(prefix, str) else None
    return None


def _compared(left: ast.expr, op: ast.cmpop, right: ast.expr) -> Optional[bool]:
    facts: Dict[str, Any] = {
        "sys.platform": sys.platform,
        "os.name": os.name,
        "__name__": "a model's module",
        "sys.version_info": sys.version_info,
    }
    name = dotted(left)
    if isinstance(left, ast.Subscript) and dotted(left.value) == "sys.version_info":
        index = left.slice
        number = getattr(getattr(index, "value", index), "value", getattr(index, "value", None))
        if number != 0:
            return None
        have: Any = sys.version_info[0]
    elif name in facts:
        have = facts[name]
    else:
        return None
    try:
        want = ast.literal_eval(right)
        if isinstance(op, ast.Eq):
            return bool(have == want)
        if isinstance(op, ast.NotEq):
            return bool(have != want)
        if isinstance(op, ast.Lt):
            return bool(have < want)
        if isinstance(op, ast.LtE):
            return bool(have <= want)
        if isinstance(op, ast.Gt):
            return bool(have > want)
        if isinstance(op, ast.GtE):
            return bool(have >= want)
        if isinstance(op, ast.In):
            return bool(have in want)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return None


def _catches_import_error(kind: Optional[ast.expr]) -> bool:
    if kind is None:
        return True
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(dotted(one).rpartition(".")[2] in _IMPORT_ERRORS for one in kinds)


def _suppresses_import_errors(expression: ast.expr) -> bool:
    if not isinstance(expression, ast.Call) or dotted(expression.func).rpartition(".")[2] != "suppress":
        return False
    return any(_catches_import_error(argument) for argument in expression.args)


def _raises(statements: List[ast.stmt]) -> bool:
    """Whether a block ends the import of its module, in any case."""
    for node in statements:
        if isinstance(node, ast.Raise):
            return True
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and dotted(node.value.func) in ("sys.exit", "exit", "quit")
        ):
            return True
    return False


def dotted(node: ast.AST) -> str:
    """A name with its attributes as text, "" for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])
