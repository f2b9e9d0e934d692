#!/usr/bin/env python3
"""The record of the last check on a card: docs/measurements/gpu_check.json.

usage: gpu_check.py hash [ROOT]              the hash of the CUDA sources
       gpu_check.py verify [ROOT]            fails unless the record belongs to these sources and passed
       gpu_check.py record RESULTS [ROOT]    writes the record from a folder of results (tools/gpu_check.sh)

The hash covers src/backends/cuda alone, so that a record stays good while the rest of the program changes.
"""
import glob
import hashlib
import json
import os
import re
import sys

RECORD = "docs/measurements/gpu_check.json"


def source_hash(root):
    """sha256 over the names and bytes of src/backends/cuda, by name."""
    digest = hashlib.sha256()
    base = os.path.join(root, "src/backends/cuda")
    files = [p for p in glob.glob(base + "/**", recursive=True) if os.path.isfile(p)]
    if not files:
        raise SystemExit(f"{base}: no sources")
    for path in sorted(files):
        with open(path, "rb") as f:
            data = f.read()
        digest.update(f"{os.path.relpath(path, base)} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def problems(root):
    """Why the record does not vouch for these sources."""
    try:
        with open(os.path.join(root, RECORD)) as f:
            record = json.load(f)
    except (OSError, ValueError) as error:
        return [f"{RECORD}: {error}"]
    found = []
    if record.get("cuda_sources") != source_hash(root):
        found.append("src/backends/cuda has changed since the last check on a card")
    for name, verdict in record.get("verdicts", {}).items():
        if verdict is not True:
            found.append(f"{name} did not pass: {verdict}")
    for name in ("parity", "memcheck", "placements", "clip", "wide"):
        if name not in record.get("verdicts", {}):
            found.append(f"{name} was not run")
    return found


def last_line(path, pattern):
    with open(path) as f:
        lines = [line for line in f if re.search(pattern, line)]
    return lines[-1] if lines else ""


def read_parity(folder):
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for path in sorted(glob.glob(folder + "/parity*.log")):
        line = last_line(path, r"passed, \d+ failed")
        match = re.search(r"(\d+) passed, (\d+) failed, (\d+) skipped", line)
        if match is None:
            return dict(total, failed=total["failed"] + 1, error=f"{os.path.basename(path)} has no verdict")
        for key, count in zip(("passed", "failed", "skipped"), match.groups()):
            total[key] += int(count)
    return total


def read_placements(folder):
    """Runs of one clip under several plans: its hash, what was planned and what was held."""
    rows = []
    for path in sorted(glob.glob(folder + "/placement_*.json")):
        with open(path) as f:
            report = json.load(f)
        name = os.path.basename(path)[len("placement_"):-len(".json")]
        with open(path[:-len(".json")] + ".md5") as f:
            clip = f.read().split()[0]
        placement = report["placement"]
        rows.append({"name": name, "mode": placement["mode"], "planned": placement["peak_bytes"],
                     "peak": report["peak_device_bytes"], "clip": clip,
                     "transformer_layers_resident": placement.get("transformer_layers_resident"),
                     "seconds": report["seconds"]})
    return rows


def placement_verdict(rows):
    if len(rows) < 6:
        return f"{len(rows)} placements ran, 6 are asked"
    clips = {}
    for row in rows:
        if abs(row["peak"] - row["planned"]) > 0.05 * row["planned"]:
            return f"{row['name']}: {row['planned']} planned, {row['peak']} held"
        group = row["name"].split("-")[0]
        if clips.setdefault(group, row["clip"]) != row["clip"]:
            return f"{row['name']}: another clip than the other placements"
    return True


def record(folder, root):
    def text(name):
        try:
            with open(os.path.join(folder, name)) as f:
                return f.read().strip()
        except OSError:
            return ""

    parity = read_parity(folder)
    placements = read_placements(folder)
    memcheck = last_line(folder + "/memcheck.log", "ERROR SUMMARY").strip("= \n")
    clip = json.loads(text("clip.json") or "{}")
    bench = []
    for path in sorted(glob.glob(folder + "/bench_*.json")):
        with open(path) as f:
            bench += [json.loads(line) for line in f if line.startswith("{")]
    wide = json.loads(text("wide.json") or "{}")
    complaints = [w["text"] for w in clip.get("watchdog", []) if not w.get("ok", True)]
    out = {
        "commit": text("commit"), "cuda_sources": source_hash(root), "device": text("device"),
        "verdicts": {
            "parity": True if parity["passed"] > 0 and parity["failed"] == 0 else parity,
            "memcheck": True if memcheck == "ERROR SUMMARY: 0 errors" else memcheck or "no summary",
            "placements": placement_verdict(placements),
            "clip": True if clip.get("files") and not complaints else complaints or "no clip",
            "wide": True if wide.get("files") else "no clip",
        },
        "parity": parity, "memcheck": memcheck, "placements": placements,
        "clip": {key: clip.get(key) for key in ("seconds", "stages", "peak_device_bytes", "sequence_rows")},
        "wide": {key: wide.get(key) for key in ("seconds", "peak_device_bytes", "sequence_rows")},
        "bench": bench, "peer": [json.loads(line) for line in text("peer.json").splitlines() if line.startswith("{")],
        "seconds": int(text("seconds") or 0),
    }
    with open(os.path.join(root, RECORD), "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")
    return [f"{name}: {v}" for name, v in out["verdicts"].items() if v is not True]


def main():
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    rest = sys.argv[2:]
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if command == "hash":
        print(source_hash(rest[0] if rest else here))
        return 0
    if command == "verify":
        found = problems(rest[0] if rest else here)
    elif command == "record" and rest:
        found = record(rest[0], rest[1] if len(rest) > 1 else here)
    else:
        print(__doc__, file=sys.stderr)
        return 2
    for problem in found:
        print(problem)
    if found and command == "verify":
        print("run tools/gpu_check.sh on a machine with an NVIDIA card and commit the record")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
