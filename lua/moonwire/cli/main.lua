--- The entry of the binary: argv in, exit code out. Finds the verb, reads its command line, prints what went wrong.
local args = require "moonwire.cli.args"
local fail = require "moonwire.cli.fail"
local nearest = require "moonwire.internal.nearest"
local out = require "moonwire.cli.out"
local verbs = require "moonwire.cli.verbs"

local running = "" -- the verb's full name, for messages

local function did_you_mean(word, names)
  local near = nearest(word, names)
  return near and ("; did you mean %q?"):format(near) or ""
end

local function help() return require "moonwire.cli.usage" end

-- A verb of a group (dlq), or why there is none.
local function member(group, argv)
  local word, names = argv[2], {}
  if word == "--help" or word == "-h" then return nil, help().group(group) end
  for _, verb in ipairs(group.verbs) do
    local name = verb.name:match "%S+$"
    if name == word then return verb end
    names[#names + 1] = name
  end
  if not word then fail.usage("say which: %s", table.concat(names, ", ")) end
  fail.usage("unknown verb %q%s", word, did_you_mean(word, names))
end

local function run_verb(name, argv, from)
  local verb = verbs.load(name)
  running = name
  if type(verb) == "function" then return verb(argv, from) end
  local text
  if verb.verbs then
    verb, text = member(verb, argv)
    from = from + 1
  end
  if not verb then
    out.write(text)
    return 0
  end
  running = verb.name
  local values, err = args.parse(verb, argv, from)
  if not values then fail.raise(fail.USAGE, err) end
  if values.help then
    out.write(help().verb(verb))
    return 0
  end
  return verb.run(values)
end

local function dispatch(argv)
  local word = argv[1]
  if not word then
    io.stderr:write(help().all())
    return fail.USAGE
  end
  if word == "--help" or word == "-h" then word = "help" end
  if word == "--version" or word == "-V" then word = "version" end
  if not verbs.find(word) then
    if word:sub(1, 1) == "-" then fail.raise(fail.USAGE, "unknown flag %s: flags stand after the verb", word) end
    fail.raise(fail.USAGE, "unknown verb %q%s", word, did_you_mean(word, verbs.names()))
  end
  return run_verb(word, argv, 2)
end

local function caught(err)
  if fail.is(err) then return err end
  return debug.traceback(tostring(err), 2)
end

local function complain(err)
  if not err.text then return end
  local who = running == "" and "moonwire" or "moonwire " .. running
  out.err(("%s: %s\n"):format(who, err.text))
  if err.code == fail.USAGE then out.err(("try: %s --help\n"):format(who)) end
end

---@param argv string[] from 1; [0] is the program
---@return integer exit code
return function(argv)
  local ok, result = xpcall(function()
    local code = dispatch(argv)
    out.flush()
    return code
  end, caught)
  if ok then return result end
  if not fail.is(result) then
    out.err(("moonwire: internal error, please report it: %s\n"):format(tostring(result)))
    return fail.INTERNAL
  end
  if result.code ~= 0 then pcall(out.flush) end
  complain(result)
  return result.code
end
