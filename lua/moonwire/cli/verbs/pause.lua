--- moonwire pause: pipelines of a running project take nothing more, until `resume`.
local pausing = require "moonwire.cli.process.pausing"

return {
  name = "pause",
  summary = "Makes pipelines of a running project take no more messages, until `moonwire resume`.",
  details = "What runs is finished; connections stay open. A reload keeps the pause, a restart does not.",
  arguments = pausing.arguments,
  flags = pausing.flags,
  examples = { "moonwire pause shop", "moonwire pause . orders invoices" },
  run = pausing.run("pause", "paused"),
}
