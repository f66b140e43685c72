local testing = require "moonwire.testing"

describe("mails", function()
  local app

  before_each(function() app = testing.start() end)
  after_each(function() app:stop() end)

  it("go out by importance; the reminder comes when it is time", function()
    app:publish("user.signed-up", { user = "ann@example.org" })
    local function mail(kind) return { to = "ann@example.org", kind = kind } end
    app:run()
    assert.published(app, "mail.sent", { mail "code", mail "newsletter" })
    app:advance(3599) -- no time passes on the real clock
    assert.published(app, "mail.sent", 2)
    app:advance(1)
    assert.published(app, "mail.sent", { mail "code", mail "newsletter", mail "reminder" })
  end)
end)
