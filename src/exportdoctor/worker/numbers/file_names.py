"""Which values of an ONNX file are outputs of a module's submodules, by the scopes that exporters write into it."""

from __future__ import annotations

from collections import defaultdict

from exportdoctor.worker.numbers.step_graph import GraphStep, StepGraph


def match_file(graph: StepGraph) -> dict[str, str]:
    """For the FQN of a submodule the one value that leaves its scope, where there is one."""
    owners = {name: _scope(step) for step in graph.steps for name in step.outputs}
    leaving: defaultdict[str, list[str]] = defaultdict(list)
    users: defaultdict[str, list[str]] = defaultdict(list)
    for step in graph.steps:
        for name in step.inputs:
            users[name].append(_scope(step))
    for name in graph.outputs:
        users[name].append("")
    for name, owner in owners.items():
        parts = owner.split(".") if owner else []
        for length in range(1, len(parts) + 1):
            path = ".".join(parts[:length])
            if any(user != path and not user.startswith(f"{path}.") for user in users[name]):
                leaving[path].append(name)
    return {path: names[0] for path, names in leaving.items() if len(names) == 1}


def names_by_origin(graph: StepGraph) -> dict[str, str]:
    """For the name of a program's node the one value that leaves the nodes that torch.onnx made of it."""
    origin = {name: step.fact().origin for step in graph.steps for name in step.outputs}
    used = {(name, step.fact().origin) for step in graph.steps for name in step.inputs}
    used |= {(name, "") for name in graph.outputs}
    leaving: defaultdict[str, set[str]] = defaultdict(set)
    for name, user in used:
        if origin.get(name) and origin[name] != user:
            leaving[origin[name]].add(name)
    return {made: names.pop() for made, names in leaving.items() if len(names) == 1}


def _scope(step: GraphStep) -> str:
    """The submodule in a node's metadata, or in its name."""
    return step.fact().module or scope_in_name(step.name)


def scope_in_name(name: str) -> str:
    """The submodule in a name such as `/encoder/layer.0/fc/MatMul`; '' where there is none."""
    if not name.startswith("/"):
        return ""
    parts: list[str] = []
    for one in name.split("/")[1:-1]:
        if parts and one.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(one)
    return ".".join(parts)
