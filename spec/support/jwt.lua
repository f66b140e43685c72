-- jwt.lua - unsecured JWTs, which brokers in specs accept. Also read as text by a project of a spec, hence without
-- anything that a sandbox lacks.
local LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

local function base64url(text)
  local out, bits, count = {}, 0, 0
  for i = 1, #text do
    bits, count = bits * 256 + text:byte(i), count + 8
    while count >= 6 do
      local high = math.floor(bits / 2 ^ (count - 6))
      out[#out + 1] = LETTERS:sub(high + 1, high + 1)
      bits, count = bits - high * 2 ^ (count - 6), count - 6
    end
  end
  if count > 0 then
    local last = bits * 2 ^ (6 - count) + 1
    out[#out + 1] = LETTERS:sub(last, last)
  end
  return table.concat(out)
end

--- A token of the user "me" that lives so many seconds from now; a negative life has ended.
return function(now, life)
  now = math.floor(now)
  local claims = ('{"sub":"me","iat":%d,"exp":%d}'):format(math.min(now, now + life), now + life)
  return base64url '{"alg":"none"}' .. "." .. base64url(claims) .. "."
end
