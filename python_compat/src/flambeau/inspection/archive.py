"""Follows a model's code from its handler through all the modules of the archive that it imports."""

from __future__ import annotations

import os
import time

from flambeau.inspection import entry
from flambeau.inspection.resolver import LOCAL, OURS, Found, Resolver
from flambeau.inspection.source import Module, Unreadable, parse
from flambeau.inspection.walk import CERTAIN, GUARDED, Missing, Walk
from flambeau.pip_names import known_pip_name, pip_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

_BUILT_IN = "ts.torch_handler"
_ENVELOPES = "ts.torch_handler.request_envelope"
_BASE = "ts.torch_handler.base_handler"
_MANIFEST = "MAR-INF/MANIFEST.json"
_MOST_MODULES = 2000
_LISTED = 8
_LOOKED_AT = 20000  # files of an archive that are looked at for one with a certain name


class Inspection:
    """One archive. `run` fills what `answer` gives."""

    def __init__(self, question: Dict[str, Any], packages: str, path: List[str], limit: float) -> None:
        """`question` is docs/check.md's; `path` is where the interpreter looks for modules; `limit` is in seconds."""
        self._folder = os.path.realpath(question["folder"])
        self._handler: str = question.get("handler") or ""
        self._model_file: str = question.get("model_file") or ""
        self._envelope: str = question.get("envelope") or ""
        self._until = time.monotonic() + limit
        first = self._handler_folder() + list(question.get("python_path") or [])
        self._resolver = Resolver(self._folder, first, packages, path)
        self._classes = entry.Classes(self._resolver)
        self._queue: List[Tuple[int, Found, str, int]] = []  # certainty, module, the archive's file that leads there, its line
        self._seen: Dict[str, int] = {}
        self._files: Optional[List[str]] = None
        self.missing: List[Dict[str, Any]] = []
        self.problems: List[Dict[str, Any]] = []
        self.incomplete = ""
        self.modules: List[str] = []
        self.base: Dict[str, bool] = {"initialize": False, "torchscript": False, "pickled": False}
        self.built_in = ""

    def run(self) -> None:
        """Look at the handler, the model file and the envelope, and at all that they import."""
        self._look_at_handler()
        self._look_at_model_file()
        if self._envelope:
            found = self._resolver.find("%s.%s" % (_ENVELOPES, self._envelope))
            if found is not None:
                self._enqueue(CERTAIN, found, _MANIFEST, 0)
        while self._queue:
            if time.monotonic() > self._until or len(self._seen) > _MOST_MODULES:
                self.incomplete = "not all modules of the archive were looked at: there are too many, or they are too large"
                return
            self._queue.sort(key=lambda item: -item[0])  # the surest first: a module is looked at once
            self._look_at(*self._queue.pop(0))
        if self.base["initialize"] and self._resolver.find("torch") is None:
            file = _MANIFEST if self.built_in else self._module_name() + ".py"
            self._add_missing("torch", "torch", "module", file, 0, CERTAIN, "BaseHandler.initialize", is_ours=True)

    def answer(self) -> Dict[str, Any]:
        """What was found, ready for JSON."""
        return {
            "missing": self.missing,
            "problems": self.problems,
            "incomplete": self.incomplete,
            "modules": self.modules,
            "built_in": self.built_in,
            "base": self.base,
        }

    # ---- the roots

    def _handler_folder(self) -> List[str]:
        """The folder that TorchServe adds for "folder/file:function"."""
        part = self._handler.partition(":")[0].rpartition("/")[0] if ":" in self._handler else ""
        return [os.path.join(self._folder, part)] if part and os.path.isdir(os.path.join(self._folder, part)) else []

    def _module_name(self) -> str:
        name = self._handler.partition(":")[0]
        if name.endswith(".py"):
            name = name[: -len(".py")]
        return name.rpartition("/")[2]

    def _look_at_handler(self) -> None:
        if not self._handler:
            return
        name = self._module_name()
        own = os.path.join(self._folder, name + ".py")
        found = Found(name, LOCAL, own) if os.path.isfile(own) else self._resolver.find(name)
        if found is None or found.namespace:
            found = self._resolver.find("%s.%s" % (_BUILT_IN, self._handler)) if ":" not in self._handler else None
            if found is None or found.file is None:
                self._handler_is_missing(name)
                return
            self.built_in = self._handler
            self._enqueue(CERTAIN, found, _MANIFEST, 0)
        else:
            self._enqueue(CERTAIN, found, _MANIFEST, 0)
        self._look_at_entry(found)

    def _handler_is_missing(self, name: str) -> None:
        elsewhere = self._elsewhere(name)
        if elsewhere:
            hint = "the archive has it as %s, and only its top folder is searched" % _some(elsewhere)
        else:
            names = sorted(file for file in self._all_files() if file.endswith(".py") and "/" not in file)
            hint = "the archive's Python files are %s" % _some(names) if names else "the archive has no Python file at its top"
        message = "the handler %r: there is no module %r in the archive, and no built-in handler of that name" % (
            self._handler,
            name,
        )
        self._problem("handler_missing", _MANIFEST, 0, message, hint)

    def _look_at_entry(self, found: Found) -> None:
        try:
            module = parse(found.name, found.file or "")
        except Unreadable:
            return  # _look_at says why
        place = (found, module)
        try:
            chosen = entry.choose(place, self._handler, self._classes)
        except entry.Problem as problem:
            self._entry_problem(found, problem)
            return
        except RecursionError:
            return
        if chosen.problem is not None:
            self._entry_problem(found, chosen.problem)
        if chosen.chosen is not None:
            node = chosen.chosen
            self.base = {
                "initialize": self._classes.initialize_of_base(place, node),
                "torchscript": not self._classes.overrides(place, node, "_load_torchscript_model"),
                "pickled": not self._classes.overrides(place, node, "_load_pickled_model"),
            }

    def _entry_problem(self, found: Found, problem: entry.Problem) -> None:
        file = self._shown(found) if found.origin == LOCAL else _MANIFEST
        self._problem(problem.code, file, problem.line, problem.message, problem.hint, problem.is_error)

    def _look_at_model_file(self) -> None:
        if not self._model_file:
            return
        found = self._resolver.find(self._model_file.split(".", maxsplit=1)[0].rpartition("/")[2])
        if found is None or found.origin != LOCAL:
            return  # that the file is not there the server says itself
        self._enqueue(CERTAIN, found, _MANIFEST, 0)
        module = self._resolver.parsed(found)
        if module is not None and self.base["initialize"] and self.base["pickled"]:
            self._count_models(found, module)

    def _count_models(self, found: Found, module: Module) -> None:
        count, sure = entry.count_classes(module)
        if sure and not module.stars and count != 1:
            self._problem(
                "model_file_classes",
                self._shown(found),
                0,
                "BaseHandler makes the one class that the manifest's modelFile defines, and it defines %d" % count,
                "leave one class in it, and import the others from a file of their own",
            )

    # ---- the modules behind them

    def _enqueue(self, certainty: int, found: Found, file: str, line: int) -> None:
        if found.file is not None and self._seen.get(found.file, -1) < certainty:
            self._queue.append((certainty, found, file, line))

    def _look_at(self, certainty: int, found: Found, file: str, line: int) -> None:
        assert found.file is not None
        if self._seen.get(found.file, -1) >= certainty:
            return
        self._seen[found.file] = certainty
        shown = self._shown(found)
        try:
            module = parse(found.name, found.file, strict=found.origin == LOCAL)
            walk = Walk(found, module.tree, self._resolver, certainty)
        except Unreadable as err:
            self._unreadable(found, err, certainty)
            return
        except RecursionError:
            self._unreadable(found, Unreadable("it is nested too deeply to be read"), certainty)
            return
        if found.origin == LOCAL:
            self.modules.append(shown)
        for one in walk.missing:
            if one.certainty > GUARDED:
                self._import_fails(one, found, (shown, one.line) if found.origin == LOCAL else (file, line))
        for target, sure, at in walk.reached:
            if found.origin == LOCAL:
                self._enqueue(sure, target, shown, at)
            elif sure == CERTAIN:
                self._enqueue(sure, target, file, line)

    def _unreadable(self, found: Found, err: Unreadable, certainty: int) -> None:
        if found.origin == OURS:
            return
        if err.is_skipped:
            self._problem("check_incomplete", self._shown(found), 0, "it was not looked at: %s" % err, "", False)
            return
        code = "syntax_error" if err.is_syntax else "file_unreadable"
        what = "%s cannot be compiled by this Python: %s" % (self._shown(found), err)
        if not err.is_syntax:
            what = "%s: %s" % (self._shown(found), err)
        hint = "correct the file, or run the model on the Python that it was written for" if err.is_syntax else ""
        self._problem(code, self._shown(found), err.line, what, hint, certainty == CERTAIN)

    def _import_fails(self, one: Missing, found: Found, place: Tuple[str, int]) -> None:
        via = "" if found.origin == LOCAL else found.name
        if one.kind == "relative":
            self._problem(
                "import_relative",
                place[0],
                place[1],
                "from %s import …: %s is a top-level module and has no package above it" % (one.module, found.name),
                "write `from %s import …` without the dots: the archive's folder is searched"
                % (one.module.lstrip(".") or "a_module"),
                one.certainty == CERTAIN,
            )
            return
        self._add_missing(one.module, one.name, one.kind, place[0], place[1], one.certainty, via or one.function, bool(via))

    def _add_missing(
        self, module: str, name: str, kind: str, file: str, line: int, certainty: int, where: str, is_ours: bool = False
    ) -> None:
        top = module.partition(".")[0]
        record: Dict[str, Any] = {
            "kind": kind,
            "module": module,
            "name": name,
            "file": file,
            "line": line,
            "certain": certainty == CERTAIN,
            "function": "" if is_ours else where,
            "via": where if is_ours else "",
            "pip": known_pip_name(module) or top,
            "pip_names": pip_names(module),
            "elsewhere": [],
            "other_abi": [],
            "origin": "",
        }
        parent = self._resolver.find(top)
        if parent is not None:
            record["origin"] = parent.origin
            if kind == "module" and name == top:
                record["origin"] = ""
        else:
            record["elsewhere"] = self._elsewhere(top)[:_LISTED]
            built = [file for file in self._all_files() if file.startswith(top + ".") and file.endswith((".so", ".pyd"))]
            record["other_abi"] = built[:_LISTED]
        if record not in self.missing:
            self.missing.append(record)

    # ---- files

    def _shown(self, found: Found) -> str:
        """A module's file, relative to the archive."""
        path = found.file or found.name
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if real.startswith(os.path.join(self._folder, "")):
            return os.path.relpath(real, self._folder)
        return path

    def _elsewhere(self, top: str) -> List[str]:
        ends = ("/" + top + ".py", "/" + top + "/__init__.py")
        return [file for file in self._all_files() if file.endswith(ends)]

    def _all_files(self) -> List[str]:
        if self._files is None:
            self._files = []
            for parent, folders, names in os.walk(self._folder):
                folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
                self._files += [os.path.relpath(os.path.join(parent, name), self._folder) for name in sorted(names)]
                if len(self._files) > _LOOKED_AT:
                    break
        return self._files

    def _problem(self, code: str, file: str, line: int, message: str, hint: str, is_error: bool = True) -> None:
        found = {"code": code, "file": file, "line": line, "message": message, "hint": hint, "error": is_error}
        if found not in self.problems:
            self.problems.append(found)


def _some(names: List[str]) -> str:
    more = " and %d more" % (len(names) - _LISTED) if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
