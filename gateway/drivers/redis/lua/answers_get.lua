-- What is kept under an id, if it has not run out; it is used now.
-- KEYS[5] its value. ARGV: now, id. Returns nothing, or the seconds that are left and the value.
local now, id = now_s(ARGV[1]), ARGV[2]
local ends = redis.call('ZSCORE', ENDS, id)
if not ends or tonumber(ends) <= now then
  return {}
end
local value = redis.call('GET', KEYS[5])
if not value then -- the server was short of memory
  check()
  take_out(id)
  return {}
end
redis.call('ZADD', ORDER, 'XX', now, id)
return { exactly(tonumber(ends) - now), value }
