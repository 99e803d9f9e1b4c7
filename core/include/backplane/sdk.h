/* sdk.h - helpers for plugin authors: the ELF note, the exported entry, reasons of a verdict.
 * Not here: the ABI itself (plugin.h, slot_*.h); everything below can be written out by hand instead.
 * Header only, so that a plugin links against nothing of the engine. C11 and C++17.
 * SPDX-License-Identifier: MIT */
#ifndef BP_SDK_H
#define BP_SDK_H

#include "backplane/plugin.h"

BP_EXTERN_C_BEGIN

/* What the entry function of a plugin is declared with; everything else should be compiled with hidden visibility. */
#define BP_EXPORT __attribute__((visibility("default")))

/* Emits the plugin's note; once per plugin, at file scope. kind: enum bp_plugin_kind; name, version: literals of at most
 * 31 characters, the same as in the descriptor; ifaces: the offered interfaces in one literal, one space between. */
#define BP_PLUGIN_NOTE(kind_, name_, version_, ifaces_)                                                                \
    BP_STATIC_ASSERT(sizeof(name_) <= 32 && sizeof(version_) <= 32 && sizeof(ifaces_) <= 256,                          \
                     "name and version of a plugin take at most 31 bytes, its interfaces 255");                        \
    extern __attribute__((visibility("hidden"))) const struct bp_note_record bp_note_record_;                          \
    __attribute__((used, section(BP_NOTE_SECTION), aligned(4)))                                                        \
    const struct bp_note_record bp_note_record_ = {                                                                    \
        sizeof(BP_NOTE_OWNER), sizeof(struct bp_plugin_note), BP_NOTE_PLUGIN, BP_NOTE_OWNER,                           \
        {BP_ABI_MAJOR, BP_ABI_MINOR, (kind_), 0, name_, version_, ifaces_}}

/* An ELF note with its header, as it lies in the file. */
struct bp_note_record {
    uint32_t namesz, descsz, type;
    char owner[12]; /* BP_NOTE_OWNER, padded to a multiple of four */
    struct bp_plugin_note desc;
};
BP_NOPAD(struct bp_note_record, desc);

BP_EXTERN_C_END
#endif
