-- Note a name that something is kept under, and until when at least; forget some whose time is over.
-- KEYS[1] name -> until when. ARGV: now, for how many seconds, the name, how many there may be. Returns 0 where there are too many.
local now, ms, name = now_s(ARGV[1]), math.ceil(tonumber(ARGV[2]) * 1000), ARGV[3]
local over = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 100)
if #over > 0 then
  redis.call('ZREM', KEYS[1], unpack(over))
end
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[4]) and not redis.call('ZSCORE', KEYS[1], name) then
  return 0
end
redis.call('ZADD', KEYS[1], 'GT', now + ms / 1000, name)
if redis.call('PTTL', KEYS[1]) < ms then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ms))
end
return 1
