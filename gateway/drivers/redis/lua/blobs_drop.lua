-- Begins removals: the blobs' bytes are counted until the removals have ended. KEYS: kept, open, due. ARGV: for how many seconds
-- one may take, and the names. One that is not kept may have its name all the same, from a writer that died meanwhile.
local due = now_s('') + tonumber(ARGV[1])
for at = 2, #ARGV do
  local entry = ARGV[at] .. ':'
  redis.call('HINCRBY', KEYS[2], entry, redis.call('HGET', KEYS[1], ARGV[at]) or 0)
  redis.call('HDEL', KEYS[1], ARGV[at])
  redis.call('ZADD', KEYS[3], due, entry)
end
return 1
