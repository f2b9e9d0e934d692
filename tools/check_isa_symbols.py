#!/usr/bin/env python3
"""Objects compiled for one instruction set may export strong symbols only, and at least one.

A weak copy of an inline function that was compiled with, say, -mavx512f may be the one the linker keeps for baseline
code, which then faults on a processor without it. Usage: check_isa_symbols.py [--planted COMPILER] OBJECT...
"""
import os
import subprocess
import sys
import tempfile

WEAK = {"W", "w", "V", "v", "u"}


def check(path):
    """The complaints about one object."""
    done = subprocess.run(["nm", "--defined-only", "--extern-only", path], capture_output=True, text=True)
    if done.returncode != 0:
        return [f"{path}: nm failed: {done.stderr.strip()}"]
    symbols = [line.split()[-2:] for line in done.stdout.splitlines() if len(line.split()) >= 3]
    if not symbols:
        return [f"{path}: exports nothing"]
    return [f"{path}: weak symbol {name}" for kind, name in symbols if kind in WEAK]


def planted(compiler):
    """An object with a weak function, one with nothing and a missing one must be refused; a clean one must not."""
    cases = {
        "weak": ("inline int sum(int a) { return a + 1; } int (*keep)(int) = sum;", False),
        "empty": ("static int nothing;", False),
        "clean": ("static int one() { return 1; } extern int (*const table)(); int (*const table)() = one;", True),
    }
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, (text, good) in cases.items():
            source, target = os.path.join(folder, name + ".cpp"), os.path.join(folder, name + ".o")
            with open(source, "w") as file:
                file.write(text)
            subprocess.run([compiler, "-w", "-O0", "-c", source, "-o", target], check=True)
            if (not check(target)) != good:
                print(f"planted object '{name}' was {'refused' if good else 'accepted'}")
                failures += 1
        if not check(os.path.join(folder, "missing.o")):
            print("a missing object was accepted")
            failures += 1
    return failures


def main(arguments):
    failures = 0
    if arguments[:1] == ["--planted"]:
        failures += planted(arguments[1])
        arguments = arguments[2:]
    if not arguments:
        print("no objects given")
        return 1
    for path in arguments:
        for complaint in check(path):
            print(complaint)
            failures += 1
    print(f"{len(arguments)} objects, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
