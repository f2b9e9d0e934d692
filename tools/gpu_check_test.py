#!/usr/bin/env python3
"""The record must be refused for other sources, for anything that did not pass, and for what did not run."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gpu_check  # noqa: E402


def write(root, name, text):
    path = os.path.join(root, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)


def results(folder, **changed):
    """A folder of results that pass, with some of them changed."""
    placement = {"seconds": 1.0, "peak_device_bytes": 990,
                 "placement": {"mode": "stream", "peak_bytes": 1000, "transformer_layers_resident": 3}}
    files = {"commit": "abc", "device": "card", "seconds": "60",
             "parity.log": "x\ncuda:0: 10 passed, 0 failed, 2 skipped\n",
             "memcheck.log": "========= ERROR SUMMARY: 0 errors\n",
             "clip.json": json.dumps({"files": ["a"], "seconds": 3, "watchdog": [{"ok": True, "text": "fine"}]}),
             "wide.json": json.dumps({"files": ["b"], "sequence_rows": 100000}),
             "bench_step.json": '{"bench": "step", "median_s": 1}\n'}
    for i in range(6):
        files[f"placement_a-{i}.json"] = json.dumps(placement)
        files[f"placement_a-{i}.md5"] = "0123 -"
    files.update(changed)
    for name, text in files.items():
        write(folder, name, text)


def main():
    failures = []

    def expect(what, got, wanted):
        if bool(got) != wanted:
            failures.append(f"{what}: {got}")

    def attempt(**changed):
        with tempfile.TemporaryDirectory() as root:
            write(root, "src/backends/cuda/a.cpp", "one")
            write(root, "src/backends/cuda/kernels/b.cu", "two")
            write(root, gpu_check.RECORD, "{}")
            results(root + "/results", **changed)
            return gpu_check.record(root + "/results", root), gpu_check.problems(root), root

    recorded, found, _ = attempt()
    expect("a good run", recorded + found, False)
    for name, changed in {
            "a failed case": {"parity.log": "cuda:0: 10 passed, 1 failed, 0 skipped\n"},
            "no case": {"parity.log": "cuda:0: 0 passed, 0 failed, 9 skipped\n"},
            "a crash": {"parity.log": "Segmentation fault\n"},
            "a sanitizer error": {"memcheck.log": "========= ERROR SUMMARY: 1 error\n"},
            "another clip": {"placement_a-3.md5": "4567 -"},
            "a wrong plan": {"placement_a-2.json": json.dumps(
                {"seconds": 1, "peak_device_bytes": 1100, "placement": {"mode": "stream", "peak_bytes": 1000}})},
            "no long clip": {"wide.json": ""},
            "a black clip": {"clip.json": json.dumps(
                {"files": ["a"], "watchdog": [{"ok": False, "text": "the clip is black"}]})}}.items():
        recorded, found, _ = attempt(**changed)
        expect(name, recorded and found, True)

    with tempfile.TemporaryDirectory() as root:
        write(root, "src/backends/cuda/a.cpp", "one")
        expect("no record", gpu_check.problems(root), True)
        write(root, gpu_check.RECORD, "")
        results(root + "/results")
        gpu_check.record(root + "/results", root)
        expect("its own sources", gpu_check.problems(root), False)
        write(root, "src/backends/cuda/a.cpp", "onE")
        expect("a changed byte", gpu_check.problems(root), True)
        write(root, "src/backends/cuda/a.cpp", "one")
        write(root, "src/backends/cuda/c.cpp", "")
        expect("a new file", gpu_check.problems(root), True)
        os.rename(os.path.join(root, "src/backends/cuda/c.cpp"), os.path.join(root, "src/c.cpp"))
        expect("the same again", gpu_check.problems(root), False)
    for failure in failures:
        print("not as it should be:", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
