"""Tables of this folder's README."""

from experiments.pages import at, figure, results, table


def unseen() -> str:
    """Return accuracy, log loss and CPU seconds of each rule, by data set."""
    file = results("continual/unseen")
    found = file["after five tasks"]
    rules = dict.fromkeys(rule for rows in found.values() for rule in rows)
    head = [f"after five tasks, {len(file['seeds'])} seeds"]
    for data in found:
        head += [f"{data}: accuracy, %", "log loss, nats", "CPU s"]
    body = []
    for rule in rules:
        row = [f"**{rule}**" if rule == "conjugate learner" else rule]
        for data in found:
            own = found[data][rule]
            loss = at(own, ["log loss"])
            row += [
                figure(own["accuracy"], 1),
                "none" if loss is None else figure(loss, 3),
                figure(own["CPU seconds"]["mean"], 2),
            ]
        body.append(row)
    return table(head, body)
