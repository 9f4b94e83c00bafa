-- These are the tenant's from now on, unless they are somebody's. ARGV: now, bound, tenant, objects.
-- Returns how many there are, how many had to go, and whose each is.
local now, bound, tenant = now_s(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local said = { 0, 0 }
for at = 4, #ARGV do
  redis.call('HSETNX', OWNERS, ARGV[at], tenant)
  touch(ARGV[at], now)
  said[#said + 1] = redis.call('HGET', OWNERS, ARGV[at])
end
local lost = 0
while redis.call('HLEN', OWNERS) > bound and lost < #ARGV + 64 do
  local first = redis.call('ZPOPMIN', USED)[1]
  if not first then -- a server that is short of memory has dropped the order
    break
  end
  lost = lost + redis.call('HDEL', OWNERS, first)
end
keep()
said[1], said[2] = redis.call('HLEN', OWNERS), lost
return said
