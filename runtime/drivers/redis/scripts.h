/* scripts.h - what has to happen in one step at the server. Each script is text with its SHA1; a connection
 * loads them when it comes up. Scripts that act for a consumer begin with the fence: the row of the group's
 * record that names who may act must hold our token. */
#pragma once

typedef enum {
    MWR_TICK,   /* be a member, lead, move what is due, tell how it stands */
    MWR_LEAVE,  /* be none any more */
    MWR_ACK,    /* many at once */
    MWR_SETTLE, /* one, with what it published */
    MWR_NOTE,   /* how often they were tried, when they are due, what went wrong */
    MWR_BEAT,   /* these are still being worked on */
    MWR_LIST,   /* what is pending and ours to take */
    MWR_TAKE,   /* claim these */
    MWR_DUE,    /* claim those whose retry is due */
    MWR_DELAY,  /* publish later */
    MWR_CLAIM,  /* dedupe */
    MWR_DONE,
    MWR_RELEASE,
    MWR_REMOVE, /* remove and replace */
    MWR_DUES,   /* when these are tried again */
    MWR_GROUP,  /* make the group when there is none */
    MWR_SCRIPTS
} mwr_script;

const char *const *mwr_script_texts(void); /* all of them, then NULL */
const char *mwr_script_sha(int script);    /* 40 hexadecimal digits */
