#!/usr/bin/env python3
"""Two virtual cards beside one, on two CPUs: decode of one and two sequences, and a long prompt.

usage: bench/two_cards.py ENGINE MODEL [ROUNDS] [IDS]

Each round runs every setting once, one after another; medians and ratios of medians are printed. The two independent
processes run together, each on a CPU of its own. Run it on an idle machine with two CPUs. Python 3.9 alone.
"""
import json
import os
import statistics
import subprocess
import sys


def start(engine, model, ids, arguments, cpu=None):
    cmd = [engine, "bench", "--model", model, "--json", "--reps", "1", "--card-threads", "1", "--chunk", "256"] + arguments
    if ids:
        cmd += ["--tokens-file", ids]
    pin = None if cpu is None else (lambda: os.sched_setaffinity(0, {cpu}))
    return subprocess.Popen(cmd, stdout=subprocess.PIPE, preexec_fn=pin)


def result(process):
    out, _ = process.communicate()
    if process.returncode != 0:
        sys.exit("two_cards: the engine exited with %d" % process.returncode)
    return json.loads(out)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    engine, model = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    ids = sys.argv[4] if len(sys.argv) > 4 else None
    decode, prompt = ["--pp", "64", "--tg", "128"], ["--pp", "2048", "--tg", "1"]
    one, two = ["--gpus", "cpu:1"], ["--gpus", "cpu:2"]
    cpus = sorted(os.sched_getaffinity(0))
    figures = {k: [] for k in ("one", "two", "pair", "processes", "prompt one", "prompt two")}
    for _ in range(rounds):
        run = lambda arguments: result(start(engine, model, ids, arguments))
        figures["one"].append(run(decode + one)["decode_tok_s"])
        figures["two"].append(run(decode + two)["decode_tok_s"])
        figures["pair"].append(run(decode + two + ["--sequences", "2"])["decode_tok_s"])
        both = [start(engine, model, ids, decode + one, cpu) for cpu in cpus[:2]]
        figures["processes"].append(sum(result(p)["decode_tok_s"] for p in both))
        figures["prompt one"].append(run(prompt + one)["prompt_tok_s"])
        figures["prompt two"].append(run(prompt + two)["prompt_tok_s"])
    m = {k: statistics.median(v) for k, v in figures.items()}
    spread = lambda k: "%.0f to %.0f" % (min(figures[k]), max(figures[k]))
    for text, a, b in (("one sequence, two cards / one card", "two", "one"),
                       ("two sequences, two cards / two processes", "pair", "processes"),
                       ("prompt of 2,048, two cards / one card", "prompt two", "prompt one")):
        print("%s: %.1f / %.1f tok/s = %.3f  (%s; %s)" % (text, m[a], m[b], m[a] / m[b], spread(a), spread(b)))


if __name__ == "__main__":
    main()
