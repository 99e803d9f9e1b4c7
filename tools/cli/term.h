/* term.h - standard error and Ctrl-C: messages, progress, stopping.
 * Not here: results (standard output, written by the commands). SPDX-License-Identifier: MIT */
#ifndef CLI_TERM_H
#define CLI_TERM_H

#include <stdbool.h>
#include <stddef.h>
#include <backplane/backplane.h>

/* Takes Ctrl-C over: the first one sets term_stopped and asks the watched session to stop, the second one kills. */
void term_init(void);
/* SIGTERM and SIGHUP (unless ignored) stop like Ctrl-C, and a limit on file sizes is an error of the write, not a signal:
 * for commands that would leave a half-written file behind. */
void term_catch_more(void);
bool term_stopped(void);
/* Forgets an earlier Ctrl-C, so that the next one is a first one again. */
void term_rearm(void);
/* The session whose running step a first Ctrl-C cuts short; NULL = none, the step then ends by itself. */
void term_watch(struct bp_session *s);

/* One line on standard error; control characters become '?'. Clears a progress bar first. */
void term_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The log of the library, for bp_callbacks. ctx unused. */
void term_log(void *ctx, int32_t level, const char *room, const char *line);
/* The next line of standard input, with its newline; the text is valid until the next call. BP_DECLINED at the end of
 * input, BP_E_ABORTED when Ctrl-C came while waiting (the next one then kills), BP_E_IO with errno, BP_E_NOMEM,
 * BP_E_LIMIT for lines beyond 1 MiB. */
int32_t term_read_line(char **out, size_t *out_n);
/* Text to standard output as it is, but on a terminal without control characters that could move its cursor. */
void term_out(const char *text, size_t n);
/* A name or path of strangers to standard output, on one line whatever it holds: control characters, line breaks among
 * them, become '?', so that it cannot pass for a line of ours. */
void term_name(const char *name);

/* A bar that only appears when the work takes more than half a second: on a terminal it is drawn and erased, elsewhere
 * it is one line. */
struct term_progress {
    const char *title;
    double start_s, last_s;
    bool drawn, told;
};
void term_progress_begin(struct term_progress *p, const char *title);
/* note: what is being done, "" for nothing. */
void term_progress_update(struct term_progress *p, double fraction, const char *note);
void term_progress_end(struct term_progress *p);
/* bp_progress_fn over a struct term_progress; asks to stop after Ctrl-C. */
int32_t term_progress_fn(void *ctx, double fraction, const char *what);

double term_seconds(void); /* monotonic */

#endif
