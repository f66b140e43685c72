-- Addresses of brokers: what is relative in them belongs to the project.
local address = require "moonwire.internal.config.address"

local function resolved(url, dir) return address.resolve(url, dir or "/srv/shop") end

describe("an address", function()
  it("takes a relative folder for one of the project", function()
    assert.equal("embedded:/srv/shop/data", resolved "embedded:data")
    assert.equal("embedded:/srv/shop/data?size=1GB", resolved "embedded:data?size=1GB")
    assert.equal("embedded:/var/data", resolved "embedded:/var/data")
    assert.equal("embedded:/odd %25%3F%26/data", resolved("embedded:data", "/odd %?&"))
  end)

  it("does the same with files of certificates", function()
    assert.equal("x://h:1/0?ca=/srv/shop/tls/ca.pem&cert=/srv/shop/c.pem&key=/srv/shop/k.pem",
      resolved "x://h:1/0?ca=tls/ca.pem&cert=c.pem&key=k.pem")
    assert.equal("x://h?a=b&ca=/srv/a%26b/ca.pem", resolved("x://h?a=b&ca=ca.pem", "/srv/a&b"))
  end)

  it("leaves everything else as it is", function()
    for _, url in ipairs { "x://h?ca=/etc/ca.pem&key=%2Fk.pem", "x://h?ca=&xca=f&tls_name=ca", "memory:a",
      "x://u:p@h/ca=b", "embedded:", "x:?" } do
      assert.equal(url, resolved(url))
    end
  end)
end)
