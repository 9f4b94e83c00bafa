-- Ends an entry of a blob in the making, or of a removal. KEYS: kept, open, due, total. ARGV: the entry, the blob's name, its
-- bytes if it is kept now, else -1.
local total = 0 - tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0')
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
if tonumber(ARGV[3]) >= 0 then
  total = total + tonumber(ARGV[3]) - tonumber(redis.call('HGET', KEYS[1], ARGV[2]) or '0')
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
end
return redis.call('INCRBY', KEYS[4], total)
