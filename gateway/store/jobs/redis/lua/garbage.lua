-- Returns now, and names of blobs that nobody needs any more. ARGV behind the usual: how many, until when they were discarded,
-- who asks, 1 if it has heard of those before: otherwise they are named again.
local held = BASE .. ':taken:' .. ARGV[5]
if ARGV[6] == '1' then
  redis.call('DEL', held)
else
  local again = redis.call('LRANGE', held, 0, -1)
  if #again > 0 then
    return { said(), 0, again }
  end
end
local names = redis.call('ZRANGEBYSCORE', BASE .. ':garbage', '-inf', ARGV[4], 'LIMIT', 0, ARGV[3])
for _, name in ipairs(names) do
  redis.call('ZREM', BASE .. ':garbage', name)
  redis.call('RPUSH', held, name)
end
if #names > 0 then
  redis.call('EXPIRE', held, 86400)
end
return { said(), 0, names }
