-- Note names that something is kept under, and until when at least; forget some whose time is over.
-- KEYS[1] name -> until when. ARGV: now, for how many seconds, names.
local now, ms = now_s(ARGV[1]), math.ceil(tonumber(ARGV[2]) * 1000)
for which = 3, #ARGV do
  redis.call('ZADD', KEYS[1], 'GT', now + ms / 1000, ARGV[which])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('PTTL', KEYS[1]) < ms then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ms))
end
return 1
