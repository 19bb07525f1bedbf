"""Puts a mutant into a running process: the code of its functions in the place of what was imported.

For a process that has imported the tests and run none.  Does not: change what an import executes
(the bodies of modules and classes, defaults, decorators); who asks knows which lines those are.
"""

import gc
from collections import defaultdict
from types import CodeType, FunctionType


def swap(file: str, before: str, after: str) -> None:
    """Replace the code of every function of a file.  Raises ValueError where that cannot be."""
    old, new = _codes(compile(before, file, "exec")), _codes(compile(after, file, "exec"))
    changed = 0
    for function in gc.get_objects():
        if not isinstance(function, FunctionType) or function.__code__.co_filename != file:
            continue
        code = function.__code__
        same_name, instead = old[code.co_qualname], new[code.co_qualname]
        lines = [each.co_firstlineno for each in same_name]
        if len(same_name) != len(instead) or lines.count(code.co_firstlineno) != 1:
            raise ValueError(f"{code.co_qualname} cannot be told from others")
        function.__code__ = instead[lines.index(code.co_firstlineno)]
        changed += function.__code__ != code
    if not changed:
        raise ValueError("no function has changed")


def _codes(module: CodeType) -> defaultdict[str, list[CodeType]]:
    """Return all code in a module's, by qualified name."""
    found: defaultdict[str, list[CodeType]] = defaultdict(list)
    rest = [module]
    while rest:
        code = rest.pop()
        found[code.co_qualname].append(code)
        rest += [each for each in code.co_consts if isinstance(each, CodeType)]
    for same_name in found.values():
        same_name.sort(key=lambda code: code.co_firstlineno)
    return found
