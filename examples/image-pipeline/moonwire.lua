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

-- A pipeline of its own has a group of its own: it sees every image and takes none away.
mw.pipeline "log" {
  from    = broker:channel("image.published", { retain = { count = 1000 } }),
  handler = "log",
  options = { text = "image online", fields = { "image", "url" } },
}
