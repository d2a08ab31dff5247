#!/usr/bin/env python3
"""Compare greedy continuations of `tandem generate` with an oracle's (oracle/*.json, key `greedy`).

usage: continuations.py --engine PATH --model FILE [--args="..."] (--exact | --margin M) ORACLE.json

--args takes further engine arguments and needs the equals sign: --args="--gpus cpu:2".

For each entry of `greedy` the engine is run once:
    PATH generate --model FILE --prompt-tokens 1,2,3 --max-tokens N --ignore-eos --json [ARGS]
with the tokens of the case of the same name as the prompt, and must print a JSON object whose `tokens` are the N ids of
its answer; the last JSON object in the output counts.

--exact     `--activations f32 --kv f32` is passed; all N tokens equal the oracle's
--margin M  the engine's defaults; the tokens agree up to the first step at which the oracle's first and second choice are
            less than M apart (8-bit activations may take the other one there; behind it the texts have nothing in common)
One line an entry, then "N passed, N failed". Exit 0 if none failed, else 1; 2 for a usage error.
Python 3.9 alone.
"""
import argparse
import json
import shlex
import subprocess
import sys


class Failure(Exception):
    pass


def last_object(text):
    """The last JSON object of a text that may hold other lines."""
    decoder, found, at = json.JSONDecoder(), None, 0
    while (at := text.find("{", at)) >= 0:
        try:
            found, at = decoder.raw_decode(text, at)
        except ValueError:
            at += 1
    return found


def run_engine(a, prompt, count):
    cmd = [a.engine, "generate", "--model", a.model, "--prompt-tokens", ",".join(map(str, prompt)),
           "--max-tokens", str(count), "--ignore-eos", "--json"] + shlex.split(a.args)
    if a.exact:
        cmd += ["--activations", "f32", "--kv", "f32"]
    try:
        r = subprocess.run(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=a.timeout)
    except subprocess.TimeoutExpired:
        raise Failure("engine ran longer than %d s" % a.timeout)
    except OSError as e:
        raise Failure("cannot run the engine: %s" % e)
    if r.returncode != 0:
        lines = r.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        raise Failure("engine exited with %d: %s" % (r.returncode, lines[-1][:300]))
    answer = last_object(r.stdout.decode("utf-8", "replace"))
    if answer is None or not isinstance(answer.get("tokens"), list):
        raise Failure("engine printed no JSON object with `tokens`")
    return answer["tokens"]


def agreed_steps(margins, margin):
    """Steps before the first whose margin is below the bound."""
    return next((i for i, m in enumerate(margins) if m < margin), len(margins))


def compare(got, expected, margins, a):
    if len(got) != len(expected):
        raise Failure("%d tokens, expected %d" % (len(got), len(expected)))
    steps = len(expected) if a.exact else agreed_steps(margins, a.margin)
    if steps == 0:
        raise Failure("the first margin is below %g: this entry tests nothing" % a.margin)
    for i in range(steps):
        if got[i] != expected[i]:
            raise Failure("step %d: token %d, expected %d (margin %.4g)" % (i, got[i], expected[i], margins[i]))
    same = next((i for i, (g, e) in enumerate(zip(got, expected)) if g != e), len(expected))
    return "%d of %d steps had to agree, %d did" % (steps, len(expected), same)


def main():
    head, text = __doc__.split("usage: ", 1)
    p = argparse.ArgumentParser(usage=text, description=head)
    p.add_argument("--engine", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--args", default="")
    p.add_argument("--exact", action="store_true")
    p.add_argument("--margin", type=float)
    p.add_argument("--timeout", type=int, default=600)
    p.add_argument("oracle")
    a = p.parse_args()
    if a.exact == (a.margin is not None):
        print("give --exact or --margin M", file=sys.stderr)
        return 2
    with open(a.oracle, encoding="utf-8") as f:
        doc = json.load(f)
    cases = {c["name"]: c["tokens"] for c in doc["cases"]}
    passed = failed = 0
    for entry in doc.get("greedy", []):
        expected, margins = entry["tokens"], entry["margin"]
        try:
            got = run_engine(a, cases[entry["name"]], len(expected))
            print("ok   %s: %s" % (entry["name"], compare(got, expected, margins, a)), flush=True)
            passed += 1
        except Failure as e:
            print("FAIL %s: %s" % (entry["name"], e), flush=True)
            failed += 1
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
