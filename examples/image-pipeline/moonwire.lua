local mw = require "moonwire"
local broker = mw.connect(mw.env("BROKER_URL", "embedded:data"))

-- Four channels, three steps. Each step publishes to the next channel with its own ack, so an image is always in
-- exactly one of them, and a crash repeats one step at most.
mw.pipeline "resize" {
  from    = broker:channel "image.uploaded",
  handler = "handlers.resize",
  retry   = { attempts = 3, classes = { unsupported = "dead" } },
}

mw.pipeline "watermark" {
  from    = broker:channel "image.resized",
  handler = "handlers.watermark",
  concurrency = 8,
}

mw.pipeline "publish" {
  from    = broker:channel "image.watermarked",
  handler = "handlers.publish",
  dedupe  = { key = "image", ttl = 3600 }, -- an image goes online once
}

broker:channel("image.published", { retain = { count = 1000 } }) -- nobody reads it yet; the last thousand stay

-- A second pipeline on the same channel has a group of its own: it sees every upload and takes none away.
mw.pipeline "watch" {
  from    = broker:channel "image.uploaded",
  handler = "log",
  options = { text = "upload", fields = { "image", "format" } },
}
