"""plugin_table.py - every broken plugin: what is wrong with it, which rule of backplane-check it breaks, and what the engine
does with it. Read by test_broken_plugins.py; the plugins are built from ./plugins and from tests/unit/loader/plugins.
SPDX-License-Identifier: MIT
"""
import signal
from typing import NamedTuple, Optional, Tuple


class Refused(NamedTuple):
    """Start-up fails with one sentence that holds these words. listed: `plugins` refuses it too, with this reason, because
    no code of it has to run for that."""
    words: Tuple[str, ...]
    listed: Optional[str] = None


class Stops(NamedTuple):
    """It fails while running: exit status 3 and these words."""
    words: Tuple[str, ...]


class Dies(NamedTuple):
    """It takes the process with it. Plugins are trusted code: the engine does not guard itself against that."""
    by: signal.Signals


class Differs(NamedTuple):
    """It runs, and `verify` finds other numbers."""


class Serves(NamedTuple):
    """The engine does not notice, and the answer is right. said: a warning on the way."""
    said: str = ""


class Hangs(NamedTuple):
    """The engine waits for ever."""


class Fault(NamedTuple):
    name: str
    wrong: str                    # in words
    rules: Tuple[str, ...]        # the broken rule; then those that fall with it
    engine: Optional[object]      # None: it damages memory, so that anything may follow
    reason: Optional[str] = None  # reason code of the finding
    iface: str = "dense"          # which source: "dense", "mla.decode", or "coll": those of the loader's tests
    stages: Optional[str] = None  # of the kit; None: all


def in_file(name, wrong, rules, engine, reason):
    """A fault of file or handshake. The plugin is one of the loader's tests, which break later rules as well."""
    return Fault(name, wrong, rules, engine, reason, "coll", "0,1")


def decode(name, wrong, rules, engine, reason=None):
    return Fault(name, wrong, rules, engine, reason, "mla.decode")


RERUN = ("10.3",)  # what stage 6 finds, stage 10 finds again

FAULTS = (
    # ---- the file ----
    in_file("old_note", "its note names another ABI", ("0.3", "1.7"),
            Refused(("ABI 0.99 and this engine 0.1", "rebuild"), "ABI"), "ABI"),
    in_file("no_note", "it has no note", ("0.2",), Refused(("no plugin note", "BP_PLUGIN_NOTE"), "LOAD"), "LOAD"),
    in_file("no_entry", "the entry symbol is missing", ("0.4", "1.1"),
            Refused(("does not export bp_plugin_query_v1", "BP_EXPORT"), "LOAD"), "LOAD"),
    in_file("missing_library", "it needs a library that is nowhere", ("0.5", "1.1"),
            Refused(("libbp_test_helper.so", "is not installed or not found")), "LIBRARY"),
    in_file("missing_symbol", "it uses a symbol that nobody defines", ("1.1",),
            Refused(("bp_test_symbol_that_nobody_has", "-z defs")), "LOAD"),
    Fault("two_notes", "it has two notes", ("0.2",), Refused(("two plugin notes",), "LOAD"), "LOAD"),
    Fault("extra_export", "it exports more than its entry", ("0.4",), Serves()),
    Fault("unique_symbol", "a symbol of it is bound as unique in the process", ("0.8", "0.4"), Serves()),
    # ---- the descriptor ----
    in_file("lying_abi", "its note is right, its descriptor names another ABI", ("1.2", "1.7"),
            Refused(("speaks ABI 0.99",)), "ABI"),
    in_file("lying_name", "note and descriptor have two names", ("1.7",),
            Refused(("note and its descriptor disagree", "another")), "ABI"),
    in_file("lying_version", "note and descriptor have two versions", ("1.7",),
            Refused(("note and its descriptor disagree", "9.9.9")), "ABI"),
    in_file("lying_offer", "its descriptor offers what the note does not", ("1.7",),
            Refused(("note and its descriptor disagree", "bp.moe")), "ABI"),
    in_file("null_query", "its entry answers NULL", ("1.2",), Refused(("does not work with an engine that speaks ABI 0.1",)),
            "ABI"),
    Fault("short_desc", "its descriptor ends early", ("1.3",), Refused(("descriptor (144 bytes)",)), "ABI"),
    Fault("null_open", "its descriptor has no open()", ("1.3",), Refused(("lacks open",)), "ABI"),
    Fault("key_without_type", "a key has no type", ("2.1",), Refused(("key 0", "number", "no type")), "CONFIG"),
    Fault("bad_default", "the default of a key lies outside of its range", ("2.2",), Serves(), "CONFIG"),
    Fault("accepts_bad", "it opens with a value that is no number", ("2.4", "4.7"), Serves(), "CONFIG"),
    # ---- the op table ----
    decode("null_table", "op_create() succeeds without a table", ("3.7",), Refused(("the op table", "has 0 bytes"))),
    decode("cut_table", "its op table ends within the part that all have", ("3.7",), Refused(("the op table", "40 bytes"))),
    decode("short_table", "its op table ends before run()", ("3.7",), Refused(("has no run()",))),
    decode("null_run", "run() is NULL", ("3.7",), Refused(("has no run()",))),
    decode("null_supports", "supports() is NULL", ("3.7",), Refused(("lacks supports",))),
    decode("null_workspace", "workspace() is NULL", ("3.7",), Refused(("lacks workspace",))),
    decode("null_tensors", "tensors() is NULL", ("3.7",), Refused(("lacks tensors",))),
    # ---- sizes and extensions ----
    Fault("reads_past_problem", "it reads fields that a short problem struct does not have", ("3.2",), Serves()),
    Fault("past_args", "it reads behind the end of an args struct", ("3.2",), None),
    Fault("ignores_ext", "it ignores a critical extension", ("3.4",), Serves(), "EXT"),
    Fault("too_many_reasons", "it stores more reasons than there is room for", ("3.6",), Serves()),
    # ---- life ----
    Fault("crash_constructor", "it crashes while it is loaded", ("4.10",), Dies(signal.SIGSEGV)),
    Fault("crash_open", "it crashes in open()", ("4.10", "3.1"), Dies(signal.SIGSEGV)),
    Fault("crash_run", "it crashes in an op", ("4.10",), Dies(signal.SIGSEGV)),
    Fault("crash_exit", "it crashes when the process ends", ("4.10",), Dies(signal.SIGSEGV)),
    Fault("exit_open", "it calls exit(0) in open()", ("4.10",), Stops(("exit()", "backplane-check"))),
    Fault("abort_open", "it calls abort() in open()", ("4.10", "3.1"), Dies(signal.SIGABRT)),
    Fault("hang_open", "open() never returns", ("4.11",), Hangs()),
    Fault("throws", "a C++ exception leaves an op", ("4.10",), Dies(signal.SIGABRT)),
    Fault("locale_in_run", "it changes the locale in an op", ("4.8",), Serves()),
    Fault("rounding", "it changes the rounding mode in open()", ("4.8",), Refused(("how numbers are rounded", "SELFTEST"))),
    Fault("flushes_tiny", "it has tiny numbers flushed to zero", ("4.8",), Refused(("tiny numbers", "SELFTEST"))),
    Fault("signals", "it installs a signal handler", ("4.8",), Serves("changed what signal 15 does")),
    Fault("prints", "it writes to standard output", ("4.9",), Serves()),
    Fault("keeps_thread", "a thread of it outlives close()", ("4.4", "4.2", "4.5"), Serves()),
    Fault("leaks_memory", "it leaves memory behind", ("4.2", "4.7"), Serves("100 bytes of host memory unfreed")),
    Fault("leaks_files", "it leaves open files behind", ("4.3",), Serves()),
    Fault("shared_state", "two instances share a variable", ("4.6",), Serves()),
    # ---- supports(), workspace(), tensors() ----
    Fault("slow_supports", "supports() takes 200 us", ("5.3",), Serves()),
    Fault("no_without_reason", "supports() says no and not why", ("5.4", "3.4"), Serves()),
    Fault("shrinking_workspace", "a smaller problem needs more memory", ("5.5",), Serves()),
    Fault("declines_run", "it says yes and declines the call", ("5.6",) + RERUN, Stops(("provider declines_run",))),
    Fault("odd_alignment", "it asks for memory at multiples of 96", ("5.8",), Refused(("aligned to 96 bytes",))),
    Fault("wide_alignment", "it asks for memory at multiples of 512", ("5.8",), Refused(("aligned to 512 bytes",))),
    Fault("wrong_ports", "tensors() calls an input an output", ("6.11",), Serves()),
    decode("wrong_layout", "it offers a cache layout that nobody writes", ("6.13",) + RERUN, Refused(("mla.decode {", "layout"))),
    # ---- computing ----
    Fault("wrong_numbers", "it says yes and computes something else", ("6.5",) + RERUN, Differs()),
    Fault("overwrites", "it writes behind an output", ("6.10", "6.2"), None),
    Fault("underwrites", "it leaves the last element of an output as it was", ("6.9", "6.4") + RERUN, Differs()),
    Fault("nan_spreads", "a NaN in one row reaches the others", ("6.4",) + RERUN, Serves()),
    Fault("writes_input", "it writes into an input", ("6.2", "6.5") + RERUN, Differs()),
    Fault("past_scratch", "it writes behind its scratch", ("6.10",), None),
    Fault("past_plan", "it writes behind its plan", ("6.10",), None),
    Fault("past_persistent", "it writes behind its persistent memory", ("6.10",), None),
    Fault("allocates", "an op allocates", ("6.12",), Serves()),
    Fault("not_repeatable", "the same call gives other bits, though it promises BATCH", ("6.7",) + RERUN, Serves()),
    Fault("batch_variant", "bits of a row depend on the other rows, though it promises BATCH", ("6.8",) + RERUN, Serves()),
    Fault("clears_first", "it clears its output before it reads its inputs, which may be the same memory",
          ("6.5", "6.3") + RERUN,
          Serves()),  # the engine's own calls of that kind are fused into products
    decode("needs_lse", "it writes nothing where no log-sum-exp is asked for", ("6.9",) + RERUN, Differs()),
    decode("cached_nan", "a NaN in the cache reaches rows that do not see it", ("6.4",) + RERUN, Serves()),
    decode("lse_base_2", "its log-sum-exp has base 2", ("6.5",) + RERUN, Serves()),
    decode("ignores_layout", "it reads the cache in one layout, whatever was negotiated",
           ("6.9", "6.3", "6.4", "6.5") + RERUN,
           Stops(("NaN or infinity",))),
)
