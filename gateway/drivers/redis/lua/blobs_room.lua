-- Counts bytes of a blob in the making, if there is room for them. KEYS: kept, open, due, total. ARGV: the writer's entry, how
-- many bytes more, how many there may be in all, for how many seconds they are counted without a word of the writer.
-- Returns 1 or 0, and some entries whose time is up: NAME:NONCE of a writer, NAME: of a removal that was not seen to its end.
local now = now_s('')
local said = { 0 }
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 8)) do
  local name, nonce = string.match(entry, '^(.*):(.*)$')
  if nonce == '' and redis.call('HEXISTS', KEYS[1], name) == 1 then -- there is a new one: the removal is void
    redis.call('DECRBY', KEYS[4], redis.call('HGET', KEYS[2], entry) or 0)
    redis.call('HDEL', KEYS[2], entry)
    redis.call('ZREM', KEYS[3], entry)
  else
    said[#said + 1] = entry
  end
end
local more = tonumber(ARGV[2])
if tonumber(redis.call('GET', KEYS[4]) or '0') + more <= tonumber(ARGV[3]) then
  said[1] = 1
  redis.call('HINCRBY', KEYS[2], ARGV[1], more)
  redis.call('ZADD', KEYS[3], now + tonumber(ARGV[4]), ARGV[1])
  redis.call('INCRBY', KEYS[4], more)
end
return said
