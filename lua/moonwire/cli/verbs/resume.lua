--- moonwire resume: what `pause` stopped goes on.
local pausing = require "moonwire.cli.process.pausing"

return {
  name = "resume",
  summary = "Makes pipelines that were paused take messages again.",
  arguments = pausing.arguments,
  flags = pausing.flags,
  examples = { "moonwire resume shop", "moonwire resume . orders" },
  run = pausing.run("resume", "resumed"),
}
