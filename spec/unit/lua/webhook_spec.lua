-- handlers/webhook.lua with a stand-in for the runtime: what is sent, and which verdict an answer becomes.
describe("handlers.webhook", function()
  local sent, answer, build, now

  setup(function()
    package.loaded["moonwire"] = {
      http = {
        request = function(request)
          sent = request
          if type(answer) == "string" then error(answer, 0) end
          answer.ok = answer.status >= 200 and answer.status < 300
          answer.headers, answer.body = answer.headers or {}, answer.body or ""
          return answer
        end,
      },
      retry = function(t)
        t.verdict = "retry"
        return t
      end,
      reject = function(reason, class) return { verdict = "reject", reason = reason, class = class } end,
      now = function() return now end,
    }
    package.loaded["moonwire.internal.nearest"] = function(word, list)
      for _, name in ipairs(list) do
        if name:sub(1, 2) == word:sub(1, 2) then return name end
      end
    end
    build = dofile("handlers/webhook.lua").new
  end)

  teardown(function()
    package.loaded["moonwire"] = nil
    package.loaded["moonwire.internal.nearest"] = nil
  end)

  local function message(fields)
    local msg = { body = "{}", id = "m1", attempt = 2, type = "application/json" }
    for name, value in pairs(fields or {}) do msg[name] = value end
    return msg
  end

  local function verdict(status, headers, options)
    answer = { status = status, headers = headers, body = "because" }
    options = options or {}
    options.url = "https://user:secret@shop.example/hook?token=t"
    return build(options).handle(message())
  end

  it("forwards body, type, id, key and attempt", function()
    answer = { status = 204 }
    local handler = build { url = "http://127.0.0.1/hook", headers = { ["X-Env"] = "test" }, timeout = 5 }
    assert.is_nil(handler.handle(message { key = "a b\r\n%\255" }))
    assert.same({
      method = "POST", url = "http://127.0.0.1/hook", body = "{}", timeout = 5,
      headers = {
        ["x-env"] = "test", ["content-type"] = "application/json", ["moonwire-id"] = "m1",
        ["moonwire-key"] = "a b%0D%0A%25%FF", ["moonwire-attempt"] = "2",
      },
    }, sent)
  end)

  it("leaves out what the message does not have, and a type that cannot be a header", function()
    answer = { status = 200 }
    build({ url = "http://h/", method = "PUT" }).handle(message { type = "" })
    assert.equal("PUT", sent.method)
    assert.is_nil(sent.headers["moonwire-key"])
    assert.is_nil(sent.headers["content-type"])
    build({ url = "http://h/" }).handle(message { type = "a\r\nEvil: 1" })
    assert.is_nil(sent.headers["content-type"])
    build({ url = "http://h/", headers = { ["Content-Type"] = "x/y" } }).handle(message())
    assert.equal("x/y", sent.headers["content-type"])
  end)

  it("answers by status", function()
    for _, status in ipairs { 200, 201, 204 } do assert.is_nil(verdict(status)) end
    for _, status in ipairs { 302, 408, 425, 429, 500, 503 } do assert.equal("retry", verdict(status).verdict) end
    for _, status in ipairs { 400, 401, 404, 410, 422 } do
      local v = verdict(status)
      assert.same({ "reject", "rejected" }, { v.verdict, v.class })
    end
    assert.equal("retry", verdict(404, nil, { retry_on = { 404 } }).verdict)
  end)

  it("says who answered what, without secrets", function()
    assert.equal("POST https://shop.example answered 422: because", verdict(422).reason)
  end)

  it("honours Retry-After", function()
    assert.is_nil(verdict(503).after)
    assert.equal(7, verdict(503, { ["retry-after"] = "7" }).after)
    assert.equal(86400, verdict(503, { ["retry-after"] = "99999999999" }).after)
    assert.is_nil(verdict(503, { ["retry-after"] = "soon" }).after)
    now = 1792567680 -- 2026-10-21 07:28:00 GMT
    assert.equal(90, verdict(429, { ["retry-after"] = "Wed, 21 Oct 2026 07:29:30 GMT" }).after)
    assert.equal(0, verdict(429, { ["retry-after"] = "Wed, 21 Oct 2020 07:29:30 GMT" }).after)
    now = 1709164800 - 10 -- 2024-02-29
    assert.equal(10, verdict(429, { ["retry-after"] = "Thu, 29 Feb 2024 00:00:00 GMT" }).after)
  end)

  it("lets a failure pass, which is a retry by policy", function()
    answer = "connect: refused"
    assert.has_error(function() build({ url = "http://h/" }).handle(message()) end, "connect: refused")
  end)

  it("refuses wrong options, clearly", function()
    for want, options in pairs {
      ["url must be an http:// or https:// URL, not missing"] = {},
      ['url must be an http:// or https:// URL, not "ftp://x"'] = { url = "ftp://x" },
      ['unknown option "uri"'] = { uri = "http://h/" },
      ['unknown option "retries"; did you mean "retry_on"?'] = { url = "http://h/", retries = 1 },
      ["method must be POST, PUT or PATCH"] = { url = "http://h/", method = "GET" },
      ["timeout must be a number of seconds"] = { url = "http://h/", timeout = "5" },
      ['the value of "X" must be a string'] = { url = "http://h/", headers = { X = "a\nb" } },
      ["is not a header name"] = { url = "http://h/", headers = { ["X Y"] = "a" } },
      ["is set by the handler itself"] = { url = "http://h/", headers = { ["Moonwire-Id"] = "a" } },
      ["retry_on must be a list of statuses from 300 to 599"] = { url = "http://h/", retry_on = { 200 } },
      ["retry_on must be a list of statuses, not a number"] = { url = "http://h/", retry_on = 404 },
    } do
      local ok, problem = pcall(build, options)
      assert.is_false(ok)
      assert(problem:find(want, 1, true), problem)
    end
    assert.has_error(function() build() end)
  end)
end)
