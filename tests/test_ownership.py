"""Who may own tasks and shields, checked in the source: structured concurrency has no exceptions but those named here."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import layered_llm

SOURCE = Path(layered_llm.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

NURSERY_FIELDS = {
    "service/library/background.py:_Running": "for jobs from other threads, which start inside of the block that opened it",
    "transport/http/exchange/connection.py:Exchange": "handed to the handlers of one exchange, opened and closed around them",
}
SHIELDS_WITHOUT_DEADLINE = {
    "service/server/embedded.py:_run_runtime": "a thread cannot be cancelled; the context is shut down under it, which ends it",
    "service/server/embedded.py:open": "the engine outlives what cancels its user; the block that yields it cancels this scope",
    "service/library/opening.py:_open_process_client": "as in embedded.py",
    "service/server/engine_host.py:_stay_until": "gets its deadline when the server leaves, from a task beside it",
}
BROAD_HANDLERS = {
    "service/chat/host.py:_run": "the end of a thread: the exception is raised again in the one that waits for it",
    "service/processes/own_thread.py:run": "the same",
}
FORBIDDEN_CALLS = ("create_task", "ensure_future", "spawn_system_task", "start_thread_soon", "start_guest_run")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions in it."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def place(path: Path, name: str) -> str:
    return f"{path.relative_to(SOURCE)}:{name}"


def is_named(node: ast.AST | None, name: str) -> bool:
    """Whether the expression ends in this name, as in `trio.Nursery`, `Nursery` and `"trio.Nursery"`."""
    match node:
        case ast.Attribute(attr=attr):
            return attr == name
        case ast.Name(id=identifier):
            return identifier == name
        case ast.Constant(value=str(text)):
            return text.rpartition(".")[2] == name
        case _:
            return False


def opened_nurseries(function: Function) -> set[str]:
    """Names of the nurseries that the function opens or is given."""
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    given = {argument.arg for argument in arguments if is_named(argument.annotation, "Nursery")}
    for node in own_nodes(function):
        if isinstance(node, ast.AsyncWith):
            for item in node.items:
                call = item.context_expr
                if (
                    isinstance(call, ast.Call)
                    and is_named(call.func, "open_nursery")
                    and isinstance(item.optional_vars, ast.Name)
                ):
                    given.add(item.optional_vars.id)
    return given


def parsed() -> Iterator[tuple[Path, ast.Module]]:
    for path in FILES:
        yield path, ast.parse(path.read_text(), str(path))


def assigned_attributes(node: ast.AST) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {target.attr for target in targets if isinstance(target, ast.Attribute)}


def stored_nurseries(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and any(is_named(part, "Nursery") for part in ast.walk(field.annotation)):
                    yield place(path, node.name)
    for function in functions(tree):
        nurseries = opened_nurseries(function)
        for node in own_nodes(function):
            is_nursery = isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in nurseries
            if is_nursery and assigned_attributes(node):
                yield place(path, function.name)


def foreign_starts(path: Path, tree: ast.Module) -> Iterator[str]:
    for function in functions(tree):
        nurseries = opened_nurseries(function)
        for node in own_nodes(function):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "start_soon":
                continue
            owner = node.func.value
            if not (isinstance(owner, ast.Name) and owner.id in nurseries):
                yield place(path, function.name)


def is_unbounded_shield(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        keywords = {keyword.arg for keyword in node.keywords}
        is_bounded = "deadline" in keywords or is_named(node.func, "move_on_after") or is_named(node.func, "fail_after")
        return "shield" in keywords and not is_bounded
    return "shield" in assigned_attributes(node)


def bare_shields(path: Path, tree: ast.Module) -> Iterator[str]:
    for function in functions(tree):
        nodes = list(own_nodes(function))
        has_later_deadline = any("deadline" in assigned_attributes(node) for node in nodes)
        if not has_later_deadline and any(map(is_unbounded_shield, nodes)):
            yield place(path, function.name)


def broad_handlers(path: Path, tree: ast.Module) -> Iterator[str]:
    for function in functions(tree):
        for node in own_nodes(function):
            if not isinstance(node, ast.ExceptHandler):
                continue
            is_base = node.type is None or is_named(node.type, "BaseException")
            if is_base and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
                yield place(path, function.name)


def detached_tasks(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and any(is_named(node.func, name) for name in FORBIDDEN_CALLS):
            yield f"{path.relative_to(SOURCE)}:{node.lineno}"


def test_a_nursery_is_stored_on_no_object_but_those_named_here() -> None:
    assert sorted(NURSERY_FIELDS) == sorted(found for path, tree in parsed() for found in stored_nurseries(path, tree))


def test_tasks_are_started_in_nurseries_that_the_function_opened_or_was_given() -> None:
    assert [] == [found for path, tree in parsed() for found in foreign_starts(path, tree)]


def test_no_task_is_detached() -> None:
    assert [] == [found for path, tree in parsed() for found in detached_tasks(path, tree)]


def test_every_shield_has_a_deadline_but_those_named_here() -> None:
    found = {found for path, tree in parsed() for found in bare_shields(path, tree)}

    assert set(SHIELDS_WITHOUT_DEADLINE) == found


def test_nothing_swallows_a_cancellation_but_the_ends_of_threads() -> None:
    assert set(BROAD_HANDLERS) == {found for path, tree in parsed() for found in broad_handlers(path, tree)}


PLANTED = {
    "stored": (stored_nurseries, "async def f(self):\n  async with trio.open_nursery() as n:\n    self.nursery = n\n"),
    "field": (stored_nurseries, "class A:\n  nursery: trio.Nursery\n"),
    "foreign": (foreign_starts, "async def f(self):\n  self.nursery.start_soon(g)\n"),
    "global": (foreign_starts, "async def f():\n  nursery.start_soon(g)\n"),
    "shield": (bare_shields, "async def f():\n  with trio.CancelScope(shield=True):\n    await g()\n"),
    "shield-later": (bare_shields, "async def f():\n  scope.shield = True\n"),
    "bare": (broad_handlers, "async def f():\n  try:\n    await g()\n  except:\n    pass\n"),
    "base": (broad_handlers, "async def f():\n  try:\n    await g()\n  except BaseException:\n    return\n"),
    "detached": (detached_tasks, "async def f():\n  trio.lowlevel.spawn_system_task(g)\n"),
}


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_violation_is_found(name: str) -> None:
    find, source = PLANTED[name]

    assert 1 == len(list(find(SOURCE / "planted.py", ast.parse(source))))


def test_a_right_use_is_no_violation() -> None:
    source = (
        "async def f(given: trio.Nursery):\n"
        "  given.start_soon(g)\n"
        "  async with trio.open_nursery() as own:\n"
        "    own.start_soon(g)\n"
        "  with trio.move_on_after(1, shield=True):\n"
        "    await g()\n"
        "  try:\n"
        "    await g()\n"
        "  except BaseException:\n"
        "    undo()\n"
        "    raise\n"
    )
    finders = (stored_nurseries, foreign_starts, bare_shields, broad_handlers, detached_tasks)

    assert [] == [found for find in finders for found in find(SOURCE / "planted.py", ast.parse(source))]
