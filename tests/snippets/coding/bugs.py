"""A snippet with one of the bugs that people make, to show which check catches it."""

import inspect
from types import ModuleType


def with_bug(module: ModuleType, *changes: tuple[str, str]) -> ModuleType:
    """The module with each (right, wrong) text exchanged; every right text occurs exactly once."""
    source = inspect.getsource(module)
    for right, wrong in changes:
        assert source.count(right) == 1, f"{source.count(right)} places have {right!r}"
        source = source.replace(right, wrong)
    broken = ModuleType(module.__name__)
    exec(compile(source, f"{module.__file__} with a bug", "exec"), broken.__dict__)
    return broken
