local testing = require "moonwire.testing"

describe("image pipeline", function()
  local app

  before_each(function() app = testing.start() end)
  after_each(function() app:stop() end)

  local function upload(fields)
    local image = { image = "cat", format = "png", width = 4000, height = 3000 }
    for name, value in pairs(fields or {}) do image[name] = value end
    app:publish("image.uploaded", image, { key = image.image })
  end

  it("takes an upload through all steps", function()
    upload()
    app:settle()
    local online = app:published "image.published"
    assert.equal(1, #online)
    assert.equal("cat", online[1].key)
    assert.equal("https://img.example/cat", online[1].data.url)
    assert.same({
      { width = 320, height = 240, marked = true }, { width = 1280, height = 960, marked = true },
    }, online[1].data.sizes)
    assert.equal(1, app:handled "watch")
  end)

  it("does not enlarge small ones", function()
    upload { width = 100, height = 50 }
    app:settle()
    for _, size in ipairs(app:published("image.published")[1].data.sizes) do
      assert.same({ width = 100, height = 50, marked = true }, size)
    end
  end)

  it("gives up on a format at once, and keeps it", function()
    upload { format = "tiff" }
    app:settle()
    local dead = app:dead "resize"
    assert.same({ "unsupported", "1" }, { dead[1].headers["mw-dead-class"], dead[1].headers["mw-dead-attempts"] })
    assert.equal(0, app:handled "watermark")
  end)

  it("puts an image online once", function()
    upload()
    upload()
    app:settle()
    assert.equal(2, app:handled "watermark")
    assert.equal(1, app:status("publish").deduped)
    assert.equal(1, #app:published "image.published")
  end)

  it("repeats a step at most when the broker loses acks and connections", function()
    app:fault("lose_ack", 2)
    upload()
    app:settle()
    app:cut() -- what was not acked comes again
    app:settle()
    assert.equal(1, #app:published "image.published")
  end)
end)
