/* mirror_time.c - how long a call took. On a device between two events on the session's stream, so that waiting for the
 * device is left out; as the stream is empty before, a short op shows little but its launch. An op that computes on the host
 * by the clock, with its copies where tensors are carried to it.
 * Threads: the session's. SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"

static bool by_events(const struct bp_session *s, const struct bpi_bound *op)
{
    return s->device.kind != BP_DEV_HOST && !op->on_host;
}

static int32_t mark(struct bp_session *s, int which, struct bp_error *err)
{
    if (s->timer[which] == NULL)
        BP_TRY(BPI_RUN(s->device_op, -1, bp_device_ops, event_create, &s->timer[which]));
    return BPI_RUN(s->device_op, -1, bp_device_ops, event_record, s->timer[which], s->stream);
}

int32_t bpi_time_begin(struct bp_session *s, const struct bpi_bound *op, struct bp_error *err)
{
    if (s->device.kind != BP_DEV_HOST) BP_TRY(bpi_session_sync(s, err));
    if (by_events(s, op)) return mark(s, 0, err);
    s->timer_ns = bpi_now_ns();
    return BP_OK;
}

int32_t bpi_time_end(struct bp_session *s, const struct bpi_bound *op, double *us,
                     struct bp_error *err)
{
    if (by_events(s, op)) {
        BP_TRY(mark(s, 1, err));
        BP_TRY(bpi_session_sync(s, err));
        return BPI_RUN(s->device_op, -1, bp_device_ops, event_elapsed_us, s->timer[0], s->timer[1],
                       us);
    }
    if (s->device.kind != BP_DEV_HOST) BP_TRY(bpi_session_sync(s, err));
    *us = (double)(bpi_now_ns() - s->timer_ns) * 1e-3;
    return BP_OK;
}

void bpi_time_close(struct bp_session *s)
{
    for (int i = 0; i < 2; ++i) {
        if (s->timer[i] != NULL) BPI_CALL(s->device_op, bp_device_ops, event_destroy, s->timer[i]);
        s->timer[i] = NULL;
    }
}
