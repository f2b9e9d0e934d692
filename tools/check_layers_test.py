#!/usr/bin/env python3
"""Plants one violation of every kind in a copy of a minimal tree: the checker must report each."""
import os
import subprocess
import sys
import tempfile

CHECKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_layers.py")
TABLE = "src/base:\nsrc/media: src/base\nsrc/model: src/base\nsrc/backends/cuda: src/base\napps/cli: src/base\n"
CLEAN = {"src/base/a.h": "namespace h3 {\nstruct C;\nnamespace {\nstruct A {\n};\n}  // namespace\n}  // namespace h3\n",
         "src/model/m.cpp": "namespace h3 {\nstruct A {\n};\n}  // namespace h3\n"
                            '#include "base/a.h"\n#include <vector>\n'}
PLANTS = {
    "an include of a layer that is not allowed": {"src/base/b.cpp": '#include "model/m.h"\n', "src/model/m.h": "\n"},
    "an include that climbs": {"src/model/x.cpp": '#include "../base/a.h"\n'},
    "an include that resolves nowhere": {"src/model/x.cpp": '#include "base/nothing.h"\n'},
    "a file in no layer": {"src/other/x.cpp": "\n"},
    "a CUDA header outside its folder": {"src/model/x.cpp": "#include <cuda_runtime.h>\n"},
    "FFmpeg outside media": {"src/model/x.cpp": "#include <libavcodec/avcodec.h>\n"},
    "exit in the library": {"src/model/x.cpp": "void f() { exit(1); }\n"},
    "std::cout in the library": {"src/model/x.cpp": "void f() { std::cout << 1; }\n"},
    "getenv in the library": {"src/model/x.cpp": 'const char* f() { return getenv("A"); }\n'},
    "a file over the length alarm": {"src/model/x.cpp": "\n" * 700},
    "a line over the width alarm": {"src/model/x.cpp": "// " + "x" * 130 + "\n"},
    "two types of one name": {
        "src/model/x.cpp": "namespace h3 {\nnamespace {\nstruct B {\n};\n}  // namespace\nclass A : B {\n};\n}  // namespace h3\n",
        "src/media/y.h": "namespace h3 {\nstruct A {\n};\n}  // namespace h3\n",
    },
    "an upward row in the table": {"tools/layers.txt": "src/base: src/model\n" + TABLE.split("\n", 1)[1]},
    "no source at all": None,
}


def run(files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in {"tools/layers.txt": TABLE, **files}.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            open(full, "w").write(text)
        done = subprocess.run([sys.executable, CHECKER, root], capture_output=True, text=True)
        return done.returncode, done.stdout


def main():
    failures = 0
    code, out = run(CLEAN)
    if code != 0:
        print("the clean tree was refused:\n" + out)
        failures += 1
    for what, files in PLANTS.items():
        code, out = run({} if files is None else {**CLEAN, **files})
        if code == 0:
            print(f"not caught: {what}")
            failures += 1
    print(f"{len(PLANTS) + 1 - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
