-- Puts a run in the place of what it was made from. KEYS: the run, its tenant's runs by time. ARGV: what was there ('' for
-- nothing), what comes there, the run's id, its last time in milliseconds, seconds to live, how many runs a tenant may have.
-- Returns 1, or 0 where something else was there.
local there = redis.call('GET', KEYS[1]) or ''
if there ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[5])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[5])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -1 - tonumber(ARGV[6]))
return 1
