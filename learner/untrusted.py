"""What of a YAML text is refused before anything is made of it."""

import yaml

LARGEST, DEEPEST = 2**20, 50  # of a file, in characters and levels
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def too_large(text: str) -> str | None:
    """What is absurd about the size of a YAML text, or `None`. An alias counts as much as what it stands for: a few
    lines of them can stand for more than any memory holds. Nothing is made of the text to find out.

    >>> too_large("a: &a [1, 2]\\nb: *a")
    >>> too_large("a: &a [*a]")
    'has the alias *a inside of what it stands for'
    """
    if len(text) > LARGEST:
        return f"has more than {LARGEST} characters"
    size = 0
    sizes: dict[str | None, int] = {}  # by anchor
    inside: list[tuple[int, str | None]] = []  # the collections that are open: the size before them, and their anchors
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            inside.append((size, event.anchor))
            size += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            before, anchor = inside.pop()
            sizes[anchor] = size - before
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1 + len(event.value)
            size += 1 + len(event.value)
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for _, anchor in inside):
                return f"has the alias *{event.anchor} inside of what it stands for"
            size += sizes.get(event.anchor, 1)
        if len(inside) > DEEPEST:
            return f"is nested more than {DEEPEST} levels deep"
        if size > LARGEST:
            return f"has aliases that stand for more than {LARGEST} characters"
    return None


def said_twice(text: str) -> str | None:
    """The first key that a mapping of a YAML text has twice, and where, or `None`.

    >>> said_twice("a: 1\\nb: {c: 1, c: 2}")
    "says 'c' twice (line 2)"
    """
    open_nodes = [yaml.compose(text, Loader=LOADER)]
    seen: set[int] = set()
    while open_nodes:
        node = open_nodes.pop()
        if node is None or id(node) in seen or isinstance(node, yaml.ScalarNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                open_nodes.append(value)
                if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                    if key.value in keys:
                        return f"says {key.value!r} twice (line {key.start_mark.line + 1})"
                    keys.add(key.value)
        else:
            open_nodes += node.value
    return None
