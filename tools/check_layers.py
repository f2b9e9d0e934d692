#!/usr/bin/env python3
"""Checks the source tree against tools/layers.txt and the rules that go with it.

A row of the table may include only the rows it names, and may name only rows above it. Also checked: vendor headers stay
in their one place, CUDA headers stay under src/backends/cuda, the library neither prints nor exits nor reads the
environment, no two types share a name, and no file grows past the alarm without being on the list of exceptions.
Exit code 1 with one line per violation; no source found is a violation too."""
import os
import re
import sys

SOURCE = (".cpp", ".h", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Third-party headers and the only folders or files that may include them.
VENDOR = {
    r"^(cuda|cublas|cudnn|nccl|nvrtc)": ["src/backends/cuda"],
    r"^lib(av|sw)": ["src/media"],
    r"^utf8proc": ["src/model/text"],
    r"^(dnnl|oneapi/)": ["src/backends/cpu", "bench"],
    r"^(httplib|sqlite3|prometheus/|openssl/)": ["apps/server", "tests"],
    r"^xxhash": ["src/store"],
    r"^Eigen/": ["apps/pack", "src/quant"],
}
FORBIDDEN = re.compile(r"\b(exit|abort|printf|puts|fputs|getenv|rand)\s*\(|std::(cout|cerr)")
MAY_USE = {"src/base/error.cpp", "src/base/knobs.cpp"}
NAMESPACE = re.compile(r"^(?:inline )?namespace\s*([\w:]*)\s*\{")
TYPE = re.compile(r"^(?:struct|class|enum class|enum|union)\s+(\w+)(?:\s+final)?\s*(?::[^:].*)?\{")
MAX_LINES, MAX_COLUMNS = 600, 120


def read_table(path):
    rows, order = {}, []
    for line in open(path):
        line = line.split("#")[0].strip()
        if not line:
            continue
        name, _, allowed = line.partition(":")
        rows[name.strip()] = allowed.split()
        order.append(name.strip())
    problems = []
    for i, name in enumerate(order):
        for other in rows[name]:
            if other != "*" and other not in order[:i]:
                problems.append(f"layers.txt: {name} names {other}, which is not above it")
    return rows, problems


def layer_of(path, rows):
    best = None
    for name in rows:
        if path == name or path.startswith(name + "/"):
            if best is None or len(name) > len(best):
                best = name
    return best


def source_files(root):
    for top in ("src", "apps", "bench", "tests"):
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                if name.endswith(SOURCE):
                    yield os.path.relpath(os.path.join(folder, name), root)


def resolve(root, name):
    for base in ("src", "."):
        if os.path.isfile(os.path.join(root, base, name)):
            return os.path.normpath(os.path.join(base, name))
    return None


def check_includes(root, path, rows, allowed_long):
    problems = []
    layer = layer_of(path, rows)
    if layer is None:
        return [f"{path}: in no layer"]
    lines = open(os.path.join(root, path), encoding="utf-8").read().split("\n")
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            problems.append(f"{path}:{number}: {len(line)} columns, at most {MAX_COLUMNS}")
        match = INCLUDE.match(line)
        if not match:
            continue
        name = match.group(2)
        for pattern, places in VENDOR.items():
            if re.match(pattern, name) and not any(path.startswith(p) for p in places):
                problems.append(f"{path}:{number}: {name} may be included only under {', '.join(places)}")
        if match.group(1) != '"':
            continue
        if ".." in name.split("/"):
            problems.append(f"{path}:{number}: relative include {name}")
            continue
        target = resolve(root, name)
        if target is None:
            if not any(re.match(p, name) for p in VENDOR):
                problems.append(f"{path}:{number}: cannot resolve {name}")
            continue
        other = layer_of(target, rows)
        if other != layer and "*" not in rows[layer] and other not in rows[layer]:
            problems.append(f"{path}:{number}: {layer} may not include {other} ({name})")
    if len(lines) > MAX_LINES + 1 and path not in allowed_long:
        problems.append(f"{path}: {len(lines)} lines, at most {MAX_LINES} (exceptions: tools/long_files.txt)")
    return problems


def strip_code(text):
    """The text without comments and string literals, line numbers kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
    return pattern.sub(lambda m: "\n" * m.group(0).count("\n"), text)


def check_forbidden(root, path):
    if not path.startswith("src/") or path in MAY_USE:
        return []
    text = strip_code(open(os.path.join(root, path), encoding="utf-8").read())
    problems = []
    for number, line in enumerate(text.split("\n"), 1):
        match = FORBIDDEN.search(line)
        if match:
            problems.append(f"{path}:{number}: the library may not use {match.group(0).strip()}")
    return problems


def find_types(root, path, types):
    """Adds the types that `path` defines in named namespaces. Two of one name are one thing to the linker, which keeps
    either's destructor for both."""
    scopes = []
    for number, line in enumerate(open(os.path.join(root, path), encoding="utf-8"), 1):
        if match := NAMESPACE.match(line):
            scopes.append(match.group(1))
        elif line.startswith("}") and "// namespace" in line and scopes:
            scopes.pop()
        elif (match := TYPE.match(line)) and scopes and all(scopes):
            types.setdefault("::".join(scopes) + "::" + match.group(1), []).append(f"{path}:{number}")


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..")
    rows, problems = read_table(os.path.join(root, "tools/layers.txt"))
    allowed_long = set()
    exceptions = os.path.join(root, "tools/long_files.txt")
    if os.path.exists(exceptions):
        allowed_long = {line.split("#")[0].strip() for line in open(exceptions)} - {""}
    count, types = 0, {}
    for path in source_files(root):
        count += 1
        problems += check_includes(root, path, rows, allowed_long)
        problems += check_forbidden(root, path)
        find_types(root, path, types)
    problems += [f"{places[1]}: {name} is also defined at {places[0]}" for name, places in types.items() if len(places) > 1]
    if count == 0:
        problems.append("no source file found")
    for problem in problems:
        print(problem)
    print(f"{count} files, {len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
