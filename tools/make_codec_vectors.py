#!/usr/bin/env python3
"""Cuts tests/data/codec out of a full golden folder: one file per storage format, in the layout of the golden files.

  tools/make_codec_vectors.py GOLDEN [OUT]

Rows are copied unchanged; the larger ones are left out."""
import json
import os
import sys

# Golden file, its table, the field that names the format (or the format itself), rows left out.
TABLES = [
    ("q4tp_vectors.json", "cases", None, ["_4x256", "_5x288", "_7x544", "_1x1024", "_outlier", "_large"]),
    ("nvfp4_vectors.json", "nvfp4_cases", "nvfp4", ["_144x80", "_32x48", "_16x64"]),
    ("nvfp4_vectors.json", "int8_convrot_cases", "int8_convrot", ["_2x512"]),
    ("nvfp4_vectors.json", "w4a8_cases", "w4a8", ["_3x256"]),
    ("nvfp4_vectors.json", "gguf_block_cases", None, []),
]


def main():
    golden = sys.argv[1]
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    out = sys.argv[2] if len(sys.argv) > 2 else os.path.join(root, "tests", "data", "codec")
    os.makedirs(out, exist_ok=True)
    files = {}
    for name, table, fixed, dropped in TABLES:
        with open(os.path.join(golden, name)) as file:
            rows = json.load(file)[table]
        for row in rows:
            if any(part in row["name"] for part in dropped):
                continue
            files.setdefault(fixed or row.get("format", row["name"]), {}).setdefault(table, []).append(row)
    for name, content in files.items():
        with open(os.path.join(out, name.lower() + ".json"), "w") as file:
            json.dump(content, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
