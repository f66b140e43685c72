--- moonwire help [VERB]
local fail = require "moonwire.cli.fail"
local nearest = require "moonwire.internal.nearest"
local out = require "moonwire.cli.out"
local usage = require "moonwire.cli.usage"
local verbs = require "moonwire.cli.verbs"

local function text_of(word, second)
  if not verbs.find(word) then
    local near = nearest(word, verbs.names())
    fail.usage("unknown verb %q%s", word, near and ("; did you mean %q?"):format(near) or "")
  end
  local verb = verbs.load(word)
  if type(verb) == "function" then return ("usage: moonwire %s ...\n"):format(word) end
  if not verb.verbs then return usage.verb(verb) end
  for _, inner in ipairs(verb.verbs) do
    if inner.name == word .. " " .. tostring(second) then return usage.verb(inner) end
  end
  if second then fail.usage("unknown verb %q of %s", second, word) end
  return usage.group(verb)
end

return {
  name = "help",
  summary = "Explains a verb, or lists them all.",
  arguments = { { "VERB", "such as publish, or dlq replay", optional = true, many = true } },
  words = verbs.names,
  flags = {},
  examples = { "moonwire help publish" },
  run = function(values)
    local words = values.VERB
    out.write(words[1] and text_of(words[1], words[2]) or usage.all())
    return 0
  end,
}
