-- Looks for letters to be trimmed. ARGV behind the usual: before when, how many.
-- Returns now, ids of those that came before, the bytes of all, and the oldest that have some.
local old = redis.call('ZRANGEBYSCORE', BASE .. ':dead_at', '-inf', '(' .. ARGV[3], 'LIMIT', 0, ARGV[4])
local big = {}
for _, id in ipairs(redis.call('ZRANGE', BASE .. ':dead_big', 0, ARGV[4] - 1)) do
  big[#big + 1] = letter_of(id)
end
return { said(), 0, old, redis.call('HGET', BASE .. ':dead_bytes', '*') or '0', big }
