"""Loops as text: statements to draw them from, and loops that something else sees."""

from __future__ import annotations

STATEMENTS = (
    "a = a * 0.5 + x[:, t]",
    "b = b - x[:, t, :].abs() * a",
    "a, b = b, a + 1",
    "u = a + y[:, :, t]",
    "u = y[..., t] * 2",
    "a = a + w",
    "for k in range(2):\n            a = a * k + b",
    "for u in (a, b):\n            b = b + u",
    "v = x[:, t : t + 1].sum(1) - b",
    "a = torch.where(u > 0, u, a)",
    "b = helper(v, a)",
    "outs.append(a)",
    "outs.append(u + v)",
    "more.append(b[:, None])",
    "written[:, t] = a",
    "written[:, t] = (b - x[:, t]).to(written.dtype)",
    "if a.shape[0] == 2:\n            a = a + 3",
    "written[:, t] = a.sum(0)",
    "written[..., t, :] = (a > b).any()",
    "a = a * 0.5 + wide[:, t + 1] - wide[:, 2 + t, :]",
    "b = b + x[:, t - 1]",
    "outs += [b]",
    "more = more + [u[:, None]]",
    "a = outs[-1] * 0.5 + x[:, t]",
    "outs.append(outs[-1] * 2)",
    "s[0] = s[0] * 0.5 + x[:, t]",
    "s[1], a = a + 1, s[0]",
    "d['a'], s[-1] = d['b'] - y[..., t], a",
    "for k in range(2):\n            s[k] = s[k - 1] + k",
    "b = b + s[1] - d['a']",
    "q = x[:, t] if q is None else q * 0.5 + x[:, t]",
    "u = x[:, x.shape[1] - 1 - t]",
    "b = b + x[:, -t - 1] - y[:, :, -(1 + t)]",
    "a = a - wide[:, size - t] + x[:, x.shape[1] - (t + 1), :]",
    "written[:, x.shape[1] - t - 1] = a",
    "outs.insert(0, a)",
    "total += x[:, t]",
    "count += x[:, t].sum() * 2",
    "total -= total * 0.5 - a",
    "total *= u.cos()",
    "b = b + total.sum(0) - (total.unsqueeze(0) + count)[0]",
    "a = a * count",
    "more = [u[:, None]] + more",
    "a = a + t",
    "b = b * (t + 1) - (2 - t * 3) * a",
    "u = (a - x[:, t]) / (t + 1)",
    "outs.append(t * (a + t))",
    "count = count + a.sum() * t",
    # and what no step may do
    "x[:, t] = a",
    "a = a * t ** 2",
    "a = a + t % 2",
    "a = a * (t if t else 1)",
    "a = a + [a, b][t % 2]",
    "a = x[:, t - 3]",
    "a += x[:, t]",
    "outs.append(outs[0] * 2)",
    "written[:, t] = a\n        u = written[:, t] + a",
    "box.count = box.count + 1",
    "if t > 2:\n            break",
    "u = sum([one for one in (a, b)])",
    "box.rows.append(a)",
    "s[t % 2] = a",
    "outs.append(total)\n        total += a",
    "u = total[0]\n        total += a\n        b = b + u",
    "c = b\n        c += a",
    "s[0].add_(1)",
    "s.append(s[0])",
    "q = s\n        s[0] = a",
    "u = x[:, size - t - t]",
    "outs.insert(1, a)",
    "outs.reverse()",
    "size = size - 1\n        u = x[:, size - t]",
)
REFUSED = STATEMENTS.index("x[:, t] = a")
RESULTS = (
    "a", "b", "u", "v", "w", "t", "torch.stack(outs, dim=1)", "torch.stack(outs, -1)", "torch.cat(more, 1)", "written",
    "torch.stack(outs[1:], 1)", "torch.cat(more[:-1], dim=-2)", "torch.stack(outs[::-1])", "outs[-1]",
    "len(outs)", "box.count", "s", "d", "torch.stack(s)", "q", "s[0]", "total", "count",
)  # fmt: skip

FIRST = ("outs, more = [], []", "outs = [a]\n    more = list()", "outs, more = [b, a], [x[:, 1:3]]")
LAST = (
    "", "outs.append(b)", "outs += [x[:, 0]]", "outs = torch.stack(outs, dim=1) * 2", "outs = torch.stack(outs[1:])",
    "more = a = torch.cat(more, 1)", "outs = len(outs)", "outs.reverse()", "outs.insert(0, b)\n    outs.reverse()",
)  # fmt: skip

ROWS = """
def forward(x, y, box):
    a = torch.zeros(x.shape[0], 3)
    outs, more = [], []
    written = torch.zeros_like(x)
    for t in range(x.shape[1]):
        u = helper(y[:, :, t], a)
        a = u * 0.5 + x[:, t]
        outs.append(a)
        more.append(u[:, None])
        written[:, t] = u
    return torch.stack(outs, dim=-1), torch.cat(more, dim=1), written, a
"""

ATTACKS = {
    "a list with two names": """
    rows = same = []
    for t in range(x.shape[1]):
        rows.append(x[:, t])
    return torch.stack(rows), len(same)""",
    "a state that is handed on, and written into by another name": """
    a, b, s = x[:, 0], x[:, 1], x[:, 2]
    first = a
    for t in range(x.shape[1]):
        s = s + a * x[:, t]
        a, b = b, a
    first.add_(5)
    return s, a, b""",
    "a list that was given": """
    rows = box.rows
    for t in range(x.shape[1]):
        rows.append(x[:, t])
    return torch.stack(rows)""",
    "a name that a function inside reads": """
    state = x[:, 0]
    def seen():
        return u * 2
    for t in range(x.shape[1]):
        u = x[:, t]
        state = state + u
    return state, seen()""",
    "a value that is computed later": """
    u = 0
    later = (one * u for one in (1, 2))
    for t in range(x.shape[1]):
        u = x[:, t]
    return tuple(later)""",
    "a name of the file": """
    global kept_by_the_file
    for t in range(x.shape[1]):
        kept_by_the_file = x[:, t]
    return globals()["kept_by_the_file"]""",
    "a name that is added to inside a block": """
    u = x[:, 0]
    for t in range(x.shape[1]):
        u = x[:, t] * 2
    with torch.no_grad():
        u += 1
    return x""",
    "a name that is read where the block ends": """
    try:
        for t in range(x.shape[1]):
            u = x[:, t]
    finally:
        box.rows.append(u)
    return x""",
    "a view that the steps read": """
    written = x[:, 1:]
    for t in range(x.shape[1] - 1):
        written[:, t] = x[:, t] * 2
    return x""",
    "a view made of what is written": """
    written = torch.zeros_like(x)
    early = written[:, :-1]
    for t in range(x.shape[1]):
        written[:, t] = x[:, t] + early[:, 0]
    return written""",
    "a view that an earlier round made": """
    written, early = torch.zeros_like(x), x
    for k in range(2):
        for t in range(x.shape[1]):
            written[:, t] = x[:, t] + early[:, 0]
        early = written.transpose(0, 1).transpose(0, 1)
    return written""",
    "what is written has two names": """
    written = early = torch.zeros_like(x)
    for t in range(x.shape[1]):
        written[:, t] = x[:, t] + early[:, 0]
    return written""",
    "what writes into a given tensor": """
    written = torch.mul(x, 1, out=x)
    for t in range(x.shape[1]):
        written[:, t] = x[:, t] + x[:, 0]
    return written""",
    "an index that is a choice": """
    rows = []
    for t in range(x.shape[1]):
        rows.append(x[True, :, t])
    return torch.stack(rows)""",
    "a list behind what changes something": """
    def note():
        x.add_(1)
        return x
    return note(), torch.stack([x[:, i] for i in range(x.shape[1])])""",
    "a list whose stack takes its name, left half-way": """
    rows = [x]
    for k in range(3):
        if k == 2:
            return rows
        rows = []
        for t in range(x.shape[1]):
            rows.append(x[:, t])
        if k == 1:
            continue
        rows = torch.stack(rows)""",
    "a list whose stack takes its name, where an error is caught": """
    try:
        rows = []
        for t in range(x.shape[1]):
            rows.append(x[:, t])
        rows = torch.stack(rows) + x[0, 0, :3]
    except RuntimeError:
        return len(rows)""",
    "a list whose stack takes its name, beside others of that name": """
    rows = x
    for t in range(2):
        rows, before = [], rows
        for t in range(x.shape[1]):
            rows.append(x[:, t] + before[0, 0])
        rows = torch.stack(rows).sum() + sum(rows.sum() for rows in before) + x
    return rows, before""",
    "a list whose stack takes its name, and a function that reads it": """
    def seen():
        return len(rows)
    rows = []
    for t in range(x.shape[1]):
        rows.append(x[:, t] * seen())
    rows = torch.stack(rows)
    return rows""",
    "a row that is written into after the loop": """
    a, rows = x[:, 0] * 0, []
    for t in range(x.shape[1]):
        a = a * 0.5 + x[:, t]
        rows.append(a)
    a += 1
    return torch.stack(rows), a""",
    "a row of two lists that is written into after the loop": """
    a, rows, more = x[:, 0] * 0, [], []
    for t in range(x.shape[1]):
        a = a * 0.5 + x[:, t]
        rows.append(a)
        more.append(a)
    a += 1
    return torch.stack(rows), torch.stack(more)""",
    "the last row, which is written into after the loop": """
    rows = [x[:, 0] * 1]
    for t in range(x.shape[1]):
        rows.append(rows[-1] * 0.5 + x[:, t])
    rows[-1].mul_(2)
    rows[-1][:, 0] = 7
    return torch.stack(rows), torch.stack(rows[:-1])""",
    "a stack that is written into": """
    rows = []
    for t in range(x.shape[1]):
        rows.append(x[:, t] * 2)
    one = torch.stack(rows)
    one[0] = 7
    return one, torch.stack(rows, axis=1), torch.cat(rows)""",
    "rows that are appended where it is no statement": """
    rows = [x[:, 0] * 1]
    for t in range(x.shape[1]):
        rows.append(x[:, t] * 2) if t != 2 else None
        rows.append(rows[-1] * 0.5)
    [rows.append(one * 3) for one in (rows[-1], x[:, 1])]
    rows.append(rows[-1] * 0.5)
    return torch.stack(rows)""",
    "a name that is bound inside a loop alone": """
    rows = []
    for t in range(x.shape[1]):
        for k in range(2):
            u = x[:, t] * k
        rows.append(u)
    return torch.stack(rows)""",
    "fields of a class": """
    class Made:
        rows: Tensor = x
        more: list = []
    for t in range(x.shape[1]):
        u = x[:, t]
    return len(Made.__annotations__)""",
    "a list whose stack takes its name, in a context that goes on after an error": """
    rows = x
    with suppress(RuntimeError):
        rows = []
        for t in range(x.shape[1]):
            rows.append(x[:, t])
        rows = torch.stack(rows) + x[0, 0, :3]
    return len(rows)""",
    "what is computed once for a loop over it": """
    for t in range(x.shape[1]):
        u = x[:, t]
    total = 0
    for row in box.rows.append(x) or x.flip(1):
        total = total + row
    return total, len(box.rows)""",
    "a list of state with two names": """
    states = [x[:, 0] * 0]
    same = states
    for t in range(x.shape[1]):
        states[0] = states[0] * 0.5 + x[:, t]
    return states, same""",
    "a dict of state that was put somewhere": """
    state = {"h": x[:, 0] * 0}
    box.rows.append(state)
    for t in range(x.shape[1]):
        state["h"] = state["h"] * 0.5 + x[:, t]
    return state""",
    "a list inside of the list of state": """
    states = [[x[:, 0] * 0], [x[:, 1]]]
    first = states[0]
    for t in range(x.shape[1]):
        states[0][0] = states[0][0] * 0.5 + x[:, t]
        states[1] = [states[1][0] + 1]
    return states, first""",
    "a list that is gone over while it is written": """
    states = [x[:, 0] * 0, x[:, 1]]
    for t in range(x.shape[1]):
        for one in states:
            states[1] = one + x[:, t]
    return states""",
    "an item whose place changes with it": """
    states, k = [x[:, 0] * 0, x[:, 1]], 0
    for t in range(x.shape[1]):
        states[k], k = states[k] * 0.5 + x[:, t], 1 - k
    return states""",
    "a list of state that a function inside reads": """
    states = [x[:, 0] * 0]
    def seen():
        return states[0]
    for t in range(x.shape[1]):
        states[0] = seen() * 0.5 + x[:, t]
    return states""",
    "a zip of a tensor and an iterator": """
    total, left = x[:, 0] * 0, iter((2, 3))
    for row, factor in zip(x.unbind(1), left):
        total = total * 0.5 + row * factor
    return total, next(left, 7)""",
    "what is added to a view": """
    total = x[0]
    for t in range(x.shape[1]):
        total += x[1, t]
    return total, x""",
    "what is added to a tensor with two names": """
    total = x[:, 0] * 1
    same = total
    for t in range(x.shape[1]):
        total += x[:, t]
    return total, same""",
    "what is added to an input": """
    for t in range(x.shape[1]):
        x += x[:, t : t + 1]
    return x""",
    "what is added to a tensor whose view is kept": """
    total = x[:, 0] * 1
    early = total.view(-1)
    for t in range(x.shape[1]):
        total += x[:, t]
    return early, total""",
    "what is added to what is the same tensor": """
    total = x[:, 0] * 1
    early = +total
    for t in range(x.shape[1]):
        total += x[:, t]
    return early, total""",
    "what is added to a tensor whose rows a list took": """
    total, views = x[:, 0] * 1, []
    views += total
    for t in range(x.shape[1]):
        total += x[:, t]
    return torch.stack(views), total""",
    "what is added to a tensor that was kept": """
    total = x[:, 0] * 1
    other = [box.rows.append(total), total * 2][1]
    for t in range(x.shape[1]):
        total += x[:, t]
    return other, total, box.rows[0] * 3""",
    "a tensor in a list of state, which is written into": """
    a, b = x[:, 0] * 0, x[:, 0] * 0
    states = [a, b]
    for t in range(x.shape[1]):
        states[1] = states[1] * 0.5 + x[:, t]
    a.add_(1)
    return states""",
    "a view in a list of state, which is written into": """
    states = [x[:, 0], x[:, 1]]
    for t in range(x.shape[1]):
        states[1] = states[1] * 0.5 + x[:, t]
    states[0][:, 0] = 7
    return x, states""",
    "a row of a list of state, which is written into": """
    states, rows = [x[:, 0] * 0], []
    for t in range(x.shape[1]):
        states[0] = states[0] * 0.5 + x[:, t]
        rows.append(states[0])
    states[0].add_(1)
    return torch.stack(rows), states""",
    "a first row that is written into": """
    a, rows = x[:, 0] * 0, []
    for t in range(x.shape[1]):
        a = a * 0.5 + x[:, t]
        rows.insert(0, a)
    a += 1
    return torch.stack(rows)""",
    "a row with another name that is written into": """
    a, rows = x[:, 0] * 0, []
    for t in range(x.shape[1]):
        a = a * 0.5 + x[:, t]
        other = a
        rows.append(other)
    a += 1
    return torch.stack(rows)""",
    "a row whose view is in a list": """
    a, rows = x[:, 0] * 0, []
    for t in range(x.shape[1]):
        a = a * 0.5 + x[:, t]
        rows.append(a[:, None])
    a += 1
    return torch.cat(rows, 1)""",
    "a state with two names that is written into": """
    a = b = x[:, 0] * 0
    for t in range(x.shape[1]):
        a = a * 0.5 + x[:, t] + b
        b = a
    a += 1
    return a, b""",
    "what is added to a tensor that another loop takes before the next": """
    total, rows, k = x[:, 0] * 1, [], 0
    while k < 2:
        k = k + 1
        for t in range(x.shape[1]):
            total += x[:, t]
        rows.append(total)
    return rows""",
    "an item of the state that a function writes into": """
    states, rows = [x[:, 0] * 0], []
    for t in range(x.shape[1]):
        states[0] = states[0] * 0.5 + x[:, t]
        rows.append(states[0])
    return torch.relu_(states[0]), torch.stack(rows)""",
    "what is added to whole numbers": """
    total = torch.zeros(2, 5, dtype=torch.int64)
    for t in range(x.shape[1]):
        total += x[:, t]
    return total""",
    "a row with names of its own": """
    rows = torch.stack([x[:, sorted((0, 1), key=lambda i: -i)[0]] * 1 for i in range(x.shape[1])])
    for t in range(x.shape[1]):
        u = x[:, t]
    return rows""",
}
