"""Libraries that only some commands need."""

import importlib
from types import ModuleType

from model_utils.errors import UserError


def require(module: str, requirements: str, purpose: object) -> ModuleType:
    """Return an optional library's module.

    Args:
        requirements: file of the project that installs it.
        purpose: what needs it, as the error's sentence begins.

    Raises:
        UserError: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{purpose} needs {module} ({error}): pip install -r {requirements}") from error
