-- These are nobody's any more. ARGV: objects. Returns how many there are.
for at = 1, #ARGV do
  redis.call('HDEL', OWNERS, ARGV[at])
  redis.call('ZREM', USED, ARGV[at])
end
return redis.call('HLEN', OWNERS)
