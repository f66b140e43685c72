-- How the commands are called: help, unknown words, types of values, exit codes, completion.
local args = require "moonwire.cli.args"
local cli = require "spec.functional.cli.support"
local core = require "moonwire.core"
local process = require "spec.support.process"
local verbs = require "moonwire.cli.verbs"

local here = cli.workdir()

local function names()
  local list = {}
  for _, name in ipairs(verbs.names()) do
    if name == "dlq" then
      for _, inner in ipairs { "ls", "show", "replay", "purge", "spec" } do list[#list + 1] = { "dlq", inner } end
    elseif name == "groups" then
      for _, inner in ipairs { "ls", "rm" } do list[#list + 1] = { "groups", inner } end
    end
    list[#list + 1] = { name }
  end
  return list
end

describe("a command line", function()
  local verb = {
    name = "x", examples = {},
    arguments = { { "CHANNEL" }, { "ID", optional = true, many = true } },
    flags = {
      { "broker", "URL", "", short = "b" }, { "quiet", nil, "", short = "q" }, { "yes", nil, "", short = "y" },
      { "header", "N=V", "", short = "H", kind = "header", many = true },
      { "count", "N", "", short = "n", kind = "positive" },
      { "older", "T", "", kind = "seconds" }, { "rate", "R", "", kind = "rate" }, { "log", "F", "", of = { "a", "b" } },
    },
  }
  local function parse(...) return args.parse(verb, { ... }, 1) end

  it("takes flags anywhere after the verb, in every form", function()
    local values = parse("-qy", "--broker=memory:x", "c", "-n5", "--older", "90m", "--rate", "30/m", "-H", "a=b", "-H",
      "c=", "1")
    assert.same({
      quiet = true, yes = true, broker = "memory:x", CHANNEL = "c", count = 5, older = 5400, rate = 0.5,
      header = { { "a", "b" }, { "c", "" } }, ID = { "1" },
    }, values)
  end)

  it("ends flags at --", function()
    assert.same({ CHANNEL = "--quiet", ID = { "-n" } }, (parse("--", "--quiet", "-n")))
  end)

  it("takes a lone dash for an argument", function()
    assert.same({ CHANNEL = "-", ID = {} }, (parse "-"))
  end)

  it("says what is wrong", function()
    local function why(...) return (select(2, parse(...))) end
    assert.equal("unknown flag --brokr; did you mean --broker?", why("c", "--brokr", "x"))
    assert.equal("unknown flag -z", why("c", "-qz"))
    assert.equal("--broker needs a value: --broker URL", why("c", "--broker"))
    assert.equal("--broker is given twice", why("c", "-b", "1", "--broker", "2"))
    assert.equal("--quiet takes no value", why("c", "--quiet=1"))
    assert.equal('--count must be a whole number of 1 or more, got "0"', why("c", "--count", "0"))
    assert.equal('--older must be a time such as 30, 500ms, 10m or 1h, got "soon"', why("c", "--older", "soon"))
    assert.equal('--rate must be a rate such as 100/s or 30/m, got "0"', why("c", "--rate", "0"))
    assert.equal('--log must be a or b, got "c"', why("c", "--log", "c"))
    assert.equal('-H must be NAME=VALUE, got "x"', why("c", "-H", "x"))
    assert.equal("CHANNEL is missing", why "-q")
  end)
end)

describe("help", function()
  for _, words in ipairs(names()) do
    local name = table.concat(words, " ")
    it("of " .. name .. " goes to stdout, with an example", function()
      if name == "test" and not core.source "lua/moonwire/cli/verbs/test.lua" then
        return pending "this build has no `moonwire test`"
      end
      local result = here:run { words[1], words[2] or "--help", words[2] and "--help" or nil }
      assert.equal("", result.stderr)
      assert.equal(0, result.code)
      assert.truthy(result.stdout:find("usage: moonwire " .. name, 1, true), result.stdout)
      assert.truthy(result.stdout:find "example", result.stdout)
    end)
  end

  it("lists every verb", function()
    for _, words in ipairs { { "help" }, { "--help" }, { "-h" } } do
      local result = here:run(words)
      assert.equal(0, result.code)
      for _, name in ipairs(verbs.names()) do
        assert.truthy(result.stdout:find("\n  " .. name .. " ", 1, true), name)
      end
      assert.falsy(result.stdout:find "\n  lua ")
    end
  end)

  it("explains a verb of a verb", function()
    local result = here:run { "help", "dlq", "replay" }
    assert.equal(0, result.code)
    assert.truthy(result.stdout:find("usage: moonwire dlq replay", 1, true))
  end)
end)

describe("wrong usage", function()
  local function refused(words, text)
    local result = here:run(words)
    assert.equal(64, result.code)
    assert.equal("", result.stdout)
    assert.truthy(result.stderr:find(text, 1, true), result.stderr)
  end

  it("ends with 64 and the nearest right name", function()
    refused({}, "usage: moonwire")
    refused({ "pubish" }, 'unknown verb "pubish"; did you mean "publish"?')
    refused({ "--log", "run" }, "unknown flag --log: flags stand after the verb")
    refused({ "dlq" }, "say which: ls, show, replay, purge, spec")
    refused({ "dlq", "relpay" }, 'unknown verb "relpay"; did you mean "replay"?')
    refused({ "help", "chek" }, 'did you mean "check"?')
    refused({ "tail", "--no-folow", "x" }, "unknown flag --no-folow; did you mean --no-follow?")
    refused({ "completion", "fish" }, "SHELL must be bash or zsh")
    refused({ "dlq", "show", "-b", "memory:x", "orders.dead" }, "ID is missing")
  end)

  it("tells where to read on", function() refused({ "tail" }, "try: moonwire tail --help") end)

  it("does not take a broker that is none", function()
    refused({ "tail", "-b", "embeded:data", "x" }, 'unknown broker "embeded:"; did you mean "embedded:"?')
    refused({ "tail", "-b", "nothing", "x" }, "is not a broker URL")
    refused({ "tail", "x" }, "which broker?")
  end)

  it("does not take channel names that no project could use", function()
    refused({ "publish", "-b", "memory:x", "a\27[2Jb", "x" }, "no control characters")
    refused({ "publish", "-b", "memory:x", "", "x" }, "the channel's name is empty")
    refused({ "publish", "-b", "memory:x", ("x"):rep(250), "x" }, "at most 249 bytes")
    refused({ "dlq", "ls", "-b", "memory:x", "a\nb" }, "no control characters")
    refused({ "dlq", "replay", "-b", "memory:x", "d", "--to", "" }, "the channel's name is empty")
  end)
end)

describe("version", function()
  it("is one line", function()
    for _, words in ipairs { { "version" }, { "--version" }, { "-V" } } do
      local result = here:run(words)
      assert.equal(0, result.code)
      assert.truthy(result.stdout:match "^moonwire %d+%.%d+%.%d+\n$", result.stdout)
    end
    assert.truthy(cli.objects(here:run({ "version", "--json" }).stdout)[1].lua)
  end)
end)

describe("completion", function()
  local function complete(line)
    local script = [=[
      . <("$0" completion bash)
      COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
      if [[ $1 == *' ' ]]; then COMP_WORDS+=('') COMP_CWORD=$((COMP_CWORD + 1)); fi
      _moonwire
      echo "${COMPREPLY[@]}"]=]
    local result = process.run { "bash", "-c", script, cli.binary, line }
    assert.equal("", result.stderr)
    return result.stdout
  end

  it("of bash completes verbs, flags and choices", function()
    assert.equal("publish\n", complete "moonwire pu")
    assert.truthy(complete("moonwire dlq "):find "ls show replay purge spec")
    assert.equal("--dry-run\n", complete "moonwire dlq replay --dr")
    assert.truthy(complete("moonwire groups "):find "ls rm")
    assert.equal("--force\n", complete "moonwire groups rm --fo")
    assert.equal("start end\n", complete "moonwire tail --from ")
    assert.equal("logfmt json\n", complete "moonwire run --log = ")
    assert.equal("json\n", complete "moonwire run --log = js")
    assert.equal("logfmt json\n", complete "moonwire run --log =")
  end)

  it("of zsh is a script that zsh takes", function()
    local result = here:run { "completion", "zsh" }
    assert.equal(0, result.code)
    assert.truthy(result.stdout:find "^#compdef moonwire\n")
    if not process.which "zsh" then return pending "needs zsh" end
    here:write("_moonwire", result.stdout)
    assert.equal(0, process.run({ "zsh", "-n", here.path .. "/_moonwire" }).code)
  end)

  -- A zsh on a terminal of its own: types the line and a Tab, and waits for what shall stand there.
  local function zsh_completes(line, expected)
    here:write("zshrc", ([=[
      zmodload zsh/zpty
      zpty -b z zsh -f -i
      zpty -w z 'PS1=; unsetopt zle_bracketed_paste 2>/dev/null; TERM=dumb; COLUMNS=200'
      zpty -w z 'fpath=(%s $fpath); autoload -U compinit; compinit -u -d %s/zcompdump; setopt list_ambiguous'
      zpty -w z 'path=(%s $path); echo rea""dy'
      for i in {1..100}; do zpty -r -t z out && [[ $out == *ready* ]] && break; sleep 0.1; done
      zpty -n -w z $'%s\t'
      seen=
      for i in {1..100}; do
        while zpty -r -t z out; do seen+=$out; done
        [[ $seen == *'%s'* ]] && break
        sleep 0.1
      done
      zpty -d z
      print -r -- "$seen"
    ]=]):format(here.path, here.path, cli.binary:match "^(.*)/", line, expected))
    local result = process.run { { "zsh", "-f", here.path .. "/zshrc" }, timeout = 30 }
    assert.matches(expected, result.stdout, 1, true)
  end

  it("of zsh completes verbs, flags and short ones", function()
    if not process.which "zsh" then return pending "needs zsh" end
    here:write("_moonwire", here:run({ "completion", "zsh" }).stdout)
    zsh_completes("moonwire pub", "moonwire publish")
    zsh_completes("moonwire dlq replay --dr", "--dry-run")
    zsh_completes("moonwire tail --from sta", "--from start")
    zsh_completes("moonwire tail -n 5 --js", "--json")
  end)
end)

describe("the hidden verb lua", function()
  it("hands every word to the script", function()
    here:write("x.lua", [[io.write(arg[0]:match "[^/]*$", " ", table.concat(arg, ",")) return 3]])
    local result = here:run { "lua", "x.lua", "--help", "a b" }
    assert.equal("x.lua --help,a b", result.stdout)
    assert.equal(3, result.code)
  end)

  it("tells where a script failed", function()
    here:write("y.lua", "\nerror 'ouch'")
    local result = here:run { "lua", "y.lua" }
    assert.equal(1, result.code)
    assert.truthy(result.stderr:find("y.lua:2: ouch", 1, true), result.stderr)
    assert.equal(1, here:run({ "lua", "nowhere.lua" }).code)
    assert.equal(64, here:run({ "lua" }).code)
  end)
end)
