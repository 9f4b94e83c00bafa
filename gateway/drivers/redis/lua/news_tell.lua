-- Tell all replicas something, and keep it for those who come while it lasts.
-- KEYS[1] kept: about what -> message, KEYS[2] the same -> until when. ARGV: now, how long it lasts in seconds, whether it is
-- kept, about what, the message, the channel, how much is kept at most, for how long it is kept that something is over.
-- Returns the server's time.
-- A message starts with when it was told and when it is over. Of what is about the same the latest end is kept; an earlier
-- one is not even told, all who listen know better. What lasts no time takes the place of what is kept, for a while, and
-- gives it up to whatever comes next.
local now, left, about = now_s(ARGV[1]), tonumber(ARGV[2]), ARGV[4]
local ends = now + left
local told_at = string.format('%.6f', now)
local message = told_at .. string.format(' %.6f ', ends) .. ARGV[5]

local function forget(which)
  redis.call('HDEL', KEYS[1], which)
  redis.call('ZREM', KEYS[2], which)
end

if ARGV[3] == '1' then
  for _, over in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 100)) do
    forget(over)
  end
  local lasts = left > 0 and left or tonumber(ARGV[8])
  local kept = left > 0 and redis.call('HGET', KEYS[1], about)
  if kept then
    local began, ended = string.match(kept, '^(%S+) (%S+) ')
    if began ~= ended and tonumber(ended) >= ends then
      return told_at
    end
  end
  redis.call('HSET', KEYS[1], about, message)
  redis.call('ZADD', KEYS[2], string.format('%.6f', now + lasts), about)
  if redis.call('ZCARD', KEYS[2]) > tonumber(ARGV[7]) then
    forget(redis.call('ZRANGE', KEYS[2], 0, 0)[1])
  end
  local ms = math.ceil(lasts * 1000)
  if redis.call('PTTL', KEYS[2]) < ms then
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ms))
    redis.call('PEXPIRE', KEYS[2], string.format('%.0f', ms))
  end
end
redis.call('PUBLISH', ARGV[6], message)
return told_at
