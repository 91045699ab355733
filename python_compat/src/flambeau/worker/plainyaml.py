"""A reader of plain YAML, for model configurations in a Python without PyYAML.

It reads block and flow maps and lists, plain and quoted values, block texts (|), comments, anchors and aliases, with
PyYAML's meaning of values (YAML 1.1: yes is True, 1e3 is a text). Tags, merge keys, folded texts (>), several documents and
values of several lines are refused by name and line: nothing is read wrongly in silence.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple


class PlainYamlError(ValueError):
    """A text that is not YAML, or is YAML that this reader does not do."""


def parse(text: str, where: str = "the text") -> Any:
    """Give what `text` holds, None when it is empty. `where` names it in errors. Raises PlainYamlError."""
    return _Parser(text, where).document()


_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)\Z")
_FLOAT = re.compile(r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?\Z")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?\Z")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:$|[Tt\s])")
_WORDS = {
    "": None,
    "~": None,
    "null": None,
    "yes": True,
    "true": True,
    "on": True,
    "no": False,
    "false": False,
    "off": False,
    ".inf": float("inf"),
    "+.inf": float("inf"),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}  # type: Dict[str, Any]
_ESCAPES = {
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "t": "\t",
    "\t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "r": "\r",
    "e": "\x1b",
    " ": " ",
    '"': '"',
    "/": "/",
    "\\": "\\",
    "N": "\x85",
    "_": "\xa0",
    "L": "\u2028",
    "P": "\u2029",
}
_HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}
_NAME = re.compile(r"[-0-9A-Za-z_]+")


class _Line:
    """A line that says something: its number, its indentation and its text without comment."""

    __slots__ = ("indent", "number", "text")

    def __init__(self, number: int, indent: int, text: str) -> None:
        self.number = number
        self.indent = indent
        self.text = text

    def is_mark(self) -> bool:
        """Whether the line begins or ends a document."""
        return self.indent == 0 and self.text in ("---", "...")


class _Parser:
    def __init__(self, text: str, where: str) -> None:
        if text.startswith("\ufeff"):
            text = text[1:]
        self._where = where
        self._raw = [line[:-1] if line.endswith("\r") else line for line in text.split("\n")]
        self._ends_with_break = self._raw[-1] == ""
        if self._ends_with_break:
            self._raw.pop()
        self._at = 0  # next raw line
        self._anchors: Dict[str, Any] = {}  # of values that are read whole
        self._declared: Set[str] = set()

    # Lines

    def _peek(self, depth: int = 0) -> Optional[_Line]:
        """The next line that says something, not taken; `depth` is that of the brackets that are open before it."""
        while self._at < len(self._raw):
            raw = self._raw[self._at]
            text = raw.lstrip(" ")
            if text.startswith("\t") and text.strip() and not text.strip().startswith("#"):
                raise self._error("a tab cannot indent; use spaces", self._at)
            stripped = _without_comment(text, depth)
            if stripped:
                return _Line(self._at, len(raw) - len(text), stripped)
            self._at += 1
        return None

    def _error(self, why: str, number: int) -> PlainYamlError:
        hint = "install PyYAML in the model's Python to have all of YAML read"
        return PlainYamlError("%s, line %d: %s (%s)" % (self._where, number + 1, why, hint))

    # Blocks

    def document(self) -> Any:
        line = self._peek()
        if line is not None and line.text.startswith("%"):
            raise self._error("directives are not read", line.number)
        if line is not None and line.indent == 0 and (line.text == "---" or line.text.startswith("--- ")):
            rest = line.text[3:].strip()
            if rest:
                raise self._error("a value after --- is not read", line.number)
            self._at += 1
        value = self._block(0, None)
        line = self._peek()
        if line is not None and line.is_mark() and line.text == "..." and value is not None:
            self._at += 1
            line = self._peek()
        if line is not None:
            what = "a second document is not read" if line.text.startswith("---") else "this does not belong to what is before it"
            raise self._error(what, line.number)
        return value

    def _block(self, least: int, anchor: Optional[str]) -> Any:
        """What begins at the next line, if that is indented by `least` or more; None otherwise."""
        line = self._peek()
        if line is None or line.indent < least or line.is_mark():
            return self._keep(anchor, None)
        if _is_dash(line.text):
            return self._list(line.indent, anchor)
        if self._key_end(line.text, line.number) >= 0:
            return self._map(line.indent, anchor)
        self._at += 1
        return self._value(line.text, line.number, line.indent - 1, anchor)

    def _keep(self, anchor: Optional[str], value: Any) -> Any:
        if anchor is not None:
            self._anchors[anchor] = value
        return value

    def _list(self, indent: int, anchor: Optional[str], of_key: bool = False) -> List[Any]:
        """The items at `indent`; `of_key` says that the key above them stands there, too."""
        items: List[Any] = []
        while True:
            line = self._peek()
            if line is None or line.indent < indent or not _is_dash(line.text):
                self._end_of_block(line, indent + 1 if of_key else indent)
                return self._keep(anchor, items)  # type: ignore[no-any-return]
            if line.indent > indent:
                raise self._error("this item is indented more than the one before it", line.number)
            items.append(self._item(line))

    def _item(self, line: _Line) -> Any:
        """The item of a list that `line` begins; what follows the dash stands as if on a line of its own."""
        rest = line.text[1:]
        inner = rest.lstrip(" ")
        if not inner:
            self._at += 1
            return self._block(line.indent + 1, None)
        indent = line.indent + 1 + len(rest) - len(inner)
        if _is_dash(inner) or self._key_end(inner, line.number) >= 0:
            raw = self._raw[line.number]
            self._raw[line.number] = " " * indent + raw[indent:]
            return self._block(indent, None)
        self._at += 1
        return self._value(inner, line.number, line.indent, None)

    def _map(self, indent: int, anchor: Optional[str]) -> Dict[Any, Any]:
        found: Dict[Any, Any] = {}
        while True:
            line = self._peek()
            if line is None or line.indent < indent or line.is_mark() or (line.indent == indent and _is_dash(line.text)):
                self._end_of_block(line, indent)
                return self._keep(anchor, found)  # type: ignore[no-any-return]
            if line.indent > indent:
                raise self._error("this key is indented more than the one before it", line.number)
            end = self._key_end(line.text, line.number)
            if end < 0:
                raise self._error("a key and a colon are expected", line.number)
            key = self._key(line.text[:end].rstrip(), line.number)
            rest = line.text[end + 1 :].strip()
            self._at += 1
            found[key] = self._map_value(rest, line)

    def _map_value(self, rest: str, line: _Line) -> Any:
        if rest:
            return self._value(rest, line.number, line.indent, None, of_key=True)
        return self._nested(line.indent, None)

    def _nested(self, indent: int, anchor: Optional[str]) -> Any:
        """The value of a key that stands on the lines below it; a list may stand at the key's own indentation."""
        below = self._peek()
        if below is not None and below.indent == indent and _is_dash(below.text):
            return self._list(indent, anchor, of_key=True)
        return self._block(indent + 1, anchor)

    def _end_of_block(self, line: Optional[_Line], indent: int) -> None:
        if line is not None and line.indent >= indent and not line.is_mark() and not _is_dash(line.text):
            raise self._error("a list goes on with something that is no item", line.number)

    # Values

    def _value(  # one for each way in which a value may begin
        self, text: str, number: int, indent: int, anchor: Optional[str], of_key: bool = False
    ) -> Any:
        """The value that begins with `text` behind a key or dash of indentation `indent`; following lines are taken as needed."""
        if text[0] == "&":
            name, rest = self._name(text, number)
            self._declare(name, number)
            if rest:
                return self._value(rest, number, indent, name)
            return self._nested(indent, name) if of_key else self._block(indent + 1, name)
        if text[0] in "|>":
            return self._keep(anchor, self._block_text(text, number, indent))
        if text[0] in "[{":
            return self._keep(anchor, self._flow_value(text, number, indent))
        if text[0] in "'\"":
            value, end = self._quoted(text, 0, number)
            if text[end:].strip():
                raise self._error("there is something behind the closing quote", number)
            self._no_continuation(indent, number)
            return self._keep(anchor, value)
        if text[0] == "*":
            return self._alias(text, number)
        if text[0] in "!%@`,]}":
            raise self._error("a value cannot begin with %s, tags are not read" % text[0], number)
        if _is_dash(text):
            raise self._error("a list cannot begin behind a key on the same line", number)
        if self._key_end(text, number) >= 0:
            raise self._error("a map cannot begin behind a key on the same line", number)
        self._no_continuation(indent, number)
        return self._keep(anchor, self._scalar(text, number))

    def _no_continuation(self, indent: int, number: int) -> None:
        line = self._peek()
        if line is not None and line.indent > indent and not line.is_mark():
            raise self._error("a value of several lines is not read (it goes on in line %d)" % (line.number + 1), number)

    def _name(self, text: str, number: int) -> Tuple[str, str]:
        match = _NAME.match(text, 1)
        if match is None or (match.end() < len(text) and text[match.end()] not in " ,]}"):
            raise self._error("a name is expected behind %s" % text[0], number)
        return match.group(), text[match.end() :].strip()

    def _declare(self, name: str, number: int) -> None:
        if name in self._declared:
            raise self._error("there are two anchors &%s" % name, number)
        self._declared.add(name)

    def _alias(self, text: str, number: int) -> Any:
        name, rest = self._name(text, number)
        if rest:
            raise self._error("there is something behind the alias *%s" % name, number)
        if name not in self._anchors:
            raise self._error("there is no anchor &%s before this alias" % name, number)
        return self._anchors[name]

    def _key_end(self, text: str, number: int) -> int:
        """Where the colon of "key: value" is in a line, -1 when there is none."""
        if text[0] in "'\"":
            try:
                _, end = self._quoted(text, 0, number)
            except PlainYamlError:
                return -1
            colon = end + len(text[end:]) - len(text[end:].lstrip(" "))
            if text[colon : colon + 1] == ":" and text[colon + 1 : colon + 2] in ("", " "):
                return colon
            return -1
        if text[0] in "[{|>&*!%@`#":
            return -1
        if text[0] == "?" and text[1:2] in ("", " "):
            raise self._error("keys with a question mark are not read", number)
        for match in re.finditer(r":(?= |$)", text):
            return match.start()
        return -1

    def _key(self, text: str, number: int) -> Any:
        if not text or text[0] in ",]}":
            raise self._error("there is no key before the colon", number)
        if text[0] in "'\"":
            return self._quoted(text, 0, number)[0]
        if text == "<<":
            raise self._error("merge keys (<<) are not read", number)
        return self._scalar(text, number)

    def _scalar(self, text: str, number: int) -> Any:
        """A plain value, by PyYAML's rules."""
        word = _word(text)
        if word is not _NO_WORD:
            return word
        if _SEXAGESIMAL.match(text) or _DATE.match(text):
            raise self._error("%s may mean a date or a time: write it in quotes to have a text" % text, number)
        if _INT.match(text):
            return _integer(text, lambda: self._error("%s is no number" % text, number))
        if _FLOAT.match(text):
            return float(text.replace("_", ""))
        if text == "=":
            raise self._error("= alone is not read", number)
        if text == "<<":
            raise self._error("merge keys (<<) are not read", number)
        return text

    def _quoted(self, text: str, start: int, number: int) -> Tuple[str, int]:
        """The text between quotes that begin at `start`, and where it ends."""
        quote = text[start]
        out: List[str] = []
        at = start + 1
        while at < len(text):
            char = text[at]
            if quote == "'" and char == "'" and text[at + 1 : at + 2] == "'":
                out.append("'")
                at += 2
            elif char == quote:
                return "".join(out), at + 1
            elif char == "\n":
                break
            elif quote == '"' and char == "\\":
                plain, at = self._escape(text, at + 1, number)
                out.append(plain)
            else:
                out.append(char)
                at += 1
        raise self._error("the quote %s has no end on its line" % quote, number)

    def _escape(self, text: str, at: int, number: int) -> Tuple[str, int]:
        char = text[at : at + 1]
        if char in _HEX_ESCAPES:
            digits = text[at + 1 : at + 1 + _HEX_ESCAPES[char]]
            if re.match(r"[0-9a-fA-F]{%d}\Z" % _HEX_ESCAPES[char], digits) and int(digits, 16) <= 0x10FFFF:
                return chr(int(digits, 16)), at + 1 + len(digits)
        elif char in _ESCAPES and char:
            return _ESCAPES[char], at + 1
        raise self._error("\\%s is no escape" % char, number)

    def _block_text(self, head: str, number: int, indent: int) -> str:
        """The text of |, whose lines are indented more than `indent`."""
        if head not in ("|", "|-", "|+"):
            raise self._error("%s is not read: texts of several lines begin with |, |- or |+" % head, number)
        depth = 0
        lines: List[str] = []
        while self._at < len(self._raw):
            raw = self._raw[self._at]
            margin = len(raw) - len(raw.lstrip(" "))
            if raw.strip(" "):
                depth = depth or margin
                if margin <= max(indent, 0) or margin < depth:
                    break
            lines.append(raw)
            self._at += 1
        if any(len(raw) > depth for raw in lines[: _first_full(lines)]):
            raise self._error("the text begins with a line of more blanks than its first words have", number)
        lines = [raw[depth:] for raw in lines]
        full = len(lines)
        while full and not lines[full - 1]:
            full -= 1
        text = "\n".join(lines[:full])
        if head == "|-":
            return text
        if full and (self._at < len(self._raw) or full < len(lines) or self._ends_with_break):
            text += "\n"
        if head == "|+":
            missing = 0 if self._at < len(self._raw) or self._ends_with_break or full == len(lines) else 1
            text += "\n" * (len(lines) - full - missing)
        return text

    # Flow

    def _flow_value(self, text: str, number: int, indent: int) -> Any:
        """A map or list in braces or brackets, which may go on over lines that are indented more."""
        while True:
            try:
                value, end = self._flow(text, 0, number)
                break
            except _Unfinished:
                line = self._peek(1)
                if line is None or line.indent <= indent:
                    raise self._error("%s has no end" % text[0], number) from None
                self._at += 1
                text += "\n" + line.text
        if text[end:].strip():
            raise self._error("there is something behind the closing bracket", number)
        self._no_continuation(indent, number)
        return value

    def _flow(self, text: str, at: int, number: int) -> Tuple[Any, int]:
        closing = "]" if text[at] == "[" else "}"
        items: List[Any] = []
        found: Dict[Any, Any] = {}
        at = _skip(text, at + 1)
        while text[at] != closing:
            value, at, colon = self._flow_part(text, at, number)
            inner = None
            if colon:
                inner, at = self._flow_after_colon(text, at, number)
            if (colon or closing == "}") and isinstance(value, (dict, list)):
                raise self._error("a key cannot be a map or a list", number)
            if closing == "}":
                found[value] = inner
            else:
                items.append({value: inner} if colon else value)
            if text[at] == ",":
                at = _skip(text, at + 1)
            elif text[at] != closing:
                raise self._error("a comma or %s is expected before %r" % (closing, text[at:]), number)
        return (items if closing == "]" else found), at + 1

    def _flow_after_colon(self, text: str, at: int, number: int) -> Tuple[Any, int]:
        at = _skip(text, at + 1)
        if text[at] in ",]}":
            return None, at
        value, at, colon = self._flow_part(text, at, number)
        if colon:
            raise self._error("there is a second colon in %r" % text, number)
        return value, at

    def _flow_part(self, text: str, at: int, number: int) -> Tuple[Any, int, bool]:
        """A value inside of brackets, where the next sign is, and whether that is the colon of a key."""
        anchor = None
        if text[at] == "&":
            match = _NAME.match(text, at + 1)
            if match is None:
                raise self._error("a name is expected behind &", number)
            anchor, at = match.group(), _skip(text, match.end())
            self._declare(anchor, number)
        char = text[at]
        if char in "[{":
            value, at = self._flow(text, at, number)
        elif char in "'\"":
            value, at = self._quoted(text, at, number)
        else:
            value, at = self._flow_plain(text, at, number)
        # Behind a bracket or a quote the colon may stand without a blank, as in JSON.
        adjacent = char in "[{'\"" and text[at : at + 1] == ":"
        value = self._keep(anchor, value)
        end, at = at, _skip(text, at)
        colon = adjacent or (_is_colon(text, at) and "\n" not in text[end:at])
        return value, at, colon

    def _flow_plain(self, text: str, at: int, number: int) -> Tuple[Any, int]:
        end = at
        while end < len(text) and text[end] not in ",[]{}" and not _is_colon(text, end):
            end += 1
        end = at + len(text[at:end].rstrip())
        plain = text[at:end]
        if "\n" in plain:
            raise self._error("a value of several lines is not read", number)
        if not plain:
            raise self._error("a value is missing before %r" % text[end:], number)
        if plain[0] == "*":
            return self._alias(plain, number), end
        if plain[0] in "!%@`|>&?'\"" or plain == "-" or plain.startswith("- "):
            raise self._error("%s is not read inside of brackets" % plain, number)
        return self._scalar(plain, number), end


class _Unfinished(Exception):
    """A flow map or list has no end yet."""


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \n":
        at += 1
    if at >= len(text):
        raise _Unfinished
    return at


def _is_colon(text: str, at: int) -> bool:
    return text[at : at + 1] == ":" and (at + 1 >= len(text) or text[at + 1] in " \n,[]{}")


def _is_dash(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _first_full(lines: List[str]) -> int:
    """The index of the first line that is not blank."""
    for index, line in enumerate(lines):
        if line.strip(" "):
            return index
    return len(lines)


_NO_WORD = object()


def _word(text: str) -> Any:
    """The value of a word of YAML 1.1 (Yes, YES and yes, but not yEs); _NO_WORD if it is none."""
    lower = text.lower()
    if lower not in _WORDS or text not in (lower, lower.upper(), lower.capitalize(), _dotted(lower)):
        return _NO_WORD
    return _WORDS[lower]


def _dotted(lower: str) -> str:
    """.Inf, -.Inf and .NaN: the capital is behind the dot."""
    if lower == ".nan":
        return ".NaN"
    head, dot, tail = lower.partition(".")
    return head + dot + tail.capitalize()


def _integer(text: str, error: Any) -> int:
    digits = text.replace("_", "")
    sign = -1 if digits[0] == "-" else 1
    digits = digits.lstrip("+-")
    try:
        if digits.startswith("0b"):
            return sign * int(digits[2:], 2)
        if digits.startswith("0x"):
            return sign * int(digits[2:], 16)
        if digits != "0" and digits.startswith("0"):
            return sign * int(digits, 8)
        return sign * int(digits)
    except ValueError:
        raise error() from None


def _without_comment(text: str, depth: int) -> str:
    """A line without its comment and trailing blanks; a # inside of quotes, or not behind a blank, begins none.

    A quote counts only where a value may begin: `depth` is the number of brackets that are open before the line.
    """
    begins = True  # whether a value may begin here
    at = 0
    while at < len(text):
        char = text[at]
        if char == "#" and (at == 0 or text[at - 1] in " \t"):
            return text[:at].rstrip()
        if char in "'\"" and begins:
            at = _closing_quote(text, at)
            begins = False
        elif char in "[{" and (begins or depth):
            depth += 1
            begins = True
        elif char in "]}" and depth:
            depth -= 1
            begins = False
        elif (char == "," and depth) or (char == ":" and (depth or text[at + 1 : at + 2] in ("", " "))):
            begins = True
        elif char == "&" and begins:
            while text[at + 1 : at + 2] not in ("", " "):
                at += 1
        elif char != " " and not (char == "-" and begins and not depth and text[at + 1 : at + 2] in ("", " ")):
            begins = False
        at += 1
    return text.rstrip()


def _closing_quote(text: str, at: int) -> int:
    """Where the quote that opens at `at` closes; the end of the text when it does not."""
    quote = text[at]
    at += 1
    while at < len(text):
        if text[at] == quote:
            if quote == '"' or text[at + 1 : at + 2] != quote:
                return at
            at += 1
        elif quote == '"' and text[at] == "\\":
            at += 1
        at += 1
    return at
