#include "core/host.h"

#include "core/link.h"

const mw_host mw_core_host = {
    .room = mw_source_room,
    .deliver = mw_source_deliver,
    .fence = mw_source_fence,
    .recall = mw_source_recall,
    .settled = mw_source_settled,
    .mark = mw_source_mark,
    .closed = mw_source_closed,
    .full = mw_source_full,
    .published = mw_link_published,
    .claimed = mw_link_claimed,
    .browsed = mw_link_browsed,
    .removed = mw_link_removed,
    .grouped = mw_link_grouped,
    .topology = mw_link_topology_answer,
    .replied = mw_link_replied,
    .state = mw_link_state,
};
