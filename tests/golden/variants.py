"""variants.py - every layout that publishers use gives the logits of the model it was derived from, and its golden ones.

Usage: variants.py BACKPLANE COMPARE_MODELS SOURCE OUT [--sanitized]
Derives the variants into OUT (made anew), then for each: loads it beside its base and compares random prompts, verifies
it against its golden values; the wrong ones must compare different, the broken ones must be refused with their reason.
Comparisons run on the reference backend, because the last bits of others may depend on types; verification on what the
configuration chooses, and is left out under sanitizers. Exit: 0 all is well, 1 not.
SPDX-License-Identifier: MIT
"""
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

LEAST_PAIRS, LEAST_DIFFERENT, LEAST_REFUSED = 100, 8, 20
MAX_ABS = 1e-5
SLOTS = ("dense", "quant", "mla.common", "mla.prefill", "mla.decode", "mla.index", "moe")
COMMON = ("kv.dtype=f32", "engine.threads=1", "engine.ctx=256")


def settings(flag, values):
    return [part for value in values for part in (flag, value)]


class Driver:
    def __init__(self, backplane, compare, source, out, verify):
        self.backplane, self.compare, self.out, self.verify = backplane, compare, out, verify
        self.zoo = os.path.join(source, "tests", "data", "zoo")
        self.script = os.path.join(source, "scripts", "derive_variants.py")

    def path(self, name):
        return os.path.join(self.out, name)

    @staticmethod
    def run(*args):
        return subprocess.run(args, capture_output=True, text=True, errors="replace", timeout=600,
                              check=False)

    def derive(self):
        shutil.rmtree(self.out, ignore_errors=True)
        done = self.run(sys.executable, "-B", self.script, self.zoo, self.out)
        if done.returncode != 0:
            sys.exit(f"FAIL: the variants could not be made: {done.stderr}")
        print(done.stdout, end="")
        with open(self.path("variants.json"), encoding="utf-8") as f:
            return json.load(f)

    def compared(self, file, base, file_sets=(), base_sets=()):
        """(exit status, largest difference or None, output)"""
        ref = [f"slots.{slot}=ref" for slot in SLOTS]
        r = self.run(self.compare, "--max-abs", str(MAX_ABS), *settings("-s", (*COMMON, *ref)),
                     *settings("-a", file_sets), *settings("-b", base_sets), self.path(file), base)
        worst = re.search(r"max_abs (\S+)", r.stdout)
        return r.returncode, float(worst.group(1)) if worst else None, (r.stdout + r.stderr).strip()

    def pair(self, p):
        rc, worst, text = self.compared(p["file"], p["base"], p["file_settings"], p["base_settings"])
        problems = [] if rc == 0 and worst is not None and worst <= MAX_ABS else [text]
        golden = None
        if p["golden"] is not None and self.verify:
            r = self.run(self.backplane, "verify", "-m", self.path(p["file"]), "--golden", p["golden"], "--json",
                         *settings("-s", COMMON))
            if r.returncode == 0 and json.loads(r.stdout)["pass"] is True:
                golden = json.loads(r.stdout)["max_abs"]
            else:
                problems.append(f"verify: exit {r.returncode} {r.stdout[-300:]} {r.stderr}")
        return worst, golden, problems

    def is_different(self, p):
        rc, worst, text = self.compared(p["file"], p["base"])
        return worst, None, [] if rc == 1 and worst is not None and worst > 100 * MAX_ABS else [text]

    def is_refused(self, p):
        r = self.run(self.backplane, "run", "-m", self.path(p["file"]), "-p", "x", "-n", "1", *settings("-s", COMMON))
        sentence = r.stderr.strip()
        good = r.returncode == 2 and r.stdout == "" and "\n" not in sentence
        good = good and all(words in sentence for words in p["says"])
        return None, None, [] if good else [f"exit {r.returncode}, wanted {p['says']}, got: {r.stdout}{sentence}"]


def number(v):
    return "-" if v is None else f"{v:.2g}"


def main(argv):
    driver = Driver(*argv[1:5], "--sanitized" not in argv)
    index = driver.derive()
    failed, worst_pair, worst_golden = 0, 0.0, 0.0
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for kind, check in (("pairs", driver.pair), ("different", driver.is_different),
                            ("refused", driver.is_refused)):
            print(f"== {kind}")
            for p, (worst, golden, problems) in zip(index[kind], pool.map(check, index[kind])):
                print(f"{'FAIL' if problems else 'ok':4} {p['file']:58} {number(worst):>8} {number(golden):>8}")
                for text in problems:
                    print(f"     {text}")
                failed += bool(problems)
                if kind == "pairs" and not problems:
                    worst_pair = max(worst_pair, worst)
                    worst_golden = max(worst_golden, golden or 0.0)
    counts = [len(index[kind]) for kind in ("pairs", "different", "refused")]
    met = sum(p["golden"] is not None for p in index["pairs"]) if driver.verify else 0
    print(f"{counts[0]} variants load, worst difference from the original {worst_pair:.3g} (limit {MAX_ABS:g}); "
          f"{met} meet golden values, worst {worst_golden:.3g}; {counts[1]} wrong ones are seen, {counts[2]} refused; "
          f"{failed} failed")
    if counts[0] < LEAST_PAIRS or counts[1] < LEAST_DIFFERENT or counts[2] < LEAST_REFUSED:
        print(f"FAIL: at least {LEAST_PAIRS}, {LEAST_DIFFERENT} and {LEAST_REFUSED} were expected")
        failed += 1
    if failed == 0:
        shutil.rmtree(driver.out)  # 200 MB that nobody needs; after a failure they are evidence
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
