#!/usr/bin/env python3
"""`h3 plan` beside the run it announces: peak anonymous memory and seconds, over models, sizes and precisions.

measure_plan.py H3 [--quick]: prints one row per combination and fails when a peak is off by more than 10 % (64 MiB at
least) or when a request above --ram is not refused. Times are printed, not judged: a busy machine is not the plan's.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
DEMO = ["-p", "A red ball bounces on a black background."]
RANDOM = DEMO + ["--weights", "random", "--layers"]
CASES = [
    ("demo 128x128x22 f32", DEMO + ["--precision", "f32"]),
    ("demo 192x128x39 bf16", DEMO + ["--precision", "bf16", "--size", "192x128", "--frames", "39"]),
    ("demo 320x256x22 int8", DEMO + ["--precision", "int8", "--size", "320x256", "--frames", "22"]),
    ("demo 256x256x56 f32", DEMO + ["--precision", "f32", "--size", "256x256", "--frames", "56"]),
    ("release, 1 layer, 128x128x5 bf16", RANDOM + ["1", "--precision", "bf16", "--size", "128x128", "--frames", "5", "--steps", "1"]),
    ("release, 1 layer, 160x96x5 f32", RANDOM + ["1", "--precision", "f32", "--size", "160x96", "--frames", "5", "--steps", "1"]),
    ("release, 2 layers, 128x96x5 int8", RANDOM + ["2", "--precision", "int8", "--size", "128x96", "--frames", "5", "--steps", "1"]),
]


def plan_of(program, flags):
    text = subprocess.run([program, "plan", "--json", *flags], check=True, capture_output=True).stdout
    return json.loads(text)


def run(program, flags):
    """Seconds of the run, and the largest RssAnon seen."""
    process = subprocess.Popen([program, "generate", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        try:
            with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
                for line in status:
                    if line.startswith("RssAnon:"):
                        peak = max(peak, int(line.split()[1]) * 1024)
        except OSError:
            pass
        time.sleep(0.01)
    if process.returncode != 0:
        raise SystemExit(f"h3 generate {' '.join(flags)} ended with {process.returncode}")
    return peak


def main():
    program = sys.argv[1]
    cases = CASES[:3] if "--quick" in sys.argv else CASES
    failures = 0
    print(f"{'case':36} {'planned':>10} {'measured':>10} {'ratio':>6} {'planned':>9} {'measured':>9} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for name, flags in cases:
            report = os.path.join(folder, "report.json")
            flags = flags + ["-o", os.path.join(folder, "clip.y4m")]
            plan = plan_of(program, flags)
            peak = run(program, flags + ["--report", report])
            with open(report, encoding="utf-8") as file:
                seconds = json.load(file)["seconds"]
            planned = plan["ram"]["peak_bytes"]
            good = abs(planned - peak) <= max(0.1 * peak, 64 * MIB)
            failures += not good
            print(f"{name:36} {planned / MIB:6.0f} MiB {peak / MIB:6.0f} MiB {planned / peak:6.2f} "
                  f"{plan['seconds']:7.1f} s {seconds:7.1f} s {plan['seconds'] / seconds:6.2f}"
                  f"{'' if good else '  MEMORY IS OFF'}", flush=True)
        refused = subprocess.run([program, "generate", *CASES[0][1], "--ram", "16M", "-o", os.path.join(folder, "no.y4m")],
                                 capture_output=True, text=True)
        said = refused.stderr.strip().splitlines()[-1] if refused.stderr else ""
        good = refused.returncode == 1 and "16.0 MiB" in said and not os.path.exists(os.path.join(folder, "no.y4m"))
        failures += not good
        print(f"demo with --ram 16M: {said if good else 'NOT REFUSED: ' + said}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
