"""What can be wrong with the files that somebody wants packed.

Each class is also the built-in exception that the archivers of TorchServe raise in the same place, so code that catches
``FileNotFoundError`` or ``ValueError`` goes on working.
"""

from __future__ import annotations


class PackingError(Exception):
    """Nothing was packed. The text says what is wrong, where, and what to do."""


class MissingFileError(PackingError, FileNotFoundError):
    """A file that should go into the archive does not exist."""


class FolderNotFileError(PackingError, IsADirectoryError):
    """A folder was given where one file is expected."""


class NameTakenError(PackingError, FileExistsError):
    """Two inputs claim one name in the archive, and one of them is a folder."""


class NotPackableError(PackingError, ValueError):
    """Something that is neither a file nor a folder, a loop of links, or a name that the format cannot hold."""


class FileAccessError(PackingError, OSError):
    """The operating system refused to read an input or to write the archive."""
