"""A context for each request of a coroutine handler."""

from __future__ import annotations

import copy
import logging

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Set

log = logging.getLogger(__name__)


class Copies:
    """Copies of the context that the handler was initialized with, deep ones: no request sees what another one sets.

    An attribute that cannot be copied is shared by all requests, and the log says so once. TorchServe, which copies the context
    too, never answers the request then.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._shared: Set[str] = set()  # names of attributes that cannot be copied

    def new(self) -> Any:
        """A copy. What the attributes share with each other, or know of the context, they share and know in the copy."""
        fresh = copy.copy(self._context)
        own = {name: value for name, value in vars(fresh).items() if name not in self._shared}
        try:
            own = copy.deepcopy(own, {id(self._context): fresh})
        except Exception:
            own = self._one_by_one(own, fresh)
        vars(fresh).update(own)
        return fresh

    def _one_by_one(self, own: Dict[str, Any], fresh: Any) -> Dict[str, Any]:
        copied = {}
        for name, value in own.items():
            try:
                copied[name] = copy.deepcopy(value, {id(self._context): fresh})
            except Exception as err:
                self._shared.add(name)
                copied[name] = value
                log.warning(
                    "context.%s, a %s, cannot be copied (%s: %s): all requests share it, also what one of them changes in it",
                    name,
                    type(value).__name__,
                    type(err).__name__,
                    err,
                )
        return copied
