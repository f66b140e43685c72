/* verdict.c - a handler answers with a word; here it is decided what that costs: when to try again, when to
 * give up, when to pause. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "core/tier.h"
#include "pipeline/defs.h"

enum { BUSY_AGAIN_MS = 100 };

const mw_policy *mw_policy_for(const mw_pipeline *p, const char *class_name) {
    for (uint32_t i = 1; i < p->spec.policy_count; i++)
        if (strcmp(p->spec.policies[i].name, class_name) == 0) return &p->spec.policies[i];
    return &p->spec.policies[0];
}

/* Ends the run. false: it was fenced meanwhile, so the verdict is nobody's business any more. */
static bool still_ours(mw_delivery *d) {
    mw_delivery_end_run(d);
    if (!d->fenced) return true;
    mw_delivery_log(MW_WARN, "fenced: verdict discarded", d);
    mw_log_end();
    mw_pipeline *p = d->pipeline;
    if (d->dedupe_key) mw_link_release(d->dedupe, d->dedupe_key, d->dedupe_len);
    mw_lane_leave(d);
    mw_delivery_free(d);
    mw_source_maybe_resume(p);
    return false;
}

void mw_delivery_ack(mw_delivery *d) {
    if (!still_ours(d)) return;
    mw_pipeline *p = d->pipeline;
    p->tally->counters.handled++;
    if (p->trial_below) mw_trial_count(d, false);
    if (p->breaker == MW_HALF_OPEN) mw_breaker_success(p);
    if (d->replay) d->mark = MW_MARK_NONE; /* takes effect with the ack, here and at the broker */
    mw_settle_ack(d);
}

void mw_delivery_drop(mw_delivery *d, const char *reason, size_t reason_len) {
    if (!still_ours(d)) return;
    d->pipeline->tally->counters.dropped++;
    mw_trial_count(d, false);
    mw_breaker_success(d->pipeline);       /* the handler could decide: what it needs is there again */
    if (d->replay) d->mark = MW_MARK_NONE; /* done with, one way or the other: its key goes on */
    mw_outgoing_discard(d);
    mw_delivery_log(MW_INFO, "dropped", d);
    mw_log_str("reason", reason, reason_len);
    mw_log_end();
    mw_settle_ack(d);
}

void mw_delivery_duplicate(mw_delivery *d) {
    d->began_ns = 0; /* no handler ran */
    if (!still_ours(d)) return;
    d->pipeline->tally->counters.deduped++;
    free(d->dedupe_key); /* the record belongs to the one that was handled */
    d->dedupe_key = NULL;
    mw_delivery_log(MW_INFO, "duplicate skipped", d);
    mw_log_end();
    mw_settle_ack(d);
}

void mw_delivery_busy(mw_delivery *d) {
    d->began_ns = 0;
    if (!still_ours(d)) return;
    free(d->dedupe_key);
    d->dedupe_key = NULL;
    mw_settle_retry(d, BUSY_AGAIN_MS, false, NULL);
}

/* ---- failures ---- */

/* A class is a short name. Lua refuses longer ones; this is for those that come from elsewhere. */
static const char *short_class(const char *name, char out[MW_CLASS_MAX]) {
    size_t len = strlen(name);
    if (len < MW_CLASS_MAX) return name;
    len = mw_text_clip(name, len, MW_CLASS_MAX - 1);
    memcpy(out, name, len);
    out[len] = 0;
    return out;
}

void mw_verdict_dead(mw_delivery *d, const char *class_name, const char *reason, size_t reason_len) {
    mw_pipeline *p = d->pipeline;
    p->tally->counters.dead++;
    mw_outgoing_discard(d);
    mw_message *letter = mw_dead_letter(d, class_name, reason, reason_len);
    mw_outgoing_add(d, p->spec.dead, p->spec.dead_channel, letter, 0);
    mw_message_unref(letter);
    d->dead_letter = true;
    if (d->lane_key && p->spec.on_dead != MW_DEAD_CONTINUE) {
        d->mark = p->spec.on_dead == MW_DEAD_HOLD_KEY ? MW_MARK_HOLD : MW_MARK_DEAD;
        d->marked = !mw_map_get(&p->marks, d->lane_key);
        mw_lane_mark(p, d->lane_key, (mw_mark)d->mark);
    }
    mw_delivery_log(MW_ERROR, "dead letter", d);
    mw_log_text("class", class_name);
    mw_log_str("reason", reason, reason_len);
    if (d->error && (d->error->len != reason_len || memcmp(d->error->data, reason, reason_len) != 0))
        mw_log_str("error", d->error->data, d->error->len);
    mw_log_text("to", p->spec.dead_channel);
    mw_log_end();
    mw_settle_ack(d);
}

static void give_up(mw_delivery *d, const char *class_name, const char *format, long long number) {
    char reason[96];
    int n = snprintf(reason, sizeof reason, format, number);
    mw_verdict_dead(d, class_name, reason, (size_t)n);
}

/* Specs read this line back: lua/moonwire/testing/records.lua. */
static void log_retry(int level, const mw_delivery *d, const char *class_name, int64_t delay_ms,
                      const mw_text *error) {
    mw_delivery_log(level, "failed, will retry", d);
    mw_log_num("next_in", (double)delay_ms / 1000);
    mw_log_text("class", class_name);
    mw_log_str("error", error->data, error->len);
    mw_log_end();
}

/* Its place is given up: it comes back through a retry channel, and is settled here when it stands there. */
static void retry_elsewhere(mw_delivery *d, const mw_policy *policy, const char *class_name, mw_text *error) {
    mw_pipeline *p = d->pipeline;
    uint32_t step = d->attempt < policy->tier_count ? d->attempt : policy->tier_count;
    int64_t delay = policy->tiers_ms[step - 1];
    char channel[MW_TIER_CHANNEL];
    mw_tier_channel(channel, p->spec.channel, delay);
    log_retry(MW_WARN, d, class_name, delay, error);
    mw_message *copy = mw_tier_copy(d, delay);
    mw_outgoing_add(d, p->spec.from, channel, copy, 0);
    mw_message_unref(copy);
    d->dead_letter =
        true; /* like one: it waits until that channel has it, and counts as no publish of a handler */
    mw_settle_ack(d);
}

static void fail(mw_delivery *d, int64_t after_ms, const char *class_name, mw_text *error) {
    mw_pipeline *p = d->pipeline;
    const mw_policy *policy = mw_policy_for(p, class_name);
    mw_outgoing_discard(d);
    if (!d->first_error) d->first_error = mw_text_ref(error);
    mw_text_unref(d->error);
    d->error = mw_text_ref(error);
    if (policy->kind == MW_POLICY_OUTAGE) {
        mw_breaker_outage(d, policy);
        if (after_ms < 0) after_ms = (int64_t)(policy->backoff.base * 1000);
        log_retry(MW_DEBUG, d, class_name, after_ms,
                  error); /* the pause was logged: not every message of it */
        mw_settle_retry(d, after_ms, false, error);
        return;
    }
    mw_breaker_success(p); /* whatever failed, it was not the outage that paused the source */
    mw_parts parts;
    mw_message_parts(d->msg, &parts);
    int64_t delay =
        after_ms >= 0 ? after_ms : mw_backoff_delay(&policy->backoff, d->attempt, mw_pipeline_random(p));
    int64_t age = mw_loop_wall_ms(p->loop) + delay - parts.time_ms;
    if (policy->kind == MW_POLICY_DEAD) {
        mw_verdict_dead(d, class_name, error->data, error->len);
    } else if (d->attempt >= policy->attempts) {
        give_up(d, class_name, d->attempt == 1 ? "gave up after %lld attempt" : "gave up after %lld attempts",
                d->attempt);
    } else if (policy->max_age_ms && age > policy->max_age_ms) {
        give_up(d, class_name, "too old: over %lld s", (long long)(policy->max_age_ms / 1000));
    } else if (policy->tier_count && after_ms < 0) {
        p->tally->counters.retried++;
        retry_elsewhere(d, policy, class_name, error);
    } else {
        p->tally->counters.retried++;
        log_retry(MW_WARN, d, class_name, delay, error);
        mw_settle_retry(d, delay, true, error);
    }
}

void mw_delivery_retry(mw_delivery *d, int64_t after_ms, const char *class_name, const char *reason,
                       size_t reason_len) {
    if (!still_ours(d)) return;
    mw_trial_count(d, true);
    char space[MW_CLASS_MAX];
    mw_text *error = mw_text_new(reason, mw_text_clip(reason, reason_len, MW_REASON_MAX));
    fail(d, after_ms, short_class(class_name, space), error);
    mw_text_unref(error);
}

void mw_delivery_reject(mw_delivery *d, const char *class_name, const char *reason, size_t reason_len) {
    if (!still_ours(d)) return;
    mw_trial_count(d, true);
    mw_breaker_success(d->pipeline);
    char space[MW_CLASS_MAX];
    reason_len = mw_text_clip(reason, reason_len, MW_REASON_MAX);
    mw_text_unref(d->error);
    d->error = mw_text_new(reason, reason_len);
    if (!d->first_error) d->first_error = mw_text_ref(d->error);
    mw_verdict_dead(d, short_class(class_name, space), reason, reason_len);
}

/* The handler was content, but what it published did not arrive: that is a failed attempt like any other. */
void mw_verdict_publish_failed(mw_delivery *d, const mw_error *e) {
    char reason[MW_ERROR_TEXT + 16];
    int n = snprintf(reason, sizeof reason, "publish: %s", e->text);
    mw_text *error = mw_text_new(reason, (size_t)n);
    d->pipeline->tally->counters.handled--;
    mw_trial_recount(d);
    d->mark = MW_MARK_KEEP;
    fail(d, -1, e->retryable ? "transient" : "invalid", error);
    mw_text_unref(error);
}

/* ---- dedupe ---- */

void mw_delivery_claim(mw_delivery *d, const char *key, size_t len, mw_claimant *c) {
    mw_pipeline *p = d->pipeline;
    size_t name = strlen(p->spec.name);
    d->dedupe = p->spec.dedupe;
    free(d->dedupe_key);
    d->dedupe_len = (uint32_t)(name + 1 + len);
    d->dedupe_key = malloc(d->dedupe_len);
    if (!d->dedupe_key) abort();
    memcpy(d->dedupe_key, p->spec.name, name);
    d->dedupe_key[name] = 0; /* no pipeline's keys can run into another's */
    if (len) memcpy(d->dedupe_key + name + 1, key, len);
    mw_link_claim(d->dedupe, d->dedupe_key, d->dedupe_len, p->spec.timeout_ms + p->spec.lease_ms, c);
}
