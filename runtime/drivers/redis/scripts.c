#include "drivers/redis/scripts.h"

#include <openssl/evp.h>
#include <stdio.h>

/* Keys of a group's scripts: the stream, the record of the group (a hash: who is a member until when, who
 * leads), tries (a hash: id -> how often, due, first error), retries (a sorted set: id by due time), delayed
 * messages (a sorted set). Arguments: the group, the row of the record that must hold our token, the token,
 * our name. */

#define NOW                                                                                                  \
    "local t = redis.call('TIME')\n"                                                                         \
    "local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"

/* No record at all means that it was deleted under us (FLUSHALL): nobody else has what we have. */
#define FENCE                                                                                                \
    "local holder = redis.call('HGET', KEYS[2], ARGV[2])\n"                                                  \
    "if holder ~= ARGV[3] and (holder or redis.call('HLEN', KEYS[2]) > 0) then return -1 end\n"

#define LESS                                                                                                 \
    "local function less(a, b)\n"                                                                            \
    "  local am, as = string.match(a, '(%d+)-(%d+)')\n"                                                      \
    "  local bm, bs = string.match(b, '(%d+)-(%d+)')\n"                                                      \
    "  if #am ~= #bm then return #am < #bm end\n"                                                            \
    "  if am ~= bm then return am < bm end\n"                                                                \
    "  if #as ~= #bs then return #as < #bs end\n"                                                            \
    "  return as < bs\n"                                                                                     \
    "end\n"

/* The entry, how often it was tried, ms until it is due, its first error, how often it was delivered. What
 * was deleted from the stream is struck from the list of pending ones. `force`: also when it is in that list
 * no more, for the group was destroyed, or the consumer deleted. */
#define TAKEN                                                                                                \
    "local function take(id, out, force)\n"                                                                  \
    "  local found = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[4], 0, id)\n"                               \
    "  if not found[1] and force then\n"                                                                     \
    "    found = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[4], 0, id, 'FORCE')\n"                          \
    "  end\n"                                                                                                \
    "  if not found[1] or not found[1][2] then\n"                                                            \
    "    redis.call('XACK', KEYS[1], ARGV[1], id)\n"                                                         \
    "    redis.call('HDEL', KEYS[3], id)\n"                                                                  \
    "    return\n"                                                                                           \
    "  end\n"                                                                                                \
    "  local row = redis.call('HGET', KEYS[3], id)\n"                                                        \
    "  local tries, due, err = '0', '0', false\n"                                                            \
    "  if row then tries, due, err = string.match(row, '^(%d+) (%d+) ?(.*)$') end\n"                         \
    "  local p = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)\n"                                      \
    "  local wait = math.max(0, due - now)\n"                                                                \
    "  out[#out + 1] = { found[1][1], found[1][2], tonumber(tries), wait, err, p[1] and p[1][4] or 1 }\n"    \
    "end\n"

static const char *const TEXTS[MWR_SCRIPTS + 1] = {
    /* 5 ordered, 6 lease ms, 7 reader, 8 trim what is acked, 9 longest stream, 10.. tokens of the dead.
     * Answers: state, now, took the lead, reader of the former leader, others' entries to take, next retry
     * due, retries waiting, next delayed due, delayed, pending, ready (-1: unknown), oldest, the record, the
     * last that was delivered, groups, how often the group was made. What is noted in the record for whoever
     * has to make the group again: the last that was delivered, and of each member the oldest that is pending
     * ("o:" alone: of those who are gone, or never were members). */
    [MWR_TICK] = NOW LESS
    "local record, me, token = KEYS[2], ARGV[4], ARGV[3]\n"
    "local lease, dead = tonumber(ARGV[6]), {}\n"
    "for i = 10, #ARGV do dead[ARGV[i]] = true end\n"
    "local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])\n"
    "local pending, last, lag\n"
    "local lowest\n"
    "local group_count = 0\n"
    "for _, g in ipairs(groups.err and {} or groups) do\n"
    "  local f = {}\n"
    "  for i = 1, #g, 2 do f[g[i]] = g[i + 1] end\n"
    "  group_count = group_count + 1\n"
    "  if f.name == ARGV[1] then pending, last, lag = f.pending, f['last-delivered-id'], f.lag end\n"
    "  if ARGV[8] == '1' then\n"
    "    local upto = f['last-delivered-id']\n"
    "    if f.pending > 0 then upto = redis.call('XPENDING', KEYS[1], f.name)[2] end\n"
    "    if not lowest or less(upto, lowest) then lowest = upto end\n"
    "  end\n"
    "end\n"
    "if not pending then return { 'nogroup', now } end\n"
    "local owner = redis.call('HGET', record, 'm:' .. me)\n"
    "local until_ = tonumber(redis.call('HGET', record, 'u:' .. me) or 0)\n"
    "if owner and owner ~= token and until_ > now and not dead[owner] then return { 'taken', now, owner } "
    "end\n"
    "redis.call('HSET', record, 'm:' .. me, token, 'u:' .. me, now + lease, 'last', last)\n"
    "local state, took, reader = owner == token and 'member' or 'joined', 0, 0\n"
    "if ARGV[5] == '1' then\n"
    "  local lead = redis.call('HGET', record, 'lead')\n"
    "  local over = tonumber(redis.call('HGET', record, 'lead.until') or 0) <= now\n"
    "  if lead == token then\n"
    "    state = 'lead'\n"
    "  elseif not lead or over or dead[lead] then\n"
    "    state, took = 'lead', 1\n"
    "    reader = tonumber(redis.call('HGET', record, 'lead.reader') or 0)\n"
    "  else\n"
    "    state = 'standby'\n"
    "  end\n"
    "  if state == 'lead' then\n"
    "    redis.call('HSET', record, 'lead', token, 'lead.until', now + lease, 'lead.reader', ARGV[7])\n"
    "  end\n"
    "end\n"
    "redis.call('PEXPIRE', record, lease * 10 + 3600000)\n"
    "local all = redis.call('HGETALL', record)\n"
    "local live, members = {}, {}\n"
    "for i = 1, #all, 2 do\n"
    "  local name = string.match(all[i], '^m:(.*)$')\n"
    "  if name then\n"
    "    members[name] = true\n"
    "    if dead[all[i + 1]] then redis.call('HSET', record, 'u:' .. name, 0) end\n"
    "    local u = tonumber(redis.call('HGET', record, 'u:' .. name) or 0)\n"
    "    live[name] = u > now\n"
    "  end\n"
    "end\n"
    "local others, seen = 0, {}\n"
    "for _, c in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do\n"
    "  local f = {}\n"
    "  for i = 1, #c, 2 do f[c[i]] = c[i + 1] end\n"
    "  seen[f.name] = true\n"
    "  if f.name ~= me and not live[f.name] then\n"
    "    if f.pending > 0 then\n"
    "      others = 1\n"
    "    elseif members[f.name] then\n"
    "      redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], f.name)\n"
    "      redis.call('HDEL', record, 'm:' .. f.name, 'u:' .. f.name, 'o:' .. f.name)\n"
    "    end\n"
    "  end\n"
    "end\n"
    "for name in pairs(members) do\n"
    "  if not live[name] and not seen[name] then\n"
    "    redis.call('HDEL', record, 'm:' .. name, 'u:' .. name, 'o:' .. name)\n"
    "  end\n"
    "end\n"
    "local function note_oldest(row, id)\n"
    "  if id then redis.call('HSET', record, row, id) else redis.call('HDEL', record, row) end\n"
    "end\n"
    "local mine = pending > 0 and redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, me)[1]\n"
    "note_oldest('o:' .. me, mine and mine[1])\n"
    "note_oldest('o:', others == 1 and redis.call('XPENDING', KEYS[1], ARGV[1])[2])\n"
    "local due = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now, 'LIMIT', 0, 100)\n"
    "for _, packed in ipairs(due) do\n"
    "  local fields = cmsgpack.unpack(packed)\n"
    "  table.remove(fields, 1)\n"
    "  if ARGV[9] ~= '0' then\n"
    "    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[9], '*', unpack(fields))\n"
    "  else\n"
    "    redis.call('XADD', KEYS[1], '*', unpack(fields))\n"
    "  end\n"
    "  redis.call('ZREM', KEYS[5], packed)\n"
    "end\n"
    "local retry = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2] or '0'\n"
    "local delayed = redis.call('ZRANGE', KEYS[5], 0, 0, 'WITHSCORES')[2] or '0'\n"
    "if lowest and ARGV[8] == '1' then redis.call('XTRIM', KEYS[1], 'MINID', lowest) end\n"
    "local oldest = pending > 0 and redis.call('XPENDING', KEYS[1], ARGV[1])[2] or false\n"
    "if lag then lag = lag + #due end\n"
    "if not lag or (not oldest and lag > 0) then\n" /* no lag means that it is not known */
    "  local first = redis.call('XRANGE', KEYS[1], '(' .. last, '+', 'COUNT', 1)[1]\n"
    "  oldest = oldest or first and first[1]\n"
    "  lag = lag or first and -1 or 0\n"
    "end\n"
    "return { state, now, took, reader, others, retry, redis.call('ZCARD', KEYS[4]), delayed,\n"
    "  redis.call('ZCARD', KEYS[5]), pending, lag, oldest or '', all, last, group_count,\n"
    "  tonumber(redis.call('HGET', record, 'made') or 0) }\n",

    [MWR_LEAVE] = "if redis.call('HGET', KEYS[2], 'm:' .. ARGV[4]) == ARGV[3] then\n"
                  "  redis.call('HSET', KEYS[2], 'u:' .. ARGV[4], 0)\n"
                  "end\n"
                  "if redis.call('HGET', KEYS[2], 'lead') == ARGV[3] then\n"
                  "  redis.call('HDEL', KEYS[2], 'lead', 'lead.until')\n" /* the next one ends our reader */
                  "end\n"
                  "return 1\n",

    /* 5 delete, 6.. ids */
    [MWR_ACK] = FENCE "redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 6))\n"
                      "if ARGV[5] == '1' and #redis.call('XINFO', 'GROUPS', KEYS[1]) == 1 then\n"
                      "  redis.call('XDEL', KEYS[1], unpack(ARGV, 6))\n"
                      "end\n"
                      "return 1\n",

    /* Keys from 4: the dedupe record, then one per publication. 5 delete, 6 id, 7 ttl of the dedupe record
     * (0: none), 8 this was sent before, then per publication: x or z, longest stream or delay, how many,
     * fields. An entry that is not pending any more was acked by an earlier try of ours whose answer was
     * lost; when there was none, the list was lost and not the entry, and everything is done all the same: 2.
     */
    [MWR_SETTLE] = FENCE NOW
    "local listed = #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[6], ARGV[6], 1) > 0\n"
    "if not listed and ARGV[8] == '1' then return 0 end\n"
    "local at, key = 9, 5\n"
    "while ARGV[at] do\n"
    "  local kind = redis.call('TYPE', KEYS[key]).ok\n"
    "  if kind ~= 'none' and kind ~= (ARGV[at] == 'x' and 'stream' or 'zset') then\n"
    "    return redis.error_reply('WRONGTYPE ' .. KEYS[key] .. ' is a ' .. kind)\n"
    "  end\n"
    "  at, key = at + 3 + tonumber(ARGV[at + 2]), key + 1\n"
    "end\n"
    "at, key = 9, 5\n"
    "while ARGV[at] do\n"
    "  local n = tonumber(ARGV[at + 2])\n"
    "  if ARGV[at] == 'z' then\n"
    "    redis.call('ZADD', KEYS[key], now + ARGV[at + 1], cmsgpack.pack({ unpack(ARGV, at + 3, at + 2 + n) "
    "}))\n"
    "  elseif ARGV[at + 1] ~= '0' then\n"
    "    redis.call('XADD', KEYS[key], 'MAXLEN', '~', ARGV[at + 1], '*', unpack(ARGV, at + 3, at + 2 + n))\n"
    "  else\n"
    "    redis.call('XADD', KEYS[key], '*', unpack(ARGV, at + 3, at + 2 + n))\n"
    "  end\n"
    "  at, key = at + 3 + n, key + 1\n"
    "end\n"
    "if ARGV[7] ~= '0' then redis.call('SET', KEYS[4], 'done', 'PX', ARGV[7]) end\n"
    "redis.call('XACK', KEYS[1], ARGV[1], ARGV[6])\n"
    "redis.call('HDEL', KEYS[3], ARGV[6])\n"
    "if ARGV[5] == '1' and #redis.call('XINFO', 'GROUPS', KEYS[1]) == 1 then\n"
    "  redis.call('XDEL', KEYS[1], ARGV[6])\n"
    "end\n"
    "return listed and 1 or 2\n",

    /* From 5, in sixes: id, how often tried, delay (-1: its due time stays), keep or wait, error, this was
     * sent before. 2: some were not pending, and are again */
    [MWR_NOTE] = FENCE NOW
    "local answer = 1\n"
    "for i = 5, #ARGV, 6 do\n"
    "  local id, tries, delay, err = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 4]\n"
    "  local row = redis.call('HGET', KEYS[3], id)\n"
    "  local due = delay >= 0 and now + delay or 0\n"
    "  if row then\n"
    "    local _, before, first = string.match(row, '^(%d+) (%d+) ?(.*)$')\n"
    "    if delay < 0 then due = before end\n"
    "    if first ~= '' then err = first end\n"
    "  end\n"
    "  local found = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[4], 0, id, 'RETRYCOUNT', tries, 'JUSTID')\n"
    "  if #found == 0 and ARGV[i + 5] ~= '1' then\n"
    "    found = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[4], 0, id, 'RETRYCOUNT', tries, 'FORCE', "
    "'JUSTID')\n"
    "    if #found > 0 then answer = 2 end\n"
    "  end\n"
    "  if #found > 0 then\n"
    "    if row or tries ~= '0' or delay >= 0 then\n"
    "      redis.call('HSET', KEYS[3], id, tries .. ' ' .. string.format('%.0f', due) .. ' ' .. err)\n"
    "    end\n"
    "    if ARGV[i + 3] == 'wait' then redis.call('ZADD', KEYS[4], due, id) end\n"
    "  end\n"
    "end\n"
    "redis.call('PEXPIRE', KEYS[3], 2592000000)\n"
    "return answer\n",

    /* 5.. ids. 2: as above */
    [MWR_BEAT] = FENCE
    "local count = #ARGV - 4\n"
    "ARGV[#ARGV + 1] = 'JUSTID'\n"
    "local found = #redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[4], 0, unpack(ARGV, 5))\n"
    "if found == count then return 1 end\n"
    "ARGV[#ARGV + 1] = 'FORCE'\n"
    "return #redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[4], 0, unpack(ARGV, 5)) > found and 2 or 1\n",

    /* 5 lease ms, 6 after, 7 how many, 8 other members are not to be spared, 9 but our own are */
    [MWR_LIST] = FENCE NOW
    "local out = { '' }\n"
    "local rows = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[6], '+', ARGV[7])\n"
    "for _, row in ipairs(rows) do\n"
    "  local id, who, idle = row[1], row[2], row[3]\n"
    "  local mine = who == ARGV[4]\n"
    "  if not mine then\n"
    "    local u = redis.call('HGET', KEYS[2], 'u:' .. who)\n"
    "    if u then mine = ARGV[8] == '1' or tonumber(u) <= now else mine = idle >= tonumber(ARGV[5]) end\n"
    "    if u and mine and ARGV[8] ~= '1' then redis.call('HSET', KEYS[2], 'm:' .. who, '-') end\n" /* fenced
                                                                                                     */
    "  end\n"
    "  if mine and not (who == ARGV[4] and ARGV[9] == '1') then\n"
    "    if not redis.call('ZSCORE', KEYS[4], id) then\n"
    "      out[#out + 1] = id\n"
    "    elseif who ~= ARGV[4] then\n"
    "      redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[4], 0, id, 'JUSTID')\n"
    "    end\n"
    "  end\n"
    "end\n"
    "if #rows == tonumber(ARGV[7]) then out[1] = '(' .. rows[#rows][1] end\n"
    "return out\n",

    /* From 5, in pairs: id, 1: it was begun when its worker died, which counts */
    [MWR_TAKE] =
        FENCE NOW TAKEN "local out = {}\n"
                        "for i = 5, #ARGV, 2 do\n"
                        "  if ARGV[i + 1] == '1' then\n"
                        "    local row = redis.call('HGET', KEYS[3], ARGV[i])\n"
                        "    local tries, due, err = string.match(row or '0 0 ', '^(%d+) (%d+) ?(.*)$')\n"
                        "    redis.call('HSET', KEYS[3], ARGV[i], (tries + 1) .. ' 0 ' .. err)\n"
                        "  end\n"
                        "  take(ARGV[i], out)\n"
                        "end\n"
                        "return out\n",

    /* 5 how many. At the end: ms until the next one, or -2 */
    [MWR_DUE] = FENCE NOW TAKEN
    "local out = {}\n"
    "for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, ARGV[5])) do\n"
    "  redis.call('ZREM', KEYS[4], id)\n"
    "  take(id, out, true)\n"
    "end\n"
    "local next = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2]\n"
    "out[#out + 1] = next and math.max(0, next - now) or -2\n"
    "return out\n",

    /* Key: the sorted set. 1 delay, then a number of its own and the fields */
    [MWR_DELAY] = NOW "redis.call('ZADD', KEYS[1], now + ARGV[1], cmsgpack.pack({ unpack(ARGV, 2) }))\n"
                      "return 1\n",

    /* Key: the record. 1 token, 2 ms */
    [MWR_CLAIM] = "local v = redis.call('GET', KEYS[1])\n"
                  "if v == 'done' then return 2 end\n"
                  "if v then return 1 end\n"
                  "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])\n"
                  "return 0\n",
    [MWR_DONE] = "local v = redis.call('GET', KEYS[1])\n"
                 "if v and v ~= ARGV[1] then return 0 end\n"
                 "redis.call('SET', KEYS[1], 'done', 'PX', ARGV[2])\n"
                 "return 1\n",
    [MWR_RELEASE] = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end\n"
                    "return 1\n",

    /* Keys: the stream, then one per replacement. Per entry: id, then (with replacements) x or z, longest
     * stream or delay, how many, fields */
    [MWR_REMOVE] = NOW "local at, key, removed = 1, 2, 0\n"
                       "while ARGV[at] do\n"
                       "  local id = ARGV[at]\n"
                       "  local there = #redis.call('XRANGE', KEYS[1], id, id) > 0\n"
                       "  at = at + 1\n"
                       "  if KEYS[2] then\n"
                       "    local n = tonumber(ARGV[at + 2])\n"
                       "    if there then\n"
                       "      if ARGV[at] == 'z' then\n"
                       "        redis.call('ZADD', KEYS[key], now + ARGV[at + 1], cmsgpack.pack({ "
                       "unpack(ARGV, at + 3, at + 2 + n) }))\n"
                       "      elseif ARGV[at + 1] ~= '0' then\n"
                       "        redis.call('XADD', KEYS[key], 'MAXLEN', '~', ARGV[at + 1], '*', unpack(ARGV, "
                       "at + 3, at + 2 + n))\n"
                       "      else\n"
                       "        redis.call('XADD', KEYS[key], '*', unpack(ARGV, at + 3, at + 2 + n))\n"
                       "      end\n"
                       "    end\n"
                       "    at, key = at + 3 + n, key + 1\n"
                       "  end\n"
                       "  if there then\n"
                       "    redis.call('XDEL', KEYS[1], id)\n"
                       "    removed = removed + 1\n"
                       "  end\n"
                       "end\n"
                       "return removed\n",

    /* Key: the stream. 1 the key of a group's retries without the group, 2.. ids. Of each the ms at which it
     * is tried again, the earliest of all groups; 0: it does not wait for that. */
    [MWR_DUES] = NOW "local out = {}\n"
                     "for i = 2, #ARGV do out[i - 1] = 0 end\n"
                     "for _, g in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do\n"
                     "  local scores = redis.call('ZMSCORE', ARGV[1] .. ':' .. g[2], unpack(ARGV, 2))\n"
                     "  for i, score in ipairs(scores) do\n"
                     "    local due = tonumber(score or 0)\n"
                     "    if due > now and (out[i] == 0 or due < out[i]) then out[i] = due end\n"
                     "  end\n"
                     "end\n"
                     "return out\n",

    /* Keys: the stream, the record. 1 group, 2 from the start, 3 the last id that we have seen ('': none), 4
     * we have everything in memory that is pending under our name, 5 our name, 6 token, 7 lease ms, 8 our
     * reader, 9 as what we stand in the record (member, lead, or nothing). A group that was destroyed begins
     * again just before the oldest entry that may not be settled and that nobody has in memory; else behind
     * what was delivered. A stream that is a new one is read from its start. A record that was deleted with
     * all the rest is ours again. Answers: made, where it begins, again. */
    [MWR_GROUP] = NOW LESS
    "local record, me = KEYS[2], ARGV[5]\n"
    "local rows, low, last = redis.call('HGETALL', record), nil, nil\n"
    "for i = 1, #rows, 2 do\n"
    "  local who, id = string.match(rows[i], '^o:(.*)$'), rows[i + 1]\n"
    "  if who and not (who == me and ARGV[4] == '1') and not (low and less(low, id)) then low = id end\n"
    "  if rows[i] == 'last' then last = id end\n"
    "end\n"
    "if ARGV[3] ~= '' and (not last or (ARGV[4] == '1' and less(last, ARGV[3]))) then last = ARGV[3] end\n"
    "local from = ARGV[2] == '1' and '0' or '$'\n"
    "if last then\n"
    "  local info, newest = redis.pcall('XINFO', 'STREAM', KEYS[1]), '0-0'\n"
    "  for i = 1, info.err and 0 or #info, 2 do\n"
    "    if info[i] == 'last-generated-id' then newest = info[i + 1] end\n"
    "  end\n"
    "  from = less(newest, last) and '0' or last\n"
    "  if from == last and low and not less(last, low) then\n"
    "    local before = redis.call('XREVRANGE', KEYS[1], '(' .. low, '-', 'COUNT', 1)[1]\n"
    "    from = before and before[1] or '0'\n"
    "  end\n"
    "end\n"
    "local r = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], from, 'MKSTREAM')\n"
    "if r.err and string.find(r.err, 'BUSYGROUP', 1, true) then return { 0, '', 0 } end\n"
    "if r.err then return r end\n"
    "for i = 1, #rows, 2 do\n"
    "  if string.sub(rows[i], 1, 2) == 'o:' then redis.call('HDEL', record, rows[i]) end\n"
    "end\n"
    "if from ~= '$' then redis.call('HSET', record, 'last', from == '0' and '0-0' or from) end\n"
    "redis.call('HINCRBY', record, 'made', 1)\n"
    "if #rows == 0 and ARGV[9] ~= '' then\n"
    "  redis.call('HSET', record, 'm:' .. me, ARGV[6], 'u:' .. me, now + ARGV[7])\n"
    "  if ARGV[9] == 'lead' then\n"
    "    redis.call('HSET', record, 'lead', ARGV[6], 'lead.until', now + ARGV[7], 'lead.reader', ARGV[8])\n"
    "  end\n"
    "end\n"
    "redis.call('PEXPIRE', record, ARGV[7] * 10 + 3600000)\n"
    "return { 1, from, last and 1 or 0 }\n",
};

const char *const *mwr_script_texts(void) { return TEXTS; }

const char *mwr_script_sha(int script) {
    static char shas[MWR_SCRIPTS][41];
    if (!shas[script][0]) {
        unsigned char digest[EVP_MAX_MD_SIZE];
        unsigned n = 0;
        size_t len = 0;
        while (TEXTS[script][len]) len++;
        if (!EVP_Digest(TEXTS[script], len, digest, &n, EVP_sha1(), NULL)) n = 0;
        for (unsigned i = 0; i < n && i < 20; i++) snprintf(shas[script] + 2 * i, 3, "%02x", digest[i]);
    }
    return shas[script];
}
