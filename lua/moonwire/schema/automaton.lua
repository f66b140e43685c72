--- Matches regular expressions in time linear in the text: an NFA, made into a DFA as texts ask for it.
--
-- Code points are first sorted into classes that no set of the pattern tells apart, so that a DFA state
-- is a small array: class -> next state. A state stands for the NFA nodes waiting at a position and for
-- what came before it (^ and \b ask); what comes after is known when the next class is read.
-- Nothing is allocated once the states a text visits exist.

local byte, concat, sort = string.byte, table.concat, table.sort

local M = {}

local MAX_NODES = 4000
local MAX_CACHED = 20000 -- waiting nodes kept over all states; past it the cache starts again

local MATCH, DEAD = {}, {}
local START, WORD, OTHER, END = 1, 2, 3, 4 -- what stands beside a position

--- The code point at byte `i` and the byte after it. Bytes that are not UTF-8 read as U+FFFD each.
---@param s string
---@param i integer
---@return integer code, integer after
function M.decode(s, i)
  local a = byte(s, i)
  if a < 0x80 then return a, i + 1 end
  local b, c, d = byte(s, i + 1, i + 3)
  if a < 0xC2 or a > 0xF4 or not b or b < 0x80 or b > 0xBF then return 0xFFFD, i + 1 end
  if a < 0xE0 then return (a - 0xC0) * 64 + b - 0x80, i + 2 end
  if not c or c < 0x80 or c > 0xBF then return 0xFFFD, i + 1 end
  if a < 0xF0 then return (a - 0xE0) * 4096 + (b - 0x80) * 64 + c - 0x80, i + 3 end
  if not d or d < 0x80 or d > 0xBF then return 0xFFFD, i + 1 end
  return (a - 0xF0) * 262144 + (b - 0x80) * 4096 + (c - 0x80) * 64 + d - 0x80, i + 4
end

local decode = M.decode

-- Classes ---------------------------------------------------------------------------------------------

local function gather(node, seen)
  if node.kind == "set" then
    seen[node[1]] = true
    return
  end
  for _, child in ipairs(node) do
    gather(child, seen)
  end
end

local function cuts_of(sets)
  local at, cuts = { [0] = true }, {}
  for ranges in pairs(sets) do
    for i = 1, #ranges, 2 do
      at[ranges[i]] = true
      at[ranges[i + 1] + 1] = true
    end
  end
  for cut in pairs(at) do
    cuts[#cuts + 1] = cut
  end
  sort(cuts)
  return cuts
end

local function class_of(cuts, code)
  local low, high = 1, #cuts
  while low < high do
    local middle = math.floor((low + high + 1) / 2)
    if cuts[middle] <= code then low = middle else high = middle - 1 end
  end
  return low
end

local function members(cuts, ranges)
  local set = {}
  for class = 1, #cuts do
    set[class] = false
  end
  for i = 1, #ranges, 2 do
    for class = class_of(cuts, ranges[i]), class_of(cuts, ranges[i + 1]) do
      set[class] = true
    end
  end
  return set
end

-- NFA: built from the end, every part being told what follows it ----------------------------------------

local place

local function add(re, kind, detail, out)
  local n = #re.kind + 1
  if n > MAX_NODES then
    re.refuse("too large: its repeats expand to over " .. MAX_NODES .. " states")
  end
  re.kind[n], re.detail[n], re.out[n] = kind, detail, out
  return n
end

local function place_repeat(re, node, follow)
  local body, entry = node[1], follow
  if not node.max then
    local loop = add(re, "split", false, { false, follow })
    re.out[loop][1] = place(re, body, loop)
    entry = loop
  else
    for _ = node.min + 1, node.max do
      entry = add(re, "split", false, { place(re, body, entry), follow })
    end
  end
  for _ = 1, node.min do
    local before = #re.kind
    entry = place(re, body, entry)
    if #re.kind == before then break end -- an empty body: nested counts of it would only burn time
  end
  return entry
end

function place(re, node, follow)
  if node.kind == "set" then
    return add(re, "set", re.members[node[1]], follow)
  elseif node.kind == "assert" then
    return add(re, "assert", node.what, follow)
  elseif node.kind == "rep" then
    return place_repeat(re, node, follow)
  elseif node.kind == "alt" then
    local outs = {}
    for i, child in ipairs(node) do
      outs[i] = place(re, child, follow)
    end
    return add(re, "split", false, outs)
  end
  for i = #node, 1, -1 do
    follow = place(re, node[i], follow)
  end
  return follow
end

-- DFA ---------------------------------------------------------------------------------------------------

local function holds(what, before, after)
  if what == "^" then return before == START end
  if what == "$" then return after == END end
  return ((before == WORD) ~= (after == WORD)) == (what == "b")
end

-- Follows every edge that reads nothing. Leaves the nodes that read in re.reached (re.count of them) and
-- answers whether the pattern is complete here.
local function spread(re, waiting, before, after)
  local kind, detail, out = re.kind, re.detail, re.out
  local mark, stack, reached = re.mark, re.stack, re.reached
  local now, top, count, complete = re.now + 1, 0, 0, false
  re.now = now
  for i = 1, #waiting do
    top = top + 1
    stack[top] = waiting[i]
  end
  while top > 0 do
    local n = stack[top]
    top = top - 1
    if mark[n] ~= now then
      mark[n] = now
      local k = kind[n]
      if k == "set" then
        count = count + 1
        reached[count] = n
      elseif k == "split" then
        local outs = out[n]
        for i = 1, #outs do
          stack[top + i] = outs[i]
        end
        top = top + #outs
      elseif k == "match" then
        complete = true
      elseif holds(detail[n], before, after) then
        top = top + 1
        stack[top] = out[n]
      end
    end
  end
  re.count = count
  return complete
end

local function state_for(re, waiting, before)
  sort(waiting)
  local key = before .. ":" .. concat(waiting, ",")
  local state = re.states[key]
  if state then
    return state
  end
  re.cached = re.cached + #waiting + 1
  state = { waiting = waiting, before = before, accepts = nil }
  re.states[key] = state
  return state
end

local function restart(re)
  re.states, re.cached = {}, 0
  re.start = state_for(re, { re.first }, START)
end

local function step(re, state, class)
  if re.cached > MAX_CACHED then
    restart(re)
  end
  local after = re.word[class] and WORD or OTHER
  if spread(re, state.waiting, state.before, after) then
    state[class] = MATCH
    return MATCH
  end
  local waiting, there = {}, {}
  for i = 1, re.count do
    local n = re.reached[i]
    local out = re.out[n]
    if re.detail[n][class] and not there[out] then
      there[out] = true
      waiting[#waiting + 1] = out
    end
  end
  if not re.anchored and not there[re.first] then
    waiting[#waiting + 1] = re.first -- a match may begin at any position
  end
  local following = DEAD
  if #waiting > 0 then
    following = state_for(re, waiting, re.looks_back and after or OTHER)
  end
  state[class] = following
  return following
end

-- True when every way into the pattern asks for the start of the text: then it is tried there only.
local function is_anchored(tree)
  if tree.kind == "assert" then
    return tree.what == "^"
  elseif tree.kind == "cat" then
    return tree[1] ~= nil and is_anchored(tree[1])
  elseif tree.kind == "rep" then
    return tree.min > 0 and is_anchored(tree[1])
  elseif tree.kind == "alt" then
    for _, child in ipairs(tree) do
      if not is_anchored(child) then return false end
    end
    return true
  end
  return false
end

local function looks_back(re)
  for n = 1, #re.kind do
    if re.detail[n] == "b" or re.detail[n] == "B" then return true end
  end
  return false
end

--- Builds the automaton of a pattern tree.
---@param tree table  from `moonwire.schema.pattern`
---@param word integer[]  the ranges of \w
---@param refuse fun(text: string)  called, and not expected back, when the pattern is too large
---@return table
function M.build(tree, word, refuse)
  local sets = { [word] = true }
  gather(tree, sets)
  local cuts = cuts_of(sets)
  local re = {
    kind = {}, detail = {}, out = {}, mark = {}, stack = {}, reached = {}, now = 0, count = 0,
    cuts = cuts, ascii = {}, members = {}, word = members(cuts, word), refuse = refuse,
  }
  for ranges in pairs(sets) do
    re.members[ranges] = members(cuts, ranges)
  end
  for code = 0, 127 do
    re.ascii[code] = class_of(cuts, code)
  end
  re.first = place(re, tree, add(re, "match", false, false))
  re.anchored, re.looks_back = is_anchored(tree), looks_back(re)
  restart(re)
  return re
end

local function accepts(re, state)
  if state.accepts == nil then
    state.accepts = spread(re, state.waiting, state.before, END)
  end
  return state.accepts
end

--- Whether the pattern occurs anywhere in the text.
---@param re table
---@param text string
---@return boolean
function M.match(re, text)
  local state, ascii, i, n = re.start, re.ascii, 1, #text
  while i <= n do
    local code = byte(text, i)
    local class
    if code < 128 then
      class, i = ascii[code], i + 1
    else
      code, i = decode(text, i)
      class = class_of(re.cuts, code)
    end
    local following = state[class] or step(re, state, class)
    if following == MATCH then return true end
    if following == DEAD then return false end
    state = following
  end
  return accepts(re, state)
end

return M
