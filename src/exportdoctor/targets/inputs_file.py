"""A file of inputs that the user gives: what can be checked and said of it without torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from exportdoctor.core.errors import MissingPackageError, TargetError, UsageError
from exportdoctor.core.file_hash import file_sha256
from exportdoctor.targets.factory.factory_file import check_factory

KINDS = "Give FILE.py:FUNCTION, FILE.pt or FILE.safetensors"


class InputsFileError(TargetError):
    """A file of inputs that cannot be read, or holds no inputs; the model has no part in it."""


@contextmanager
def name_inputs_file() -> Iterator[None]:
    """Within it a TargetError is one of the file of inputs."""
    try:
        yield
    except MissingPackageError:
        raise
    except TargetError as error:
        raise InputsFileError(error.message, hint=error.hint, stack=error.stack) from error


def check_inputs_file(given: str) -> None:
    """Raise UsageError where the file cannot be one of inputs. Runs nothing."""
    path, function = split_inputs(given)
    if path.suffix == ".py":
        check_factory(path, name=function, what="function that makes inputs")
    elif path.suffix not in (".pt", ".pth", ".safetensors"):
        raise UsageError(f"{given!r} is no file of inputs", hint=KINDS)
    elif not path.is_file():
        raise UsageError(f"There is no file {str(path)!r}", hint=KINDS)


def split_inputs(given: str) -> tuple[Path, str]:
    """The path and the function's name, which is empty for a file of tensors."""
    head, colon, tail = given.rpartition(":")
    return (Path(head), tail) if colon and head.endswith(".py") else (Path(given), "")


def inputs_identity(given: str) -> str:
    """The function's name and the file's hash; empty where no inputs were given."""
    path, function = split_inputs(given)
    return f"{function} {file_sha256(path)}" if given else ""
