/* part.c - files that appear whole or not at all. SPDX-License-Identifier: MIT */
#include "part.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the user's umask gives a new file; mkstemp alone would keep it from everybody else. */
static mode_t usual_mode(void)
{
    const mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

int cli_part_open(struct cli_part *p, const char *path)
{
    const size_t n = strlen(path) + sizeof ".XXXXXX";
    *p = (struct cli_part){.name = malloc(n)};
    if (p->name == NULL) return ENOMEM;
    snprintf(p->name, n, "%s.XXXXXX", path);
    const int fd = mkstemp(p->name);
    p->f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (p->f != NULL) {
        errno = 0;
        return 0;
    }
    const int bad = errno;
    if (fd >= 0) {
        (void)close(fd);
        (void)unlink(p->name);
    }
    free(p->name);
    return bad;
}

int cli_part_finish(struct cli_part *p, const char *path)
{
    /* A stream does not keep why an earlier write failed; errno, cleared when it was opened, mostly still says. */
    int bad = ferror(p->f) == 0 ? 0 : errno != 0 ? errno : EIO;
    if (fflush(p->f) != 0 && bad == 0) bad = errno;
    if (bad == 0 && fchmod(fileno(p->f), usual_mode()) != 0) bad = errno;
    if (fclose(p->f) != 0 && bad == 0) bad = errno;
    if (bad == 0 && rename(p->name, path) != 0) bad = errno;
    if (bad != 0) (void)unlink(p->name);
    free(p->name);
    return bad;
}
