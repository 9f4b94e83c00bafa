-- Whose these are; they are used now. ARGV: now, objects. Returns how many there are, and whose each is, '' for nobody's.
local now = now_s(ARGV[1])
local said = { redis.call('HLEN', OWNERS) }
for at = 2, #ARGV do
  local owner = redis.call('HGET', OWNERS, ARGV[at])
  if owner then
    touch(ARGV[at], now)
  end
  said[#said + 1] = owner or ''
end
return said
