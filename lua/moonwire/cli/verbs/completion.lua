--- moonwire completion: scripts for bash and zsh, made from the verbs' descriptions.
local args = require "moonwire.cli.args"
local out = require "moonwire.cli.out"
local verbs = require "moonwire.cli.verbs"

-- Every verb that can stand on a command line, by its full name.
local function all_verbs()
  local list = {}
  for _, name in ipairs(verbs.names()) do
    local ok, verb = pcall(verbs.load, name)
    if ok and type(verb) == "table" then
      list[#list + 1] = verb
      for _, inner in ipairs(verb.verbs or {}) do list[#list + 1] = inner end
    end
  end
  return list
end

local function flags_of(verb)
  local flags = {}
  for _, flag in ipairs(args.flags(verb)) do
    if not flag.hidden then flags[#flags + 1] = flag end
  end
  return flags
end

-- Those that have verbs of their own.
local function groups()
  local names = {}
  for _, verb in ipairs(all_verbs()) do
    if verb.verbs then names[#names + 1] = verb.name end
  end
  return names
end

-- ---- bash ----

local BASH = [=[
# bash completion for moonwire:  . <(moonwire completion bash)
_moonwire() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} words=
  # --log=json comes as three words
  if [[ $word == = ]]; then word=; elif [[ $before == = ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
  case $verb in @GROUPS@) [[ $COMP_CWORD -gt 2 ]] && verb="$verb ${COMP_WORDS[2]}" ;; esac
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    words="@VERBS@"
  else
    case "$verb $before" in
@CHOICES@
    esac
    if [[ -z $words ]]; then
      case $verb in
@FLAGS@
      esac
    fi
  fi
  [[ -n $words ]] && mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _moonwire moonwire
]=]

local function bash_words(verb)
  local words = {}
  for _, inner in ipairs(verb.verbs or {}) do words[#words + 1] = inner.name:match "%S+$" end
  for _, flag in ipairs(flags_of(verb)) do words[#words + 1] = "--" .. flag[1] end
  for _, choice in ipairs(verb.words and verb.words() or {}) do words[#words + 1] = choice end
  return table.concat(words, " ")
end

local function fill(template, values)
  return (template:gsub("@(%u+)@", values))
end

local function bash()
  local choices, flags = {}, {}
  for _, verb in ipairs(all_verbs()) do
    for _, flag in ipairs(flags_of(verb)) do
      if flag.of then
        local words = table.concat(flag.of, " ")
        local short = flag.short and (' | "%s -%s"'):format(verb.name, flag.short) or ""
        choices[#choices + 1] = ('      "%s --%s"%s) words="%s" ;;'):format(verb.name, flag[1], short, words)
      end
    end
    flags[#flags + 1] = ('        "%s") words="%s" ;;'):format(verb.name, bash_words(verb))
  end
  return fill(BASH, {
    VERBS = table.concat(verbs.names(), " "), GROUPS = table.concat(groups(), "|"),
    CHOICES = table.concat(choices, "\n"), FLAGS = table.concat(flags, "\n"),
  })
end

-- ---- zsh ----

local ZSH = [=[
#compdef moonwire
# zsh completion for moonwire:  . <(moonwire completion zsh)
_moonwire() {
  local verb=$words[2] at=3
  if (( CURRENT == 2 )); then
    local -a verbs=(
@VERBS@
    )
    _describe verb verbs
    return
  fi
  local -a inner=()
  case $verb in
@INNER@
  esac
  if (( $#inner )); then
    if (( CURRENT == 3 )); then
      _describe verb inner
      return
    fi
    verb="$verb $words[3]" at=4
  fi
  words=("$verb" "${(@)words[at,-1]}")
  (( CURRENT -= at - 2 ))
  case $verb in
@FLAGS@
  esac
}
if [[ $funcstack[1] == _moonwire ]]; then _moonwire "$@"; else compdef _moonwire moonwire; fi
]=]

local function zsh_quote(text)
  return (text:match "^[^\n]*":gsub("'", "'\\''"):gsub("[%[%]:]", "\\%0"))
end

local function zsh_flags(verb)
  local specs = {}
  for _, flag in ipairs(flags_of(verb)) do
    local value, long, short = "", "--" .. flag[1], flag.short and "-" .. flag.short
    if flag[2] then
      local action = flag.of and "(" .. table.concat(flag.of, " ") .. ")" or "_files"
      value = (":%s:%s"):format(zsh_quote(flag[2]), action)
      long, short = long .. "=", short and short .. "+"
    end
    local text = ("[%s]%s"):format(zsh_quote(flag[3]), value)
    local once = flag.many and "*" or short and ("(-%s --%s)"):format(flag.short, flag[1]) or ""
    specs[#specs + 1] = short and ("'%s'{%s,%s}'%s'"):format(once, short, long, text)
      or ("'%s%s%s'"):format(once, long, text)
  end
  local words = verb.words and "'1:word:(" .. table.concat(verb.words(), " ") .. ")'" or "'*:file:_files'"
  specs[#specs + 1] = words
  return ('    "%s") _arguments %s ;;'):format(verb.name, table.concat(specs, " "))
end

local function zsh_inner(group)
  local words = {}
  for _, verb in ipairs(group.verbs) do
    words[#words + 1] = ("'%s:%s'"):format(verb.name:match "%S+$", zsh_quote(verb.summary))
  end
  return ('    %s) inner=(%s) ;;'):format(group.name, table.concat(words, " "))
end

local function zsh()
  local names, inner, flags = {}, {}, {}
  for _, name in ipairs(verbs.names()) do
    names[#names + 1] = ("      '%s:%s'"):format(name, zsh_quote(verbs.find(name).summary))
  end
  for _, verb in ipairs(all_verbs()) do
    if verb.verbs then inner[#inner + 1] = zsh_inner(verb) else flags[#flags + 1] = zsh_flags(verb) end
  end
  return fill(ZSH, {
    VERBS = table.concat(names, "\n"), INNER = table.concat(inner, "\n"), FLAGS = table.concat(flags, "\n"),
  })
end

local SHELLS = { bash = bash, zsh = zsh }

return {
  name = "completion",
  summary = "Prints the completion script of a shell.",
  arguments = { { "SHELL", "bash or zsh" } },
  words = function() return { "bash", "zsh" } end,
  flags = {},
  examples = { ". <(moonwire completion bash)" },
  run = function(values)
    local make = SHELLS[values.SHELL]
    if not make then require("moonwire.cli.fail").usage("SHELL must be bash or zsh, got %q", values.SHELL) end
    out.write(make())
    return 0
  end,
}
