--- ECMA regular expressions, read into a tree.
--
-- Only what a finite automaton can answer is accepted: look-around and back-references are refused by
-- name, because supporting them means backtracking, and backtracking means one hostile message can hold
-- the loop for minutes. The tree goes to `moonwire.schema.automaton`, which matches in linear time.
--
-- Nodes: {kind="set", ranges}, {kind="cat", ...}, {kind="alt", ...}, {kind="rep", node, min=, max=},
--        {kind="assert", what="^"|"$"|"b"|"B"}. Ranges are flat lists lo, hi, lo, hi of code points.

local automaton = require "moonwire.schema.automaton"

local byte, sub, find = string.byte, string.sub, string.find

local M = {}

local MAX_REPEAT = 1000 -- a counted repeat is copied that often
local MAX_NESTING = 100
local LAST = 0x10FFFF

local DIGIT = { 48, 57 }
local WORD = { 48, 57, 65, 90, 95, 95, 97, 122 }
local SPACE = {
  9, 13, 32, 32, 0xA0, 0xA0, 0x1680, 0x1680, 0x2000, 0x200A, 0x2028, 0x2029,
  0x202F, 0x202F, 0x205F, 0x205F, 0x3000, 0x3000, 0xFEFF, 0xFEFF,
}
local NEWLINE = { 10, 10, 13, 13, 0x2028, 0x2029 }
local CONTROL = { t = 9, n = 10, v = 11, f = 12, r = 13 }

-- A refusal travels as a table, so that a fault in this file is never mistaken for a bad pattern.
local function refuse(text)
  error({ refused = text }, 0)
end

local function sorted(ranges)
  local pairs_of = {}
  for i = 1, #ranges, 2 do
    pairs_of[#pairs_of + 1] = { ranges[i], ranges[i + 1] }
  end
  table.sort(pairs_of, function(a, b) return a[1] < b[1] end)
  return pairs_of
end

local function inverted(ranges)
  local out, from = {}, 0
  for _, range in ipairs(sorted(ranges)) do
    if range[1] > from then
      out[#out + 1] = from
      out[#out + 1] = range[1] - 1
    end
    if range[2] >= from then
      from = range[2] + 1
    end
  end
  if from <= LAST then
    out[#out + 1] = from
    out[#out + 1] = LAST
  end
  return out
end

local SETS = {
  d = DIGIT, w = WORD, s = SPACE,
  D = inverted(DIGIT), W = inverted(WORD), S = inverted(SPACE),
}
local ANY = inverted(NEWLINE)

local function append(into, ranges)
  for i = 1, #ranges do
    into[#into + 1] = ranges[i]
  end
end

local function hex(p, digits)
  local text = sub(p.text, p.at, p.at + digits - 1)
  if #text < digits or find(text, "%X") then
    refuse("bad hexadecimal escape at character " .. p.at)
  end
  p.at = p.at + digits
  return tonumber(text, 16)
end

local function unicode_escape(p)
  local from, to, digits = find(p.text, "^{(%x+)}", p.at)
  if from then
    local code = tonumber(digits, 16)
    if code > LAST then
      refuse("\\u{" .. digits .. "} is past the last code point")
    end
    p.at = to + 1
    return code
  end
  local code = hex(p, 4)
  if code >= 0xD800 and code <= 0xDBFF and sub(p.text, p.at, p.at + 1) == "\\u" then
    local back = p.at
    p.at = back + 2
    local low = hex(p, 4)
    if low >= 0xDC00 and low <= 0xDFFF then
      return 0x10000 + (code - 0xD800) * 0x400 + (low - 0xDC00)
    end
    p.at = back
  end
  return code
end

-- Reads what follows a backslash: a code point, or nil and a set of ranges.
local function escape(p, in_class)
  local c = sub(p.text, p.at, p.at)
  p.at = p.at + 1
  if c == "" then
    refuse("ends in a backslash")
  elseif SETS[c] then
    return nil, SETS[c]
  elseif CONTROL[c] then
    return CONTROL[c]
  elseif c == "x" then
    return hex(p, 2)
  elseif c == "u" then
    return unicode_escape(p)
  elseif c == "b" and in_class then
    return 8
  elseif c == "c" then
    local letter = sub(p.text, p.at, p.at)
    if not find(letter, "^%a") then
      refuse("\\c needs a letter after it")
    end
    p.at = p.at + 1
    return byte(letter) % 32
  elseif c == "0" and not find(p.text, "^%d", p.at) then
    return 0
  elseif find(c, "%d") or c == "k" then
    refuse("back-reference \\" .. c .. " is not supported")
  elseif c == "p" or c == "P" then
    refuse("Unicode property \\" .. c .. " is not supported; write the range of characters")
  elseif find(c, "%a") then
    refuse("unknown escape \\" .. c)
  end
  p.at = p.at - 1
  local code, after = automaton.decode(p.text, p.at)
  p.at = after
  return code
end

local function class_atom(p)
  if sub(p.text, p.at, p.at) == "\\" then
    p.at = p.at + 1
    return escape(p, true)
  end
  local code, after = automaton.decode(p.text, p.at)
  p.at = after
  return code
end

-- A dash that follows or precedes a set such as \d stands for itself, as browsers have it.
local function class_range(p, ranges, low, low_set)
  p.at = p.at + 1
  local high, high_set = class_atom(p)
  if low and high then
    if low > high then
      refuse("range out of order in a character class")
    end
    append(ranges, { low, high })
    return
  end
  append(ranges, low_set or { low, low })
  append(ranges, { 45, 45 })
  append(ranges, high_set or { high, high })
end

local function class(p)
  local ranges, negated = {}, false
  if sub(p.text, p.at, p.at) == "^" then
    negated = true
    p.at = p.at + 1
  end
  while sub(p.text, p.at, p.at) ~= "]" do
    if p.at > #p.text then
      refuse("character class without a closing ]")
    end
    local code, set = class_atom(p)
    if sub(p.text, p.at, p.at) == "-" and not find(p.text, "^%-%]", p.at) and p.at < #p.text then
      class_range(p, ranges, code, set)
    else
      append(ranges, set or { code, code })
    end
  end
  p.at = p.at + 1
  return { kind = "set", negated and inverted(ranges) or ranges }
end

local alternatives

local function group(p)
  local named, after = find(p.text, "^%?<[%a_$][%w_$]*>", p.at)
  if sub(p.text, p.at, p.at + 1) == "?:" then
    p.at = p.at + 2
  elseif named then
    p.at = after + 1
  elseif find(p.text, "^%?<?[=!]", p.at) then
    local behind = sub(p.text, p.at + 1, p.at + 1) == "<"
    refuse((behind and "lookbehind" or "lookahead") .. " is not supported")
  elseif sub(p.text, p.at, p.at) == "?" then
    refuse("unknown group (" .. sub(p.text, p.at, p.at + 1))
  end
  p.depth = p.depth + 1
  if p.depth > MAX_NESTING then
    refuse("groups nested more than " .. MAX_NESTING .. " deep")
  end
  local inner = alternatives(p)
  if sub(p.text, p.at, p.at) ~= ")" then
    refuse("group without a closing )")
  end
  p.depth = p.depth - 1
  p.at = p.at + 1
  return inner
end

-- The smallest part that a quantifier may follow.
local function atom(p)
  local c = sub(p.text, p.at, p.at)
  if c == "(" then
    p.at = p.at + 1
    return group(p)
  elseif c == "[" then
    p.at = p.at + 1
    return class(p)
  elseif c == "." then
    p.at = p.at + 1
    return { kind = "set", ANY }
  elseif c == "^" or c == "$" then
    p.at = p.at + 1
    return { kind = "assert", what = c }
  elseif c == "*" or c == "+" or c == "?" or find(p.text, "^{%d+,?%d*}", p.at) then
    refuse("nothing to repeat before " .. c .. " at character " .. p.at)
  elseif c ~= "\\" then
    local code, after = automaton.decode(p.text, p.at)
    p.at = after
    return { kind = "set", { code, code } }
  end
  local next_one = sub(p.text, p.at + 1, p.at + 1)
  if next_one == "b" or next_one == "B" then
    p.at = p.at + 2
    return { kind = "assert", what = next_one }
  end
  p.at = p.at + 1
  local code, set = escape(p, false)
  return { kind = "set", set or { code, code } }
end

local function counts(p)
  local c = sub(p.text, p.at, p.at)
  if c == "*" then return 0, nil, p.at end
  if c == "+" then return 1, nil, p.at end
  if c == "?" then return 0, 1, p.at end
  local from, to, low, comma, high = find(p.text, "^{(%d+)(,?)(%d*)}", p.at)
  if not from or (comma == "" and high ~= "") then return nil end
  local min = tonumber(low)
  local max = comma == "" and min or tonumber(high)
  return min, max, to
end

local function quantified(p)
  local node = atom(p)
  local min, max, last = counts(p)
  if not min then
    return node
  end
  if node.kind == "assert" then
    refuse("nothing to repeat at character " .. p.at)
  elseif max and max < min then
    refuse("repeat counts out of order in {" .. min .. "," .. max .. "}")
  elseif min > MAX_REPEAT or (max or 0) > MAX_REPEAT then
    refuse("repeat count over " .. MAX_REPEAT .. " is not supported; use minLength and maxLength")
  end
  p.at = last + 1
  if sub(p.text, p.at, p.at) == "?" then
    p.at = p.at + 1 -- lazy: another match, but the same language
  end
  if counts(p) then
    refuse("nothing to repeat at character " .. p.at)
  end
  return { kind = "rep", node, min = min, max = max }
end

local function sequence(p)
  local node = { kind = "cat" }
  while p.at <= #p.text and not find(p.text, "^[|)]", p.at) do
    node[#node + 1] = quantified(p)
  end
  return node
end

function alternatives(p)
  local node = { kind = "alt", sequence(p) }
  while sub(p.text, p.at, p.at) == "|" do
    p.at = p.at + 1
    node[#node + 1] = sequence(p)
  end
  return #node == 1 and node[1] or node
end

local function whole(text)
  local p = { text = text, at = 1, depth = 0 }
  local tree = alternatives(p)
  if p.at <= #text then
    refuse("unmatched )")
  end
  return automaton.build(tree, WORD, refuse)
end

--- Compiles an ECMA regular expression.
---@param text string
---@return table|nil automaton  for `moonwire.schema.automaton.match`
---@return string? why not
function M.compile(text)
  local ok, result = pcall(whole, text)
  if ok then
    return result
  elseif type(result) == "table" and result.refused then
    return nil, result.refused
  end
  error(result, 0)
end

return M
