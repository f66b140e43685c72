local testing = require "moonwire.testing"

describe("mails", function()
  local app

  before_each(function() app = testing.start { env = { REMIND_AFTER = "0.2" } } end)
  after_each(function() app:stop() end)

  it("go out by importance; the reminder comes when it is time", function()
    app:publish("user.signed-up", { user = "ann@example.org" })
    app:settle()
    local kinds = {}
    for i, mail in ipairs(app:published "mail.sent") do kinds[i] = mail.data.kind end
    assert.same({ "code", "newsletter", "reminder" }, kinds)
  end)
end)
