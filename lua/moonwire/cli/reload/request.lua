--- What a reload is asked for, as it travels: from the command line through the control socket to the process, and from
--- a supervisor to each of its workers, unchanged. In a program it is a table, on the socket a line of words (see
--- answers.lua), each `name=value`:
---
---   { gate = "spec", canary = 0.05, canary_for = 30 }    reload =gate%3Dspec =canary%3D0.05 =canary_for%3D30
---
---   gate          spec | none    run the project's specs first; not given: as the project or `run --gate` says
---   gate_limit    seconds        how long they may take
---   canary        0 < x < 1      the share of the messages that the new code gets on trial; not given: all, at once
---   canary_for    seconds        for how long
---   canary_least  messages       fewer than so many tell nothing: the trial has failed
---   finish        promote | rollback   ends a trial that runs; stands alone
---   wait          no             answer at once; `status` tells what comes of it
---
--- The answer comes when it is over, for each worker:
---
---   { ok, state, generation, kept, added, removed, problems, by, failures, canary }
---
---   ok          false: it was refused or rolled back, and the old code keeps running
---   state       done | refused | rolled_back | begun (wait=no) | superseded (by another reload, while it was tested)
---               | busy (a canary runs, and goes on) | none (there is no canary to end)
---   problems    why, one a line; `by` what: load | gate | start (of new pipelines) | canary | drain
---               | command
---   failures    of the gate: { name, file, line, message }...
---   canary      { share, pipelines = { { name, messages, failures, old_messages, old_failures }... } }
---   unchanged   it had nothing against it, but another worker refused
---   restarted   it did not serve: it starts, with the new code
local nearest = require "moonwire.internal.nearest"

local M = {}

local function seconds(text)
  local n = tonumber(text)
  return n and n > 0 and n <= 86400 * 30 and n or nil
end

local function choice(...)
  local known = { ... }
  return function(text)
    for _, name in ipairs(known) do
      if text == name then return name end
    end
  end
end

local WORDS = {
  gate = { choice("spec", "none"), "spec or none" },
  gate_limit = { seconds, "seconds" },
  canary = { function(text)
    local n = tonumber(text)
    return n and n > 0 and n < 1 and n or nil
  end, "a share between 0 and 1" },
  canary_for = { seconds, "seconds" },
  canary_least = { function(text)
    local n = tonumber(text)
    return n and n >= 0 and n % 1 == 0 and n or nil
  end, "a number of messages" },
  finish = { choice("promote", "rollback"), "promote or rollback" },
  wait = { choice "no", "no" },
}
local NAMES = { "gate", "gate_limit", "canary", "canary_for", "canary_least", "finish", "wait" }

--- The words of a request, for answers.line.
---@param request table
---@return string[]
function M.words(request)
  local words = {}
  for _, name in ipairs(NAMES) do
    local value = request[name]
    if value ~= nil then
      words[#words + 1] = ("%s=%s"):format(name, type(value) == "number" and ("%.15g"):format(value) or value)
    end
  end
  return words
end

--- Reads them back; nothing that came through a socket is taken on trust.
---@param words string[]
---@return table|nil request, string|nil error
function M.parse(words)
  local request = {}
  for _, word in ipairs(words) do
    local name, text = word:match "^([%w_]+)=(.*)$"
    local known = WORDS[name]
    if not known then
      local near = nearest(name or word, NAMES)
      return nil, ("reload: unknown word %q%s"):format(word, near and ("; did you mean %q?"):format(near) or "")
    end
    request[name] = known[1](text)
    if request[name] == nil then return nil, ("reload: %s must be %s, got %q"):format(name, known[2], text) end
  end
  if request.finish and next(request, next(request)) then return nil, "reload: finish stands alone" end
  if not request.canary and (request.canary_for or request.canary_least) then
    return nil, "reload: canary_for and canary_least need canary"
  end
  return request
end

return M
