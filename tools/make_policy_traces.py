#!/usr/bin/env python3
"""Writes tests/data/policy/traces.json: what every step policy must decide and produce on made-up residuals.

Written from the rules alone (spec acceleration 2.2, 2.4, 3.1, 3.2, 3.4, 4.2), sharing nothing with src/sampling/caches.
Values are f32; every operation that rounds is rounded here. Run it from anywhere; it prints nothing when all is well."""
import json
import math
import os
import struct

ROWS, HIDDEN, VIDEO, AUDIO = 6, 8, 5, 3  # video and audio: values of a stream


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def value(seed, index):
    z = (seed * 0x9E3779B97F4A7C15 + index * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & (2**64 - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return ((z ^ (z >> 31)) >> 40) / 2**24 - 0.5


class World:
    """The model: rows entering block 0, what each part of it adds, the velocities it would give."""

    def __init__(self, case):
        self.case = case

    def many(self, stream, step, count):
        return [value(self.case["seed"] + stream, 1000 * step + i) for i in range(count)]

    def moving(self, stream, step, count):
        size = f32(self.case["amplitudes"][step % len(self.case["amplitudes"])])
        return [f32(2 * b + f32(size * d)) for b, d in zip(self.many(stream, 0, count), self.many(stream + 1, step, count))]

    def entering(self, step):
        return self.many(1, step, ROWS * HIDDEN)

    def first(self, step):
        return self.moving(2, step, ROWS * HIDDEN)

    def rest(self, step):
        return self.many(4, step, ROWS * HIDDEN)

    def modulated(self, step):
        return self.moving(5, step, ROWS * HIDDEN)

    def inputs(self, step):
        return self.many(7, step, VIDEO), self.many(8, step, AUDIO)

    def velocities(self, step):
        return self.many(9, step, VIDEO), self.many(10, step, AUDIO)


def added(a, b):
    return [f32(x + y) for x, y in zip(a, b)]


def taken(a, b):
    return [f32(x - y) for x, y in zip(a, b)]


def ratio(a, b):
    return sum(abs(x) for x in taken(a, b)) / max(sum(abs(y) for y in b), 1e-8)


def clear(metric, threshold):
    assert abs(metric / threshold - 1) > 1e-4, "a decision too close to call: choose another seed"
    return metric


def first_block(world, p, total):
    reference = tail = None
    consecutive = 0
    for e in range(total):
        x = world.entering(e)
        y = added(x, world.first(e))
        r = taken(y, x)
        metric = None
        run = reference is None or e < p["warmup"] or e >= total - p["tail"] or consecutive >= p["cap"]
        if not run:
            if p["worst"]:  # rows 1 .. 2 are sound, 3 .. 5 video
                cut = lambda v, a, b: v[a * HIDDEN:b * HIDDEN]
                metric = max(ratio(cut(r, 1, 3), cut(reference, 1, 3)), ratio(cut(r, 3, 6), cut(reference, 3, 6)))
            else:
                metric = ratio(r, reference)
            run = p["threshold"] <= 0 or clear(metric, p["threshold"]) > p["threshold"]
        if run:
            z = added(y, world.rest(e))
            tail, reference, consecutive = taken(z, y), r, 0
        else:
            z = added(y, tail)
            consecutive += 1
        yield ("run" if run else "reuse"), metric, sum(z)


def teacache(world, p, total):
    stack = previous = None
    gathered = 0.0
    for e in range(total):
        x, probe = world.entering(e), world.modulated(e)
        if previous is not None:
            gathered += ratio(probe, previous)
        previous = probe
        metric = gathered
        run = stack is None or e < p["warmup"] or e >= total - p["tail"]
        if not run:
            run = p["threshold"] <= 0 or clear(gathered, p["threshold"]) >= p["threshold"]
        if run:
            z = added(added(x, world.first(e)), world.rest(e))
            stack, gathered = taken(z, x), 0.0
        else:
            z = added(x, stack)
        yield ("run" if run else "reuse"), metric, sum(z)


def forecast(world, p, total):
    last = [None, None]
    slope = [None, None]
    anchor = consecutive = 0
    for e in range(total):
        streams = world.inputs(e)
        run = last[0] is None or e < p["warmup"] or e >= total - p["tail"] or consecutive >= p["cap"]
        out = []
        if run:
            out = world.velocities(e)
            for s in range(2):
                new = taken(out[s], streams[s])
                if last[s] is not None:
                    share = f32(1.0 / max(1, e - anchor))
                    slope[s] = [f32(f32(share * a) - f32(share * b)) for a, b in zip(new, last[s])]
                last[s] = new
            anchor, consecutive = e, 0
        else:
            for s in range(2):
                v = added(streams[s], last[s])
                if slope[s] is not None:
                    reach = f32(max(1, e - anchor) * p["blend"])
                    v = added(v, [f32(reach * c) for c in slope[s]])
                out.append(v)
            consecutive += 1
        yield ("run" if run else "forecast"), None, sum(out[0]) + 3 * sum(out[1])


def extrapolate(world, p, total):
    # The reference grid with shifts 12 and 3 (spec dit 6.1), every operation in f32.
    points = total + 1
    step = f32(-1 / total)
    base = [f32(step * i + 1) if i < points // 2 else -f32(step * (total - i)) for i in range(points)]
    sigma = [[f32(f32(s * b) / f32(1 + f32((s - 1) * b))) for b in base] for s in (12, 3)]
    runs = []
    for e in range(total):
        run = e % int(p["every"]) == 0 or e == total - 1
        if run:
            out = world.velocities(e)
            runs.append((e, out))
        else:
            out = []
            for s in range(2):
                v = runs[-1][1][s]
                if len(runs) > 1:
                    a, b = runs[-1][0], runs[-2][0]
                    q = (sigma[s][e] - sigma[s][a]) / (sigma[s][a] - sigma[s][b])
                    v = [x + q * (x - y) for x, y in zip(v, runs[-2][1][s])]
                out.append(v)
        yield ("run" if run else "forecast"), None, sum(out[0]) + 3 * sum(out[1])


RULES = {"first-block": (first_block, dict(threshold=0.08, warmup=3, tail=2, cap=2, worst=0)),
         "teacache": (teacache, dict(threshold=0.10, warmup=5, tail=1)),
         "forecast": (forecast, dict(warmup=3, tail=2, cap=3, blend=0.65)),
         "extrapolate": (extrapolate, dict(every=2))}

CASES = [  # mode, evaluations, changed parameters, amplitudes
    ("first-block", 27, {}, [0.02, 0.3, 0.05, 0.02]),
    ("first-block", 27, dict(threshold=0.2), [0.02, 0.3, 0.05, 0.02]),
    ("first-block", 12, dict(threshold=0), [0.02]),
    ("first-block", 12, dict(threshold=1000, warmup=1, tail=1, cap=1000), [0.5]),
    ("first-block", 20, dict(cap=1), [0.02]),
    ("first-block", 27, dict(worst=1), [0.02, 0.3, 0.08, 0.1]),
    ("first-block", 49, dict(warmup=5, tail=4, cap=3), [0.05, 0.02, 0.6, 0.1, 0.02]),
    ("teacache", 27, {}, [0.02, 0.03, 0.01]),
    ("teacache", 49, dict(threshold=0.3), [0.02, 0.03, 0.2, 0.01]),
    ("teacache", 12, dict(threshold=0), [0.02]),
    ("teacache", 20, dict(warmup=2, tail=3), [0.05, 0.01]),
    ("forecast", 15, {}, [1]),
    ("forecast", 27, {}, [1]),
    ("forecast", 19, dict(cap=1, blend=1), [1]),
    ("forecast", 7, dict(blend=0), [1]),
    ("forecast", 12, dict(warmup=1), [1]),
    ("extrapolate", 20, {}, [1]),
    ("extrapolate", 20, dict(every=3), [1]),
]


def main():
    traces = []
    for number, (mode, total, changes, amplitudes) in enumerate(CASES):
        rule, parameters = RULES[mode]
        parameters = dict(parameters, **changes)
        case = dict(mode=mode, evaluations=total, seed=100 * (number + 1), parameters=parameters, amplitudes=amplitudes)
        steps = list(rule(World(case), parameters, total))
        case["actions"] = [s[0] for s in steps]
        case["metrics"] = [s[1] for s in steps]
        case["sums"] = [s[2] for s in steps]
        traces.append(case)
    assert [e for e, a in enumerate(traces[11]["actions"]) if a == "run"] == [0, 1, 2, 6, 10, 13, 14]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "policy", "traces.json")
    with open(path, "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(t) for t in traces) + "\n]\n")


main()
