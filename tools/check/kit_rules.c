/* kit_rules.c - see kit_rules.h. SPDX-License-Identifier: MIT */
#include "kit_rules.h"

#include <string.h>

// clang-format off
static const struct kit_rule rules[] = {
    {"0.1", "the file is an ELF shared object for this machine", "the loader refuses it: LOAD"},
    {"0.2", "it has one note of owner Backplane, well-formed", "the loader does not know it as a plugin"},
    {"0.3", "the note names this ABI: major and minor", "the loader refuses it before any code runs: ABI"},
    {"0.4", "it exports bp_plugin_query_v1 and nothing else", "its symbols meet those of other plugins; without the entry: LOAD"},
    {"0.5", "every library in NEEDED is found", "the loader refuses it: LIBRARY, naming the library"},
    {"0.6", "RUNPATH holds $ORIGIN or absolute folders only", "what is loaded depends on where the program was started"},
    {"0.7", "static thread-local storage stays below 4 KiB", "dlopen fails once the reserve of the process is used up: LOAD"},
    {"0.8", "no symbol is bound as unique", "two plugins share one variable, in spite of RTLD_LOCAL"},
    {"0.9", "no relocations in its code (TEXTREL)", "pages of code are private and writable while loading; hardened systems refuse"},
    {"0.10", "it has a build id", "crash reports cannot name the binary"},
    {"1.1", "dlopen(RTLD_NOW | RTLD_LOCAL) succeeds and the entry is there", "the loader refuses it: LOAD"},
    {"1.2", "the entry returns a descriptor to a host of this ABI", "the loader refuses it: ABI"},
    {"1.3", "a descriptor reaches its last field, with texts, counts and functions in place", "the loader refuses it: ABI"},
    {"1.4", "query is pure: no threads, no open files", "listing plugins has side effects"},
    {"1.5", "query returns the same pointer every time", "the loader keeps a pointer to something that changes"},
    {"1.6", "query returns NULL to a host of another major version", "a foreign host calls functions of the wrong shape"},
    {"1.7", "note and descriptor say the same: name, version, ABI, kind, interfaces", "the loader refuses it: ABI"},
    {"1.8", "offered interfaces are known, in the version of the ABI", "the loader refuses the op: ABI"},
    {"2.1", "every key has a name, a known type, a default and a text", "`backplane config` cannot explain it"},
    {"2.2", "the default lies in the type and the range", "a plugin that nobody configures does not start"},
    {"2.3", "open succeeds with every default written out", "what the documentation shows does not work"},
    {"2.4", "open answers values outside of type or range with an error, and does not crash", "a mistyped INI crashes the engine"},
    {"2.5", "an error has a status of plugin.h and a sentence in err", "the user is told nothing"},
    {"3.1", "the host table is read through BP_HAS: what ends before a field has no such function", "a plugin crashes in an older host"},
    {"3.2", "nothing is read past h.size of a struct", "a plugin crashes on structs of older hosts"},
    {"3.3", "nothing is written past h.size of a struct", "memory of an older host is overwritten"},
    {"3.4", "an unknown critical extension is refused with reason EXT", "a changed meaning passes unnoticed"},
    {"3.5", "an unknown extension that is not critical is ignored", "a plugin refuses newer hosts for no reason"},
    {"3.6", "reasons are stored at reason_stride, at most cap_reasons of them", "memory of the host is overwritten"},
    {"3.7", "an op table reaches the slots that the interface needs; no slot of them is NULL", "the loader refuses the op: ABI"},
    {"4.1", "open, close, op_create and op_destroy succeed a hundred times", "reloading a model fails"},
    {"4.2", "no memory is left after close", "memory grows with every model"},
    {"4.3", "no open file is left after close", "files run out"},
    {"4.4", "no thread is left after close", "a thread runs into memory that is gone"},
    {"4.5", "no mapping is left after close", "address space grows with every model"},
    {"4.6", "two instances live side by side", "A/B and two ranks share state"},
    {"4.7", "a host call that fails gives an error with text, and nothing is left behind", "running out of memory crashes the engine"},
    {"4.8", "locale, rounding mode, signal handlers, working folder and environment stay as they are", "the whole process computes or prints something else"},
    {"4.9", "nothing is written to stdout or stderr", "JSON of the program is torn"},
    {"4.10", "no call ends the process: no exit, abort, signal, throw", "the engine dies without a sentence"},
    {"4.11", "a call returns within its time", "the engine hangs"},
    {"4.12", "memory is freed once, by who allocated it", "the heap is damaged"},
    {"5.1", "supports returns BP_OK and a known level", "the choice of backends is undefined"},
    {"5.2", "supports is pure: the same problem, the same answer, the problem unchanged", "a frozen choice differs from what runs"},
    {"5.3", "supports takes less than 50 us (median)", "start-up and `explain` crawl"},
    {"5.4", "NO has a critical reason with a code, and a field or a text", "the user is not told why"},
    {"5.5", "workspace is monotone: no smaller problem needs more", "a step runs into memory that is too small"},
    {"5.6", "YES binds: plan, prepare and run do not answer DECLINED", "the engine stops in the middle of a model"},
    {"5.7", "YES has no critical reason; DEGRADED has a reason", "`explain` contradicts itself"},
    {"5.8", "workspace gives a power of two from 64 to 256 as alignment, and an answer for what is supported", "the engine cannot allocate"},
    {"5.9", "an op that is offered serves at least one problem", "an interface in the note is an empty promise"},
    {"6.1", "a call on a supported problem returns BP_OK", "generation ends with an error"},
    {"6.2", "nothing outside of the outputs is written: no input, no gap between rows, no byte around", "another tensor changes"},
    {"6.3", "NaN and infinities stand where exact arithmetic has them, and nowhere else", "garbage spreads through the model"},
    {"6.4", "NaN in a row never reaches another row", "one broken sequence breaks its neighbours"},
    {"6.5", "the error is at most twice that of the reference at the same precision, plus one ulp at the row's maximum", "the model answers worse than its weights"},
    {"6.6", "a discrete choice differs only where the exact gap is below the precision", "other experts, other keys, other tokens"},
    {"6.7", "RUN, where claimed: the same call gives the same bits", "runs cannot be repeated"},
    {"6.8", "BATCH, where claimed: a row alone gives the bits it has in a batch", "an answer depends on the neighbours"},
    {"6.9", "every element of an output is written", "what was there before is taken for a result"},
    {"6.10", "no access beyond tensors, scratch, plan and persistent memory of the size that was asked for", "memory of others is read or written, or the engine crashes"},
    {"6.11", "tensors() lists the ports of the slot header, with their access", "traces, NaN scans and carried tensors miss something"},
    {"6.12", "plan and run allocate nothing", "a step takes time that nobody sees"},
    {"6.13", "layouts lists what supports offers", "the cache is in a form that nobody reads"},
    {"6.14", "values that the slot header fixes exactly are exact", "stored weights and copies drift"},
    {"7.1", "work goes to the stream of the launch: inputs that come late on it are waited for, and give the same bits",
     "the model computes with what was there before"},
    {"7.2", "a call does not wait for the device", "the host stands still in every step"},
    {"7.3", "a call allocates no device memory", "a step fails in the middle, or takes time that nobody sees"},
    {"7.4", "the current device and context stay as they are", "the next plugin works on another device"},
    {"8.1", "what supports() claims of capture can be captured and replayed", "a session that records its steps fails"},
    {"8.2", "a replayed graph gives the bits of the call, with lengths that changed since the capture",
     "generated text follows the lengths of another step"},
    {"9.1", "RUN, where claimed: fifty calls give the same bits", "runs cannot be repeated"},
    {"9.2", "BATCH, where claimed: a row alone on the device gives the bits it has in a batch",
     "an answer depends on the neighbours"},
    {"10.1", "a wrapper around the reference gives the same bits", "looking changes the result"},
    {"10.2", "a wrapper fills only slots that it knows, with functions of its own", "an old wrapper breaks newer slots"},
    {"10.3", "a wrapped backend gives the same bits as the bare one, and keeps no pointer into args or launch",
     "tracing changes the result; the next call reads what is gone"},
};
// clang-format on

const struct kit_rule *kit_rule_at(uint32_t i)
{
    return i < sizeof rules / sizeof rules[0] ? &rules[i] : NULL;
}

const char *kit_rule_text(const char *id)
{
    for (uint32_t i = 0; i < sizeof rules / sizeof rules[0]; ++i) {
        if (strcmp(rules[i].id, id) == 0) return rules[i].text;
    }
    return "";
}
