"""summary.py - adds up ctest's JUnit files: failures, skips with their reasons, and the closing line.

Usage: summary.py RESULT.xml...      Exit status 1 when a test failed, a file is missing, or nothing passed.
SPDX-License-Identifier: MIT
"""
import os
import sys
import xml.etree.ElementTree as ET


def reason_of(case):
    """The line in which the test says why it is skipped; else what ctest knows."""
    output = case.findtext("system-out") or ""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        if "skip" in line.lower():
            return line
    if lines:
        return lines[-1]
    skipped = case.find("skipped")
    return (skipped.get("message") if skipped is not None else "") or "no reason given"


def failure_of(case):
    """The first line that says what went wrong: check's own form, or the word FAIL."""
    for line in (case.findtext("system-out") or "").splitlines():
        if any(mark in line for mark in (":F:", ":E:", "ERROR:", "FAIL")):
            return line.strip()
    failure = case.find("failure")
    message = failure.get("message") if failure is not None else ""
    return message or "see the output above"


def read(path, passed, failed, skipped):
    build = os.path.basename(os.path.dirname(path)) or path
    try:
        cases = ET.parse(path).getroot().iter("testcase")
    except (OSError, ET.ParseError) as error:
        failed.append((build, "(all)", f"no test results: {error}"))
        return
    for case in cases:
        name, status = case.get("name"), case.get("status")
        if status == "run":
            passed.append((build, name))
        elif status == "fail":
            failed.append((build, name, failure_of(case)))
        elif case.find("skipped") is not None and "SKIP" in (case.find("skipped").get("message") or ""):
            skipped.append((build, name, reason_of(case)))
        elif status == "disabled":
            skipped.append((build, name, "disabled in its CMakeLists.txt"))
        else:
            failed.append((build, name, f"was not run ({reason_of(case)})"))


def main(paths):
    passed, failed, skipped = [], [], []
    for path in paths:
        read(path, passed, failed, skipped)
    for build, name, reason in skipped:
        print(f"SKIPPED {build} {name}: {reason}")
    for build, name, reason in failed:
        print(f"FAILED  {build} {name}: {reason}")
    print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
