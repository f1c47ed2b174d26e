"""The one exception for mistakes a user can mend, and a package that is missing, which is one."""

from importlib import import_module
from typing import Any


class UserError(ValueError):
    """Bad input, told in one plain sentence that names the bad value and what is allowed.

    The command line prints the sentence and exits with a non-zero status, without a traceback.
    """


def needed(module: str, purpose: str, extra: str) -> Any:
    """A package that is not always there, imported; ``extra`` of this one brings it, for what ``purpose`` says."""
    try:
        return import_module(module)
    except ImportError:
        package = {"yaml": "PyYAML", "sklearn": "scikit-learn"}.get(name := module.partition(".")[0], name)
        install = f"install it with: pip install 'gibbsprune[{extra}]'"
        raise UserError(f"{purpose} needs the package {package}; {install}") from None
