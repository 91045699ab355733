"""What the worker's loader will make of a handler's module: its entry point, by the syntax tree alone."""

from __future__ import annotations

import ast

from flambeau.inspection.resolver import OURS, Found, Resolver, absolute
from flambeau.inspection.source import Module
from flambeau.inspection.walk import dotted, verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    Place = Tuple[Found, Module]

YES, MAYBE, NO = "yes", "maybe", "no"
_BASE = "ts.torch_handler.base_handler"
_DEEPEST = 20  # classes above a class


class Problem(Exception):
    """A handler that the loader will refuse, or take otherwise than it was meant."""

    def __init__(self, code: str, message: str, hint: str, line: int = 0, is_error: bool = True) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.line, self.is_error = code, message, hint, line, is_error


class Classes:
    """Answers questions about classes of modules that were parsed."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def has(self, place: Place, node: ast.ClassDef, name: str, on_instances: bool = True, depth: int = _DEEPEST) -> str:
        """Whether a class, or an instance of it, has an attribute: YES, NO, or MAYBE when that cannot be seen."""
        if depth == 0 or node.decorator_list or node.keywords:
            return MAYBE if name not in _bound_in(node) else YES
        if name in _bound_in(node) or (on_instances and name in _set_on_self(node)):
            return YES
        if "__getattr__" in _bound_in(node) or (on_instances and _sets_unknown(node)):
            return MAYBE
        answers = [self._base_has(place, base, name, on_instances, depth - 1) for base in node.bases]
        return YES if YES in answers else MAYBE if MAYBE in answers else NO

    def base_classes(self, place: Place, node: ast.ClassDef, depth: int = _DEEPEST) -> List[str]:
        """The full names of the classes above a class, as far as they can be seen."""
        found = []
        for base in node.bases:
            target = self.locate(place, base)
            if target is not None and depth > 0:
                found.append("%s.%s" % (target[0][0].name, target[1].name))
                found += self.base_classes(target[0], target[1], depth - 1)
        return found

    def initialize_of_base(self, place: Place, node: ast.ClassDef, depth: int = _DEEPEST) -> bool:
        """Whether BaseHandler.initialize runs for a class, as far as can be seen."""
        if place[0].name == _BASE:
            return node.name == "BaseHandler"
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "initialize":
                calls = [part for part in ast.walk(statement) if isinstance(part, ast.Attribute) and part.attr == "initialize"]
                if not any(_is_upward(call.value) for call in calls):
                    return False
        targets = [self.locate(place, base) for base in node.bases]
        return depth > 0 and any(self.initialize_of_base(t[0], t[1], depth - 1) for t in targets if t is not None)

    def overrides(self, place: Place, node: ast.ClassDef, name: str, depth: int = _DEEPEST) -> bool:
        """Whether a class or one above it, below BaseHandler itself, defines a method of this name."""
        if place[0].origin == OURS:
            return False
        if name in _bound_in(node):
            return True
        targets = [self.locate(place, base) for base in node.bases]
        return depth > 0 and any(self.overrides(t[0], t[1], name, depth - 1) for t in targets if t is not None)

    def locate(self, place: Place, expression: ast.expr) -> Optional[Tuple[Place, ast.ClassDef]]:
        """Find the definition of the class that an expression names."""
        if isinstance(expression, ast.Subscript):  # Generic[T]
            expression = expression.value
        name = dotted(expression)
        return self._follow(place, name, _DEEPEST) if name else None

    def _follow(self, place: Place, name: str, depth: int) -> Optional[Tuple[Place, ast.ClassDef]]:
        found, module = place
        first, _, rest = name.partition(".")
        node = module.bound.get(first)
        if isinstance(node, ast.ClassDef):
            return None if rest else (place, node)
        if depth == 0:
            return None
        if isinstance(node, ast.Import):
            return self._follow_import(node, name, depth - 1)
        if isinstance(node, ast.ImportFrom):
            target = absolute(node, found)
            original = next((alias.name for alias in node.names if (alias.asname or alias.name) == first), first)
            sub = self._place("%s.%s" % (target, original)) if rest else None
            if sub is not None:
                return self._follow(sub, rest, depth - 1)
            return self._in_module(target, original + ("." + rest if rest else ""), depth - 1)
        for star in module.stars if node is None else []:
            located = self._in_module(absolute(star, found), name, depth - 1)
            if located is not None:
                return located
        return None

    def _follow_import(self, node: ast.Import, name: str, depth: int) -> Optional[Tuple[Place, ast.ClassDef]]:
        for alias in node.names:
            shown = alias.asname or alias.name
            if name.startswith(shown + "."):
                located = self._in_module(alias.name, name[len(shown) + 1 :], depth)
                if located is not None:
                    return located
        return None

    def _in_module(self, target: str, name: str, depth: int) -> Optional[Tuple[Place, ast.ClassDef]]:
        place = self._place(target)
        return self._follow(place, name, depth) if place is not None else None

    def _place(self, target: str) -> Optional[Place]:
        found = self._resolver.find(target) if target else None
        module = self._resolver.parsed(found) if found is not None else None
        return (found, module) if found is not None and module is not None else None

    def _base_has(self, place: Place, base: ast.expr, name: str, on_instances: bool, depth: int) -> str:
        if dotted(base) == "object" or (dotted(base) in _PLAIN and dotted(base) not in place[1].bound):
            return NO
        target = self.locate(place, base)
        return MAYBE if target is None else self.has(target[0], target[1], name, on_instances, depth)


_PLAIN = {"Exception", "dict", "list", "str", "int", "float", "tuple", "set", "type", "bytes"}


class Entry:
    """What was found. `chosen` is the class that will be used, None for a function or when it is not known."""

    def __init__(self, chosen: Optional[ast.ClassDef] = None, problem: Optional[Problem] = None) -> None:
        self.chosen = chosen
        self.problem = problem


def choose(place: Place, handler: str, classes: Classes) -> Entry:
    """The entry point of a handler's module, by the loader's rules. Raises Problem when the loader will refuse the module."""
    found, module = place
    function = handler.partition(":")[2]
    wanted = function or "handle"
    if module.has(wanted):
        node = module.bound[wanted]
        if isinstance(node, ast.ClassDef) and classes.has(place, node, "handle", on_instances=False) != NO:
            return Entry(node)
        return Entry()
    defined = _own_classes(module)
    if module.dynamic or module.stars or _unsure(module):
        return Entry(defined[0] if len(defined) == 1 else None)
    chosen = _choose_class(place, defined, handler, classes)
    if chosen is not None:
        _check_methods(place, chosen, classes)
    if not function or chosen is None:
        return Entry(chosen)
    said = "the manifest's handler %r names %r, which %s does not have; class %s is used" % (
        handler,
        function,
        _file(found),
        chosen.name,
    )
    hint = "name what is meant: %r" % ("%s:%s" % (_without_suffix(handler), chosen.name))
    return Entry(chosen, Problem("handler_function_ignored", said, hint, chosen.lineno, is_error=False))


def _choose_class(place: Place, defined: List[ast.ClassDef], handler: str, classes: Classes) -> Optional[ast.ClassDef]:
    if len(defined) == 1:
        return defined[0]
    able: Dict[str, List[ast.ClassDef]] = {YES: [], MAYBE: [], NO: []}
    for node in defined:
        able[classes.has(place, node, "handle", on_instances=False)].append(node)
    file = _without_suffix(handler)
    if len(able[YES]) > 1:
        names = " and ".join(node.name for node in able[YES])
        raise Problem(
            "handler_ambiguous",
            "%s has several classes with a handle method: %s" % (_file(place[0]), names),
            "name the one to use in the manifest's handler: %r" % ("%s:%s" % (file, able[YES][-1].name)),
            able[YES][1].lineno,
        )
    if not able[YES] and not able[MAYBE]:
        shown = ", ".join(node.name for node in defined) or "none"
        raise Problem(
            "handler_no_entry",
            "%s has neither a function %r nor a class with a handle method (its classes: %s)"
            % (_file(place[0]), handler.partition(":")[2] or "handle", shown),
            "write `def handle(data, context)`, or a class with initialize(context) and handle(data, context)",
        )
    return able[YES][0] if able[YES] and not able[MAYBE] else None


def _check_methods(place: Place, chosen: ast.ClassDef, classes: Classes) -> None:
    for method, use in (("handle", "it answers the requests"), ("initialize", "it is called once, before any request")):
        if classes.has(place, chosen, method) == NO:
            raise Problem(
                "handler_incomplete",
                "class %s has no method %s: %s" % (chosen.name, method, use),
                "add `def %s(self, %s)`, or derive from ts.torch_handler.base_handler.BaseHandler"
                % (method, "data, context" if method == "handle" else "context"),
                chosen.lineno,
            )


def count_classes(module: Module) -> Tuple[int, bool]:
    """How many classes a module defines, and whether that is sure."""
    return len(_own_classes(module)), not (module.dynamic or _unsure(module))


def _own_classes(module: Module) -> List[ast.ClassDef]:
    return [node for name, node in sorted(module.bound.items()) if isinstance(node, ast.ClassDef) and node.name == name]


def _unsure(module: Module) -> bool:
    """Whether classes may come by something else than a plain class statement: type(…), namedtuple, deletions, conditions."""
    top = {id(node) for node in module.tree.body}
    for node in module.bound.values():
        if isinstance(node, ast.ClassDef) and id(node) not in top:
            return True
    for statement in module.tree.body:
        if isinstance(statement, ast.Delete):
            return True
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.value, ast.Call)
            and dotted(statement.value.func) in _MAKERS
        ):
            return True
        if isinstance(statement, ast.If) and verdict(statement.test) is None and _holds_class(statement):
            return True
    return False


# What makes a class without a class statement.
_MAKERS = {
    "type",
    "namedtuple",
    "collections.namedtuple",
    "make_dataclass",
    "dataclasses.make_dataclass",
    "TypedDict",
    "NamedTuple",
    "Enum",
}


def _holds_class(node: ast.AST) -> bool:
    return any(isinstance(part, ast.ClassDef) for part in ast.walk(node))


def _bound_in(node: ast.ClassDef) -> List[str]:
    names = []
    for statement in node.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(statement.name)
        elif isinstance(statement, ast.Assign):
            names += [target.id for target in statement.targets if isinstance(target, ast.Name)]
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.append(statement.target.id)
        elif isinstance(statement, (ast.If, ast.Try, ast.With)):
            names += [part.name for part in ast.walk(statement) if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return names


def _set_on_self(node: ast.ClassDef) -> List[str]:
    return [
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and dotted(part.value) == "self"
    ]


def _sets_unknown(node: ast.ClassDef) -> bool:
    """Whether instances may get attributes that no statement names."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and dotted(part.func) == "setattr":
            return True
        if isinstance(part, ast.Attribute) and part.attr == "__dict__":
            return True
    return False


def _is_upward(node: ast.expr) -> bool:
    """Whether a call goes to a class above: super(), or a class by its name."""
    if isinstance(node, ast.Call):
        return dotted(node.func) == "super"
    return bool(dotted(node)) and dotted(node).partition(".")[0] != "self"


def _without_suffix(handler: str) -> str:
    """The part of a handler's name that torch-model-archiver takes before a colon."""
    name = handler.partition(":")[0]
    return name[: -len(".py")] if name.endswith(".py") else name


def _file(found: Found) -> str:
    return (found.file or found.name).rpartition("/")[2]
